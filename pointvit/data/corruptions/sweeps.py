"""Curves over one quantity each: number of points, angle, share of outliers. The values are our own."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from pointvit.data.corruptions.corruption import Corruption
from pointvit.data.corruptions.draws import directions, shuffled, signs, uniform
from pointvit.data.transforms import axis_rotations

ANGLES = (0, 15, 30, 45, 60, 90, 120, 150, 180)


def num_points(points: Tensor, count: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, min(count, P), 3)``: the first of each cloud, whose points are in random order."""
    return points[:, :count]


def rotation_up(points: Tensor, degrees: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: turned by ``degrees`` about y, which is up, either way."""
    angle = math.radians(degrees) * signs(points, (len(points),), generator)
    return points @ axis_rotations("y", angle).mT


def rotation_any(points: Tensor, degrees: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: turned by ``degrees`` about an axis of its own each (Rodrigues)."""
    axis = directions(points, len(points), generator)[:, None]
    angle = math.radians(degrees)
    across = torch.linalg.cross(axis.expand_as(points), points)
    along = (points * axis).sum(dim=2, keepdim=True) * axis
    return points * math.cos(angle) + across * math.sin(angle) + along * (1 - math.cos(angle))


def outliers(points: Tensor, percent: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: so many of a hundred points lie anywhere in the unit sphere instead."""
    batch, size = points.shape[:2]
    count = round(size * percent / 100)
    everywhere = points.new_ones((batch, size), dtype=torch.bool)
    chosen = shuffled(everywhere, generator)[:, :count]
    radius = uniform(points, (batch * count, 1), 0, 1, generator) ** (1 / 3)
    places = (radius * directions(points, batch * count, generator)).view(batch, count, 3)
    return points.scatter(1, chosen[..., None].expand(-1, -1, 3), places)


SWEEPS: dict[str, Corruption] = {
    "num_points": Corruption(num_points, (1024, 512, 256, 128, 64), "points"),
    "rotation_up": Corruption(rotation_up, ANGLES, "degrees about the vertical axis"),
    "rotation_any": Corruption(rotation_any, ANGLES, "degrees about a random axis"),
    "outliers": Corruption(outliers, (0, 1, 2, 5, 10, 20, 30), "outliers (% of the points)"),
}
