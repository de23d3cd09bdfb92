"""DINOv2's own names (Oquab et al. 2024, Darcet et al. 2024): backbones, training checkpoints, classifiers.

What tells them from timm's DINOv2 is any of a ``mask_token`` beside LayerScale (alone, it may be MAE's),
``register_tokens`` (timm: ``reg_token``), the gated MLP's ``w12`` (timm: ``fc1``), and blocks in chunks,
``blocks.C.N.``, as training with FSDP saves them. Without registers, positions are resampled at a scale of
(n + 0.1) / 37; with them, antialiased.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch

from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    invert,
    known_heads,
    refuse_halves,
    refuse_obstacles,
    refuse_unplaced,
    rename_blocks,
    rename_prefixes,
    renamed_by,
    unnamed_obstacles,
)
from pointvit.config import IMAGENET, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

PREFIX = re.compile(r"^(teacher\.)?(backbone\.)?")
"""Before the backbone's names, where others stand beside them."""
CHUNK = re.compile(r"^blocks\.\d+\.(?=\d+\.)")
BLOCK, OURS = "blocks.{}.", "trunk.blocks.{}."
TOP = {
    "cls_token": "cls_token",
    "register_tokens": "reg_tokens",
    "pos_embed": "pos_embed",
    "patch_embed.proj.": "tokenizer.proj.",
    "norm.": "trunk.norm.",
}
GATED = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}
IN_BLOCK = ("norm1.", "attn.qkv.", "attn.proj.", "ls1.", "norm2.", "mlp.fc1.", "mlp.fc2.", "ls2.")
HEAD = {"linear_head.": "head."}
"""A linear classifier on the class token and the mean of the patches."""
MASK = "mask_token"


def matches(names: Collection[str]) -> bool:
    inside = {_bare(name) for name in names}
    marks = (
        {MASK, "blocks.0.ls1.gamma"},
        {"register_tokens"},
        {"blocks.0.mlp.w12.weight"},
    )
    chunked = any(CHUNK.match(PREFIX.sub("", name)) for name in names)
    known = {"patch_embed.proj.weight", "pos_embed", "blocks.0.attn.qkv.weight"} <= inside
    return known and (chunked or any(mark <= inside for mark in marks))


def decode(tensors: Tensors) -> Tensors:
    """A classifier on several blocks' tokens keeps its name, and is set aside.

    Raises:
        ValueError: if two tensors are the same one, with and without a prefix.
    """
    bare = renamed_by(_bare, tensors)
    head, norm = bare.get("linear_head.weight"), bare.get("norm.weight")
    one_block = head is not None and norm is not None and head.shape[-1] == 2 * norm.shape[0]
    return rename_prefixes(rename_blocks(bare, BLOCK, OURS, GATED), TOP | (HEAD if one_block else {}))


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    """With a mask token of zeros, which their code has a parameter for, and uses in pre-training only."""
    _refuse(config)
    refuse_unplaced(tensors, (*TOP.values(), *HEAD.values()), IN_BLOCK, SOURCE.name)
    names = rename_blocks(tensors, OURS, BLOCK, invert(GATED) if config.trunk.swiglu else {})
    encoded = rename_prefixes(names, invert(TOP | HEAD))
    return {**encoded, MASK: torch.zeros_like(tensors["cls_token"][0])}


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """What all of DINOv2's models have in common; heads of public widths.

    Raises:
        ValueError: if the linear classifier or the patch projection is incomplete, or a token missing.
    """
    if ("head.weight" in tensors) != ("head.bias" in tensors):
        raise ValueError("its linear classifier is incomplete (linear_head.weight and linear_head.bias)")
    refuse_halves(tensors, ("tokenizer.proj",))
    if "cls_token" not in tensors:
        raise ValueError("cls_token is missing")
    mean, std = IMAGENET
    said: dict[str, Any] = {
        "norm_eps": 1e-6,
        "activation": "gelu",
        "pos_resample": "antialias" if "reg_tokens" in tensors else "offset",
        "image_mean": mean,
        "image_std": std,
        **known_heads(tensors),
    }
    return said | ({"global_pool": "cls+mean"} if "head.weight" in tensors else {})


def _bare(name: str) -> str:
    """The name without prefixes and chunk; blocks are numbered throughout, whatever chunk they are in."""
    return CHUNK.sub("blocks.", PREFIX.sub("", name))


def _refuse(config: ViTConfig) -> None:
    """Raises ValueError for a model that DINOv2's code would build as another one, or not at all."""
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    pool = "cls+mean" if config.num_classes > 0 else "cls"
    refuse_obstacles(
        {
            **unnamed_obstacles(config, square=True),
            "a gated MLP": False,  # which it has
            "a model without class token": not config.class_token,
            "a distillation token": front_end.dist_pos,
            "blocks without LayerScale": trunk.layer_scale is None,
            f"norm_eps={trunk.norm_eps:g} (it is 1e-6 there)": trunk.norm_eps != 1e-6,
            f"activation={trunk.activation!r} (it is gelu there)": trunk.activation != "gelu"
            and not trunk.swiglu,
            "norm_pre": trunk.norm_pre,
            "a trunk without final norm": not trunk.final_norm,
            "a patch projection without bias": not front_end.patch_bias,
            "a hybrid stem": front_end.stem is not None,
            f"global_pool={config.global_pool!r} (it is {pool} there)": config.global_pool != pool,
            f"the head {config.head!r}": config.num_classes > 0 and config.head != "linear",
        },
        SOURCE.name,
    )


SET_ASIDE = {
    MASK: "used in pre-training only",
    "student.": "the student of self-distillation",
    **dict.fromkeys(("dino_head.", "ibot_head."), "a projection head of pre-training"),
    "linear_head.": "a classifier on the tokens of several blocks",
}
SOURCE = Source("dinov2", matches, decode, encode, settings, SET_ASIDE)
