"""Single objects for the page: picture, cloud, attention of both encoders, and links between the two."""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange
from matplotlib import colormaps
from matplotlib.image import imsave
from numpy.typing import ArrayLike
from torch import Tensor

from pointvit.compare.attention import attention_rollout, rollout_to_patches
from pointvit.compare.multiview import Views
from pointvit.compare.objects import Objects, cameras
from pointvit.compare.subjects import Subjects
from pointvit.data.transforms import swap_up_axis
from pointvit.model import ViT
from pointvit.ops import farthest_point_sample, knn
from pointvit.views import normalize_images, render_points

BUDGET = 10_500_000
"""Characters of the page that attention may take; beyond, it gets coarser, and then layers are left out."""
LEVELS = (31, 15)
"""Steps that a share of attention is rounded to, relative to the root of its row's largest."""
Packed = tuple[list[dict[str, str]], ...]
NEAR = 1.5
"""Patches between a patch and a group that still count as the same place."""


@dataclass(frozen=True)
class Looked:
    """One encoder's attention on one object."""

    layers: list[Tensor]
    """L times (H, R, N): shares that N tokens get, from the class token (row 0) and R - 1 others."""
    asking: list[int]
    """The patches or groups of rows 1 and on."""
    rollout: Tensor
    """(N,)"""


def scenes(subjects: Subjects, objects: Objects, rows: Sequence[int], views: Views) -> dict[str, Any]:
    """What the page's viewer shows of these objects, as plain values."""
    found, looks = [], []
    for row in rows:
        scene, pair = _scene(subjects, objects, row, views)
        found.append(scene)
        looks.append(pair)
    depth, levels, packed = _packed_within(looks)
    for scene, (image, points) in zip(found, packed, strict=True):
        scene["image"]["layers"], scene["points"]["layers"] = image, points
    camera = cameras(views)
    upward = {"y": 1, "z": 2}[views.up_axis]
    first = subjects.image.config.trunk
    grid = [views.size // patch for patch in subjects.patches.patch_size]
    return {
        "objects": found,
        "layers": depth,
        "depth": first.depth,
        "heads": first.num_heads,
        "levels": levels,
        "grid": grid,
        "size": views.size,
        "groups": subjects.groups.num_groups,
        "asking": "the class token" if subjects.image.config.class_token else "all, on average",
        "pitch": float(torch.asin(camera.rotations[0, 2, upward])),
        "colormap": _bytes((np.asarray(colormaps["viridis"](range(256)))[:, :3] * 255).round(), "u1"),
    }


def png(image: Tensor) -> str:
    """``(3, H, W)`` in [0, 1] -> a data URI."""
    stream = io.BytesIO()
    imsave(stream, image.permute(1, 2, 0).cpu().numpy().clip(0, 1), format="png")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def _scene(
    subjects: Subjects, objects: Objects, row: int, views: Views
) -> tuple[dict[str, Any], tuple[Looked, Looked]]:
    clouds = objects.batch(row, row + 1)
    xyz = clouds[..., :3]
    picture = objects.render(row, row + 1, views)[0, 0]
    camera = cameras(views)
    framed = subjects.group(clouds, objects.data.up_axis)[0].cpu()
    chosen = farthest_point_sample(framed[..., :3], subjects.groups.num_groups)
    centers = xyz[:, chosen[0]]
    pixels = camera.project(centers)[0][0, 0]
    depth = render_points(
        xyz, views.num_views, views.size, up_axis=views.up_axis, rig=views.rig, perspective=views.perspective
    )
    seen = camera.visible(centers, depth)[0, 0]
    h, w = subjects.patches.patch_size
    shown = rearrange(picture.amax(0) > 0, "(rows h) (cols w) -> (rows cols) (h w)", h=h, w=w).any(1)
    name = objects.data.names[row].encode("utf-8", "replace").decode()
    patch_of, group_of = _links(pixels, seen, (h, w), views.size)
    # y up on the screen, as the page's renderer wants it.
    upright = swap_up_axis(xyz[0], objects.data.up_axis, "y")
    scene: dict[str, Any] = {
        "name": name,
        "class": objects.data.class_names[int(objects.data.labels[row])],
        "picture": png(picture),
        "cloud": _bytes(((upright.clamp(-1, 1) + 1) * 32767.5).round(), "<u2"),
        "nearest": _bytes(knn(xyz.contiguous(), centers, 1)[0, :, 0], "<u2"),
        "centers": chosen[0].tolist(),
        "visible": seen.int().tolist(),
        "patchOf": patch_of,
        "groupOf": group_of,
    }
    image = _looked(
        subjects.image, normalize_images(picture[None], subjects.image), shown.nonzero()[:, 0].tolist()
    )
    points = _looked(subjects.points, framed, list(range(chosen.shape[1])))
    for key, looked in (("image", image), ("points", points)):
        top = float(looked.rollout.max()) or 1.0
        scene[key] = {
            "asking": looked.asking,
            "rollout": _bytes((looked.rollout / top * 65535).round(), "<u2"),
            "rolloutMost": top,
        }
    return scene, (image, points)


def _links(pixels: Tensor, seen: Tensor, patch: tuple[int, int], size: int) -> tuple[list[int], list[int]]:
    """``(G, 2), (G,) -> (G,), (N,)``: each group's patch, and each patch's nearest visible group, or -1."""
    h, w = patch
    rows, columns = size // h, size // w
    x, y = ((pixels[:, i] / n).floor().long() for i, n in ((0, w), (1, h)))
    inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
    patch_of = torch.where(inside, y * columns + x, -1)
    middle = torch.cartesian_prod(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5)
    apart = torch.cdist(middle, torch.stack([pixels[:, 1] / h, pixels[:, 0] / w], 1))
    nearest = apart.masked_fill(~(seen & inside)[None], torch.inf).min(dim=1)
    return patch_of.tolist(), torch.where(nearest.values <= NEAR, nearest.indices, -1).tolist()


@torch.inference_mode()
def _looked(encoder: ViT, x: Tensor, asking: list[int]) -> Looked:
    weights = encoder.attention_weights(x.to(next(encoder.parameters()).device))
    prefix, has_class = encoder.num_prefix_tokens, encoder.config.class_token
    rollout = rollout_to_patches(attention_rollout(weights), prefix, has_class)[0]
    layers = []
    for layer in weights:
        among = layer[0, :, :, prefix:].float().cpu()
        first = among[:, :1] if has_class else among.mean(dim=1, keepdim=True)
        layers.append(torch.cat([first, among[:, [prefix + i for i in asking]]], dim=1))
    return Looked(layers, asking, rollout.float().cpu())


def _packed_within(
    looks: Sequence[tuple[Looked, Looked]],
) -> tuple[list[int], int, list[Packed]]:
    """Layers that are kept, from 1, the levels, and the attention of all objects, within the budget."""
    depth = len(looks[0][0].layers)
    kept = list(range(depth))
    while True:
        for levels in LEVELS:
            packed = [tuple([_pack(each.layers[i], levels) for i in kept] for each in pair) for pair in looks]
            layers = [layer for pair in packed for side in pair for layer in side]
            size = sum(len(text) for layer in layers for text in layer.values())
            if size <= BUDGET or len(kept) == 1:
                return [i + 1 for i in kept], levels, packed
        fewer = max(1, min(len(kept) - 1, int(len(kept) * BUDGET / size)))
        kept = sorted({round(float(i)) for i in np.linspace(depth - 1, 0, fewer)})


def _pack(layer: Tensor, levels: int) -> dict[str, str]:
    """``(H, R, N)`` -> levels of each row's root share, and each row's largest share."""
    most = layer.amax(dim=2, keepdim=True).clamp_min(1e-12)
    steps = ((layer / most).sqrt() * levels).round()
    return {"levels": _deflated(steps, "u1"), "most": _deflated((most * 65535).round(), "<u2")}


def _deflated(values: Tensor, dtype: str) -> str:
    return base64.b64encode(zlib.compress(values.numpy().astype(dtype).tobytes(), 9)).decode()


def _bytes(values: ArrayLike | Tensor, dtype: str) -> str:
    """Numbers as base64, in the byte order that browsers have."""
    array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return base64.b64encode(array.astype(dtype).tobytes()).decode()
