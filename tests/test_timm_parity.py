"""Image encoders against timm's with the same weights, none of them zero: logits, positions, names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

import pointvit
from pointvit.checkpoints.sources import native
from pointvit.checkpoints.sources import timm as timm_names

Randomise = Callable[..., nn.Module]
SMALL: dict[str, Any] = {"depth": 2, "num_classes": 10}
WHOLE: dict[str, Any] = {"num_classes": 10}
slow = pytest.mark.slow

# A name that both libraries know, and what is changed in both to keep the test short.
MODELS = [
    ("vit_tiny_patch16_224", WHOLE),
    ("vit_small_patch16_224", WHOLE),
    ("vit_base_patch16_224", SMALL),
    ("vit_base_patch32_224", SMALL),
    ("vit_tiny_r_s16_p8_224", SMALL),
    ("vit_small_patch14_dinov2", {**WHOLE, "depth": 6, "img_size": 224}),
    ("vit_small_patch14_reg4_dinov2", {**SMALL, "img_size": 224}),
    ("vit_base_patch32_clip_quickgelu_224", SMALL),
    pytest.param("vit_base_patch16_224", WHOLE, marks=slow),
    pytest.param("vit_base_patch32_224", WHOLE, marks=slow),
    pytest.param("vit_large_patch16_224", WHOLE, marks=slow),
    pytest.param("vit_small_r26_s32_224", WHOLE, marks=slow),
    pytest.param("vit_base_r50_s16_224", WHOLE, marks=slow),
    pytest.param("vit_small_patch14_dinov2", WHOLE, marks=slow),
    pytest.param("vit_base_patch32_clip_quickgelu_224", WHOLE, marks=slow),
]


def theirs_of(name: str, settings: dict[str, Any], randomise: Randomise) -> VisionTransformer:
    model = timm.create_model(name, dynamic_img_size=True, **settings).eval()
    assert isinstance(model, VisionTransformer)
    randomise(model)
    assert all(bool(p.all()) for p in model.parameters()), "a zero hides mistakes"
    return model


def copied(ours: pointvit.ViT, theirs: nn.Module) -> pointvit.ViT:
    """``ours`` with the weights of ``theirs``, all of them."""
    state = timm_names.decode(theirs.state_dict())
    ours.load_state_dict(native.encode(state, ours.config), strict=True)
    return ours.eval()


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize(("name", "settings"), MODELS)
@torch.no_grad()
def test_logits_equal_timm(name: str, settings: dict[str, Any], randomise: Randomise) -> None:
    theirs = theirs_of(name, settings, randomise)
    ours = copied(pointvit.create_model(name, **settings), theirs)
    height, width = theirs.patch_embed.img_size
    h, w = ours.tokenizer.config.patch_size
    x, wide = images(height, width), images(320 // h * h, 256 // w * w)
    assert relative_error(ours(x), theirs(x)) <= 1e-5
    assert relative_error(ours(wide), theirs(wide)) <= 1e-5  # positions resampled on the way


@torch.no_grad()
def test_features_and_intermediates_equal_timm(randomise: Randomise) -> None:
    theirs = theirs_of("vit_small_patch14_reg4_dinov2", {**SMALL, "img_size": 56}, randomise)
    ours = copied(pointvit.create_model("vit_small_patch14_reg4_dinov2", img_size=56, **SMALL), theirs)
    x = images(56, 56)
    assert relative_error(ours.forward_features(x), theirs.forward_features(x)) <= 1e-5
    expected = theirs.forward_intermediates(x, norm=True, output_fmt="NLC", intermediates_only=True)
    for mine, other in zip(ours.forward_intermediates(x, norm=True), expected, strict=True):
        assert relative_error(mine[:, 5:], other) <= 1e-5


@torch.no_grad()
def test_mean_pool_with_fc_norm_equals_timm(randomise: Randomise) -> None:
    theirs = theirs_of("vit_tiny_patch16_224", {**SMALL, "img_size": 64, "global_pool": "avg"}, randomise)
    ours = pointvit.create_model(
        "vit_tiny_patch16_224", img_size=64, global_pool="mean", fc_norm=True, final_norm=False, **SMALL
    )
    copied(ours, theirs)
    assert relative_error(ours(images(64, 64)), theirs(images(64, 64))) <= 1e-5


@torch.no_grad()
def test_attention_pool_equals_timm(randomise: Randomise) -> None:
    """As SigLIP has it: no class token, attention pooling, no separate norm behind it."""
    settings = {**SMALL, "img_size": 64, "class_token": False}
    theirs = theirs_of("vit_tiny_patch16_224", {**settings, "global_pool": "map"}, randomise)
    ours = pointvit.create_model("vit_tiny_patch16_224", global_pool="map", **settings)
    copied(ours, theirs)
    assert relative_error(ours(images(64, 64)), theirs(images(64, 64))) <= 1e-5


@pytest.mark.parametrize(
    ("name", "settings", "size"),
    [
        ("vit_tiny_patch16_224", SMALL, (320, 256)),
        ("vit_tiny_r_s16_p8_224", SMALL, (320, 256)),
        ("vit_small_patch14_dinov2", {**SMALL, "img_size": 224}, (322, 252)),
        ("vit_small_patch14_reg4_dinov2", {**SMALL, "img_size": 224}, (322, 252)),
    ],
)
@torch.no_grad()
def test_a_file_resampled_to_another_size_equals_timm(
    name: str, settings: dict[str, Any], size: tuple[int, int], randomise: Randomise, tmp_path: Path
) -> None:
    theirs = theirs_of(name, settings, randomise)
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    ours = pointvit.create_model(name, **{**settings, "img_size": size}).eval()
    report = pointvit.load_checkpoint(ours, tmp_path / "timm.safetensors")
    assert report.resampled == ["tokenizer.pos_embed"]
    assert report.coverage == 1.0
    assert relative_error(ours(images(*size)), theirs(images(*size))) <= 1e-5

    resized = timm.create_model(name, **{**settings, "img_size": size}).eval()
    resized.load_state_dict(checkpoint_filter_fn(theirs.state_dict(), resized))
    assert relative_error(ours(images(*size)), resized(images(*size))) <= 1e-5


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("blocks.0.norm1.weight", "blocks.0.norm2.weight"),
        ("blocks.0.norm1.bias", "blocks.1.norm1.bias"),
        ("blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight"),
        ("blocks.0.attn.proj.bias", "blocks.0.mlp.fc2.bias"),
        ("blocks.1.norm2.weight", "norm.weight"),
        ("norm.weight", "norm.bias"),
        ("patch_embed.proj.bias", "norm.bias"),
    ],
)
@torch.no_grad()
def test_swapped_tensors_break_parity(first: str, second: str, randomise: Randomise) -> None:
    settings = {**SMALL, "img_size": 64}
    theirs = theirs_of("vit_tiny_patch16_224", settings, randomise)
    ours = copied(pointvit.create_model("vit_tiny_patch16_224", **settings), theirs)
    x = images(64, 64)
    expected = ours(x)
    assert relative_error(expected, theirs(x)) <= 1e-5
    one, other = theirs.get_parameter(first), theirs.get_parameter(second)
    one.data, other.data = other.data, one.data
    assert relative_error(copied(ours, theirs)(x), expected) > 1e-3


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("vit_tiny_r_s16_p8_224", "timm"),
        ("vit_tiny_r_s16_p8_224", "google"),
        ("vit_small_r26_s32_224", "google"),
        pytest.param("vit_small_r26_s32_224", "timm", marks=slow),
    ],
)
@torch.no_grad()
def test_a_hybrid_is_recognised_in_its_file(
    name: str, source: str, randomise: Randomise, tmp_path: Path
) -> None:
    """Also the stem without stages, whose names are others."""
    theirs = theirs_of(name, {**SMALL, "depth": 1}, randomise)
    ours = copied(pointvit.create_model(name, num_classes=10, depth=1), theirs)
    path = tmp_path / ("hybrid.npz" if source == "google" else "hybrid.safetensors")
    if source == "google":
        pointvit.save_checkpoint(ours, path, source=source)
    else:
        save_file(theirs.state_dict(), path)
    found = pointvit.create_model("auto", pretrained=path).eval()
    assert found.config == ours.config
    x = images(224, 224)
    assert torch.equal(found(x), ours(x))
    if source == "google":
        theirs.load_pretrained(str(path))
        assert relative_error(ours(x), theirs(x)) <= 1e-5


def test_initialisation_has_the_scale_of_timm() -> None:
    ours = pointvit.create_model("vit_tiny_patch16_224", **SMALL).state_dict()
    theirs = native.encode(
        timm_names.decode(timm.create_model("vit_tiny_patch16_224", weight_init="jax", **SMALL).state_dict()),
        pointvit.create_model("vit_tiny_patch16_224", **SMALL).config,
    )
    for name in ("trunk.norm.weight", "trunk.blocks.0.attn.qkv.bias", "tokenizer.proj.bias"):
        assert torch.equal(ours[name], theirs[name]), name
    for name in ("tokenizer.pos_embed", "tokenizer.proj.weight"):
        assert 0.8 < (ours[name].std() / theirs[name].std()).item() < 1.25, name
