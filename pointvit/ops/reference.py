"""Slow, readable definitions of the point operations, which the other back ends must agree with."""

from __future__ import annotations

import torch
from torch import Tensor


def farthest_point_sample(points: Tensor, num_samples: int, lengths: Tensor, start: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, G)``: see :func:`pointvit.ops.farthest_point_sample`."""
    return torch.stack(
        [
            _sample_one(p[:n], num_samples, int(s))
            for p, n, s in zip(points, lengths.tolist(), start, strict=True)
        ]
    )


def _sample_one(points: Tensor, num_samples: int, start: int) -> Tensor:
    chosen = [start]
    to_chosen = _squared_distances(points, points[start])
    while len(chosen) < min(num_samples, len(points)):
        candidates = to_chosen.clone()
        candidates[chosen] = -1.0  # so that duplicates of a chosen point come before the point itself again
        chosen.append(int(candidates.argmax()))
        to_chosen = torch.minimum(to_chosen, _squared_distances(points, points[chosen[-1]]))
    return torch.tensor([chosen[i % len(chosen)] for i in range(num_samples)], device=points.device)


def knn(queries: Tensor, points: Tensor, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``: see :func:`pointvit.ops.knn`."""
    rows = []
    for query, cloud, n in zip(queries, points, lengths.tolist(), strict=True):
        order = torch.stack([_squared_distances(cloud[:n], q).argsort(stable=True) for q in query])
        rows.append(order[:, torch.arange(k, device=points.device) % n])
    return torch.stack(rows)


def ball_query(queries: Tensor, points: Tensor, radius: float, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``: see :func:`pointvit.ops.ball_query`."""
    rows = []
    for query, cloud, n in zip(queries, points, lengths.tolist(), strict=True):
        for q in query:
            distances = _squared_distances(cloud[:n], q)
            inside = (distances <= radius * radius).nonzero().flatten()[:k]
            inside = inside if len(inside) else distances.argmin().view(1)
            rows.append(inside[torch.arange(k, device=points.device) % len(inside)])
    return torch.stack(rows).view(*queries.shape[:2], k)


def _squared_distances(points: Tensor, center: Tensor) -> Tensor:
    dx, dy, dz = (points - center).unbind(-1)
    return dx * dx + dy * dy + dz * dz
