"""Batched transforms of point clouds: ``(B, P, C) -> (B, P, C)`` on the clouds' own device.

None changes its input; ``repr`` reproduces the call; randomness comes from the generator passed in, which
must live on the device of the points, or from torch's global one. Channels 3 to 5 are normals where a cloud
has six or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

AXES = {"x": 0, "y": 1, "z": 2}


class Transform:
    """``(B, P, C) | (P, C) -> same``; subclasses define ``apply`` for batches."""

    def __call__(self, points: Tensor, generator: Generator | None = None) -> Tensor:
        if points.ndim == 2:
            return self.apply(points[None], generator)[0]
        return self.apply(points, generator)

    def apply(self, points: Tensor, generator: Generator | None) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Compose(Transform):
    """One transform after the other."""

    transforms: Sequence[Transform]

    def apply(self, points: Tensor, generator: Generator | None) -> Tensor:
        for transform in self.transforms:
            points = transform(points, generator)
        return points


@dataclass(frozen=True)
class NormalizeUnitSphere(Transform):
    """Centres each cloud on its mean, with its farthest point at distance 1; a single place becomes zeros."""

    def apply(self, points: Tensor, generator: Generator | None) -> Tensor:
        # Relative to the first point, the mean of equal coordinates has no rounding: they become exactly 0.
        xyz = points[..., :3] - points[:, :1, :3]
        xyz = xyz - xyz.mean(dim=1, keepdim=True)
        radius = xyz.norm(dim=2).amax(dim=1)[:, None, None]
        xyz = torch.where(
            radius > 0, xyz / radius.clamp_min(torch.finfo(xyz.dtype).tiny), torch.zeros_like(xyz)
        )
        return torch.cat([xyz, points[..., 3:]], dim=2)


@dataclass(frozen=True)
class RandomScaleTranslate(Transform):
    """Scales each axis by a factor in [low, high), then shifts it by up to ``shift`` (Point-BERT)."""

    low: float = 2 / 3
    high: float = 3 / 2
    shift: float = 0.2

    def apply(self, points: Tensor, generator: Generator | None) -> Tensor:
        scale = _uniform(points, self.low, self.high, generator)
        shift = _uniform(points, -self.shift, self.shift, generator)
        xyz, normals, rest = _parts(points)
        if normals is None:
            return torch.cat([xyz * scale + shift, rest], dim=2)
        # Normals follow the inverse transpose of what the surface does.
        return torch.cat([xyz * scale + shift, F.normalize(normals / scale, dim=2), rest], dim=2)


@dataclass(frozen=True)
class RandomRotate(Transform):
    """Turns each cloud about ``axis``, ``x``, ``y`` or ``z``, by up to ``degrees`` either way."""

    axis: str = "z"
    degrees: float = 180.0

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ValueError(f"axis must be x, y or z, got {self.axis!r}")

    def apply(self, points: Tensor, generator: Generator | None) -> Tensor:
        angle = _uniform(points, -1.0, 1.0, generator)[:, 0, 0] * math.radians(self.degrees)
        turn = axis_rotations(self.axis, angle).mT
        xyz, normals, rest = _parts(points)
        turned = [xyz @ turn] if normals is None else [xyz @ turn, normals @ turn]
        return torch.cat([*turned, rest], dim=2)


@dataclass(frozen=True)
class RandomJitter(Transform):
    """Adds Gaussian noise of ``std`` to each coordinate, clipped at ``clip``."""

    std: float = 0.01
    clip: float = 0.05

    def apply(self, points: Tensor, generator: Generator | None) -> Tensor:
        xyz = points[..., :3]
        noise = torch.randn(xyz.shape, generator=generator, device=xyz.device, dtype=xyz.dtype)
        return torch.cat([xyz + (noise * self.std).clamp(-self.clip, self.clip), points[..., 3:]], dim=2)


@dataclass(frozen=True)
class RandomDropPoints(Transform):
    """Drops a share of each cloud, random up to ``max_ratio``: such points become its first (PointNet++)."""

    max_ratio: float = 0.875

    def apply(self, points: Tensor, generator: Generator | None) -> Tensor:
        ratio = _uniform(points, 0.0, self.max_ratio, generator)[:, :, :1]
        draw = torch.rand((*points.shape[:2], 1), generator=generator, device=points.device)
        return torch.where(draw < ratio, points[:, :1], points)


def axis_rotations(axis: str, angle: Tensor) -> Tensor:
    """``(B,) radians -> (B, 3, 3)``: right-handed rotations about a coordinate axis."""
    i, j = (AXES[axis] + 1) % 3, (AXES[axis] + 2) % 3
    rotation = torch.eye(3, device=angle.device, dtype=angle.dtype).repeat(len(angle), 1, 1)
    rotation[:, i, i] = rotation[:, j, j] = angle.cos()
    rotation[:, j, i] = angle.sin()
    rotation[:, i, j] = -angle.sin()
    return rotation


def swap_up_axis(points: Tensor, source: str, target: str) -> Tensor:
    """``(..., C) -> (..., C)``: turns the vertical axis ``source`` of coordinates and normals to ``target``.

    A quarter turn about x: (x, y, z) of a y-up cloud becomes (x, -z, y), and back.
    """
    if not {source, target} <= {"y", "z"}:
        raise ValueError(f"the up axis must be y or z, got {source!r} and {target!r}")
    if source == target:
        return points

    def turn(vectors: Tensor) -> Tensor:
        x, y, z = vectors.unbind(-1)
        return torch.stack([x, -z, y] if target == "z" else [x, z, -y], dim=-1)

    xyz, normals, rest = _parts(points)
    return torch.cat([turn(xyz), *([] if normals is None else [turn(normals)]), rest], dim=-1)


def _parts(points: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """``(..., C) -> xyz (..., 3), normals (..., 3) or None, other channels``."""
    if points.shape[-1] < 6:
        return points[..., :3], None, points[..., 3:]
    return points[..., :3], points[..., 3:6], points[..., 6:]


def _uniform(points: Tensor, low: float, high: float, generator: Generator | None) -> Tensor:
    """``(B, 1, 3)`` numbers in [low, high), one an axis."""
    draw = torch.rand((len(points), 1, 3), generator=generator, device=points.device, dtype=points.dtype)
    return low + (high - low) * draw
