"""timm's ViT names (also DeiT's and DINO's): the trunk's names are ours already."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.source import Source, Tensors, heads_of, invert, rename_prefixes
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


def matches(names: Collection[str]) -> bool:
    return "patch_embed.proj.weight" in names and "blocks.0.attn.qkv.weight" in names


def decode(tensors: Tensors) -> Tensors:
    return rename_prefixes(tensors, NAMES)


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    return rename_prefixes(tensors, invert(NAMES))


def settings(tensors: Tensors, config: dict[str, Any] | None) -> dict[str, Any]:
    width = tensors["trunk.blocks.0.attn.qkv.weight"].shape[1]
    clip = "trunk.norm_pre.weight" in tensors
    return {"norm_eps": 1e-5 if clip else 1e-6, "activation": "gelu", "num_heads": heads_of(width)}


SOURCE = Source("timm", matches, decode, encode, settings, {"mask_token": "used in pre-training only"})
