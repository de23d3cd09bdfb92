"""Attention rollout, distance and entropy against their definitions, token by token, and closed forms."""

import math
import pickle

import pytest
import torch
from torch import Tensor

import pointvit
from pointvit.compare import (
    AttentionStatistics,
    Layer,
    attention_distance,
    attention_entropy,
    attention_rollout,
    groups_to_points,
    in_radii,
    patches_to_pixels,
    rollout_to_patches,
    without_prefix,
)


def weights(layers: int, batch: int, heads: int, tokens: int) -> list[Tensor]:
    return [torch.randn(batch, heads, tokens, tokens).mul(2).softmax(dim=-1) for _ in range(layers)]


def by_paths(layers: list[Tensor]) -> Tensor:
    """The share of input j in output i: the sum over every path through the layers, one by one."""
    *before, last = layers
    tokens = len(last)
    result = torch.zeros(tokens, tokens)
    earlier = by_paths(before) if before else torch.eye(tokens)
    for out in range(tokens):
        for source in range(tokens):
            for through in range(tokens):
                step = 0.5 * last[out, through] + 0.5 * (out == through)
                result[out, source] += step * earlier[through, source]
    return result


@pytest.mark.parametrize(("layers", "batch", "heads", "tokens"), [(1, 1, 1, 2), (3, 2, 4, 5), (2, 3, 1, 1)])
def test_is_the_sum_over_all_paths(layers, batch, heads, tokens):
    given = weights(layers, batch, heads, tokens)
    found = attention_rollout(given)
    for b in range(batch):
        torch.testing.assert_close(found[b], by_paths([w[b].mean(0) for w in given]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.sum(-1), torch.ones(batch, tokens))


def test_the_first_layer_comes_first():
    """Token 0 reads 1 in the first layer and token 2 reads 0 in the second: then 2 is made of 1."""
    first, second = torch.eye(3), torch.eye(3)
    first[0], second[2] = torch.tensor([0.0, 1, 0]), torch.tensor([1.0, 0, 0])
    found = attention_rollout([first[None, None], second[None, None]])[0]
    assert found[2].tolist() == [0.25, 0.25, 0.5]
    assert attention_rollout([second[None, None], first[None, None]])[0, 2].tolist() == [0.5, 0.0, 0.5]


def test_half_precision_is_computed_in_float32():
    given = weights(12, 1, 3, 65)
    found = attention_rollout([w.bfloat16() for w in given])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 65))
    torch.testing.assert_close(found, attention_rollout(given), atol=1e-2, rtol=0)


def test_a_models_weights(randomise):
    model = pointvit.create_model("pointvit_tiny", depth=2, num_groups=8, group_size=4).eval()
    with torch.inference_mode():
        found = attention_rollout(randomise(model).attention_weights(torch.randn(2, 32, 3)))
    assert found.shape == (2, 9, 9)
    assert float(found.min()) > 0
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 9))


@pytest.mark.parametrize(
    "given",
    [
        [],
        [torch.ones(1, 4, 4)],
        [torch.ones(1, 1, 4, 5)],
        [torch.ones(1, 1, 4, 4), torch.ones(1, 1, 5, 5)],
        [torch.ones(1, 1, 4, 4), torch.ones(2, 1, 4, 4)],
    ],
)
def test_other_shapes_are_refused(given):
    with pytest.raises(ValueError, match="attention rollout needs"):
        attention_rollout(given)


def grid(rows: int, cols: int, h: float, w: float) -> Tensor:
    return torch.cartesian_prod(torch.arange(rows) * h, torch.arange(cols) * w)


def uniform(batch: int, heads: int, tokens: int) -> Tensor:
    return torch.full((batch, heads, tokens, tokens), 1 / tokens)


def test_distance_of_uniform_attention_on_patches():
    """116.49 pixels on 14x14 patches of 16; a grid need not be square, nor its patches."""
    found = attention_distance(uniform(2, 3, 196), grid(14, 14, 16.0, 16.0))
    torch.testing.assert_close(found, torch.full((3,), 116.4922), atol=1e-3, rtol=0)
    # On a single row of n patches the mean is (n^2 - 1) / 3n widths.
    found = attention_distance(uniform(1, 1, 10), grid(1, 10, 16.0, 8.0))
    assert float(found) == pytest.approx(8 * 99 / 30, rel=1e-5)


def test_distance_of_identity_and_of_a_shift():
    tokens = 12
    places = torch.randn(2, tokens, 3) * 1e3
    identity = torch.eye(tokens).expand(2, 4, -1, -1)
    assert attention_distance(identity, places).tolist() == [0.0] * 4
    row = grid(1, tokens, 1.0, 5.0)
    assert float(attention_distance(torch.eye(tokens).roll(1, 0)[None, None], row)) == pytest.approx(
        (11 * 5 + 55) / 12
    )


def test_distance_in_radii_on_a_tetrahedron_and_a_sphere():
    """Corners of a regular tetrahedron of radius 1 are sqrt(8/3) apart; points on a sphere 4/3 on average."""
    corners = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])[None]
    cloud = 7 * corners + 3
    found = attention_distance(uniform(1, 2, 4), in_radii(cloud, cloud))
    torch.testing.assert_close(found, torch.full((2,), 0.75 * math.sqrt(8 / 3)))
    sphere = torch.nn.functional.normalize(torch.randn(1, 1500, 3), dim=-1)
    assert float(attention_distance(uniform(1, 1, 1500), sphere)) == pytest.approx(4 / 3, abs=0.02)


def test_distance_is_the_weighted_mean_over_queries_and_batch():
    given, places = weights(1, 2, 3, 7)[0], torch.randn(2, 7, 3)
    expected = torch.zeros(3)
    for b in range(2):
        for head in range(3):
            for i in range(7):
                for j in range(7):
                    expected[head] += given[b, head, i, j] * (places[b, i] - places[b, j]).norm() / 14
    torch.testing.assert_close(attention_distance(given, places), expected)
    torch.testing.assert_close(
        attention_distance(given.bfloat16(), places.double()), expected, atol=0.02, rtol=0
    )
    shared = attention_distance(given, places[0])
    torch.testing.assert_close(shared, attention_distance(given, places[:1].expand(2, -1, -1)))


def test_prefix_tokens_are_cut_and_the_rest_sums_to_one():
    given, places = weights(1, 2, 3, 9)[0], torch.randn(7, 2)
    cut = without_prefix(given, 2)
    assert cut.shape == (2, 3, 7, 7)
    torch.testing.assert_close(cut.sum(-1), torch.ones(2, 3, 7))
    torch.testing.assert_close(cut[0, 1, 3, 4], given[0, 1, 5, 6] / given[0, 1, 5, 2:].sum())
    torch.testing.assert_close(
        attention_distance(given[..., 2:, 2:], places), attention_distance(cut, places)
    )
    assert torch.equal(without_prefix(cut, 0), cut / cut.sum(-1, keepdim=True))
    for prefix in (-1, 9):
        with pytest.raises(ValueError, match="fewer class and register tokens"):
            without_prefix(given, prefix)


def test_entropy():
    torch.testing.assert_close(attention_entropy(uniform(2, 3, 8)), torch.full((3,), math.log(8)))
    assert attention_entropy(torch.eye(8)[None, None]).tolist() == [0.0]
    half = torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1.0]])[None, None]
    assert float(attention_entropy(half)) == pytest.approx(2 / 3 * math.log(2))
    torch.testing.assert_close(attention_entropy(half / 3), attention_entropy(half))


@pytest.mark.parametrize(
    ("given", "places", "message"),
    [
        (torch.ones(4, 4), torch.ones(4, 2), r"must have shape \(B, H, T, T\), got \(4, 4\)"),
        (torch.ones(1, 2, 5, 5), torch.ones(4, 2), "cut class and register tokens first"),
        (
            torch.ones(2, 2, 4, 4),
            torch.ones(3, 4, 2),
            r"positions of shape \(4, 2 or 3\) or \(2, 4, 2 or 3\)",
        ),
        (torch.ones(2, 2, 4, 4), torch.ones(4), "positions of shape"),
    ],
)
def test_distances_of_other_shapes_are_refused(given, places, message):
    with pytest.raises(ValueError, match=message):
        attention_distance(given, places)


def test_statistics_over_objects_equal_all_at_once():
    given, places = weights(2, 6, 3, 9), torch.randn(6, 7, 3)
    statistics = AttentionStatistics()
    for part in torch.arange(6).split([1, 2, 3]):
        tokens = torch.zeros(len(part), 9, 4)
        statistics.observe(Layer(0, tokens, None, places[part], 2))
        for index in (1, 2):
            statistics.observe(Layer(index, tokens, given[index - 1][part], places[part], 2))
    found = statistics.result()
    for index, layer in enumerate(given):
        cut = without_prefix(layer, 2)
        alone = torch.stack([attention_distance(cut[b : b + 1], places[b]) for b in range(6)])
        torch.testing.assert_close(found.distance.mean[index].float(), attention_distance(cut, places))
        torch.testing.assert_close(found.distance.std[index].float(), alone.std(dim=0))
        torch.testing.assert_close(found.entropy.mean[index].float(), attention_entropy(cut))
        expected = layer[:, :, 2:, :2].sum(-1).mean(dim=(0, 2))
        torch.testing.assert_close(found.to_prefix.mean[index].float(), expected)
    assert found.distance.count == 6


def test_memory_does_not_grow_with_the_objects():
    statistics, sizes = AttentionStatistics(), []
    for _ in range(5):
        for _ in range(10):
            statistics.observe(Layer(1, torch.zeros(5, 9, 4), weights(1, 5, 3, 9)[0], torch.randn(8, 2), 1))
        sizes.append(len(pickle.dumps(statistics)))
    assert max(sizes) - min(sizes) < 64, "counters become a byte longer, nothing else"
    assert statistics.result().distance.count == 250


def test_rollout_back_to_pixels():
    rollout = attention_rollout(weights(2, 2, 3, 8))
    values = rollout_to_patches(rollout, num_prefix=2)
    assert torch.equal(values, rollout[:, 0, 2:])
    torch.testing.assert_close(
        rollout_to_patches(rollout, num_prefix=2, class_token=False), rollout[:, 2:, 2:].mean(1)
    )
    pixels = patches_to_pixels(values, size=(8, 9), patch=(4, 3))
    assert pixels.shape == (2, 8, 9)
    for y in range(8):
        for x in range(9):
            assert torch.equal(pixels[:, y, x], values[:, (y // 4) * 3 + x // 3])
    for size in ((8, 10), (12, 9)):
        with pytest.raises(ValueError, match="6 values do not cover an image"):
            patches_to_pixels(values, size, patch=(4, 3))


def test_rollout_back_to_points():
    points, values = torch.randn(2, 50, 6), torch.rand(2, 5)
    centers = points[:, :5, :3]
    found = groups_to_points(values, centers, points)
    nearest = torch.cdist(points[..., :3], centers).argmin(dim=-1)
    assert torch.equal(found, values.gather(1, nearest))
    assert torch.equal(found[:, :5], values)


def test_a_tensor_is_no_list_of_layers():
    with pytest.raises(ValueError, match=r"weights of shape \(B, H, T, T\)"):
        attention_rollout(torch.rand(2, 3, 5, 5))
