"""The public point operations: argument checks that need no data, then an operator of torch."""

from __future__ import annotations

import torch
from torch import Tensor

from pointvit.ops import operators


def farthest_point_sample(
    points: Tensor,
    num_samples: int,
    lengths: Tensor | None = None,
    start: int | Tensor = 0,
    backend: str = "auto",
) -> Tensor:
    """``(B, P, 3) -> (B, G)`` int64: indices of points, each the farthest from all chosen before it.

    Eldar et al. 1997, as PointNet++ (Qi et al. 2017) uses it. Ties go to the lowest index. Indices are unique
    while the cloud has points left, duplicated coordinates included; after ``length`` samples the sequence
    repeats from its beginning.

    Args:
        points: coordinates in any unit; float32 or float64 (half precision is computed in float32).
        num_samples: G, at least 1; may exceed the number of points.
        lengths: (B,) number of real points in each row; what stands behind them is never read. None: all P.
        start: index of the first sample, one for all clouds or (B,).
        backend: ``auto``, or one of :data:`pointvit.ops.BACKENDS`.

    Raises:
        ValueError: for shapes, lengths or a start outside these ranges, or an unknown back end.
    """
    points, lengths = _checked(points, lengths)
    _positive("num_samples", num_samples)
    first: Tensor | None = None  # index 0, which every cloud has
    if not (type(start) is int and start == 0):
        first = torch.as_tensor(start, device=points.device)
        if not _are_integers(first) or first.shape not in ((), (len(points),)):
            got = operators.short(first)
            raise ValueError(f"start must be an integer, or integers of shape ({len(points)},), got {got}")
        first = first.long().expand(len(points)).contiguous()
    return operators.farthest_point_sample(points, num_samples, lengths, first, backend)


def knn(
    queries: Tensor, points: Tensor, k: int, lengths: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)`` int64: indices of the k nearest points, nearest first.

    Euclidean distance, by differences in at least float32; ties go to the lowest index. With fewer than k
    points the sequence of all points, nearest first, repeats.

    Args:
        queries: positions to search around, in the unit of ``points``.
        points: coordinates; float32 or float64 (half precision is computed in float32).
        k: K, at least 1; may exceed the number of points.
        lengths: (B,) number of real points in each row of ``points``. None: all P.
        backend: ``auto``, or one of :data:`pointvit.ops.BACKENDS`.

    Raises:
        ValueError: for shapes or lengths outside these ranges, or an unknown back end.
    """
    points, lengths = _checked(points, lengths)
    _positive("k", k)
    return operators.knn(_checked_queries(queries, points), points, k, lengths, backend)


def ball_query(
    queries: Tensor,
    points: Tensor,
    radius: float,
    k: int,
    lengths: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)`` int64: the first k points within ``radius`` of each query.

    The grouping of PointNet++: first means lowest index, and the boundary is inside. With fewer than k
    inside, their sequence repeats; with none, the nearest point stands in.

    Args:
        radius: in the unit of ``points``, greater than 0.
        k: K, at least 1.
        backend: as in :func:`knn`, without ``pytorch3d``.

    Others as in :func:`knn`.
    """
    points, lengths = _checked(points, lengths)
    _positive("k", k)
    if not radius > 0:
        raise ValueError(f"radius must be greater than 0, got {radius}")
    if backend == "pytorch3d":
        raise ValueError("ball_query has no pytorch3d back end; use backend='torch'")
    return operators.ball_query(_checked_queries(queries, points), points, float(radius), k, lengths, backend)


def group(values: Tensor, index: Tensor) -> Tensor:
    """``(B, P, C), (B, ...) -> (B, ..., C)``: rows of ``values`` at an index of any shape."""
    rows = torch.arange(values.shape[0], device=values.device).view(-1, *(1,) * (index.ndim - 1))
    return values[rows, index]


def _checked(points: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Points in float32 or float64, and the lengths as (B,) int64."""
    if points.ndim != 3 or points.shape[2] != 3 or points.shape[1] < 1:
        raise ValueError(f"points must have shape (B, P, 3) with P >= 1, got {tuple(points.shape)}")
    points = points.detach()
    if points.dtype not in (torch.float32, torch.float64):
        points = points.float()
    if lengths is None:
        return points, None
    batch = len(points)
    lengths = torch.as_tensor(lengths, device=points.device)
    if lengths.shape != (batch,):
        raise ValueError(f"lengths must have shape ({batch},), got {tuple(lengths.shape)}")
    if not _are_integers(lengths):
        raise ValueError(f"lengths must be integers, got {lengths.dtype}")
    return points, lengths.long()


def _checked_queries(queries: Tensor, points: Tensor) -> Tensor:
    if queries.ndim != 3 or queries.shape[2] != 3 or queries.shape[0] != points.shape[0]:
        raise ValueError(f"queries must have shape ({len(points)}, G, 3), got {tuple(queries.shape)}")
    return queries.detach().to(points.dtype)


def _are_integers(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def _positive(name: str, value: int) -> None:
    if not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
