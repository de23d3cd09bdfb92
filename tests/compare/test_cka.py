"""CKA against its definition with full Gram matrices, its invariances, and what chance gives."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from pointvit.compare import MinibatchCKA, cka


def features(n: int, d: int) -> Tensor:
    return torch.randn(n, d, dtype=torch.float64) + 3 * torch.randn(d, dtype=torch.float64)


def plain_hsic(k: Tensor, l: Tensor) -> float:  # noqa: E741
    """Gretton et al. 2005: tr(K H L H) / (n - 1)^2."""
    n = len(k)
    h = torch.eye(n, dtype=torch.float64) - 1 / n
    return float(torch.trace(k @ h @ l @ h)) / (n - 1) ** 2


def unbiased_hsic(k: Tensor, l: Tensor) -> float:  # noqa: E741
    """Song et al. 2012, eq. 5, from Gram matrices of features as they are."""
    n, one = len(k), torch.ones(len(k), dtype=torch.float64)
    k, l = k - k.diag().diag(), l - l.diag().diag()  # noqa: E741
    total = torch.trace(k @ l)
    total += (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
    total -= 2 / (n - 2) * (one @ k @ l @ one)
    return float(total) / (n * (n - 3))


def by_grams(x: Tensor, y: Tensor, unbiased: bool) -> float:
    hsic, k, l = unbiased_hsic if unbiased else plain_hsic, x @ x.T, y @ y.T  # noqa: E741
    return hsic(k, l) / math.sqrt(hsic(k, k) * hsic(l, l))


def rotation(d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize(("n", "d1", "d2"), [(4, 3, 5), (40, 5, 9), (12, 64, 7), (10, 30, 50), (300, 8, 8)])
def test_equals_the_definition(n, d1, d2, unbiased):
    x, y = features(n, d1), features(n, d2)
    y[:, : min(d1, d2)] += x[:, : min(d1, d2)]
    assert cka(x, y, unbiased) == pytest.approx(by_grams(x, y, unbiased), abs=1e-9)
    assert cka(x.float(), y.float(), unbiased) == pytest.approx(by_grams(x, y, unbiased), abs=1e-6)
    assert cka(x.numpy(), y.numpy(), unbiased) == cka(x, y, unbiased)


@pytest.mark.parametrize("unbiased", [True, False])
def test_invariances(unbiased):
    x = features(30, 12)
    y = x[:, :7] + 0.5 * features(30, 7)
    found = cka(x, y, unbiased)
    assert 0.1 < found < 0.99
    assert cka(3.0 * x @ rotation(12) + 5.0, 0.01 * y @ rotation(7) - 2.0, unbiased) == pytest.approx(
        found, abs=1e-9
    )
    assert cka(y, x, unbiased) == pytest.approx(found, abs=1e-12)
    assert cka(x, x @ rotation(12), unbiased) == pytest.approx(1.0, abs=1e-9)
    stretched = x * torch.linspace(0.1, 10, 12, dtype=torch.float64)
    assert cka(stretched, y, unbiased) != pytest.approx(found, abs=1e-3)


def test_unrelated_features_of_few_objects():
    """The plain CKA is high for no reason: its expectation is 0.94 at N=16, D=256."""
    pairs = [(torch.randn(16, 256), torch.randn(16, 256)) for _ in range(30)]
    plain = np.mean([cka(x, y, unbiased=False) for x, y in pairs])
    unbiased = [cka(x, y) for x, y in pairs]
    assert plain == pytest.approx(0.94, abs=0.01)
    assert abs(np.mean(unbiased)) < 3 * np.std(unbiased) / math.sqrt(30)
    assert min(unbiased) < 0 < max(unbiased)


def test_permuted_pairs_give_about_zero():
    x = features(64, 20)
    y = x @ rotation(20)
    permuted = [cka(x, y[torch.randperm(64)]) for _ in range(50)]
    assert cka(x, y) == pytest.approx(1.0)
    assert abs(np.mean(permuted)) < 3 * np.std(permuted) / math.sqrt(50)


@pytest.mark.parametrize("unbiased", [True, False])
def test_a_constant_layer_is_undefined(unbiased):
    x, constant = features(8, 3), torch.full((8, 4), 0.1)
    assert math.isnan(cka(x, constant, unbiased))
    assert math.isnan(cka(constant, constant, unbiased))
    one_apart = constant.clone()
    one_apart[2] += 1
    assert math.isnan(cka(x, one_apart)), "an unbiased estimate leaves out what one object alone says"
    assert math.isfinite(cka(x, one_apart, unbiased=False))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.randn(3, 5), torch.randn(3, 5), "at least 4 objects"),
        (torch.randn(8, 5), torch.randn(9, 5), "x has 8 rows and y 9"),
        (torch.randn(8), torch.randn(8, 5), "x must have shape"),
        (torch.randn(8, 5), torch.full((8, 5), torch.nan), "y: the features of 8 of 8 objects are NaN"),
    ],
)
def test_bad_input_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        cka(x, y)


def layers(n: int, shared: Tensor | None = None) -> list[Tensor]:
    """Three layers of growing width; with ``shared`` (n, 6) features the later ones know more of it."""
    made = [torch.randn(n, d, dtype=torch.float64) for d in (6, 9, 12)]
    if shared is not None:
        for depth, layer in enumerate(made):
            layer[:, :6] += depth * shared
    return made


def minibatches(x: list[Tensor], y: list[Tensor], size: int) -> Tensor:
    """Nguyen et al. 2021, eq. 3, from the definition."""
    total = torch.zeros(3, len(x), len(y), dtype=torch.float64)
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            for k, l in zip(a.split(size), b.split(size), strict=True):  # noqa: E741
                k, l = k @ k.T, l @ l.T  # noqa: E741
                total[:, i, j] += len(k) * torch.tensor(
                    [unbiased_hsic(k, l), unbiased_hsic(k, k), unbiased_hsic(l, l)], dtype=torch.float64
                )
    return total[0] / (total[1] * total[2]).sqrt()


@pytest.mark.parametrize("given", [1, 5, 16, 33, 70])
def test_minibatches_equal_the_definition_however_they_come(given):
    shared = torch.randn(70, 6, dtype=torch.float64)
    x, y = layers(70, shared), layers(70, shared)[:2]
    streaming = MinibatchCKA(batch_size=16, draws=2)
    for start in range(0, 70, given):
        streaming.update([f[start : start + given] for f in x], [f[start : start + given] for f in y])
    found = streaming.result()
    torch.testing.assert_close(found.cka, minibatches(x, y, 16), atol=1e-9, rtol=0)
    assert found.objects == 70
    assert found.permuted_mean.shape == found.permuted_std.shape == found.cka.shape == (3, 2)


def test_one_minibatch_is_cka():
    x, y = layers(20), layers(20)
    streaming = MinibatchCKA(batch_size=20)
    streaming.update(x, y)
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            assert float(streaming.result().cka[i, j]) == pytest.approx(cka(a, b), abs=1e-9)


def test_controls_tell_what_is_shared_from_chance():
    shared = torch.randn(200, 6, dtype=torch.float64)
    streaming = MinibatchCKA(batch_size=32)
    for rows in torch.arange(200).split(24):
        x = [f[rows] for f in layers(200, shared)]
        streaming.update(x, [f[rows] for f in layers(200, shared)])
    found = streaming.result()
    assert (found.permuted_mean.abs() < 4 * found.permuted_std / math.sqrt(streaming.draws)).all()
    z = (found.cka - found.permuted_mean) / found.permuted_std
    assert float(z[2, 2]) > 10, "the last layers share their features"
    assert z[0].abs().max() < 4, "the first layer knows nothing of them"
    assert found.cka[2, 2] > found.cka[1, 1] > found.cka[0, 0]


def test_a_constant_layer_is_undefined_alone():
    x, y = layers(40), layers(40)
    x[0] = torch.full_like(x[0], 0.7)
    streaming = MinibatchCKA(batch_size=16)
    streaming.update(x, y)
    found = streaming.result()
    for matrix in (found.cka, found.permuted_mean, found.permuted_std):
        assert matrix[0].isnan().all()
        assert matrix[1:].isfinite().all()


def test_a_rest_of_less_than_four_is_left_out():
    streaming = MinibatchCKA(batch_size=8, draws=2)
    streaming.update(layers(11), layers(11))
    assert streaming.result().objects == 8
    streaming.update(layers(1), layers(1))
    assert streaming.result().objects == 12


def test_memory_does_not_grow_with_the_objects():
    sizes = []
    streaming = MinibatchCKA(batch_size=16, draws=3)
    for _ in range(8):
        streaming.update(layers(25), layers(25))
        sizes.append(len(pickle.dumps(streaming)))
    waiting = 16 * 2 * (6 + 9 + 12) * 8
    assert max(sizes) - min(sizes) < waiting


def test_misuse_is_refused():
    streaming = MinibatchCKA()
    with pytest.raises(ValueError, match="at least 4 objects, got 0"):
        streaming.result()
    streaming.update(layers(3), layers(3))
    with pytest.raises(ValueError, match="at least 4 objects, got 3"):
        streaming.result()
    with pytest.raises(ValueError, match=r"layers of \[5, 5, 5\] and \[6, 6, 6\] objects"):
        streaming.update(layers(5), layers(6))
    with pytest.raises(
        ValueError, match=r"began with \(3, 3\) layers of the two encoders, and now got \(3, 2\)"
    ):
        streaming.update(layers(5), layers(5)[:2])
    broken = layers(5)
    broken[1][2] = torch.inf
    with pytest.raises(ValueError, match="layer 1 of the second encoder"):
        streaming.update(layers(5), broken)
    for settings in ({"batch_size": 3}, {"draws": 1}):
        with pytest.raises(ValueError, match="needs batch_size >= 4 and draws >= 2"):
            MinibatchCKA(**settings)
