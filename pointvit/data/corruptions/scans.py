"""A cloud as one view of it would have it: from points alone, where the benchmark casts rays onto meshes.

y is up. Which points a viewer sees is told by a depth buffer over the points themselves.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from pointvit.data.corruptions.corruption import fit_box
from pointvit.data.corruptions.draws import repeated, uniform, with_replacement
from pointvit.ops import group

SECTORS = 5
COARSE, FINEST = 0.1, 0.025
"""Pixels, at the distance of the cloud's centre: what the outline is measured with, and the smallest."""
SPACING = 1.4
"""Width of a pixel, in distances between the points that the outline would hold if all were seen."""
REACH = 2.0
"""Half the width of the picture, at the distance of the cloud's centre."""
SLOPE = 2.0
"""A point this many pixels behind what is seen at its place is hidden."""
SIDE = 2 * math.ceil(REACH / FINEST) + 3
"""Pixels of a picture along each side."""
BAND = math.radians(1.0)
"""Polar angle between two lines of the scan."""


def occlusion(points: Tensor, sector: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P // 2, 3)``: seen from distance 3, 30° to 60° above, within a sector of 72°.

    The points seen are taken in random order, and over again where they are too few.
    """
    points = fit_box(points)
    elevation = uniform(points, (len(points),), math.pi / 6, math.pi / 3, generator)
    seen = visible(points, _viewpoint(points, sector, elevation, 3.0, generator))
    return fit_box(group(points, repeated(seen, points.shape[1] // 2, generator)))


def lidar(points: Tensor, sector: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, 3 P // 8, 3)``: seen from distance 5, 22.5° above, along lines 1° apart.

    Points in the middle half of each band of polar angle move onto its line; the others are lost. Of the rest
    768 of 2,048 are drawn, with replacement.
    """
    points = fit_box(points)
    elevation = torch.full((len(points),), math.pi / 8).to(points)
    eye = _viewpoint(points, sector, elevation, 5.0, generator)
    ray = points - eye[:, None]
    distance = ray.norm(dim=2)
    polar = (ray[..., 1] / distance).clamp(-1, 1).acos()
    seen = visible(points, eye)
    first = polar.masked_fill(~seen, torch.inf).amin(dim=1, keepdim=True)
    line = ((polar - first) / BAND).floor()
    offset = (polar - first) / BAND - line
    hit = seen & (offset >= 0.25) & (offset < 0.75)
    hit = torch.where(hit.any(dim=1, keepdim=True), hit, seen)
    angle = first + (line + 0.5) * BAND
    flat = F.normalize(ray[..., [0, 2]], dim=2) * (distance * angle.sin())[..., None]
    scanned = torch.stack([flat[..., 0], distance * angle.cos(), flat[..., 1]], dim=2) + eye[:, None]
    return group(scanned, with_replacement(hit, max(1, 3 * points.shape[1] // 8), generator))


def visible(points: Tensor, eye: Tensor) -> Tensor:
    """``(B, P, 3), (B, 3) -> (B, P)`` bool: points with none in front of them, seen towards the origin.

    Every point covers 3 × 3 pixels, which are as wide as the density of points in the outline asks for.
    """
    forward = F.normalize(-eye, dim=1)
    up = forward.new_tensor([0.0, 1.0, 0.0]).expand_as(forward)
    right = F.normalize(torch.linalg.cross(forward, up), dim=1)
    frame = torch.stack([right, torch.linalg.cross(right, forward), forward], dim=2)
    x, y, depth = ((points - eye[:, None]) @ frame).unbind(dim=2)
    zoom = eye.norm(dim=1)[:, None] / depth
    x, y = x * zoom, y * zoom
    area = _distinct(_pixels(x, y, COARSE)) * COARSE**2
    pixel = (SPACING * (area / points.shape[1]).sqrt()).clamp_min(FINEST)
    place = _pixels(x, y, pixel)
    steps = torch.tensor([i * SIDE + j for i in (-1, 0, 1) for j in (-1, 0, 1)], device=points.device)
    nearest = depth.new_full((len(points), SIDE**2), torch.inf)
    covered = (place[..., None] + steps).flatten(1)
    nearest.scatter_reduce_(1, covered, depth[..., None].expand(*depth.shape, 9).flatten(1), "amin")
    return depth <= nearest.gather(1, place) + SLOPE * pixel


def _pixels(x: Tensor, y: Tensor, pixel: Tensor | float) -> Tensor:
    """``(B, P), (B, P) -> (B, P)`` int64: row and column as one number; the border stays free."""
    column, row = ((c / pixel).floor().long().add(SIDE // 2).clamp(1, SIDE - 2) for c in (x, y))
    return row * SIDE + column


def _distinct(values: Tensor) -> Tensor:
    """``(B, P) -> (B, 1)``: how many different ones a row has."""
    ordered = values.sort(dim=1).values
    return 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(dim=1, keepdim=True)


def _viewpoint(
    points: Tensor, sector: int, elevation: Tensor, distance: float, generator: Generator
) -> Tensor:
    """``(B,) radians -> (B, 3)``: at a random azimuth of the sector."""
    width = 2 * math.pi / SECTORS
    azimuth = uniform(points, (len(points),), (sector - 0.5) * width, (sector + 0.5) * width, generator)
    flat = elevation.cos()
    return distance * torch.stack([flat * azimuth.sin(), elevation.sin(), flat * azimuth.cos()], dim=1)
