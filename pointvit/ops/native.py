"""Point operations in plain torch: on every device, no extension, memory linear in the number of points.

Exporters can trace them: sampling is a loop over G of torch operations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_CHUNK = 1 << 22
"""Distances held at a time by the neighbour searches (16 MB in float32)."""


def farthest_point_sample(points: Tensor, num_samples: int, lengths: Tensor, start: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, G)``: see :func:`pointvit.ops.farthest_point_sample`."""
    rows = torch.arange(points.shape[0], device=points.device)  # not len(): exporters keep the batch open
    planes = points.unbind(-1)
    x, y, z = (plane.contiguous() for plane in planes)  # separate planes: each pass reads contiguous memory
    inside = torch.arange(points.shape[1], device=points.device) < lengths[:, None]
    nearest = torch.where(inside, torch.inf, -torch.inf).to(points.dtype)
    chosen = []
    last = start
    for _ in range(num_samples):
        chosen.append(last)
        nearest[rows, last] = -1.0  # below every distance: duplicates of a chosen point come before it again
        dx, dy, dz = (plane - plane[rows, last, None] for plane in (x, y, z))
        distance = (dx.mul_(dx)).add_(dy.mul_(dy)).add_(dz.mul_(dz))
        nearest = torch.minimum(nearest, distance, out=nearest)
        last = nearest.argmax(dim=1)
    order = torch.arange(num_samples, device=points.device) % lengths[:, None]
    return torch.stack(chosen, dim=1).gather(1, order)


def knn(queries: Tensor, points: Tensor, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``: see :func:`pointvit.ops.knn`."""
    return _chunked(lambda query, cloud, n: knn_at_once(query, cloud, n, k), queries, points, lengths)


def knn_at_once(queries: Tensor, points: Tensor, lengths: Tensor, k: int) -> Tensor:
    """As :func:`knn`, in one piece for exporters: how many pieces there are depends on the batch."""
    order = _smallest(_masked_distances(queries, points, lengths), min(k, points.shape[1]))
    repeated = torch.arange(k, device=points.device) % lengths[:, None]
    return order.gather(2, repeated[:, None].expand(-1, order.shape[1], -1))


def ball_query(queries: Tensor, points: Tensor, radius: float, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``: see :func:`pointvit.ops.ball_query`."""

    def first_inside(query: Tensor, cloud: Tensor, n: Tensor) -> Tensor:
        distances = _masked_distances(query, cloud, n)
        closest = distances.argmin(dim=2, keepdim=True)
        limit = min(radius * radius, torch.finfo(distances.dtype).max)  # never the infinity of padding
        inside = distances <= limit
        inside.scatter_(2, closest, inside.gather(2, closest) | ~inside.any(dim=2, keepdim=True))
        size = cloud.shape[1]
        index = torch.where(inside, torch.arange(size, device=cloud.device), size)
        found = index.topk(min(k, size), dim=2, largest=False, sorted=True).values
        count = (found < size).sum(dim=2, keepdim=True)
        return found.gather(2, torch.arange(k, device=cloud.device) % count)

    return _chunked(first_inside, queries, points, lengths)


def _masked_distances(queries: Tensor, points: Tensor, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, P)``: squared distances, infinite behind the cloud's length.

    Differences are taken before squaring: a^2 + b^2 - 2ab picks wrong neighbours away from the origin.
    """
    dx, dy, dz = (queries[..., None, i] - points[:, None, :, i] for i in range(3))
    distances = (dx.mul_(dx)).add_(dy.mul_(dy)).add_(dz.mul_(dz))
    inside = torch.arange(points.shape[1], device=points.device) < lengths[:, None]
    return distances.masked_fill_(~inside[:, None], torch.inf)


def _smallest(distances: Tensor, k: int) -> Tensor:
    """``(B, G, P) -> (B, G, k)``: indices of the k smallest, ascending, ties by lowest index.

    ``topk`` leaves ties open. Non-negative float32 numbers order like their bit patterns, so bits and index
    together make one distinct integer key.
    """
    if distances.dtype != torch.float32:
        return distances.argsort(dim=2, stable=True)[..., :k]
    keys = distances.view(torch.int32).long() << 32 | torch.arange(
        distances.shape[2], device=distances.device
    )
    return keys.topk(k, dim=2, largest=False, sorted=True).values & 0xFFFFFFFF


def _chunked(
    search: Callable[[Tensor, Tensor, Tensor], Tensor], queries: Tensor, points: Tensor, lengths: Tensor
) -> Tensor:
    """Runs ``search`` on slices of batch and queries: at most ``_CHUNK`` distances exist at a time."""
    size = points.shape[1]
    clouds = max(1, _CHUNK // max(1, size * queries.shape[1]))
    width = max(1, _CHUNK // max(1, size * min(clouds, len(points))))
    rows = []
    for query, cloud, n in zip(
        queries.split(clouds), points.split(clouds), lengths.split(clouds), strict=True
    ):
        rows.append(torch.cat([search(part, cloud, n) for part in query.split(width, dim=1)], dim=1))
    return torch.cat(rows)
