"""Random numbers and choices that are the same whatever device the points are on.

They are drawn where the generator lives, usually the CPU, and then moved to the points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def uniform(like: Tensor, shape: Sequence[int], low: float, high: float, generator: Generator) -> Tensor:
    """Numbers in [low, high), of the type and on the device of ``like``."""
    draw = torch.rand(tuple(shape), generator=generator, device=generator.device)
    return (low + (high - low) * draw).to(like)


def normal(like: Tensor, shape: Sequence[int], generator: Generator) -> Tensor:
    """Numbers from the standard normal distribution, of the type and on the device of ``like``."""
    return torch.randn(tuple(shape), generator=generator, device=generator.device).to(like)


def integers(like: Tensor, shape: Sequence[int], low: int, high: int, generator: Generator) -> Tensor:
    """Whole numbers in [low, high), int64, on the device of ``like``."""
    draw = torch.randint(low, high, tuple(shape), generator=generator, device=generator.device)
    return draw.to(like.device)


def signs(like: Tensor, shape: Sequence[int], generator: Generator) -> Tensor:
    """Minus or plus one, of the type and on the device of ``like``."""
    return (2 * integers(like, shape, 0, 2, generator) - 1).to(like)


def directions(like: Tensor, batch: int, generator: Generator) -> Tensor:
    """``(batch, 3)``: unit vectors, evenly spread over the sphere."""
    height = uniform(like, (batch,), -1, 1, generator)
    around = uniform(like, (batch,), 0, 2 * math.pi, generator)
    flat = (1 - height.square()).clamp_min(0).sqrt()
    return torch.stack([flat * around.cos(), flat * around.sin(), height], dim=1)


def shuffled(mask: Tensor, generator: Generator) -> Tensor:
    """``(B, P) -> (B, P)`` int64: the places where the mask is true in random order, then the others."""
    keys = torch.rand(mask.shape, generator=generator, device=generator.device).to(mask.device)
    return (keys + 2 * (~mask)).argsort(dim=1, stable=True)


def repeated(mask: Tensor, count: int, generator: Generator) -> Tensor:
    """``(B, P) -> (B, count)`` int64: places of the mask in random order, over again if they are too few."""
    found = mask.sum(dim=1, keepdim=True).clamp_min(1)
    turn = torch.arange(count, device=mask.device) % found
    return shuffled(mask, generator).gather(1, turn)


def with_replacement(mask: Tensor, count: int, generator: Generator) -> Tensor:
    """``(B, P) -> (B, count)`` int64: each a place of the mask, drawn anew."""
    found = mask.sum(dim=1, keepdim=True).clamp_min(1)
    draw = torch.rand((len(mask), count), generator=generator, device=generator.device).to(mask.device)
    rank = (draw * found).long().clamp_max(found - 1) + 1
    return torch.searchsorted(mask.cumsum(dim=1), rank)
