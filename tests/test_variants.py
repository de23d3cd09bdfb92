"""The table of models: sizes, construction by name, and what a checkpoint brings along."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import pointvit

Randomise = Callable[..., nn.Module]
TRUNK: dict[str, Any] = {"depth": 2, "layer_scale": 1e-5, "num_reg_tokens": 4, "cls_pos": False}

# Of the models as registered: 1000 classes for images of 224 or 384 pixels, 40 for points, else no head.
# Ti, S, B, L and H are the sizes of the papers; timm has the same numbers where it has the name.
PARAMETERS = {
    "pointvit_base": 86_319_144,
    "pointvit_huge": 631_535_656,
    "pointvit_large": 303_870_504,
    "pointvit_small": 22_113_576,
    "pointvit_tiny": 5_936_040,
    "vit_base_patch14_224": 86_475_496,
    "vit_base_patch14_dinov2": 86_579_712,
    "vit_base_patch14_reg4_dinov2": 86_582_016,
    "vit_base_patch16_224": 86_567_656,
    "vit_base_patch16_384": 86_859_496,
    "vit_base_patch16_clip_quickgelu_224": 85_799_424,
    "vit_base_patch32_224": 88_224_232,
    "vit_base_patch32_384": 88_297_192,
    "vit_base_patch32_clip_quickgelu_224": 87_456_000,
    "vit_base_patch8_224": 86_576_872,
    "vit_base_patch8_384": 87_744_232,
    "vit_base_r50_s16_224": 98_659_112,
    "vit_huge_patch14_224": 632_045_800,
    "vit_huge_patch16_224": 632_199_400,
    "vit_huge_patch16_384": 632_685_800,
    "vit_huge_patch32_224": 634_960_360,
    "vit_huge_patch32_384": 635_081_960,
    "vit_huge_patch8_224": 632_214_760,
    "vit_huge_patch8_384": 634_160_360,
    "vit_large_patch14_224": 304_203_752,
    "vit_large_patch14_clip_quickgelu_224": 303_179_776,
    "vit_large_patch14_dinov2": 304_367_616,
    "vit_large_patch14_reg4_dinov2": 304_370_688,
    "vit_large_patch16_224": 304_326_632,
    "vit_large_patch16_384": 304_715_752,
    "vit_large_patch32_224": 306_535_400,
    "vit_large_patch32_384": 306_632_680,
    "vit_large_patch8_224": 304_338_920,
    "vit_large_patch8_384": 305_895_400,
    "vit_large_r50_s32_224": 328_994_856,
    "vit_small_patch14_224": 22_004_584,
    "vit_small_patch14_dinov2": 22_056_192,
    "vit_small_patch14_reg4_dinov2": 22_057_344,
    "vit_small_patch16_224": 22_050_664,
    "vit_small_patch16_384": 22_196_584,
    "vit_small_patch32_224": 22_878_952,
    "vit_small_patch32_384": 22_915_432,
    "vit_small_patch8_224": 22_055_272,
    "vit_small_patch8_384": 22_638_952,
    "vit_small_r26_s32_224": 36_431_912,
    "vit_tiny_patch14_224": 5_694_376,
    "vit_tiny_patch16_224": 5_717_416,
    "vit_tiny_patch16_384": 5_790_376,
    "vit_tiny_patch32_224": 6_131_560,
    "vit_tiny_patch32_384": 6_149_800,
    "vit_tiny_patch8_224": 5_719_720,
    "vit_tiny_patch8_384": 6_011_560,
    "vit_tiny_r_s16_p8_224": 6_337_704,
}


def test_every_model_has_a_row() -> None:
    assert pointvit.list_models() == sorted(PARAMETERS)
    assert pointvit.list_models("dinov2") == [name for name in sorted(PARAMETERS) if "dinov2" in name]


@pytest.mark.parametrize(("name", "expected"), PARAMETERS.items())
def test_number_of_parameters(name: str, expected: int) -> None:
    with torch.device("meta"):
        model = pointvit.create_model(name)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_settings_reach_their_part() -> None:
    model = pointvit.create_model(
        "pointvit_tiny",
        num_classes=7,
        num_groups=5,
        group_size=3,
        in_chans=6,
        depth=1,
        norm_eps=1e-5,
        global_pool="max",
    )
    assert model.config.tokenizer.num_groups == 5
    assert model.trunk.norm.eps == 1e-5
    assert model.eval()(torch.rand(2, 20, 6)).shape == (2, 7)
    wide = pointvit.create_model("vit_tiny_patch16_224", img_size=(32, 64), num_classes=0, depth=1)
    assert wide.config.tokenizer.grid == (2, 4)
    assert wide.eval()(torch.rand(2, 3, 32, 64)).shape == (2, 192)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "vit_small_patch16_225",
            "unknown model 'vit_small_patch16_225'; did you mean .*vit_small_patch16_224",
        ),
        ("pointvit_smal", "did you mean pointvit_small"),
        ("auto", r"create_model\('auto'\) reads the architecture from a checkpoint: pass pretrained=PATH"),
    ],
)
def test_unknown_models(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pointvit.create_model(name)


def test_unknown_settings_name_near_ones() -> None:
    with pytest.raises(
        ValueError,
        match="unknown model setting 'group_sise' for an encoder of points; did you mean group_size",
    ):
        pointvit.create_model("pointvit_tiny", group_sise=3)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("vit_tiny_patch16_224", 0.5, 0.5),
        ("vit_tiny_r_s16_p8_224", 0.5, 0.5),
        ("vit_small_patch14_dinov2", 0.485, 0.229),
        ("vit_base_patch32_clip_quickgelu_224", 0.48145466, 0.26862954),
    ],
)
def test_colours_are_normalised_as_for_the_public_weights(name: str, mean: float, std: float) -> None:
    with torch.device("meta"):
        meta = pointvit.create_model(name).meta
    assert (meta.image_mean[0], meta.image_std[0]) == (mean, std)


@pytest.fixture
def timm_file(randomise: Randomise, tmp_path: Path) -> Path:
    """A small ViT in timm's names, with registers, without a head."""
    model = randomise(pointvit.create_model("vit_tiny_patch14_224", img_size=56, num_classes=0, **TRUNK))
    path = pointvit.save_checkpoint(model, tmp_path / "small.safetensors", source="timm")
    save_file(load_file(path), path)  # without the description that only our own files carry
    return path


def test_a_2d_file_brings_its_trunk_to_points(timm_file: Path) -> None:
    image = pointvit.create_model("auto", pretrained=timm_file)
    points = pointvit.create_model(
        "pointvit_tiny", pretrained=timm_file, depth=2, num_groups=8, drop_path_rate=0.1
    )
    assert image.config.num_reg_tokens == points.config.num_reg_tokens == 4
    assert points.config.trunk.layer_scale is not None
    assert points.config.trunk.drop_path_rate == 0.1
    theirs = {
        n: p for n, p in image.state_dict().items() if n.startswith(("trunk.", "cls_token", "reg_tokens"))
    }
    ours = points.state_dict()
    assert len(theirs) == 2 * 14 + 2 + 2
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    for model in (image, points):
        assert model.meta.source["file"] == "small.safetensors"
    assert image.meta.image_mean == (0.485, 0.456, 0.406)
    assert points(torch.rand(2, 50, 3)).shape == (2, 40)


def test_a_2d_file_of_another_size_is_refused(timm_file: Path) -> None:
    with pytest.raises(
        pointvit.CheckpointError, match=r"its trunk has width 192 and 2 blocks, the model .* 384 and 12"
    ):
        pointvit.create_model("pointvit_small", pretrained=timm_file)


@torch.no_grad()
def test_a_pair_starts_from_a_2d_file(timm_file: Path) -> None:
    image = pointvit.create_model("auto", pretrained=timm_file).eval()
    pair = pointvit.create_pair(
        "auto", pretrained=timm_file, num_classes=5, num_groups=8, group_size=4
    ).eval()
    x = torch.randn(1, 3, 56, 56)
    assert torch.equal(pair.image.forward_features(x), image.forward_features(x))
    assert pair.image(x).shape == pair.points(torch.rand(1, 50, 3)).shape == (1, 5)
    assert pair.points.meta == pair.image.meta


def test_auto_on_a_saved_model_is_that_model(randomise: Randomise, tmp_path: Path) -> None:
    for name, x in (
        ("pointvit_tiny", torch.rand(2, 50, 3)),
        ("vit_tiny_patch16_224", torch.randn(2, 3, 224, 224)),
    ):
        model = randomise(pointvit.create_model(name, depth=1, num_classes=2)).eval()
        model.meta = replace(
            model.meta, class_names=["a", "b"], num_points=50, up_axis="y", image_mean=(0.1, 0.2, 0.3)
        )
        pointvit.save(model, tmp_path / name)
        again = pointvit.create_model("auto", pretrained=tmp_path / name).eval()
        assert again.config == model.config
        assert again.meta.up_axis == "y"
        assert (again.meta.class_names, again.meta.num_points, again.meta.image_mean) == (
            ["a", "b"],
            50,
            (0.1, 0.2, 0.3),
        )
        assert torch.equal(again(x), model(x))
        other = pointvit.create_model("auto", pretrained=tmp_path / name, num_classes=3)
        assert other.meta.class_names is None
        assert other.num_classes == 3


@torch.no_grad()
def test_a_real_2d_vit_becomes_a_point_encoder(data_root: Path) -> None:
    path = data_root / "weights" / "dinov2_vits14_hf_fp16.safetensors"
    pair = pointvit.create_pair("vit_small_patch14_dinov2", pretrained=path, img_size=224).eval()
    points = pointvit.create_model("pointvit_small", pretrained=path).eval()
    assert pair.image.meta.source["sha256"] == points.meta.source["sha256"]
    for name, value in pair.trunk.state_dict().items():
        assert torch.equal(points.trunk.state_dict()[name], value), name
    cloud = torch.rand(1, 1024, 3)
    for logits in (pair.image(torch.randn(1, 3, 224, 224)), pair.points(cloud), points(cloud)):
        assert logits.shape == (1, 40)
        assert bool(logits.isfinite().all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_groups": "64"}, "num_groups must be int, got '64'"),
        ({"num_groups": 64.0}, "num_groups must be int, got 64.0"),
        ({"num_classes": True}, "num_classes must be int, got True"),
        ({"drop_rate": "0.1"}, "drop_rate must be float, got '0.1'"),
        ({"qkv_bias": 1}, "qkv_bias must be bool, got 1"),
        ({"layer_scale": "small"}, r"layer_scale must be float \| None, got 'small'"),
        ({"depth": 0}, "depth and num_heads >= 1"),
        ({"num_heads": 0}, "depth and num_heads >= 1"),
        ({"mlp_ratio": 0}, "positive mlp_ratio"),
        ({"representation_size": 0}, "representation_size must be at least 1"),
    ],
)
def test_settings_of_another_kind(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pointvit.create_model("pointvit_tiny", **settings)


@pytest.mark.parametrize("size", ["224", 224.0, (224,), (224, 224, 3), (224, 224.0)])
def test_image_sizes_of_another_kind(size: Any) -> None:
    with pytest.raises(ValueError, match=r"img_size must be tuple\[int, int\]"):
        pointvit.create_model("vit_tiny_patch16_224", img_size=size)


def test_numbers_of_numpy_are_as_good_as_others(tmp_path: Path) -> None:
    settings = {"num_classes": np.int64(3), "drop_rate": np.float32(0.5), "depth": np.uint8(1)}
    model = pointvit.create_model("pointvit_tiny", **settings)
    assert pointvit.load(pointvit.save(model, tmp_path / "m")).config == model.config


def test_a_pair_is_named_by_its_image_encoder() -> None:
    with pytest.raises(ValueError, match="'pointvit_tiny' encodes points"):
        pointvit.create_pair("pointvit_tiny", depth=1)
