"""Both encoders through torch.compile: one graph for every batch size, and the same numbers."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters

import pointvit

MODELS = {
    "vit_tiny_patch16_224": ({"img_size": 32, "num_classes": 5}, lambda b: torch.randn(b, 3, 32, 32)),
    "pointvit_tiny": (
        {"num_groups": 6, "group_size": 5, "width": 16, "num_classes": 5, "head": "linear"},
        lambda b: torch.rand(b, 40, 3),
    ),
}
Randomise = Callable[..., nn.Module]
# What PyTorch's compiler says of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def pair(name: str, training: bool, randomise: Randomise) -> tuple[nn.Module, Callable[[int], Tensor]]:
    settings, inputs = MODELS[name]
    model = pointvit.create_model(name, embed_dim=24, depth=2, num_heads=3, **settings)
    return randomise(model).train(training), inputs


def forward_and_gradients(forward: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    out = forward(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_one_graph_without_breaks_for_every_batch(name: str, training: bool, randomise: Randomise) -> None:
    """What the compiler's front end sees; its back end is replaced by running the graph as it is."""
    model, inputs = pair(name, training, randomise)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (4, 3, 7):
        x = inputs(batch)
        state = {n: t.clone() for n, t in model.state_dict().items()}  # running statistics move in training
        found = forward_and_gradients(compiled, model, x)
        model.load_state_dict(state)
        expected = forward_and_gradients(model, model, x)
        scale = max(t.abs().max() for t in expected)
        for one, other in zip(found, expected, strict=True):
            assert (one - other).abs().max() <= 1e-5 * scale
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("vit_tiny_patch16_224", False),
        pytest.param("vit_tiny_patch16_224", True, marks=pytest.mark.slow),
        pytest.param("pointvit_tiny", False, marks=pytest.mark.slow),
        pytest.param("pointvit_tiny", True, marks=pytest.mark.slow),
    ],
)
def test_compiled_code_computes_the_same(name: str, training: bool, randomise: Randomise) -> None:
    model, inputs = pair(name, training, randomise)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.set_grad_enabled(training), torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (4, 3):
            x = inputs(batch)
            found, expected = compiled(x), model(x)
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    if training:
        found.sum().backward()
