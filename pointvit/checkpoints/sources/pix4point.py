"""The names of Pix4Point's standard transformer (PViT; Qian et al. 2022, arXiv:2208.12259), from openpoints.

Its convolutions have no bias before a batch norm, where ours have one of zero, which is the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from pointvit.checkpoints.sources import point_bert
from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    invert,
    known_heads,
    refuse_obstacles,
    refuse_unplaced,
    rename_prefixes,
    width_of,
)
from pointvit.config import ViTConfig

NAME = "pix4point"
NAMES = {
    "encoder.patch_embed.conv1.0.0.": "tokenizer.embed.first.0.",
    "encoder.patch_embed.conv1.0.1.": "tokenizer.embed.first.1.",
    "encoder.patch_embed.conv1.1.0.": "tokenizer.embed.first.3.",
    "encoder.patch_embed.conv2.0.0.": "tokenizer.embed.second.0.",
    "encoder.patch_embed.conv2.0.1.": "tokenizer.embed.second.1.",
    "encoder.patch_embed.conv2.1.0.": "tokenizer.embed.second.3.",
    "encoder.pos_embed.0.0.": "tokenizer.pos_embed.0.",
    "encoder.pos_embed.1.": "tokenizer.pos_embed.2.",
    "encoder.cls_token": "cls_token",
    "encoder.cls_pos": "tokenizer.cls_pos",
    "encoder.blocks.": "trunk.blocks.",
    "encoder.norm.": "trunk.norm.",
    "prediction.head.0.0.": "head.0.",
    "prediction.head.0.1.": "head.1.",
    "prediction.head.2.0.": "head.4.",
    "prediction.head.2.1.": "head.5.",
    "prediction.head.4.0.": "head.8.",
}
BEFORE_NORM = ("tokenizer.embed.first.0", "tokenizer.embed.second.0")
POOLS = {2: "cls+max", 3: "cls+max+mean"}
"""How many times the trunk's width the head takes in -> what is concatenated."""
SETTINGS: dict[str, Any] = {"norm_eps": 1e-6, "activation": "gelu", "pos_mode": "every_block"}


def matches(names: Collection[str]) -> bool:
    return {"encoder.cls_pos", "encoder.blocks.0.attn.qkv.weight"} <= set(names)


def decode(tensors: Tensors) -> Tensors:
    """Raises ValueError for the family's other tokenizer, or features beside the coordinates."""
    decoded = point_bert.from_convolutions(rename_prefixes(tensors, NAMES))
    first = decoded.get(f"{BEFORE_NORM[0]}.weight")
    if first is None or first.shape[1] != 3:
        found = "none" if first is None else f"one of {first.shape[1]} channels"
        raise ValueError(
            f"expected the tokenizer PointPatchEmbed of coordinates alone (3 channels), found {found}"
        )
    for layer in BEFORE_NORM:
        weight = decoded.get(f"{layer}.weight")
        if weight is not None and f"{layer}.bias" not in decoded:
            decoded[f"{layer}.bias"] = torch.zeros(weight.shape[0], dtype=weight.dtype, device=weight.device)
    return decoded


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    expected = {**point_bert.PLAIN, **SETTINGS, "qkv_bias": True, **known_heads(tensors)}
    point_bert.refuse_settings(config, expected, NAME)
    pools = list(POOLS.values()) if config.num_classes else [POOLS[3]]
    biases = [f"{layer}.bias" for layer in BEFORE_NORM]
    obstacles = {
        f"global_pool={config.global_pool!r}": config.global_pool not in pools,
        f"the head {config.head!r}": config.num_classes > 0 and config.head != NAME,
        **{f"{bias}, which is not zero": bool(tensors[bias].any()) for bias in biases},
    }
    refuse_obstacles(obstacles, NAME)
    ours = {name: tensor for name, tensor in tensors.items() if name not in biases}
    refuse_unplaced(ours, list(NAMES.values()), ("",), NAME)
    return rename_prefixes(point_bert.to_convolutions(ours, spatial=2), invert(NAMES))


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """As published for ScanObjectNN: groups are a quarter of 1024 points.

    Raises:
        ValueError: if the head takes in neither two nor three times the trunk's width, or if the class token
            is missing, or a part of the head or of the tokenizer.
    """
    point_bert.check(tensors, ("head.8.weight",))
    head = tensors.get("head.0.weight")
    ratio = 3.0 if head is None else head.shape[1] / width_of(tensors)
    if ratio not in POOLS:
        raise ValueError(f"the head takes in {ratio:g} times the trunk's width, expected 2 or 3 times")
    return {
        **SETTINGS,
        **point_bert.UP,
        "global_pool": POOLS[int(ratio)],
        "head": "pix4point",
        "num_groups": 256,
        "num_points": 1024,
        **known_heads(tensors),
    }


SOURCE = Source(NAME, matches, decode, encode, settings, modality="points")
