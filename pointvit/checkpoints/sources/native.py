"""pointvit's own names, in a saved folder or a training checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from pointvit.checkpoints.sources.source import Facts, Source, Tensors, renamed_by
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

FIRST = "trunk.blocks.0.attn.qkv.weight"
IMAGE = "image."
"""Prefix of the image encoder in a saved pair."""


def matches(names: Collection[str]) -> bool:
    return FIRST in names or IMAGE + FIRST in names


def decode(tensors: Tensors) -> Tensors:
    """Joins an image encoder's class position and patch positions into one table, as other sources have it.

    Of a pair, the image encoder, which holds the shared trunk, loses its prefix.
    """
    tensors = renamed_by(lambda name: name.removeprefix(IMAGE), tensors)
    if "tokenizer.proj.weight" not in tensors or "tokenizer.pos_embed" not in tensors:
        return tensors
    order = ("tokenizer.cls_pos", "tokenizer.dist_pos", "tokenizer.pos_embed")
    rows = [tensors.pop(name) for name in order if name in tensors]
    return {**tensors, "pos_embed": torch.cat(rows, dim=1)}


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    tensors = dict(tensors)
    if "pos_embed" in tensors and isinstance(config.tokenizer, ImageTokenizerConfig):
        table = tensors.pop("pos_embed")
        patches = config.tokenizer.grid[0] * config.tokenizer.grid[1]
        tensors["tokenizer.pos_embed"] = table[:, -patches:].contiguous()
        for i, name in enumerate(("tokenizer.cls_pos", "tokenizer.dist_pos")[: table.shape[1] - patches]):
            tensors[name] = table[:, i : i + 1].contiguous()
    return tensors


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """Nothing: the description beside the weights has it all, and without one nothing is known."""
    return {}


def description(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """What ``saving.describe`` wrote, with tuples again where JSON made lists; of a pair, its image encoder.

    Raises:
        KeyError, TypeError, ValueError: if something is missing or of another kind.
    """
    if config is None or "kind" not in config:
        return None
    if config["kind"] not in ("model", "pair"):
        raise ValueError(f"kind must be model or pair, got {config['kind']!r}")
    own = config["image"] if config["kind"] == "pair" else config
    meta = {n: tuple(v) if n in ("image_mean", "image_std") else v for n, v in dict(own["meta"]).items()}
    return {**own, "meta": meta}


SOURCE = Source(
    "pointvit",
    matches,
    decode,
    encode,
    settings,
    {"points.": "the point encoder of a pair"},
    modality=None,
)
