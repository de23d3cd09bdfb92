"""The layers that keep less for the backward pass compute what autograd does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pointvit
from pointvit import lean
from pointvit.mini_pointnet import MiniPointNet
from pointvit.trunk import Block, TrunkConfig

Randomise = Callable[..., nn.Module]
Step = tuple[Tensor, dict[str, Tensor], int]


def step(model: nn.Module, x: Tensor, half: bool = True) -> Step:
    """Output, gradients of the input and of all parameters, and bytes kept for the backward pass."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
    ):
        y = model(x)
    weights = torch.linspace(-1, 1, y.numel()).view_as(y)
    (y.float() * weights).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return y.detach(), {"input": x.grad, **gradients}, sum(storages.values())


def relative(given: Tensor, expected: Tensor) -> float:
    return ((given.float() - expected.float()).norm() / expected.float().norm()).item()


def compare(model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch, less: float) -> None:
    """As near to float32 as autograd comes in half precision, with at most ``less`` of its memory."""
    exact = step(model, x, half=False)
    given = step(model, x)
    monkeypatch.setattr(lean, "applies", lambda _: False)
    plain = step(model, x)
    monkeypatch.undo()
    assert given[0].dtype == plain[0].dtype
    assert relative(given[0], exact[0]) < 1.2 * relative(plain[0], exact[0]) + 1e-3
    assert given[1].keys() == plain[1].keys()
    for name, gradient in given[1].items():
        assert gradient.dtype == plain[1][name].dtype
        # A bias before a batch norm has no gradient: what remains is rounding, on the scale of the largest.
        scale = max(float(g.float().norm()) for g in exact[1].values())
        error, usual = ((g - exact[1][name]).float().norm() for g in (gradient, plain[1][name]))
        assert error < 1.5 * usual + 2e-3 * scale, name
    assert given[2] < less * plain[2]


def test_layer_norm(randomise: Randomise, monkeypatch: pytest.MonkeyPatch) -> None:
    class Normed(nn.Module):
        """With what follows a norm in a block, which keeps the half precision of its result anyway."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = lean.LayerNorm(48, eps=1e-6), nn.Linear(48, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.norm(x))

    compare(randomise(Normed()), 3 + torch.randn(4, 65, 48), monkeypatch, less=0.75)


def test_block(randomise: Randomise, monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(TrunkConfig(embed_dim=48, num_heads=3, layer_scale=0.1), 0.0)
    compare(randomise(block), torch.randn(3, 33, 48), monkeypatch, less=0.8)


@pytest.mark.parametrize("size", [1, 7, 32])
def test_mini_pointnet(randomise: Randomise, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(lean, "_POINTS_AT_A_TIME", 40)
    net = randomise(MiniPointNet(6, 24, width=16)).train()
    compare(net, torch.randn(2, 9, size, 6), monkeypatch, less=0.85 if size > 1 else 1.01)


@pytest.mark.parametrize("size", [4, lean.LARGEST_GROUP])
def test_of_equal_points_the_first_gets_the_gradient(size: int) -> None:
    x = torch.ones(1, size, 3, dtype=torch.bfloat16, requires_grad=True)
    lean.largest_of_linear(x, torch.ones(2, 3), torch.zeros(2)).sum().backward()
    assert x.grad is not None
    assert x.grad[0, 0].eq(2).all()
    assert x.grad[0, 1:].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 5, 32, 256])
@pytest.mark.parametrize("apart", [False, True], ids=["together", "channels apart"])
def test_largest_equals_torchs(dtype: torch.dtype, size: int, apart: bool) -> None:
    x = torch.randn(7, 6, size).mT if apart else torch.randn(7, size, 6)
    x = x.to(dtype).requires_grad_()
    found, expected = lean.largest(x), x.max(dim=1).values
    assert torch.equal(found, expected)
    direction = torch.randn(7, 6).to(dtype)
    one, other = (torch.autograd.grad(y, x, direction)[0] for y in (found, expected))
    assert one.stride() == x.stride()
    values = x.detach()
    alone = (values == expected[:, None]).sum(dim=1) == 1  # half precision makes ties
    assert torch.equal((one * alone[:, None]), (other * alone[:, None]))
    assert torch.equal(one.sum(dim=1), direction)


def test_largest_of_what_is_not_a_number() -> None:
    x = torch.full((1, 3, 2), torch.nan, requires_grad=True)
    y = lean.largest(x)
    y.sum().backward()
    assert y.isnan().all()
    assert x.grad is not None


@pytest.mark.parametrize(
    "settings", [{"activation": "gelu_tanh"}, {"activation": "quick_gelu"}, {"drop_rate": 0.1}]
)
def test_what_is_not_covered_goes_the_usual_way(
    settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Block(TrunkConfig(embed_dim=48, num_heads=3, **settings), 0.0).train()  # type: ignore[arg-type]
    monkeypatch.setattr(lean, "gelu_linear", lambda *_: pytest.fail("is for an exact GELU without dropout"))
    step(block, torch.randn(2, 5, 48))
    monkeypatch.undo()


def test_a_model_keeps_little_more_than_half(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pointvit.create_model("pointvit_tiny", num_classes=5, depth=3, head="linear").train()
    clouds = torch.rand(4, 256, 3)
    kept = []
    for applies in (lean.applies, lambda _: False):
        monkeypatch.setattr(lean, "applies", applies)
        kept.append(step(model, clouds)[2])
    weights = sum(p.numel() * 2 for p in model.parameters() if p.ndim > 1)
    assert kept[0] - weights < 0.6 * (kept[1] - weights)
