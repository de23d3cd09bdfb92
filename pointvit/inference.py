"""From a file or an array to class probabilities, in the frame that the model was trained in."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pointvit.data.io import read_points
from pointvit.data.transforms import NormalizeUnitSphere, swap_up_axis

if TYPE_CHECKING:
    from pointvit.model import ViT

logger = logging.getLogger(__name__)

UP_AXES = ("auto", "y", "z")
DENSITY = 2
"""Clouds with fewer points than the model was trained on by more than this factor are warned of."""
Prediction = list[tuple[str, float]]


@dataclass(frozen=True)
class Answer:
    """The classes of one cloud, most probable first, and how it was looked at."""

    classes: Prediction
    up_axis: str
    """The vertical axis it was taken to have."""
    num_points: int
    """Points the model saw."""


def predict(model: ViT, sources: Sequence[Any], top: int = 5, up: str | None = None) -> list[Prediction]:
    """Files or clouds (P, 3) -> the ``top`` most probable ``(class name, probability)`` of each, best first.

    Args:
        model: a point classifier that knows its class names; it is left in the mode it was in.
        sources: paths, arrays or tensors; (P, 6) with normals for a model trained with them.
        top: classes to return; all if there are fewer.
        up: vertical axis of the sources, ``y`` or ``z``; ``auto`` takes the one the model is surest with,
            None the model's own.

    Raises:
        ValueError: for a model that is no point classifier, or a cloud that cannot be used.
        FileNotFoundError: for a missing file.
    """
    return [answer.classes for answer in answers(model, sources, top, up)]


def answers(model: ViT, sources: Sequence[Any], top: int = 5, up: str | None = None) -> Iterator[Answer]:
    """As :func:`predict`, one by one as they are ready, with the axis that was chosen."""
    check_request(model, top, up)
    for source in sources:
        yield answer(model, load_cloud(model, source), top, up, _name(source))


def answer(model: ViT, cloud: Tensor, top: int, up: str | None, name: str) -> Answer:
    """``(P, C)`` from :func:`load_cloud` -> its classes; ``name`` says in an error whose they are."""
    names = model.meta.class_names or [f"class {i}" for i in range(model.num_classes)]
    axes = ["z", "y"] if up == "auto" else [up or model.meta.up_axis]
    probabilities = _probabilities(model, torch.stack([into_frame(model, cloud, axis) for axis in axes]))
    if not bool(probabilities.isfinite().all()):
        raise ValueError(
            f"{name}: the model's answer is not a number; its weights or the coordinates are beyond what its "
            "precision holds"
        )
    surest = int(probabilities.amax(dim=1).argmax())
    best = probabilities[surest].topk(min(top, len(names)))
    classes = [(names[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return Answer(classes, axes[surest], len(cloud))


def check_request(model: ViT, top: int, up: str | None) -> None:
    """Raises ValueError for what no file could be predicted with."""
    if model.config.modality != "points" or model.num_classes == 0:
        raise ValueError(
            "predicting needs a point classifier; this model encodes images or has no head (num_classes=0)"
        )
    if up not in (None, *UP_AXES):
        raise ValueError(f"up must be one of {', '.join(UP_AXES)}, got {up!r}")
    if not hasattr(top, "__index__"):
        raise ValueError(f"top must be a whole number, got {top!r}")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")


def load_cloud(model: ViT, source: Any) -> Tensor:
    """Path, array or tensor -> ``(P, C)`` float32 with as many points as the model was trained on, at most.

    Meshes are sampled by area, larger clouds thinned at random; both with a fixed seed. Points that are not
    finite are left out, with a warning, as there is of a cloud with far fewer points than in training.
    """
    wanted, channels = model.meta.num_points, model.config.tokenizer.in_chans
    if isinstance(source, (str, os.PathLike)):
        cloud = read_points(os.fspath(source), num_samples=wanted)
        _warn(source, len(cloud.points), cloud.num_dropped, wanted)
        parts = [cloud.points]
        if channels >= 6:
            if cloud.normals is None:
                raise ValueError(f"{source}: the model was trained with normals, and this file has none")
            parts.append(cloud.normals)
        return torch.from_numpy(np.concatenate(parts, axis=1))
    try:
        points = source.detach().cpu() if isinstance(source, Tensor) else torch.as_tensor(np.asarray(source))
    except (TypeError, ValueError) as error:
        raise ValueError(f"a cloud must be a path or numbers of shape (P, {channels}) ({error})") from error
    if points.ndim != 2 or points.shape[1] != channels or len(points) == 0:
        raise ValueError(f"a cloud must have shape (P, {channels}) with P >= 1, got {tuple(points.shape)}")
    points = points.double()
    finite = torch.isfinite(points).all(dim=1)
    if not bool(finite.any()):
        raise ValueError("every point of the cloud is NaN or infinite")
    points = points[finite]
    _warn(_name(source), len(points), int((~finite).sum()), wanted)
    points[:, :3] -= points[:, :3].mean(dim=0)  # in float64: survey coordinates would collapse in float32
    if wanted is not None and len(points) > wanted:
        points = points[torch.from_numpy(np.random.default_rng(0).choice(len(points), wanted, replace=False))]
    return points.float()


def _warn(name: Any, count: int, dropped: int, wanted: int | None) -> None:
    if dropped:
        logger.warning("%s: points that are NaN or infinite were left out: %d", name, dropped)
    if wanted is not None and DENSITY * count < wanted:
        logger.warning("%s: has %d points, the model was trained on %d", name, count, wanted)


def _name(source: Any) -> str:
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the cloud"


def into_frame(model: ViT, cloud: Tensor, up: str) -> Tensor:
    """``(P, C) -> (P, C)``: a cloud whose vertical axis is ``up``, as the model saw clouds in training."""
    cloud = swap_up_axis(cloud, up, model.meta.up_axis)
    return NormalizeUnitSphere()(cloud) if model.meta.normalization == "unit_sphere" else cloud


@torch.inference_mode()
def _probabilities(model: ViT, clouds: Tensor) -> Tensor:
    """``(B, P, C) -> (B, K)`` on the CPU."""
    training = model.training
    model.eval()
    try:
        return model(clouds.to(next(model.parameters()).device)).float().softmax(dim=1).cpu()
    finally:
        model.train(training)
