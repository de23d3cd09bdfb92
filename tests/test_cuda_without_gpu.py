"""What a GPU would run, without one: torch's fake tensors have a device and a shape, but no numbers.

They refuse what mixes devices, and what would make the host wait for a number of the device (``.item()``,
``bool(tensor)``, a shape that depends on values), both of which pass unnoticed on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import pointvit
from pointvit.data import transforms
from pointvit.ops import group, native
from pointvit.training import apply_transfer
from pointvit.training.agreement import contrastive_loss

SMALL = {"depth": 2, "num_classes": 5}
MODELS = {
    "points": ("pointvit_tiny", SMALL),
    "dropping": ("pointvit_tiny", {**SMALL, "patch_drop_rate": 0.6, "drop_path_rate": 0.1}),
    "fourier": ("pointvit_tiny", {**SMALL, "pos_embed": "fourier"}),
    "projected": ("pointvit_tiny", {**SMALL, "pos_embed": "projected"}),
    "point_mae": ("pointvit_tiny", {**SMALL, "head": "point_mae"}),
    "image": ("vit_tiny_patch16_224", SMALL),
    "hybrid": ("vit_tiny_r_s16_p8_224", SMALL),
}
AUGMENTATIONS = (
    transforms.NormalizeUnitSphere(),
    transforms.RandomScaleTranslate(),
    transforms.RandomRotate(),
    transforms.RandomJitter(),
    transforms.RandomDropPoints(),
)


pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="this torch cannot imitate CUDA tensors")


def gpu() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def half_precision(enabled: bool) -> Iterator[None]:
    """bf16-mixed, by the switches themselves: without a GPU, torch.autocast leaves them off."""
    torch.set_autocast_enabled("cuda", enabled)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.clear_autocast_cache()


def clouds() -> Tensor:
    return torch.empty(4, 256, 3, device="cuda")


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[nn.Module], nn.Module]:
    """To be used inside of :func:`gpu`, on a model that was made outside."""
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    return lambda module: module.to_empty(device="cuda")


def test_it_would_notice() -> None:
    with gpu():
        with pytest.raises(RuntimeError, match="device"):
            clouds() + torch.empty(4, 256, 3)
        with pytest.raises(DataDependentOutputException):
            bool(clouds().any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_encoders(
    name: str, train: bool, dtype: torch.dtype, moved: Callable[[nn.Module], nn.Module]
) -> None:
    variant, settings = MODELS[name]
    model = pointvit.create_model(variant, **settings).train(train)
    with gpu(), half_precision(dtype == torch.bfloat16):
        model = moved(model)
        images = model.config.modality == "image"
        logits = model(torch.empty(4, 3, 224, 224, device="cuda") if images else clouds())
    assert logits.shape == (4, 5)
    assert (logits.device.type, logits.dtype) == ("cuda", dtype)


@pytest.mark.parametrize("mode", ["lora", "adapter", "prompt", "norm", "head"])
def test_transfer_modes(mode: str, moved: Callable[[nn.Module], nn.Module]) -> None:
    model = pointvit.create_model("pointvit_tiny", **SMALL)
    apply_transfer(model, mode)
    with gpu():
        assert moved(model)(clouds()).device.type == "cuda"


@pytest.mark.parametrize("transform", AUGMENTATIONS, ids=lambda transform: type(transform).__name__)
def test_augmentation(transform: transforms.Transform) -> None:
    with gpu():
        points = transform(clouds())
        assert points.shape == (4, 256, 3)
        assert points.device.type == "cuda"


def test_point_operations_in_torch() -> None:
    with gpu():
        points, lengths = clouds(), torch.full((4,), 200, device="cuda")
        index = native.farthest_point_sample(points, 16, lengths, torch.zeros_like(lengths))
        centers = group(points, index)
        for found in (
            native.knn(centers, points, 8, lengths),
            native.ball_query(centers, points, 0.1, 8, lengths),
        ):
            assert found.shape == (4, 16, 8)
            assert found.device.type == "cuda"


def test_losses_of_alignment() -> None:
    with gpu():
        loss = contrastive_loss(torch.empty(4, 8, device="cuda"), torch.empty(4, 8, device="cuda"), 0.1)
        assert loss.device.type == "cuda"
