"""From a file or an array to class probabilities, in the frame that the model was trained in."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from pointvit.data.io import READERS, PointCloud, read_points
from pointvit.data.transforms import NormalizeUnitSphere, swap_up_axis
from pointvit.input_words import remarks

if TYPE_CHECKING:
    from pointvit.model import ViT

logger = logging.getLogger(__name__)

UP_AXES = ("auto", "y", "z")
BATCH_SIZE = 32
TOGETHER = 16
"""Clouds of one forward pass where there are many: fewer are slower for each (docs/performance.md)."""
READING_THREADS = 4
BATCH_POINTS = 2**20
"""A batch has no more points than this, however many clouds are asked for."""
SURER = 1e-4
"""Rounding differs a little with the size of a batch, and must not decide which axis is the surer."""
Prediction = list[tuple[str, float]]


@dataclass(frozen=True)
class Answer:
    """The classes of one cloud, most probable first, and how it was looked at."""

    classes: Prediction
    up_axis: str
    """The vertical axis it was taken to have."""
    num_points: int
    """Points the model saw."""
    probabilities: Tensor
    """(K,) float32, in the order of the model's classes."""
    embedding: Tensor
    """(F,) float32: what the head is applied to."""


Outcome = Answer | ValueError | OSError | ImportError


@dataclass(frozen=True)
class _Loaded:
    """One cloud, ready for the model."""

    name: str
    notes: list[str]
    axes: list[str]
    frames: Tensor
    """(A, P, C): the cloud turned for each of ``axes``."""


def predict(
    model: ViT, sources: Sequence[Any], top: int = 5, up: str | None = None, batch_size: int = BATCH_SIZE
) -> list[Prediction]:
    """Files or clouds (P, 3) -> the ``top`` most probable ``(class name, probability)`` of each, best first.

    Args:
        model: a point classifier that knows its class names; it is left in the mode it was in.
        sources: paths, arrays or tensors; (P, 6) with normals for a model trained with them.
        top: classes to return; all if there are fewer.
        up: vertical axis of the sources, ``y`` or ``z``; ``auto`` takes the one the model is surest with,
            None the model's own.
        batch_size: clouds that go through the model at a time.

    Raises:
        ValueError: for a model that is no point classifier, or a cloud that cannot be used.
        FileNotFoundError: for a missing file.
    """
    return [answer.classes for answer in answers(model, sources, top, up, batch_size)]


def answers(
    model: ViT, sources: Sequence[Any], top: int = 5, up: str | None = None, batch_size: int = BATCH_SIZE
) -> Iterator[Answer]:
    """As :func:`predict`, as they are ready, with the axis that was chosen."""
    for outcome in outcomes(model, sources, top, up, batch_size):
        if not isinstance(outcome, Answer):
            raise outcome
        yield outcome


def outcomes(
    model: ViT,
    sources: Sequence[Any],
    top: int = 5,
    up: str | None = None,
    batch_size: int = BATCH_SIZE,
    format: str | None = None,
) -> Iterator[Outcome]:
    """As :func:`answers`, with the error in the place of an answer where a source cannot be used.

    Of several sources, those with as many points as in training, as most are after thinning, go through the
    model 16 at a time whatever the batch size: their answers are the same to the last digit. For others the
    last digit may depend on what else was in the batch.

    Files are read in threads while the model runs. Clouds of equally many points go through it together;
    the outcomes come in the order of the sources all the same, each after its warnings.

    Args:
        format: an extension such as "xyz", for standard input ("-") and for names with an unknown ending.
    """
    check_request(model, top, up)
    if not hasattr(batch_size, "__index__") or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    waiting: dict[int, list[tuple[int, _Loaded]]] = {}
    ready: dict[int, tuple[list[str], Outcome]] = {}
    given = 0

    def is_fixed(size: int) -> bool:
        return len(sources) > 1 and size == model.meta.num_points and size * TOGETHER <= BATCH_POINTS

    def run(group: list[tuple[int, _Loaded]]) -> None:
        together = TOGETHER if is_fixed(group[0][1].frames.shape[1]) else None
        found = _answer_all(model, [loaded for _, loaded in group], top, together)
        ready.update({i: (loaded.notes, outcome) for (i, loaded), outcome in zip(group, found, strict=True)})

    def in_order() -> Iterator[Outcome]:
        nonlocal given
        while given in ready:
            notes, outcome = ready.pop(given)
            given += 1
            for note in notes:
                logger.warning("%s", note)
            yield outcome

    for i, loaded in enumerate(_read_ahead(model, sources, up, batch_size, format)):
        if isinstance(loaded, _Loaded):
            size = loaded.frames.shape[1]
            waiting.setdefault(size, []).append((i, loaded))
            wanted = max(batch_size, TOGETHER) if is_fixed(size) else batch_size
            if len(waiting[size]) >= max(1, min(wanted, BATCH_POINTS // size)):
                run(waiting.pop(size))
            elif sum(map(len, waiting.values())) >= 4 * batch_size:
                # Clouds of many sizes: the oldest go, so that answers do not wait for the last file.
                run(waiting.pop(next(iter(waiting))))
        else:
            ready[i] = ([], loaded)
        yield from in_order()
    for group in waiting.values():
        run(group)
    yield from in_order()


def answer(model: ViT, cloud: Tensor, top: int, up: str | None, name: str) -> Answer:
    """``(P, C)`` from :func:`load_cloud` -> its classes; ``name`` says in an error whose they are."""
    [outcome] = _answer_all(model, [_framed(model, cloud, [], up, name)], top)
    if not isinstance(outcome, Answer):
        raise outcome
    return outcome


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
    finite are left out, with a warning, as there is of a cloud with far fewer points than in training, and
    of what :func:`pointvit.input_words.remarks` finds.
    """
    cloud, notes = load_and_note(model, source)
    for note in notes:
        logger.warning("%s", note)
    return cloud


def into_frame(model: ViT, cloud: Tensor, up: str) -> Tensor:
    """``(P, C) -> (P, C)``: a cloud whose vertical axis is ``up``, as the model saw clouds in training."""
    cloud = swap_up_axis(cloud, up, model.meta.up_axis)
    return NormalizeUnitSphere()(cloud) if model.meta.normalization == "unit_sphere" else cloud


def load_and_note(model: ViT, source: Any, format: str | None = None) -> tuple[Tensor, list[str]]:
    """As :func:`load_cloud`, with the warnings beside it."""
    wanted, channels = model.meta.num_points, model.config.tokenizer.in_chans
    if isinstance(source, (str, os.PathLike)):
        # Only the text "-" is standard input; a Path("-") is a file of that name.
        path = source if isinstance(source, str) else Path(source)
        known = path != "-" and Path(path).suffix.lower() in READERS
        cloud = read_points(path, num_samples=wanted, format=None if known else format)
        if channels >= 6 and cloud.normals is None:
            raise ValueError(f"{_name(source)}: the model was trained with normals, and this file has none")
        parts = [cloud.points] if channels < 6 or cloud.normals is None else [cloud.points, cloud.normals]
        return torch.from_numpy(np.concatenate(parts, axis=1)), _notes(source, cloud, wanted)
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
    points[:, :3] -= points[:, :3].mean(dim=0)  # in float64: survey coordinates would collapse in float32
    if wanted is not None and len(points) > wanted:
        points = points[torch.from_numpy(np.random.default_rng(0).choice(len(points), wanted, replace=False))]
    seen = points.float()
    cloud = PointCloud(seen[:, :3].numpy(), num_dropped=int((~finite).sum()))
    return seen, _notes(source, cloud, wanted)


def _notes(source: Any, cloud: PointCloud, wanted: int | None) -> list[str]:
    return [f"{_name(source)}: {remark}" for remark in remarks(cloud, wanted)]


def _name(source: Any) -> str:
    if not isinstance(source, (str, os.PathLike)):
        return "the cloud"
    return "standard input" if isinstance(source, str) and source == "-" else os.fspath(source)


def _read_ahead(
    model: ViT, sources: Sequence[Any], up: str | None, batch_size: int, format: str | None
) -> Iterator[_Loaded | ValueError | OSError | ImportError]:
    """Clouds in the order of the sources; up to two batches are read before they are asked for."""

    def load(source: Any) -> _Loaded | ValueError | OSError | ImportError:
        try:
            return _framed(model, *load_and_note(model, source, format), up, _name(source))
        except (ValueError, OSError, ImportError) as error:
            return error

    pool = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="pointvit-read")
    ahead: deque[Future[_Loaded | ValueError | OSError | ImportError]] = deque()
    try:
        for source in sources:
            ahead.append(pool.submit(load, source))
            if len(ahead) > 2 * batch_size:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _framed(model: ViT, cloud: Tensor, notes: list[str], up: str | None, name: str) -> _Loaded:
    own = model.meta.up_axis
    axes = sorted(("y", "z"), key=lambda axis: axis != own) if up == "auto" else [up or own]
    return _Loaded(name, notes, axes, torch.stack([into_frame(model, cloud, axis) for axis in axes]))


def _answer_all(
    model: ViT, clouds: Sequence[_Loaded], top: int, together: int | None = None
) -> list[Outcome]:
    """Clouds of equally many points and axes -> the outcome of each; see :func:`_forward`."""
    frames = torch.stack([cloud.frames for cloud in clouds])
    embeddings, probabilities = _forward(model, rearrange(frames, "b a p c -> (b a) p c"), together)
    by_cloud = (rearrange(rows, "(b a) k -> b a k", b=len(clouds)) for rows in (embeddings, probabilities))
    return [
        _outcome(model, cloud, embedding, probability, top)
        for cloud, embedding, probability in zip(clouds, *by_cloud, strict=True)
    ]


def _outcome(model: ViT, cloud: _Loaded, embeddings: Tensor, probabilities: Tensor, top: int) -> Outcome:
    """Of one cloud: ``(A, F), (A, K)``, a row for each axis."""
    if not bool(probabilities.isfinite().all()):
        return ValueError(
            f"{cloud.name}: the model's answer is not a number; its weights or the coordinates are beyond "
            "what its precision holds"
        )
    names = model.meta.class_names or [f"class {i}" for i in range(model.num_classes)]
    sure = probabilities.amax(dim=1)
    chosen = 0 if bool(sure[0] >= sure.max() - SURER) else int(sure.argmax())
    best = probabilities[chosen].sort(descending=True, stable=True)
    ranked = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))[:top]
    return Answer(
        classes=[(names[i], p) for i, p in ranked],
        up_axis=cloud.axes[chosen],
        num_points=cloud.frames.shape[1],
        probabilities=probabilities[chosen],
        embedding=embeddings[chosen],
    )


@torch.inference_mode()
def _forward(model: ViT, clouds: Tensor, together: int | None) -> tuple[Tensor, Tensor]:
    """``(B, P, C) -> (B, F), (B, K)`` on the CPU: what the head is applied to, and probabilities.

    ``together``: always so many at a time, the last filled up with copies. Matrix products round in another
    way for another number of rows, and this is how an answer does not depend on its neighbours.
    """
    training = model.training
    model.eval()
    try:
        pieces = [clouds] if together is None else _filled(clouds, together).split(together)
        embeddings, probabilities = zip(*(_embed(model, piece) for piece in pieces), strict=True)
        return torch.cat(embeddings)[: len(clouds)], torch.cat(probabilities)[: len(clouds)]
    finally:
        model.train(training)


def _filled(clouds: Tensor, together: int) -> Tensor:
    return torch.cat([clouds, clouds[-1:].expand(-len(clouds) % together, -1, -1)])


def _embed(model: ViT, clouds: Tensor) -> tuple[Tensor, Tensor]:
    tokens = model.forward_features(clouds.to(next(model.parameters()).device))
    embeddings = model.forward_head(tokens, pre_logits=True)
    return embeddings.float().cpu(), model.head(embeddings).float().softmax(dim=1).cpu()
