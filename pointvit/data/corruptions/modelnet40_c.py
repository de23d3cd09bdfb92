"""The fifteen corruptions of ModelNet40-C (Sun et al. 2022, arXiv:2201.12296), five severities each.

Clouds are in the unit sphere and y is up, as in the files that the benchmark was made from. Numbers of points
are those of clouds of 1,024 and scale with others.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from pointvit.data.corruptions.clusters import around_one, only, scaled
from pointvit.data.corruptions.corruption import Corruption, fit_box, turned
from pointvit.data.corruptions.deformations import free_form, inverse_multiquadric, multiquadric
from pointvit.data.corruptions.draws import normal, shuffled, signs, uniform, with_replacement
from pointvit.data.corruptions.scans import lidar, occlusion
from pointvit.ops import group

HOLE, CLUSTER = 30, 100
"""Points of a hole of ``cutout``, and of a part of ``density`` and ``density_inc``."""
HALF_A_STEP = 2.5
"""Degrees by which an angle of ``rotation`` differs from its level; a factor of ``shear`` by 0.05."""


def uniform_noise(points: Tensor, width: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: each coordinate moves by up to ``width`` either way."""
    return fit_box(points + uniform(points, points.shape, -width, width, generator))


def gaussian_noise(points: Tensor, std: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: normal noise, then cut off at the cube [-1, 1]³; the scale stays."""
    return (points + std * normal(points, points.shape, generator)).clamp(-1, 1)


def background(points: Tensor, part: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P + P // part, 3)``: more points, anywhere in the cube [-1, 1]³."""
    added = uniform(points, (len(points), max(1, points.shape[1] // part), 3), -1, 1, generator)
    return fit_box(torch.cat([points, added], dim=1))


def impulse(points: Tensor, part: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: one in ``part`` points moves by 0.1 along every axis, up or down."""
    count = max(1, points.shape[1] // part)
    chosen = shuffled(points.new_ones(points.shape[:2], dtype=torch.bool), generator)[:, :count]
    moves = 0.1 * signs(points, (len(points), count, 3), generator)
    return fit_box(points.scatter_add(1, chosen[..., None].expand(-1, -1, 3), moves))


def upsampling(points: Tensor, part: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P + P // part, 3)``: more points, each within 0.05 of another along every axis."""
    count = max(1, points.shape[1] // part)
    chosen = shuffled(points.new_ones(points.shape[:2], dtype=torch.bool), generator)[:, :count]
    added = group(points, chosen) + uniform(points, (len(points), count, 3), -0.05, 0.05, generator)
    return fit_box(torch.cat([points, added], dim=1))


def density(points: Tensor, clusters: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P - 75 clusters, 3)``: around random points 75 of the 100 nearest are lost."""
    batch, num_points = points.shape[:2]
    size = scaled(CLUSTER, num_points)
    left = points.new_ones((batch, num_points), dtype=torch.bool)
    for _ in range(clusters):
        cluster = around_one(points, left, _same(size, left), generator)
        lost = shuffled(cluster, generator)[:, : 3 * size // 4]
        left = left.scatter(1, lost, False)
    return only(points, left, num_points - clusters * (3 * size // 4))


def density_inc(points: Tensor, clusters: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P // 2, 3)``: all of the 100 nearest to random points, and a part of the rest.

    The rest is drawn with replacement, as the benchmark does.
    """
    batch, num_points = points.shape[:2]
    wanted = num_points // 2
    size = scaled(CLUSTER, wanted)
    left = points.new_ones((batch, num_points), dtype=torch.bool)
    for _ in range(clusters):
        left = left & ~around_one(points, left, _same(size, left), generator)
    rest = with_replacement(left, wanted - clusters * size, generator)
    return torch.cat([only(points, ~left, clusters * size), group(points, rest)], dim=1)


def shear(points: Tensor, factor: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: x and z gain shares of the other two axes; y, which is up, stays."""
    size = uniform(points, (len(points), 4), factor - 0.05, factor + 0.05, generator)
    x_to_z, y_to_x, y_to_z, z_to_x = (size * signs(points, size.shape, generator)).unbind(dim=1)
    matrix = torch.eye(3).to(points).repeat(len(points), 1, 1)
    matrix[:, 0, 2], matrix[:, 1, 0], matrix[:, 1, 2], matrix[:, 2, 0] = x_to_z, y_to_x, y_to_z, z_to_x
    return fit_box(points @ matrix)


def rotation(points: Tensor, degrees: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: turned by about ``degrees``, either way, about x, then y, then z."""
    size = uniform(points, (len(points), 3), degrees - HALF_A_STEP, degrees + HALF_A_STEP, generator)
    angles = size * signs(points, size.shape, generator) * (math.pi / 180)
    return fit_box(turned(points, angles, "xyz"))


def cutout(points: Tensor, holes: int, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P - 30 holes, 3)``: random points are lost with their nearest, 30 each time."""
    batch, num_points = points.shape[:2]
    size = scaled(HOLE, num_points)
    holes = min(holes, (num_points - 1) // size)  # of very small clouds a point is left
    left = points.new_ones((batch, num_points), dtype=torch.bool)
    for _ in range(holes):
        left = left & ~around_one(points, left, _same(size, left), generator)
    return only(points, left, num_points - holes * size)


def _same(size: int, rows: Tensor) -> Tensor:
    """``(B,)`` int64: the same number for every row."""
    return torch.full((len(rows),), size, device=rows.device)


NOT_RAYS = "seen points of the cloud itself, by a depth buffer; the benchmark casts rays onto the meshes"
SECTOR = "sector of 72° that the viewer stands in; no order of strength"

MODELNET40_C: dict[str, Corruption] = {
    "uniform": Corruption(uniform_noise, (0.01, 0.02, 0.03, 0.04, 0.05), "half the width of the noise"),
    "gaussian": Corruption(gaussian_noise, (0.01, 0.015, 0.02, 0.025, 0.03), "standard deviation"),
    "background": Corruption(background, (45, 40, 35, 30, 20), "one point more for so many"),
    "impulse": Corruption(impulse, (30, 25, 20, 15, 10), "one moved point in so many"),
    "upsampling": Corruption(upsampling, (5, 4, 3, 2, 1), "one point more for so many"),
    "distortion_rbf": Corruption(multiquadric, (0.025, 0.05, 0.075, 0.1, 0.125), "move of the lattice"),
    "distortion_rbf_inv": Corruption(
        inverse_multiquadric, (0.025, 0.05, 0.075, 0.1, 0.125), "move of the lattice"
    ),
    "density": Corruption(density, (1, 2, 3, 4, 5), "parts that are thinned out"),
    "density_inc": Corruption(density_inc, (1, 2, 3, 4, 5), "parts that stay dense", dense=True),
    "shear": Corruption(shear, (0.05, 0.1, 0.15, 0.2, 0.25), "factor, ± 0.05"),
    "rotation": Corruption(rotation, (2.5, 5, 7.5, 10, 15), "degrees about each axis, ± 2.5"),
    "cutout": Corruption(cutout, (2, 3, 5, 7, 10), "holes of 30 points"),
    "distortion": Corruption(free_form, (0.1, 0.2, 0.3, 0.4, 0.5), "move of the lattice, share of its side"),
    "occlusion": Corruption(occlusion, (1, 2, 3, 4, 5), SECTOR, dense=True, ordered=False, ours=NOT_RAYS),
    "lidar": Corruption(lidar, (1, 2, 3, 4, 5), SECTOR, dense=True, ordered=False, ours=NOT_RAYS),
}
