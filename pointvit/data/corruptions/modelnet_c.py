"""The seven corruptions of ModelNet-C (Ren, Pan and Liu 2022, arXiv:2202.03377), five levels each.

The public files count levels from 0, severities here from 1. Clouds are in the unit sphere. Numbers of points
are those of clouds of 1,024 and scale with others.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from pointvit.data.corruptions.clusters import around_one, cluster_of_each, only, scaled
from pointvit.data.corruptions.corruption import Corruption, turned
from pointvit.data.corruptions.draws import directions, normal, shuffled, uniform
from pointvit.data.transforms import NormalizeUnitSphere
from pointvit.ops import group

CLUSTERS = 7
"""At most so many parts are dropped or added."""


def scale(points: Tensor, most: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: each axis times a number in [1 / most, most); the unit sphere again."""
    factors = uniform(points, (len(points), 1, 3), 1 / most, most, generator)
    return NormalizeUnitSphere()(points * factors)


def jitter(points: Tensor, std: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: normal noise."""
    return points + std * normal(points, points.shape, generator)


def rotate(points: Tensor, degrees: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: turned by up to ``degrees`` either way about each axis."""
    limit = math.radians(degrees)
    return turned(points, uniform(points, (len(points), 3), -limit, limit, generator), "zyx")


def dropout_global(points: Tensor, share: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P - share P, 3)``: points are lost anywhere."""
    kept = max(1, int(points.shape[1] * (1 - share)))
    everywhere = points.new_ones(points.shape[:2], dtype=torch.bool)
    return group(points, shuffled(everywhere, generator)[:, :kept])


def dropout_local(points: Tensor, count: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P - count, 3)``: one to seven parts are lost, ``count`` points in all."""
    batch, num_points = points.shape[:2]
    lost = scaled(count, num_points)
    part = cluster_of_each(points, batch, lost, CLUSTERS, generator)
    sizes = F.one_hot(part, CLUSTERS).sum(dim=1)
    left = points.new_ones((batch, num_points), dtype=torch.bool)
    for size in sizes.unbind(dim=1):
        left = left & ~around_one(points, left, size, generator)
    return only(points, left, num_points - lost)


def add_global(points: Tensor, count: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P + count, 3)``: more points, anywhere in the unit sphere."""
    batch, added = len(points), scaled(count, points.shape[1])
    radius = uniform(points, (batch * added, 1), 0, 1, generator) ** (1 / 3)
    outside = (radius * directions(points, batch * added, generator)).view(batch, added, 3)
    return torch.cat([points, outside], dim=1)


def add_local(points: Tensor, count: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P + count, 3)``: one to seven random points gain normal clouds around them.

    Their standard deviation lies in [0.075, 0.125). What falls outside the unit sphere is divided by its
    squared distance from the origin, as the benchmark does.
    """
    batch, added = len(points), scaled(count, points.shape[1])
    everywhere = points.new_ones(points.shape[:2], dtype=torch.bool)
    centers = shuffled(everywhere, generator)[:, :CLUSTERS]
    std = uniform(points, (batch, CLUSTERS), 0.075, 0.125, generator)
    part = cluster_of_each(points, batch, added, centers.shape[1], generator)
    spread = std.gather(1, part)[..., None] * normal(points, (batch, added, 3), generator)
    new = group(points, centers.gather(1, part)) + spread
    new = new / new.square().sum(dim=2, keepdim=True).clamp_min(1)
    return torch.cat([points, new], dim=1)


MODELNET_C: dict[str, Corruption] = {
    "scale": Corruption(scale, (1.6, 1.7, 1.8, 1.9, 2.0), "largest factor of an axis"),
    "jitter": Corruption(jitter, (0.01, 0.02, 0.03, 0.04, 0.05), "standard deviation"),
    "rotate": Corruption(rotate, (6, 12, 18, 24, 30), "largest angle about each axis, degrees"),
    "dropout_global": Corruption(dropout_global, (0.25, 0.375, 0.5, 0.625, 0.75), "share that is lost"),
    "dropout_local": Corruption(dropout_local, (100, 200, 300, 400, 500), "points that are lost"),
    "add_global": Corruption(add_global, (10, 20, 30, 40, 50), "points more"),
    "add_local": Corruption(add_local, (100, 200, 300, 400, 500), "points more"),
}
