"""Image towers of OpenCLIP's that are timm's models (SigLIP, EVA-CLIP, ...), as ``visual.trunk``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pointvit.checkpoints.sources import eva, timm
from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    refuse_halves,
    refuse_other_pools,
    rename_prefixes,
)
from pointvit.config import CLIP, UNIT

PREFIX = "visual.trunk."
SOURCES = (eva.SOURCE, timm.SOURCE)
SET_ASIDE = {name: why for source in SOURCES for name, why in source.set_aside.items()}


def has_trunk(names: Collection[str]) -> bool:
    return any(name.startswith(PREFIX) for name in names)


def decode(tensors: Tensors) -> Tensors:
    """As the trunk's own source does; OpenCLIP's projection, where there is one, is the head.

    Raises:
        ValueError: if the trunk is no ViT, or none that is supported; if there are two projections.
    """
    inside = {n.removeprefix(PREFIX): t for n, t in tensors.items() if n.startswith(PREFIX)}
    outside = {n: t for n, t in tensors.items() if not n.startswith(PREFIX)}
    if "norm_pre.weight" in inside and "attn_pool.latent" in inside:
        raise ValueError("its image tower is a Perception Encoder, whose rotary positions are not supported")
    own, projection = _source(inside).decode(inside), rename_prefixes(outside, {"visual.head.proj.": "head."})
    if not own.keys().isdisjoint(projection):
        raise ValueError("its image tower has two projections, visual.trunk.head and visual.head.proj")
    return projection | own


def settings(tensors: Tensors, facts: Facts, vision: Mapping[str, Any]) -> dict[str, Any]:
    """As the trunk's own source has them, told the name of timm's model and its pool.

    Args:
        vision: OpenCLIP's ``vision_cfg``.
    """
    refuse_other_pools(tensors)
    refuse_halves(tensors, ("fc_norm",))
    inside = {n.removeprefix(PREFIX): shape for n, shape in facts.shapes.items() if n.startswith(PREFIX)}
    inside_head = any(n.startswith("head.") for n in inside)
    own = {n: t for n, t in tensors.items() if inside_head or not n.startswith("head.")}
    if vision and vision.get("timm_proj") != "none" and "head.weight" not in tensors:
        raise ValueError("its configuration asks for a projection, which is missing")
    of_timm = {"architecture": vision.get("timm_model_name"), "global_pool": vision.get("timm_pool")}
    said = _source(inside).settings(own, Facts(of_timm, inside))
    mean, std = UNIT if "pool.attn_pool.latent" in tensors else CLIP
    return {**said, "image_mean": mean, "image_std": std}


def _source(names: Collection[str]) -> Source:
    for source in SOURCES:
        if source.matches(names):
            return source
    shown = ", ".join(PREFIX + name for name in list(names)[:2])
    raise ValueError(f"its image tower is none of timm's ViTs that are supported ({shown}, ...)")
