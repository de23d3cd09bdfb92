"""Uni3D's names (Zhou et al. 2024, arXiv:2310.06773): a point tokenizer before the blocks of an EVA model.

The blocks run without rotary positions. Clouds have six channels, xyz and rgb from 0 to 1; a missing colour
is 0.4 throughout, as in training.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.sources import eva, point_bert
from pointvit.checkpoints.sources.source import Facts, Source, Tensors, known_heads, rename_prefixes

PREFIX = "point_encoder."
BLOCKS = "visual.blocks."
NAMES = {
    **point_bert.TOKENIZER,
    "encoder2trans.": "tokenizer.reduce.",
    "trans2embed.": "head.",
    "visual.norm.": "trunk.norm.",
    "visual.fc_norm.": "fc_norm.",
}
SETTINGS: dict[str, Any] = {
    "norm_eps": 1e-6,
    "activation": "gelu",
    "pos_mode": "once",
    "global_pool": "cls",
    "head": "linear",
    "num_groups": 512,
    "group_size": 64,
    "num_points": 10_000,
}


def matches(names: Collection[str]) -> bool:
    block = f"{PREFIX}{BLOCKS}0.norm1.weight"
    return {f"{PREFIX}encoder2trans.weight", block} <= set(names)


def decode(tensors: Tensors) -> Tensors:
    named = rename_prefixes(rename_prefixes(tensors, {PREFIX: ""}), NAMES)
    blocks = {n.removeprefix("visual."): t for n, t in named.items() if n.startswith(BLOCKS)}
    rest = {n: t for n, t in named.items() if not n.startswith(BLOCKS)}
    trunk = eva.decode(blocks)
    if not trunk.keys().isdisjoint(rest):
        raise ValueError("two of its tensors are the same one of the trunk")
    return {**point_bert.from_convolutions(rest), **trunk}


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """
    Raises:
        ValueError: if the class token is missing, or a part of the head or of the tokenizer.
    """
    point_bert.check(tensors, ("head.weight",))
    return {**SETTINGS, **point_bert.UP, **known_heads(tensors)}


SET_ASIDE = {
    **dict.fromkeys(
        ("visual.cls_token", "visual.pos_embed", "visual.patch_embed.", "visual.head."),
        "the image model's own, which Uni3D replaces",
    ),
    "logit_scale": "the temperature of contrastive training",
}
SOURCE = Source("uni3d", matches, decode, None, settings, SET_ASIDE, modality="points")
