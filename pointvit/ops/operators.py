"""The point operations as operators of torch, opaque to its compiler: no graph break, no recompilation.

Checks that need the values of ``lengths`` or ``start`` stand inside, where the values are there. On the CPU
they raise; on CUDA they are asserted on the device, because reading them would wait for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pointvit.ops.choice import backend_module, choose


@torch.library.custom_op(
    "pointvit::farthest_point_sample",
    mutates_args=(),
    schema="(Tensor points, SymInt num_samples, Tensor? lengths, Tensor? start, str backend) -> Tensor",
)
def farthest_point_sample(
    points: Tensor, num_samples: int, lengths: Tensor | None, start: Tensor | None, backend: str
) -> Tensor:
    batch, size = points.shape[:2]
    points, lengths = _within(points, lengths)
    if start is None:
        start = torch.zeros(batch, dtype=torch.int64, device=points.device)
    else:
        _require(
            (start >= 0) & (start < lengths),
            "start must index a point of each cloud (lengths {}), got {}",
            lengths,
            start,
        )
    name = (
        choose("farthest_point_sample", points.device.type, size, num_samples)
        if backend == "auto"
        else backend
    )
    chosen: Tensor = backend_module(name).farthest_point_sample(points, num_samples, lengths, start)
    return chosen


@farthest_point_sample.register_fake
def _(points: Tensor, num_samples: int, lengths: Tensor | None, start: Tensor | None, backend: str) -> Tensor:
    return points.new_empty(points.shape[0], num_samples, dtype=torch.int64)


@torch.library.custom_op(
    "pointvit::knn",
    mutates_args=(),
    schema="(Tensor queries, Tensor points, SymInt k, Tensor? lengths, str backend) -> Tensor",
)
def knn(queries: Tensor, points: Tensor, k: int, lengths: Tensor | None, backend: str) -> Tensor:
    points, lengths = _within(points, lengths)
    name = (
        choose("knn", points.device.type, points.shape[1], queries.shape[1]) if backend == "auto" else backend
    )
    found: Tensor = backend_module(name).knn(queries, points, k, lengths)
    return found


@knn.register_fake
def _(queries: Tensor, points: Tensor, k: int, lengths: Tensor | None, backend: str) -> Tensor:
    return queries.new_empty(*queries.shape[:2], k, dtype=torch.int64)


@torch.library.custom_op(
    "pointvit::ball_query",
    mutates_args=(),
    schema="(Tensor queries, Tensor points, float radius, SymInt k, Tensor? lengths, str backend) -> Tensor",
)
def ball_query(
    queries: Tensor, points: Tensor, radius: float, k: int, lengths: Tensor | None, backend: str
) -> Tensor:
    points, lengths = _within(points, lengths)
    size = points.shape[1]
    name = choose("ball_query", points.device.type, size, queries.shape[1]) if backend == "auto" else backend
    found: Tensor = backend_module(name).ball_query(queries, points, radius, k, lengths)
    return found


@ball_query.register_fake
def _(queries: Tensor, points: Tensor, radius: float, k: int, lengths: Tensor | None, backend: str) -> Tensor:
    return queries.new_empty(*queries.shape[:2], k, dtype=torch.int64)


def _within(points: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Points with zeros behind their lengths, and the lengths as (B,) int64."""
    batch, size = points.shape[:2]
    if lengths is None:
        return points, torch.full((batch,), size, dtype=torch.int64, device=points.device)
    _require((lengths >= 1) & (lengths <= size), f"lengths must lie in [1, {size}], got {{}}", lengths)
    inside = torch.arange(size, device=points.device) < lengths[:, None]
    return torch.where(inside[..., None], points, 0.0), lengths


def _require(condition: Tensor, message: str, *values: Tensor) -> None:
    if condition.is_cuda:
        torch._assert_async(condition.all(), message.split(",", 1)[0])
    elif not bool(condition.all()):
        raise ValueError(message.format(*map(short, values)))


def short(values: Tensor) -> str:
    shown = [str(v) for v in values.flatten()[:8].tolist()]
    return f"[{', '.join(shown)}{', ...' if values.numel() > 8 else ''}]"
