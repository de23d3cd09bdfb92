"""timm's own models, all parameters random, saved in every way such files come, against ours."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import Checkpoint
from pointvit.checkpoints.sources import timm as names

SMALL = {"img_size": 48, "patch_size": 16, "embed_dim": 192, "num_heads": 3, "depth": 2, "num_classes": 7}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no head": {"num_classes": 0},
    "LayerScale": {"init_values": 1.0},
    "no position of the class token (DeiT III)": {"no_embed_class": True, "init_values": 1.0},
    "registers (DINOv2)": {"reg_tokens": 3, "no_embed_class": True, "init_values": 1.0},
    "no class token": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "mean and fc_norm (MAE, BEiT)": {"global_pool": "avg"},
    "attention pooling (SigLIP)": {"class_token": False, "global_pool": "map", "fc_norm": False},
    "no qkv bias": {"qkv_bias": False},
    "another mlp ratio": {"mlp_ratio": 2.5},
    "one channel": {"in_chans": 1},
    "oblong patches": {"patch_size": (16, 24), "img_size": (48, 72)},
    "norm_pre (CLIP)": {"pre_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-5)},
}
LEFT_OPEN: dict[str, dict[str, Any]] = {"norm_pre (CLIP)": {"activation": "gelu"}}
"""What the file does not say."""


def images(model: VisionTransformer) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, model.in_chans, *model.patch_embed.img_size, generator=generator)


@pytest.fixture
def timm_vit(randomise: Callable) -> Callable[..., VisionTransformer]:
    return lambda **settings: randomise(VisionTransformer(**{**SMALL, **settings})).eval()


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, tmp_path: Path, timm_vit: Callable, error_of: Callable) -> None:
    theirs = timm_vit(**VARIANTS[variant])
    path = tmp_path / "model.pth"
    torch.save(theirs.state_dict(), path)
    ours = create_model("auto", pretrained=path, **LEFT_OPEN.get(variant, {})).eval()
    x = images(theirs)
    assert error_of(ours.forward_features(x), theirs.forward_features(x)) <= 1e-5
    assert error_of(ours(x), theirs(x)) <= 1e-5
    report = load_checkpoint(ours, path)
    assert (report.coverage, report.set_aside, report.new) == (1.0, {}, [])


def write_safetensors(state: dict[str, Tensor], path: Path) -> Path:
    path = path.with_suffix(".safetensors")
    save_file(state, path)
    return path


def write_torch(content: Any, path: Path, legacy: bool = False) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


WRITERS: dict[str, Callable[[dict[str, Tensor], Path], Path]] = {
    "safetensors": write_safetensors,
    "legacy pickle": lambda state, path: write_torch(state, path, legacy=True),
    "model": lambda state, path: write_torch({"model": state, "epoch": 3}, path),
    "state_dict and module.": lambda state, path: write_torch(
        {"state_dict": prefixed(state, "module.")}, path
    ),
    "compiled": lambda state, path: write_torch(prefixed(state, "module._orig_mod."), path),
    "teacher.backbone.": lambda state, path: write_torch({"teacher": prefixed(state, "backbone.")}, path),
    "nested": lambda state, path: write_torch(
        {"model": {"state_dict": prefixed(state, "base_model.")}}, path
    ),
    "options and scores": lambda state, path: write_torch(
        {"model": state, "args": argparse.Namespace(lr=1e-3), "best": np.float64(3.5), "step": np.int64(7)},
        path,
    ),
    "not contiguous": lambda state, path: write_torch(
        {n: t.mT.contiguous().mT if t.ndim > 1 else t for n, t in state.items()}, path
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("writer", WRITERS)
def test_wrappings(writer: str, tmp_path: Path, timm_vit: Callable) -> None:
    theirs = timm_vit()
    path = WRITERS[writer](theirs.state_dict(), tmp_path / "model.pth")
    ours = create_model("auto", pretrained=path).eval()
    torch.testing.assert_close(ours(images(theirs)), theirs(images(theirs)), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_dino_keeps_its_projection_head_beside_the_backbone(tmp_path: Path, timm_vit: Callable) -> None:
    theirs = timm_vit(num_classes=0)
    state = prefixed(theirs.state_dict(), "module.backbone.") | {
        "module.head.mlp.0.weight": torch.randn(8, 192)
    }
    path = write_torch({"teacher": state, "student": state}, tmp_path / "dino.pth")
    ours = create_model("auto", pretrained=path).eval()
    torch.testing.assert_close(ours(images(theirs)), theirs(images(theirs)), rtol=1e-5, atol=1e-5)
    assert list(load_checkpoint(ours, path).set_aside) == ["head.mlp.0.weight"]


@torch.no_grad()
def test_masked_pre_training_leaves_its_decoder_aside(tmp_path: Path, timm_vit: Callable) -> None:
    theirs = timm_vit(num_classes=0)
    extra = {"mask_token": torch.randn(1, 1, 64), "decoder_embed.weight": torch.randn(64, 192)}
    path = write_torch({"model": theirs.state_dict() | extra}, tmp_path / "mae.pth")
    report = load_checkpoint(create_model("auto", pretrained=path), path)
    assert report.set_aside.keys() == extra.keys()
    assert report.coverage == 1.0


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype, tmp_path: Path, timm_vit: Callable) -> None:
    theirs = timm_vit().to(dtype)
    path = write_safetensors(theirs.state_dict(), tmp_path / "half")
    ours = create_model("auto", pretrained=path).eval()
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    expected = theirs.float()(images(theirs))
    torch.testing.assert_close(ours(images(theirs)), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("size", [32, 80, (32, 64)])
def test_positions_are_resampled_as_in_timm(
    size: Any, tmp_path: Path, timm_vit: Callable, error_of: Callable
) -> None:
    path = write_torch(timm_vit().state_dict(), tmp_path / "model.pth")
    theirs = VisionTransformer(**{**SMALL, "img_size": size}).eval()
    theirs.load_state_dict(checkpoint_filter_fn(torch.load(path), theirs))
    ours = create_model("auto", pretrained=path, img_size=size).eval()
    x = torch.randn(1, 3, *((size, size) if isinstance(size, int) else size))
    assert error_of(ours.forward_features(x), theirs.forward_features(x)) <= 1e-5
    assert load_checkpoint(ours, path).resampled == ["tokenizer.pos_embed"]


@torch.no_grad()
def test_half_precision_positions_are_resampled_in_full_precision(tmp_path: Path, timm_vit: Callable) -> None:
    state = timm_vit().half().state_dict()
    half = write_torch(state, tmp_path / "half.pth")
    full = write_torch({name: tensor.float() for name, tensor in state.items()}, tmp_path / "full.pth")
    tables = [create_model("auto", pretrained=path, img_size=80).tokenizer.pos_embed for path in (half, full)]
    assert torch.equal(*tables)


@torch.no_grad()
@pytest.mark.parametrize("part", [0, 1])
def test_swapped_queries_and_keys_break_parity(
    part: int, tmp_path: Path, timm_vit: Callable, error_of: Callable
) -> None:
    theirs = timm_vit()
    state = dict(theirs.state_dict())
    for kind in ("weight", "bias"):
        name = f"blocks.1.attn.qkv.{kind}"
        q, k, v = state[name].chunk(3)
        state[name] = torch.cat([k, q, v] if part == 0 else [q, v, k])
    ours = create_model("auto", pretrained=write_torch(state, tmp_path / "swapped.pth")).eval()
    assert error_of(ours(images(theirs)), theirs(images(theirs))) > 1e-3


def test_a_clip_file_leaves_the_activation_open(
    tmp_path: Path, timm_vit: Callable, refused: Callable
) -> None:
    """The files of OpenAI and OpenCLIP have the same names and want different activations."""
    path = write_torch(timm_vit(**VARIANTS["norm_pre (CLIP)"]).state_dict(), tmp_path / "clip.pth")
    with refused(path, "does not say activation, .* state activation"):
        create_model("auto", pretrained=path)
    checkpoint = Checkpoint.open(path)
    for activation in ("gelu", "quick_gelu"):
        base = checkpoint.encoder_config({"activation": activation}).override({"activation": activation})
        assert checkpoint.adapt(base).trunk.activation == activation
        assert load_checkpoint(ViT(base), path).coverage == 1.0


@torch.no_grad()
def test_by_name(tmp_path: Path, randomise: Callable, error_of: Callable) -> None:
    theirs = randomise(VisionTransformer(embed_dim=192, num_heads=3, num_classes=9)).eval()
    path = write_torch(theirs.state_dict(), tmp_path / "tiny.pth")
    x = torch.randn(1, 3, 224, 224)
    ours = create_model("vit_tiny_patch16_224", pretrained=path, num_classes=9).eval()
    assert error_of(ours(x), theirs(x)) <= 1e-5
    fresh = create_model("vit_tiny_patch16_224", pretrained=path, num_classes=4).eval()
    assert error_of(fresh.forward_features(x), theirs.forward_features(x)) <= 1e-5
    points = create_model("pointvit_tiny", pretrained=path)
    for name, tensor in theirs.blocks.state_dict().items():
        assert torch.equal(points.trunk.blocks.state_dict()[name], tensor)


@pytest.mark.parametrize("variant", VARIANTS)
def test_names_and_numbers_come_back(variant: str, tmp_path: Path, timm_vit: Callable) -> None:
    state = timm_vit(**VARIANTS[variant]).state_dict()
    before = dict(state)
    config = Checkpoint.open(write_torch(state, tmp_path / "model.pth")).encoder_config(
        {"activation": "gelu"}
    )
    again = names.encode(names.decode(state), config)
    assert state.keys() == before.keys() == again.keys()
    for name, tensor in before.items():
        assert state[name] is tensor
        assert torch.equal(again[name], tensor), name


def without(state: dict[str, Tensor], *endings: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.endswith(endings)}


@pytest.mark.parametrize(
    ("variant", "removed", "message"),
    [
        ({}, "pos_embed", "holds no pos_embed"),
        ({}, "head.bias", "of head there is a weight alone"),
        ({}, "head.weight", "of head there is a bias alone"),
        ({}, "patch_embed.proj.bias", "of tokenizer.proj there is a weight alone"),
        ({"global_pool": "avg"}, "fc_norm.bias", "of fc_norm there is a weight alone"),
        ({"global_pool": "map"}, "none", "attention pool stands beside a class token"),
        ({"class_token": False, "global_pool": "avg", "qkv_bias": False}, "none", "vit_base_patch16_rpn_224"),
        ({}, "mlp.fc1.weight", "has no complete MLP"),
        ({}, "blocks.1.mlp.fc1.weight", "lacks 1 tensor the model needs"),
        ({"scale_attn_norm": True, "scale_mlp_norm": True}, "none", "mlp_norm is a part of the gated MLP"),
        ({"qk_norm": True}, "none", "tensors the model has no place for"),
    ],
)
def test_what_would_compute_something_else_is_refused(
    variant: dict[str, Any], removed: str, message: str, tmp_path: Path, timm_vit: Callable, refused: Callable
) -> None:
    path = write_torch(without(timm_vit(**variant).state_dict(), removed), tmp_path / "model.pth")
    with refused(path, message):
        create_model("auto", pretrained=path)


REGISTERS: dict[str, dict[str, Any]] = {
    "nine": {"reg_tokens": 9},
    "seven, 3x3 patches": {"reg_tokens": 7, "img_size": 24},
    "six without class token": {"reg_tokens": 6, "class_token": False, "global_pool": "avg"},
    "eight without positions": {"reg_tokens": 8, "no_embed_class": True},
}


@torch.no_grad()
@pytest.mark.parametrize("variant", REGISTERS)
def test_rows_of_registers_are_told_from_patches(
    variant: str, tmp_path: Path, timm_vit: Callable, error_of: Callable
) -> None:
    theirs = timm_vit(**{"img_size": 32, "patch_size": 8, **REGISTERS[variant]})
    ours = create_model("auto", pretrained=write_torch(theirs.state_dict(), tmp_path / "model.pth")).eval()
    assert error_of(ours(images(theirs)), theirs(images(theirs))) <= 1e-5


REG4 = {"img_size": 48, "reg_tokens": 4}
"""With a class token: 9 rows are those of 3x3 patches, or of 2x2 and all tokens before them."""


@torch.no_grad()
def test_rows_that_may_be_of_registers_need_a_config(
    tmp_path: Path, randomise: Callable, refused: Callable, error_of: Callable
) -> None:
    own = {**SMALL, **REG4, "no_embed_class": True}
    theirs = randomise(timm.create_model("vit_small_patch16_224", **own)).eval()
    save_for_hf(theirs, tmp_path, safe_serialization=True)
    ours = create_model("auto", pretrained=tmp_path).eval()
    assert error_of(ours(images(theirs)), theirs(images(theirs))) <= 1e-5
    (tmp_path / "config.json").unlink()
    with refused(tmp_path, "its 9 positions may or may not be those of 4 registers, too"):
        create_model("auto", pretrained=tmp_path)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"img_size": 32, "reg_tokens": 4}, "its 9 positions are those of 4 registers cannot be told"),
        (
            {"img_size": 32, "patch_size": (4, 8), "reg_tokens": 4, "class_token": False,
             "global_pool": "avg"},
            "its 36 positions are those of 4 registers cannot be told",
        ),
    ],
)  # fmt: skip
def test_rows_of_registers_that_were_taken_for_patches_are_refused(
    size: dict[str, Any], message: str, tmp_path: Path, refused: Callable
) -> None:
    save_for_hf(timm.create_model("vit_small_patch16_224", **{**SMALL, **size}), tmp_path)
    with refused(tmp_path, message):
        create_model("auto", pretrained=tmp_path)


def test_no_file_is_written_whose_registers_would_be_taken_for_patches(
    tmp_path: Path, refused: Callable
) -> None:
    settings = {"img_size": (24, 56), "patch_size": 8, "depth": 1, "num_reg_tokens": 4, "cls_pos": False}
    model = create_model("vit_tiny_patch16_224", **settings)  # 3x7 patches, or 4x4 and five tokens
    with refused(None, "no place for registers beside a grid that is not square"):
        save_checkpoint(model, tmp_path / "model.safetensors")
