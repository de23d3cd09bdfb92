"""Layers: the linear layer in both its forms, activations, stochastic depth."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pointvit import layers
from pointvit.layers import DropPath, Linear, Mlp, QuickGELU, linear

Randomise = Callable[..., nn.Module]


def tokens(batch: int = 2, length: int = 17, dim: int = 48) -> Tensor:
    return torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[True, False], ids=["convolution", "matrix product"])
def convolution(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both forms, whatever processor this is."""
    monkeypatch.setattr(layers, "_amd_with_avx512", lambda: request.param)
    return request.param


@pytest.mark.parametrize("bias", [True, False])
def test_both_forms_of_a_linear_layer_give_the_same(
    bias: bool, convolution: bool, randomise: Randomise
) -> None:
    layer = randomise(Linear(48, 20, bias=bias))
    x = tokens().requires_grad_()
    weights = [layer.weight, x, *([layer.bias] if bias else [])]
    out, expected = layer(x), F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    g = torch.randn(2, 17, 20)
    for ours, theirs in zip(
        torch.autograd.grad(out, weights, g), torch.autograd.grad(expected, weights, g), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_only_float32_tokens_go_through_a_convolution(convolution: bool) -> None:
    """Its result has the channels apart in memory, the other not."""

    def apart(x: Tensor) -> bool:
        return not linear(x, torch.ones(20, 48, dtype=x.dtype)).is_contiguous()

    assert apart(tokens()) == convolution
    assert not apart(tokens().double())
    assert not apart(tokens().bfloat16())
    assert not apart(tokens()[0])
    assert linear(tokens()[:0], torch.ones(20, 48)).shape == (0, 17, 20)
    assert linear(tokens()[:, :0], torch.ones(20, 48)).shape == (2, 0, 20)
    with torch.autocast("cpu", torch.bfloat16):
        assert not apart(tokens())
        assert linear(tokens(), torch.ones(20, 48)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    ],
)
def test_activations(activation: str, function: Callable[[Tensor], Tensor], randomise: Randomise) -> None:
    mlp, x = randomise(Mlp(48, 96, activation)), tokens()
    torch.testing.assert_close(mlp(x), mlp.fc2(function(mlp.fc1(x))), rtol=1e-6, atol=1e-6)
    others = {"gelu", "gelu_tanh", "quick_gelu"} - {activation}
    for other in others:
        differing = Mlp(48, 96, other)
        differing.load_state_dict(mlp.state_dict())
        assert not torch.allclose(differing(x), mlp(x), rtol=1e-5, atol=1e-5), other


def test_quick_gelu_values() -> None:
    values = QuickGELU()(torch.tensor([0.0, 1.0, -1.0]))
    assert values.tolist() == pytest.approx([0.0, 0.84580, -0.15420], abs=1e-5)


def test_drop_path_keeps_the_mean_and_drops_whole_samples() -> None:
    drop, x = DropPath(0.3), torch.ones(20_000, 2, 3)
    y = drop(x)
    assert abs(y.mean().item() - 1) < 0.02
    assert bool((y == y[:, :1, :1]).all())
    assert sorted(y.unique().tolist()) == pytest.approx([0, 1 / 0.7])
    assert torch.equal(drop.eval()(x), x)
    assert torch.equal(DropPath(0.0)(x), x)
