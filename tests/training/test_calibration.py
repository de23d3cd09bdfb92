"""Token calibration: tokens have the moments that were aimed at, and were only scaled and shifted."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import pointvit
from pointvit.data.module import PointCloudDataModule
from pointvit.training import PointClassifier
from pointvit.training.calibration import Moments, calibrate_tokens, image_encoder

SETTINGS = {"num_groups": 8, "group_size": 4, "width": 16, "head": "linear", "num_classes": 4}
TRUNK = {"embed_dim": 24, "depth": 1, "num_heads": 3}


@pytest.fixture(scope="module")
def image(randomise) -> pointvit.ViT:
    model = pointvit.create_model("vit_tiny_patch16_224", img_size=32, num_classes=0, **TRUNK)
    return randomise(model).eval()


@pytest.fixture(scope="module")
def cloud() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(6, 64, 3, generator=generator), dim=-1)


def training_tokens(model: pointvit.ViT, cloud: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and positions as in the first step of a training, without moving any statistics."""
    statistics = {n: t.clone() for n, t in model.state_dict().items()}
    with torch.no_grad():
        tokens = model.tokenizer.train()(cloud)
    model.load_state_dict(statistics)
    return tokens.x.flatten(0, 1), tokens.pos.flatten(0, 1)


@pytest.mark.parametrize("more", [{}, {"token_dim": 12}], ids=["plain", "reduced"])
def test_tokens_get_the_moments_of_image_tokens_by_an_affine_map(image, cloud, more):
    model = pointvit.create_model("pointvit_tiny", **SETTINGS, **TRUNK, **more)
    before, positions = training_tokens(model, cloud)
    statistics = model.tokenizer.embed.first[1].running_var.clone()
    names = list(model.state_dict())
    report = calibrate_tokens(model, image, cloud)
    after, same_positions = training_tokens(model, cloud)
    torch.testing.assert_close(after.mean(dim=0), report.image.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.std(dim=0, correction=0), report.image.std, rtol=1e-4, atol=1e-4)
    factor = report.image.std / report.points.std
    torch.testing.assert_close(
        after, (before - report.points.mean) * factor + report.image.mean, rtol=1e-4, atol=1e-4
    )
    assert torch.equal(positions, same_positions)
    assert torch.equal(model.tokenizer.embed.first[1].running_var, statistics)
    assert list(model.state_dict()) == names
    assert "point tokens calibrated" in str(report)


def test_image_tokens_are_those_of_patches_that_show_the_object(image, cloud):
    """A patch of background alone is the projection's bias and a constant: the same for every view."""
    report = calibrate_tokens(
        pointvit.create_model("pointvit_tiny", **SETTINGS, **TRUNK), image, 0.05 * cloud
    )
    whole = calibrate_tokens(pointvit.create_model("pointvit_tiny", **SETTINGS, **TRUNK), image, cloud)
    assert report.image.std.mean() > 0.3 * whole.image.std.mean()


@pytest.mark.parametrize("kind", ["mlp", "fourier"])
def test_positions_too_where_asked_for(image, cloud, kind):
    model = pointvit.create_model("pointvit_tiny", **SETTINGS, **TRUNK, pos_embed=kind)
    report = calibrate_tokens(model, image, cloud, positions=True)
    _, positions = training_tokens(model, cloud)
    table = report.image_positions  # resampled, as the views are larger than the encoder's images
    assert table is not None
    own = Moments.of(image.tokenizer.pos_embed[0].detach())
    torch.testing.assert_close(table.mean, own.mean, rtol=0.1, atol=0.05)
    torch.testing.assert_close(positions.mean(dim=0), table.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(positions.std(dim=0, correction=0), table.std, rtol=1e-4, atol=1e-4)
    assert "positions calibrated" in str(report)


def test_a_training_starts_from_calibrated_tokens(image, clouds: Path, tmp_path: Path, caplog):
    file = pointvit.save_checkpoint(image, tmp_path / "image.safetensors", source="timm")
    data = PointCloudDataModule("modelnet40", str(clouds), 64, val_fraction=0.25)
    spread = []
    for calibrated in (False, True):
        torch.manual_seed(0)
        module = PointClassifier(
            "auto",
            str(file),
            {"num_groups": 8, "group_size": 4, "width": 16},
            calibrate_tokens=calibrated,
            transfer="lora",
        )
        with caplog.at_level("INFO", logger="pointvit"):
            module.build(data, "fit")
        tokens, _ = training_tokens(module.model, data.dataset("train").points)
        spread.append(float(tokens.std(dim=0).mean()))
    report = calibrate_tokens(module.model, image_encoder(file), data.dataset("train").points)
    assert spread[1] == pytest.approx(float(report.image.std.mean()), rel=0.1)
    assert spread[0] != pytest.approx(spread[1], rel=0.3)
    assert "point tokens calibrated" in caplog.text
    loaded = image_encoder(file).tokenizer.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in image.tokenizer.state_dict().items())


def test_what_cannot_be_calibrated_is_refused_in_one_sentence(image, cloud, tmp_path: Path):
    points = pointvit.create_model("pointvit_tiny", **SETTINGS, **TRUNK)
    folder = pointvit.save(points, tmp_path / "points")
    with pytest.raises(ValueError, match=r"needs an image checkpoint; this is a point encoder"):
        image_encoder(folder)
    grey = pointvit.create_model("vit_tiny_patch16_224", img_size=32, in_chans=1, num_classes=0, **TRUNK)
    file = pointvit.save(grey, tmp_path / "grey")
    with pytest.raises(ValueError, match="needs an encoder of images with three channels"):
        image_encoder(file)
    with pytest.raises(ValueError, match="takes an encoder of points, then an encoder of images"):
        calibrate_tokens(image, points, cloud)
    wide = pointvit.create_model("pointvit_tiny", **SETTINGS, depth=1)
    with pytest.raises(ValueError, match="expected encoders of one width, got 192 and 24"):
        calibrate_tokens(wide, image, cloud)
    sampled = pointvit.create_model("pointvit_tiny", **SETTINGS, **TRUNK, pos_embed="projected")
    before = {n: t.clone() for n, t in sampled.state_dict().items()}
    with pytest.raises(ValueError, match="positions=True needs an image encoder with positions"):
        calibrate_tokens(sampled, image, cloud, positions=True)
    assert all(torch.equal(t, before[n]) for n, t in sampled.state_dict().items())
