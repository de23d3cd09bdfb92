"""A cloud as one HTML file that needs no network: the scene's arrays, and a small renderer beside them."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from numpy.typing import ArrayLike, NDArray

from pointvit.checkpoints.writing import new_file
from pointvit.model import Pair, ViT
from pointvit.viewer.looks import COLORMAP, COLORS, Look, available, checked, group_colors
from pointvit.viewer.output import PAGES, checked_name
from pointvit.viewer.scene import Attention, Scene, make_scene


def write_page(
    cloud: Any,
    model: ViT | Pair | None = None,
    path: str | os.PathLike[str] = "view.html",
    up: str = "auto",
    look: Look | None = None,
) -> Path:
    """Writes a self-contained web page on which a cloud can be turned, and returns its path.

    Args:
        cloud: file, :class:`~pointvit.data.PointCloud`, array (P, 3), with normals (P, 6), or a
            :class:`Scene` (whose model and axis then count).
        model: a point encoder, with or without a head, or a pair.
        path: a name ending in .html; a page of that name is replaced once the new one is complete.
        up: vertical axis, ``y``, ``z`` or ``auto``, see :func:`make_scene`.
        look: what is shown first.

    Raises:
        ValueError: for a cloud, model, look or ending that cannot be used.
        OSError: where the file cannot be read or the page not written.
    """
    path = checked_name(path, PAGES)
    scene = cloud if isinstance(cloud, Scene) else make_scene(cloud, model, up)
    text = page(scene, look or Look())
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def page(scene: Scene, look: Look) -> str:
    """The page's text; names in it are data, never markup."""
    # A file name need not be text: what is not becomes a question mark.
    name = scene.name.encode("utf-8", "replace").decode()
    # `<` would let a name end the script that holds the data.
    data = json.dumps(_data(scene, checked(scene, look)), allow_nan=False, separators=(",", ":"))
    parts = {"title": html.escape(name), "data": data.replace("<", "\\u003c")}
    parts |= {"css": _asset("page.css"), "js": _asset("splats.js") + _asset("page.js")}
    # In one pass, so that what is put in is not searched for names to replace.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return files("pointvit.viewer").joinpath(name).read_text(encoding="utf-8")


def _data(scene: Scene, look: Look) -> dict[str, Any]:
    cloud, groups = scene.cloud, scene.groups
    low, high = cloud.points.min(axis=0), cloud.points.max(axis=0)
    steps = (cloud.points - low) / np.where(high > low, high - low, 1) * 65535
    centers = cloud.points[groups.centers] + cloud.offset
    return {
        "name": scene.name.encode("utf-8", "replace").decode(),
        "total": scene.total,
        "count": len(cloud.points),
        "up": scene.up,
        "low": (low + cloud.offset).tolist(),
        "high": (high + cloud.offset).tolist(),
        "points": _packed(steps.round(), "<u2"),
        "normals": None if cloud.normals is None else _packed((cloud.normals * 127).clip(-127, 127), "i1"),
        "colors": None if cloud.colors is None else _packed((cloud.colors * 255).round(), "u1"),
        "groups": {
            "count": len(groups.centers),
            "size": groups.members.shape[1],
            "points": _packed(groups.centers, "<u4"),
            "centers": centers.tolist(),
            "members": _packed(groups.members, "<u4"),
            "nearest": _packed(groups.nearest, "<u4"),
            "spacing": groups.spacing.tolist(),
            "colors": group_colors(scene).tolist(),
        },
        "palette": COLORS,
        "colormap": _packed(
            (np.asarray(colormaps[COLORMAP].resampled(256)(range(256)))[:, :3] * 255).round(), "u1"
        ),
        "model": scene.model,
        "classes": scene.classes,
        "attention": None if scene.attention is None else _attention(scene.attention),
        "tokens": None if scene.tokens is None else _quantised(scene.tokens.T),
        "colorings": available(scene),
        "look": vars(look),
    }


def _attention(attention: Attention) -> dict[str, Any]:
    layers, heads, groups = attention.by_head.shape
    return {
        "source": attention.source,
        "layers": layers,
        "heads": heads,
        "byHead": _quantised(attention.by_head.reshape(-1, groups)),
        "pairs": _quantised(attention.pairs.reshape(-1, groups)),
        "rollout": _quantised(attention.rollout[None]),
        "rolloutPairs": _quantised(attention.rollout_pairs),
    }


def _quantised(rows: NDArray[np.float32]) -> dict[str, Any]:
    """``(R, N)`` -> 256 levels between each row's least and greatest number."""
    low, high = rows.min(axis=1), rows.max(axis=1)
    span = np.where(high > low, high - low, 1)
    levels = ((rows - low[:, None]) / span[:, None] * 255).round()
    return {
        "columns": rows.shape[1],
        "low": _packed(low, "<f4"),
        "high": _packed(high, "<f4"),
        "levels": _packed(levels, "u1"),
    }


def _packed(values: ArrayLike, dtype: str) -> str:
    """Numbers as base64, in the byte order that browsers have."""
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()
