"""What a row of a benchmark's table is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from pointvit.data.transforms import axis_rotations


@dataclass(frozen=True)
class Corruption:
    """``(B, P, 3), severity 1..5, generator -> (B, P', 3)``; the input stays as it is.

    Attributes:
        apply: takes the points, the level that belongs to the severity, and the generator.
        levels: what is handed to ``apply``, one for each severity from 1.
        meaning: what a level counts or measures.
        dense: takes twice as many points as it gives at most: it chooses among them.
        ordered: whether a higher severity is a stronger corruption.
        ours: what this project does otherwise than the public benchmark; empty if nothing.
    """

    apply: Callable[[Tensor, Any, Generator], Tensor]
    levels: tuple[float, ...]
    meaning: str
    dense: bool = False
    ordered: bool = True
    ours: str = ""

    def __call__(self, points: Tensor, severity: int, generator: Generator) -> Tensor:
        if points.ndim != 3 or points.shape[2] != 3 or points.shape[1] < 2:
            raise ValueError(f"points must have shape (B, P, 3) with P >= 2, got {tuple(points.shape)}")
        if severity not in range(1, len(self.levels) + 1):
            raise ValueError(f"severity must be 1 to {len(self.levels)}, got {severity}")
        return self.apply(points, self.levels[severity - 1], generator)


def fit_box(points: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: the bounding box centred, its longest side 2 (ModelNet40-C)."""
    low, high = points.amin(dim=1, keepdim=True), points.amax(dim=1, keepdim=True)
    longest = (high - low).amax(dim=2, keepdim=True).clamp_min(torch.finfo(points.dtype).tiny)
    return (points - (low + high) / 2) * (2 / longest)


def turned(points: Tensor, angles: Tensor, order: str) -> Tensor:
    """``(B, P, 3), (B, 3) radians -> (B, P, 3)``: row vectors times rotations about x, y, z, in ``order``."""
    for axis in order:
        points = points @ axis_rotations(axis, angles[:, "xyz".index(axis)])
    return points
