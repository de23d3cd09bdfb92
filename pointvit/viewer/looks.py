"""What a point's colour means: one number a point, or a colour of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointvit.plots import COLORS
from pointvit.viewer.scene import Scene

COLORINGS = {
    "height": "height",
    "normals": "normals",
    "colors": "the file's colours",
    "groups": "point groups",
    "order": "order of the groups",
    "attention": "attention",
    "rollout": "attention rollout",
    "channel": "channel of the tokens",
}
NEEDS = {
    "normals": "the cloud has no normals",
    "colors": "the cloud has no colours",
    "attention": "attention needs a model",
    "rollout": "the rollout needs a model",
    "channel": "tokens need a model",
}
COLORMAP = "viridis"
"""Evenly lighter, so that it reads in colour blindness and in grey."""


@dataclass(frozen=True)
class Look:
    """What is shown first on a page, and in a picture. Counted from 1, as people do."""

    color: str | None = None
    """One of ``COLORINGS``; None: the rollout with a model, else the file's colours, else the height."""
    layer: int | None = None
    """None: the last."""
    head: int | None = None
    """None: the mean over the heads."""
    group: int | None = None
    """The picked group, which then is the one that attends; None: the class token."""
    channel: int = 1


@dataclass(frozen=True)
class Coloring:
    """How one look colours the points."""

    label: str
    values: NDArray[np.float64] | None = None
    """(P,) numbers for the colour map, or None where ``rgb`` says it."""
    rgb: NDArray[np.float64] | None = None
    """(P, 3) in [0, 1]."""


def available(scene: Scene) -> list[str]:
    """The colourings that this scene has."""
    has = {
        "normals": scene.cloud.normals is not None,
        "colors": scene.cloud.colors is not None,
        **dict.fromkeys(("attention", "rollout", "channel"), scene.attention is not None),
    }
    return [name for name in COLORINGS if has.get(name, True)]


def checked(scene: Scene, look: Look) -> Look:
    """The same look with its defaults filled in.

    Raises:
        ValueError: for a colouring that this scene lacks, or a number outside what it has.
    """
    names = available(scene)
    if look.color is None:
        color = min(names, key=("rollout", "colors", "height", *names).index)
    elif look.color in names:
        color = look.color
    elif look.color in COLORINGS:
        raise ValueError(f"cannot colour by {look.color}: {NEEDS[look.color]}; there are {', '.join(names)}")
    else:
        raise ValueError(f"color must be one of {', '.join(names)}, got {look.color!r}")
    attention, tokens = scene.attention, scene.tokens
    layers, heads = (0, 0) if attention is None else attention.by_head.shape[:2]
    limits = {
        "layer": (look.layer, layers),
        "head": (look.head, heads),
        "group": (look.group, len(scene.groups.centers)),
        "channel": (look.channel if color == "channel" else None, 0 if tokens is None else tokens.shape[1]),
    }
    for name, (number, count) in limits.items():
        if number is not None and not 1 <= number <= count:
            has = f"there are {count}, counted from 1" if count else "it needs a model"
            raise ValueError(f"there is no {name} {number}: {has}")
    return Look(color, look.layer or layers or None, look.head, look.group, look.channel)


def coloring(scene: Scene, look: Look) -> Coloring:
    """A checked look -> the numbers or colours of the points that are drawn."""
    cloud, groups = scene.cloud, scene.groups
    if look.color == "height":
        axis = "xyz".index(scene.up)
        return Coloring(f"height ({scene.up})", cloud.points[:, axis] + cloud.offset[axis])
    if look.color == "normals" and cloud.normals is not None:
        return Coloring("normals: x red, y green, z blue", rgb=(cloud.normals.astype(np.float64) + 1) / 2)
    if look.color == "colors" and cloud.colors is not None:
        return Coloring("the file's colours", rgb=cloud.colors.astype(np.float64))
    if look.color == "groups":
        palette = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLORS])
        return Coloring(f"{len(groups.centers)} groups", rgb=palette[group_colors(scene)[groups.nearest]])
    label, values = group_values(scene, look)
    return Coloring(label, values[groups.nearest].astype(np.float64))


def group_values(scene: Scene, look: Look) -> tuple[str, NDArray[np.float32]]:
    """``-> label, (G,)``: one number a group, for the colourings that have one."""
    if look.color == "order":
        return "order in farthest point sampling", np.arange(1, len(scene.groups.centers) + 1, dtype="f4")
    attention, tokens = scene.attention, scene.tokens
    assert attention is not None
    assert tokens is not None
    if look.color == "channel":
        return f"channel {look.channel} of the tokens", tokens[:, look.channel - 1]
    source = attention.source if look.group is None else f"group {look.group}"
    if look.color == "rollout":
        row = attention.rollout if look.group is None else attention.rollout_pairs[look.group - 1]
        return f"attention rollout from {source}", row
    assert look.layer is not None
    if look.group is not None:
        return f"attention of {source}, layer {look.layer}", attention.pairs[look.layer - 1, look.group - 1]
    layer = attention.by_head[look.layer - 1]
    heads = "mean of heads" if look.head is None else f"head {look.head}"
    row = layer.mean(axis=0) if look.head is None else layer[look.head - 1]
    return f"attention of {source}, layer {look.layer}, {heads}", row


def group_colors(scene: Scene) -> NDArray[np.int64]:
    """``-> (G,)`` rows of ``COLORS``: each group takes the colour whose nearest bearer is farthest away."""
    centers = scene.cloud.points[scene.groups.centers].astype(np.float64)
    chosen = np.zeros(len(centers), dtype=np.int64)
    distance = np.full((len(COLORS), len(centers)), np.inf)
    for group, center in enumerate(centers):
        chosen[group] = distance[:, group].argmax()
        reach = np.linalg.norm(centers - center, axis=1)
        distance[chosen[group]] = np.minimum(distance[chosen[group]], reach)
    return chosen
