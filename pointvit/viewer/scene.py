"""Everything there is to see of one cloud, as arrays: points, groups, attention, tokens, classes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange, reduce
from numpy.typing import NDArray
from torch import Tensor

from pointvit.compare import attention_rollout
from pointvit.data import PointCloud, read_points
from pointvit.inference import UP_AXES, answer, into_frame, load_cloud
from pointvit.model import Pair, ViT
from pointvit.ops import farthest_point_sample, knn
from pointvit.tokenizers import PointTokenizerConfig

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

DRAWN = 100_000
"""Points that are drawn at most; of larger clouds a random part, with every point that is in a group."""
CLASSES = 5
"""Classes that are shown, the most probable ones."""


@dataclass(frozen=True)
class Groups:
    """The point patches, in the order in which farthest point sampling found their centres."""

    centers: Indices
    """(G,) points that are centres."""
    members: Indices
    """(G, K) points of each group, nearest first."""
    nearest: Indices
    """(P,) the group whose centre is nearest to each point; groups overlap, and leave points out."""
    spacing: Floats
    """(G,) distance of each centre to the nearest one before it, in the file's unit; 0 for the first."""


@dataclass(frozen=True)
class Attention:
    """Softmax attention that groups get, as shares of 1; class and register tokens get the rest."""

    source: str
    """Who attends in ``by_head`` and ``rollout``: the class token, or all groups where there is none."""
    by_head: Floats
    """(L, H, G)."""
    pairs: Floats
    """(L, G, G) mean over the heads; rows attend, columns are attended to."""
    rollout: Floats
    """(G,) through all layers, see :func:`pointvit.compare.attention_rollout`."""
    rollout_pairs: Floats
    """(G, G)."""


@dataclass(frozen=True)
class Scene:
    """One cloud, and what a model makes of it."""

    name: str
    cloud: PointCloud
    """The points that are drawn."""
    total: int
    """Points of the file (of a mesh: sampled) before some were left out of the drawing."""
    up: str
    """Vertical axis, ``y`` or ``z``."""
    groups: Groups
    model: str | None = None
    """What kind of model looked at it."""
    attention: Attention | None = None
    tokens: Floats | None = None
    """(G, D) group tokens after the final norm."""
    classes: list[tuple[str, float]] | None = None
    """The most probable classes with their probabilities; None where the model has no head."""


def make_scene(source: Any, model: ViT | Pair | None = None, up: str = "auto") -> Scene:
    """File, :class:`PointCloud`, or array (P, 3), with normals (P, 6), -> what there is to see of it.

    With a model the points are exactly those that it sees when it predicts: as many as in training. Without
    one the groups are those of the default point tokenizer.

    Args:
        source: what to look at.
        model: a point encoder, with or without a head, or a pair; it is left in the mode it was in.
        up: vertical axis of the cloud, ``y`` or ``z``; ``auto`` is the one that a classifier is surest with,
            an encoder's own, and z without a model.

    Raises:
        ValueError: for a cloud or model that cannot be used.
        FileNotFoundError: for a missing file.
    """
    if up not in UP_AXES:
        raise ValueError(f"up must be one of {', '.join(UP_AXES)}, got {up!r}")
    encoder = None if model is None else _point_encoder(model)
    is_path = isinstance(source, (str, os.PathLike))
    wanted = None if encoder is None else encoder.meta.num_points
    cloud = read_points(Path(source), num_samples=wanted) if is_path else _as_cloud(source, wanted)
    name = Path(source).name if is_path else "cloud"
    if encoder is None:
        config, axis = PointTokenizerConfig(), "z" if up == "auto" else up
        groups = _groups(torch.from_numpy(cloud.points), cloud.points, config)
        return _drawn(Scene(name, cloud, len(cloud.points), axis, groups))
    given = source if is_path else _columns(cloud, encoder.config.tokenizer.in_chans)
    loaded = load_cloud(encoder, given)
    classes = None
    if encoder.num_classes:
        found = answer(encoder, loaded, CLASSES, up, name)
        classes, up = found.classes, found.up_axis
    elif up == "auto":
        up = encoder.meta.up_axis
    seen = into_frame(encoder, loaded, up)
    attention, tokens = _looked_at(encoder, seen, name)
    groups = _groups(seen[:, :3], cloud.points, encoder.config.tokenizer)
    trunk = encoder.config.trunk
    kind = f"{trunk.depth} layers of {trunk.num_heads} heads, width {trunk.embed_dim}"
    return _drawn(Scene(name, cloud, len(cloud.points), up, groups, kind, attention, tokens, classes))


def _point_encoder(model: ViT | Pair) -> ViT:
    encoder = model.points if isinstance(model, Pair) else model
    if encoder.config.modality != "points":
        raise ValueError(
            "the viewer needs a model of point clouds, and this one encodes images; give a point encoder, "
            "or leave the model out to look at the cloud alone"
        )
    channels = encoder.config.tokenizer.in_chans
    if channels not in (3, 6):
        raise ValueError(
            "the viewer needs a model of points (x, y, z), or of points with normals (6 channels), and this "
            f"one takes {channels} channels"
        )
    return encoder


def _as_cloud(source: Any, wanted: int | None) -> PointCloud:
    """Thinned as :func:`load_cloud` would, so that both keep the same points."""
    if isinstance(source, PointCloud):
        cloud = source
        if not len(cloud.points) or not all(
            np.isfinite(part).all()
            for part in (cloud.points, cloud.normals, cloud.colors)
            if part is not None
        ):
            raise ValueError("the cloud has no points, or numbers that are NaN or infinite")
    else:
        values = source.detach().cpu().numpy() if isinstance(source, Tensor) else np.asarray(source)
        if values.ndim != 2 or values.shape[1] not in (3, 6) or not np.issubdtype(values.dtype, np.number):
            raise ValueError(
                f"a cloud must be a file or numbers of shape (P, 3), or (P, 6) with normals, got "
                f"{values.dtype} of shape {values.shape}"
            )
        values = values[np.isfinite(values).all(axis=1)].astype(np.float64)
        if not len(values):
            raise ValueError("the cloud has no point that is a finite number")
        offset = values[:, :3].mean(axis=0)  # in float64: survey coordinates would collapse in float32
        normals = values[:, 3:].astype(np.float32) if values.shape[1] == 6 else None
        cloud = PointCloud((values[:, :3] - offset).astype(np.float32), normals, offset=offset)
    if wanted is None or len(cloud.points) <= wanted:
        return cloud
    return _take(cloud, np.random.default_rng(0).choice(len(cloud.points), wanted, replace=False))


def _take(cloud: PointCloud, rows: Indices) -> PointCloud:
    normals, colors = (None if part is None else part[rows] for part in (cloud.normals, cloud.colors))
    return replace(cloud, points=cloud.points[rows], normals=normals, colors=colors)


def _columns(cloud: PointCloud, channels: int) -> NDArray[np.float32]:
    if channels == 3:
        return cloud.points
    if cloud.normals is None:
        raise ValueError("the model was trained with normals, and this cloud has none")
    return np.concatenate([cloud.points, cloud.normals], axis=1)


def _groups(seen: Tensor, points: Floats, config: Any) -> Groups:
    """``(P, 3)`` in the model's frame -> the tokenizer's groups, and their spacing in the file's unit."""
    batch = seen[None].contiguous()
    chosen = farthest_point_sample(batch, config.num_groups)[0]
    centers = batch[:, chosen]
    members = knn(centers, batch, config.group_size)[0].numpy()
    nearest = knn(batch, centers, 1)[0, :, 0].numpy()
    places = points[chosen.numpy()].astype(np.float64)
    spacing = [np.linalg.norm(places[:i] - places[i], axis=1).min() for i in range(1, len(places))]
    return Groups(chosen.numpy(), members, nearest, np.array([0, *spacing], dtype=np.float32))


@torch.inference_mode()
def _looked_at(encoder: ViT, cloud: Tensor, name: str) -> tuple[Attention, Floats]:
    """``(P, C)`` -> the attention between class token and groups, and the group tokens."""
    batch = cloud[None].to(next(encoder.parameters()).device)
    training = encoder.training
    encoder.eval()
    try:
        weights = [layer.float().cpu() for layer in encoder.attention_weights(batch)]
        tokens = encoder.forward_features(batch)[0, encoder.num_prefix_tokens :].float().cpu()
    finally:
        encoder.train(training)
    if not all(bool(part.isfinite().all()) for part in (*weights, tokens)):
        raise ValueError(
            f"{name}: the model's attention or tokens are not numbers; its weights or the coordinates are "
            "beyond what its precision holds"
        )
    patches = slice(encoder.num_prefix_tokens, None)
    has_class = encoder.config.class_token
    layers = torch.cat(weights)  # (L, H, T, T)
    rollout = attention_rollout(weights)[0, :, patches]
    asking = slice(0, 1) if has_class else patches
    attention = Attention(
        source="the class token" if has_class else "all groups, on average",
        by_head=reduce(layers[:, :, asking, patches], "l h out g -> l h g", "mean").numpy(),
        pairs=reduce(layers[:, :, patches, patches], "l h out g -> l out g", "mean").numpy(),
        rollout=rollout[asking].mean(dim=0).numpy(),
        rollout_pairs=rollout[patches].numpy(),
    )
    return attention, tokens.numpy()


def _drawn(scene: Scene) -> Scene:
    """With at most ``DRAWN`` points, of which every centre and member of a group is one."""
    groups, total = scene.groups, scene.total
    if total <= DRAWN:
        return scene
    needed = np.unique(np.concatenate([groups.centers, rearrange(groups.members, "g k -> (g k)")]))
    others = np.setdiff1d(np.arange(total), needed, assume_unique=True)
    count = max(0, DRAWN - len(needed))
    kept = np.sort(np.concatenate([needed, np.random.default_rng(0).choice(others, count, replace=False)]))
    place = np.full(total, -1)
    place[kept] = np.arange(len(kept))
    moved = Groups(place[groups.centers], place[groups.members], groups.nearest[kept], groups.spacing)
    return replace(scene, cloud=_take(scene.cloud, kept), groups=moved)
