"""pointvit's own names, in a saved folder or a training checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from pointvit.checkpoints.source import Source, Tensors, heads_of
from pointvit.config import ViTConfig


def matches(names: Collection[str]) -> bool:
    return "trunk.blocks.0.attn.qkv.weight" in names


def decode(tensors: Tensors) -> Tensors:
    """Image encoders: joins the class token's position and the patches' into one table, as other sources have it."""
    if "tokenizer.proj.weight" not in tensors or "tokenizer.pos_embed" not in tensors:
        return tensors
    tensors = dict(tensors)
    rows = [tensors.pop(n) for n in ("tokenizer.cls_pos", "tokenizer.pos_embed") if n in tensors]
    return {**tensors, "pos_embed": torch.cat(rows, dim=1)}


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    tensors = dict(tensors)
    if "pos_embed" in tensors:
        table = tensors.pop("pos_embed")
        patches = config.tokenizer.grid[0] * config.tokenizer.grid[1]
        tensors["tokenizer.pos_embed"] = table[:, -patches:].contiguous()
        if table.shape[1] > patches:
            tensors["tokenizer.cls_pos"] = table[:, :-patches].contiguous()
    return tensors


def settings(tensors: Tensors, config: dict[str, Any] | None) -> dict[str, Any]:
    trunk = ((config or {}).get("model") or {}).get("trunk")
    if trunk:
        return {name: trunk[name] for name in ("norm_eps", "activation", "num_heads")}
    return {"num_heads": heads_of(tensors["trunk.blocks.0.attn.qkv.weight"].shape[1])}


SOURCE = Source("pointvit", matches, decode, encode, settings)
