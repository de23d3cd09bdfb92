"""timm's ViT names (also those of DeiT, DINO and MAE): the trunk's names are ours already."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.source import HEADS_BY_WIDTH, Source, Tensors, invert, rename_prefixes
from pointvit.config import ViTConfig

NAMES = {
    "patch_embed.": "tokenizer.",
    "blocks.": "trunk.blocks.",
    "norm_pre.": "trunk.norm_pre.",
    "norm.": "trunk.norm.",
    "reg_token": "reg_tokens",
    "attn_pool.": "pool.attn_pool.",
    "pre_logits.fc.": "pre_logits.0.",
}
OFFICIAL = {"register_tokens": "reg_tokens"}
"""What DINOv2's own files call otherwise."""


def matches(names: Collection[str]) -> bool:
    return "patch_embed.proj.weight" in names and "blocks.0.attn.qkv.weight" in names


def decode(tensors: Tensors) -> Tensors:
    return rename_prefixes(tensors, NAMES | OFFICIAL)


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    return rename_prefixes(tensors, invert(NAMES))


def settings(tensors: Tensors, config: dict[str, Any] | None) -> dict[str, Any]:
    """timm's defaults; a CLIP file leaves open whether it wants GELU (OpenCLIP) or QuickGELU (OpenAI)."""
    width = tensors["trunk.blocks.0.attn.qkv.weight"].shape[1]
    heads = {"num_heads": HEADS_BY_WIDTH[width]} if width in HEADS_BY_WIDTH else {}
    if "trunk.norm_pre.weight" in tensors:
        return {"norm_eps": 1e-5, **heads}
    return {"norm_eps": 1e-6, "activation": "gelu", **heads}


SET_ASIDE = {
    "mask_token": "used in pre-training only",
    "decoder_": "the decoder of masked pre-training",
}
SOURCE = Source("timm", matches, decode, encode, settings, SET_ASIDE)
