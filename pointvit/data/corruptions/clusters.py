"""Points that lie together: found, kept and taken away, in whole batches."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from pointvit.data.corruptions.draws import integers, uniform, with_replacement
from pointvit.ops import group, knn

NEIGHBOURS = 4
"""A point that is put between two others lies on the way to one of the nearest so many."""
COUNTED_FOR = 1024
"""Both benchmarks state numbers of points for clouds of this many."""


def scaled(count: int, num_points: int) -> int:
    """``count`` of 1,024 points, for a cloud of another size; at least 1."""
    return max(1, round(count * num_points / COUNTED_FOR))


def nearest(points: Tensor, center: Tensor, among: Tensor, sizes: Tensor) -> Tensor:
    """``(B, P, 3), (B, 3), (B, P), (B,) -> (B, P)`` bool: the so many of ``among`` nearest to each centre."""
    distance = (points - center[:, None]).square().sum(dim=2).masked_fill(~among, torch.inf)
    most = min(int(sizes.max()), points.shape[1])
    order = distance.topk(most, dim=1, largest=False).indices
    taken = torch.arange(most, device=points.device) < sizes[:, None]
    return torch.zeros_like(among).scatter(1, order, taken) & among


def around_one(points: Tensor, among: Tensor, sizes: Tensor, generator: Generator) -> Tensor:
    """``(B, P, 3), (B, P), (B,) -> (B, P)`` bool: a random one of ``among`` with its nearest, that many."""
    chosen = with_replacement(among, 1, generator)
    return nearest(points, group(points, chosen)[:, 0], among, sizes)


def only(points: Tensor, mask: Tensor, count: int) -> Tensor:
    """``(B, P, 3), (B, P) -> (B, count, 3)``: the points where the mask is true, ``count`` in each row."""
    return points[mask].view(len(points), count, 3)


def cluster_of_each(like: Tensor, batch: int, count: int, most: int, generator: Generator) -> Tensor:
    """``(batch, count)`` int64: each point belongs to one of 1 to ``most`` clusters, by chance."""
    clusters = integers(like, (batch, 1), 1, most + 1, generator)
    return (uniform(like, (batch, count), 0, 1, generator) * clusters).long().clamp_max(clusters - 1)


def denser(points: Tensor, count: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, count, 3)``: the first points; where there are too few, more between neighbours."""
    missing = count - points.shape[1]
    if missing <= 0:
        return points[:, :count]
    batch = len(points)
    start = integers(points, (batch, missing), 0, points.shape[1], generator)
    neighbours = knn(group(points, start), points, min(NEIGHBOURS + 1, points.shape[1]))
    column = integers(
        points, (batch, missing, 1), min(1, neighbours.shape[2] - 1), neighbours.shape[2], generator
    )
    end = neighbours.gather(2, column)[..., 0]
    share = uniform(points, (batch, missing, 1), 0, 1, generator)
    return torch.cat([points, torch.lerp(group(points, start), group(points, end), share)], dim=1)
