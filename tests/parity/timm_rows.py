"""timm's Vision Transformers, as ``timm/...`` repositories have them, and others' files with those names."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from einops import rearrange
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from parity import Row, Tensors

SMALL: dict[str, Any] = {"depth": 2, "num_classes": 10, "img_size": 32, "dynamic_img_size": True}
TINY: dict[str, Any] = {"patch_size": 8, "embed_dim": 192, "num_heads": 3}


def write(model: nn.Module, folder: Path) -> Path:
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder / "model.safetensors"


def write_repository(model: nn.Module, folder: Path) -> Path:
    """With the ``config.json`` that timm itself writes."""
    save_for_hf(model, folder, safe_serialization=True)
    return folder


def write_torch(model: nn.Module, folder: Path, wrap: Callable[[Tensors], Any] = lambda state: state) -> Path:
    torch.save(wrap(model.state_dict()), folder / "checkpoint.pth")
    return folder / "checkpoint.pth"


def dino(state: Tensors) -> Any:
    """DINO's training file: the teacher's names as they are, the student's from DistributedDataParallel."""
    head = {
        "head.mlp.0.weight": torch.randn(8, 192),
        "head.mlp.0.bias": torch.randn(8),
        "head.last_layer.weight_g": torch.randn(16, 1),
        "head.last_layer.weight_v": torch.randn(16, 8),
    }
    teacher = {f"backbone.{name}": tensor for name, tensor in state.items()} | head
    student = {f"module.{name}": torch.randn_like(tensor) for name, tensor in teacher.items()}
    return {"student": student, "teacher": teacher, "epoch": 3, "dino_loss": {"center": torch.randn(1, 16)}}


def mae(state: Tensors) -> Any:
    decoder = {"mask_token": torch.randn(1, 1, 64), "decoder_pos_embed": torch.randn(1, 17, 64),
               "decoder_embed.weight": torch.randn(64, 192), "decoder_blocks.0.norm1.weight": torch.randn(64),
               "decoder_norm.weight": torch.randn(64), "decoder_pred.bias": torch.randn(192)}  # fmt: skip
    return {"model": state | decoder, "epoch": 3}


def resampled(model: nn.Module, shape: tuple[int, ...], offset: float = 0.0) -> nn.Module:
    """The model with positions for images of another shape, bicubically and without antialiasing.

    Args:
        offset: as in DINO's code, what is added to the number of patches before the scale is computed.
    """
    old, patch = model.patch_embed.grid_size, model.patch_embed.patch_size
    new = (shape[2] // patch[0], shape[3] // patch[1])
    if new == old:
        return model
    count = model.pos_embed.shape[1] - old[0] * old[1]
    prefix, table = model.pos_embed.split([count, old[0] * old[1]], dim=1)
    image = rearrange(table, "1 (h w) d -> 1 d h w", h=old[0])
    size: dict[str, Any] = {"size": new}
    if offset:
        size = {"scale_factor": tuple((n + offset) / o for n, o in zip(new, old, strict=True))}
    image = F.interpolate(image, mode="bicubic", align_corners=False, **size)
    prepared = deepcopy(model)
    prepared.pos_embed = nn.Parameter(torch.cat([prefix, rearrange(image, "1 d h w -> 1 (h w) d")], dim=1))
    prepared.patch_embed.grid_size = new
    return prepared


def row(name: str, architecture: str, source: str = "timm", **settings: Any) -> Row:
    return Row(
        name,
        source,
        lambda: timm.create_model(architecture, **{**SMALL, **settings}),
        write,
        features=lambda model, x: model.forward_features(x),
        query_key=("blocks.1.attn.qkv.weight",),
        kernel="blocks.0.attn.proj.weight",
        dropped="blocks.1.norm2.bias",
    )


def tiny(name: str, architecture: str, **settings: Any) -> Row:
    return row(name, architecture, **{**TINY, **settings})


CLIP, SIGLIP = "vit_base_patch16_clip_224", "vit_base_patch16_siglip_224"
DINO, MAE = "vit_small_patch16_224", "vit_base_patch16_224"
ROWS = [
    tiny("timm ViT", "vit_tiny_patch16_224"),
    tiny("timm ViT without head", "vit_tiny_patch16_224", num_classes=0),
    replace(tiny("timm ViT with config.json", "vit_tiny_patch16_224"), write=write_repository),
    replace(
        row("timm hybrid", "vit_tiny_r_s16_p8_224", img_size=64),
        inputs=((2, 3, 64, 64), (2, 3, 96, 64)),
    ),
    tiny("timm ViT without qkv bias", "vit_base_patch16_224_miil", qkv_bias=False),
    tiny("timm ViT without class token", "vit_base_patch16_gap_224"),
    tiny("timm FlexiViT", "flexivit_small"),
    tiny("timm DeiT III", "deit3_small_patch16_224"),
    tiny("timm registers and mean", "vit_medium_patch16_reg4_gap_256"),
    tiny("timm registers with positions", "vit_so150m_patch16_reg4_gap_256"),
    tiny("timm registers with positions, no qkv bias", "vit_so150m2_patch16_reg1_gap_256"),
    tiny("timm DINOv2", "vit_small_patch14_dinov2"),
    tiny("timm DINOv2 with registers", "vit_small_patch14_reg4_dinov2"),
    tiny("timm DINOv2 giant", "vit_giant_patch14_dinov2"),
    tiny("timm DINOv2 giant with registers", "vit_giant_patch14_reg4_dinov2"),
    tiny("timm SigLIP", SIGLIP),
    tiny("timm SigLIP, mean", "vit_base_patch16_siglip_gap_224"),
    replace(tiny("timm SigLIP 2", "vit_base_patch32_siglip_256"), write=write_repository),
    replace(tiny("timm CLIP with config.json", CLIP), write=write_repository),
    replace(
        tiny("timm QuickGELU CLIP with config.json", "vit_base_patch16_clip_quickgelu_224"),
        write=write_repository,
    ),
    replace(tiny("timm CLIP, act_layer", CLIP, act_layer="quick_gelu"), write=write_repository),
    replace(tiny("timm CLIP", CLIP), settings={"activation": "gelu"}),
    replace(
        tiny("timm QuickGELU CLIP", "vit_base_patch16_clip_quickgelu_224"),
        settings={"activation": "quick_gelu"},
    ),
    replace(
        tiny("DINO", DINO, num_classes=0),
        write=partial(write_torch, wrap=dino),
        query_key=("backbone.blocks.1.attn.qkv.weight",),
        kernel="backbone.blocks.0.attn.proj.weight",
        dropped="backbone.blocks.1.norm2.bias",
        at=partial(resampled, offset=0.1),
    ),
    replace(tiny("DINO, backbone alone", DINO, num_classes=0), write=write_torch),
    replace(
        tiny("MAE", MAE, num_classes=0),
        write=partial(write_torch, wrap=mae),
        at=resampled,
    ),
    replace(
        tiny("MAE, fine-tuned", MAE, global_pool="avg"),
        write=partial(write_torch, wrap=lambda state: {"model": state, "epoch": 99}),
    ),
]
