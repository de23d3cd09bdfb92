"""Front ends resampled: positions to other grids, patch projections to other sizes and channels."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from timm.layers.patch_embed import resample_patch_embed
from timm.models._manipulate import adapt_input_conv
from torch import Tensor

from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import CheckpointError
from pointvit.checkpoints.resampling import resample_channels, resample_patches
from pointvit.config import ViTConfig
from pointvit.positions import RESAMPLINGS, resample_grid
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

IMAGE = ViTConfig(TrunkConfig(24, 2, 3), ImageTokenizerConfig((32, 32), (8, 8)), num_classes=5)


@pytest.fixture
def model(randomise: Callable) -> ViT:
    return randomise(ViT(IMAGE)).eval()


@pytest.fixture
def path(model: ViT, tmp_path: Path) -> Path:
    return save_checkpoint(model, tmp_path / "model.safetensors", "timm")


def kernel(size: int = 8, channels: int = 3) -> Tensor:
    return torch.randn(5, channels, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("size", [(8, 8), (16, 16), (12, 10), (6, 6), (4, 8)])
def test_patches_are_resampled_as_timm_does(size: tuple[int, int]) -> None:
    torch.testing.assert_close(
        resample_patches(kernel(), size), resample_patch_embed(kernel(), list(size)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("size", [(16, 16), (10, 13)])
def test_larger_patches_of_a_resized_image_give_the_same_tokens(size: tuple[int, int]) -> None:
    """The definition in FlexiViT's section 3.4: exact where the patch grows."""
    patch = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    larger = F.interpolate(patch, size=size, mode="bicubic", antialias=True)
    before, after = F.conv2d(patch, kernel()), F.conv2d(larger, resample_patches(kernel(), size))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 6])
def test_an_image_whose_channels_are_alike_keeps_its_tokens(channels: int) -> None:
    grey = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    before = F.conv2d(grey.expand(-1, 3, -1, -1), kernel())
    after = F.conv2d(grey.expand(-1, channels, -1, -1), resample_channels(kernel(), channels))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    if channels % 3 == 0 or channels == 1:
        expected = adapt_input_conv(channels, kernel())
        torch.testing.assert_close(resample_channels(kernel(), channels), expected, rtol=1e-5, atol=1e-5)


def test_what_needs_no_change_is_the_same_tensor() -> None:
    same = kernel()
    assert resample_patches(same, (8, 8)) is same
    assert resample_channels(same, 3) is same


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_resampled_in_float32(dtype: torch.dtype) -> None:
    resampled = resample_channels(resample_patches(kernel().to(dtype), (12, 12)), 4)
    assert resampled.dtype == dtype
    expected = resample_channels(resample_patches(kernel().to(dtype).float(), (12, 12)), 4)
    torch.testing.assert_close(resampled.float(), expected, rtol=2e-2, atol=2e-2)


def test_a_constant_image_gives_the_same_token_at_another_patch_size(model: ViT, path: Path) -> None:
    larger = create_model("auto", pretrained=path, patch_size=16, img_size=64).eval()
    grown = create_model("auto", pretrained=path, patch_size=8, in_chans=5).eval()
    with torch.no_grad():
        logits = model(torch.full((1, 3, 32, 32), 0.7))
        torch.testing.assert_close(larger(torch.full((1, 3, 64, 64), 0.7)), logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(grown(torch.full((1, 5, 32, 32), 0.7)), logits, rtol=1e-4, atol=1e-4)


def test_the_report_names_what_was_resampled(path: Path) -> None:
    other = ViT(IMAGE.override({"patch_size": 16, "in_chans": 1}))
    report = load_checkpoint(other, path)
    assert report.resampled == ["tokenizer.pos_embed", "tokenizer.proj.weight"]
    assert report.coverage == 1.0
    assert "tokenizer.proj.weight" in report.loaded


def test_the_size_asked_for_wins_over_the_file(path: Path) -> None:
    model = create_model("auto", pretrained=path, patch_size=16, img_size=32)
    assert model.config.tokenizer.grid == (2, 2)
    assert model.tokenizer.proj.weight.shape == (24, 3, 16, 16)


@pytest.mark.parametrize("method", RESAMPLINGS)
def test_a_model_resamples_as_it_is_set(method: str, randomise: Callable) -> None:
    """In the forward pass as in the table that a checkpoint is resampled to; the four differ."""
    model = randomise(ViT(IMAGE.override({"pos_resample": method}))).eval()
    table = model.tokenizer.pos_embed.detach().mT.unflatten(2, (4, 4))
    expected = {
        "antialias": lambda: F.interpolate(table, size=(3, 2), mode="bicubic", antialias=True),
        "bicubic": lambda: F.interpolate(table, size=(3, 2), mode="bicubic"),
        "offset": lambda: F.interpolate(table, scale_factor=(3.1 / 4, 2.1 / 4), mode="bicubic"),
        "aligned": lambda: F.interpolate(table, size=(3, 2), mode="bicubic", align_corners=True),
    }
    pos = model.tokenizer(torch.zeros(1, 3, 24, 16)).pos
    assert pos is not None
    torch.testing.assert_close(pos, expected[method]().flatten(2).mT)
    others = [value().flatten(2).mT for name, value in expected.items() if name != method]
    assert not any(torch.allclose(pos, other, atol=1e-3) for other in others)


@torch.no_grad()
def test_a_point_encoder_takes_the_position_table_along_where_it_samples_it(path: Path, model: ViT) -> None:
    table, own = model.tokenizer.pos_embed, model.tokenizer.cls_pos
    points = create_model("auto", path, tokenizer="points", pos_embed="projected")
    assert points.config.tokenizer.pos_grid == (4, 4)
    assert torch.equal(points.tokenizer.pos_embed.table, table)
    assert torch.equal(points.tokenizer.cls_pos, own)

    other = create_model("auto", path, tokenizer="points", pos_embed="projected", pos_grid=(3, 6))
    report = load_checkpoint(other, path)
    names = ["tokenizer.pos_embed.table", "tokenizer.cls_pos"]
    assert report.projected == names
    assert set(names) <= set(report.loaded)
    assert report.resampled == names[:1]
    assert "pos_embed" not in report.set_aside
    assert re.search(
        r"projected +2 +456  2D positions, for centres: tokenizer\.pos_embed\.table", str(report)
    )
    expected = resample_grid(table, (4, 4), (3, 6))
    torch.testing.assert_close(other.tokenizer.pos_embed.table, expected, rtol=1e-5, atol=1e-5)
    assert "pos_embed" in load_checkpoint(create_model("auto", path, tokenizer="points"), path).set_aside


def test_a_point_encoder_without_class_token_leaves_its_position_aside(path: Path) -> None:
    points = create_model("auto", path, tokenizer="points", pos_embed="projected", cls_pos=False)
    report = load_checkpoint(points, path)
    assert report.set_aside["tokenizer.cls_pos"] == "the other modality's front end"


def test_positions_cannot_be_sampled_from_a_file_without_a_table(tmp_path: Path) -> None:
    tokenizer = ImageTokenizerConfig((32, 32), (8, 8), pos_embed="none")
    image = ViT(ViTConfig(TrunkConfig(24, 2, 3), tokenizer, num_classes=5))
    path = save_checkpoint(image, tmp_path / "image.safetensors", "pointvit")
    with pytest.raises(CheckpointError, match=r"no table of 2D positions, which pos_embed=projected samples"):
        create_model("auto", path, tokenizer="points", pos_embed="projected")
