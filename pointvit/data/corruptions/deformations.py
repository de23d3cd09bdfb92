"""Smooth deformations of ModelNet40-C: 5 × 5 × 5 control points over the cube [-1, 1]³ are moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from einops import rearrange
from torch import Generator, Tensor

from pointvit.data.corruptions.corruption import fit_box
from pointvit.data.corruptions.draws import uniform

LATTICE = 5
RADIUS = 0.5
"""Of the radial functions, as the benchmark leaves it."""
KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "multiquadric": lambda squared: (squared + RADIUS**2).sqrt(),
    "inverse multiquadric": lambda squared: (squared + RADIUS**2).rsqrt(),
}


def free_form(points: Tensor, strength: float, generator: Generator) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: Bernstein polynomials of the moved lattice (Sederberg and Parry 1986).

    Each control point moves by up to ``strength`` of the cube's side along each axis. Points outside the
    cube stay.
    """
    moves = 2 * uniform(points, (len(points), LATTICE**3, 3), -strength, strength, generator)
    place = (points + 1) / 2
    x, y, z = _bernstein(place).unbind(dim=2)
    weights = torch.einsum("bpi,bpj,bpk->bpijk", x, y, z)
    moved = points + rearrange(weights, "b p i j k -> b p (i j k)") @ moves
    inside = ((place >= 0) & (place <= 1)).all(dim=2, keepdim=True)
    return fit_box(torch.where(inside, moved, points))


def radial(points: Tensor, distance: float, generator: Generator, kernel: str) -> Tensor:
    """``(B, P, 3) -> (B, P, 3)``: each control point moves by ``distance``; radial functions fill in between.

    The direction has an azimuth and a polar angle that are both uniform in [-π, π), as the benchmark draws
    them. Interpolation is exact at the control points and includes a linear part (Buhmann 2003).
    """
    azimuth, polar = uniform(points, (2, len(points), LATTICE**3), -math.pi, math.pi, generator)
    axes = [azimuth.cos() * polar.sin(), azimuth.sin() * polar.sin(), polar.cos()]
    moves = distance * torch.stack(axes, dim=2)
    weights = _interpolation(kernel).to(points) @ moves
    controls = _controls().to(points)
    squared = (
        points.square().sum(dim=2, keepdim=True) + controls.square().sum(dim=1) - 2 * points @ controls.T
    )
    values = KERNELS[kernel](squared.clamp_min(0))
    basis = torch.cat([values, torch.ones_like(points[..., :1]), points], dim=2)
    return fit_box(points + basis @ weights)


def multiquadric(points: Tensor, distance: float, generator: Generator) -> Tensor:
    """:func:`radial` with √(r² + ½²)."""
    return radial(points, distance, generator, "multiquadric")


def inverse_multiquadric(points: Tensor, distance: float, generator: Generator) -> Tensor:
    """:func:`radial` with 1 / √(r² + ½²)."""
    return radial(points, distance, generator, "inverse multiquadric")


def _bernstein(place: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, P, 3, 5)``: the polynomials of degree 4 at each coordinate in [0, 1]."""
    degree = LATTICE - 1
    terms = [math.comb(degree, i) * place**i * (1 - place) ** (degree - i) for i in range(LATTICE)]
    return torch.stack(terms, dim=3)


def _controls() -> Tensor:
    """``(125, 3)`` float64: the lattice."""
    line = torch.linspace(-1, 1, LATTICE, dtype=torch.float64)
    return torch.cartesian_prod(line, line, line)


@lru_cache
def _interpolation(kernel: str) -> Tensor:
    """``(129, 125)`` float64: from moves of the lattice to weights of its functions, constant and slopes."""
    controls = _controls()
    squared = (controls[:, None] - controls).square().sum(dim=2)
    linear = torch.cat([torch.ones_like(controls[:, :1]), controls], dim=1)
    upper = torch.cat([KERNELS[kernel](squared), linear], dim=1)
    lower = torch.cat([linear.T, linear.new_zeros(4, 4)], dim=1)
    return torch.linalg.inv(torch.cat([upper, lower]))[:, : len(controls)]
