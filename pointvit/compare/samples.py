"""Features and labels of objects as the measurements take them: checked, and in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray
CONSTANT = 1e-9
"""A channel whose spread is smaller than this beside its largest value is rounding and nothing else."""


def as_samples(x: Array, name: str, fewest: int = 1) -> Tensor:
    """``(N, D) -> (N, D)`` float64 on the CPU, without a gradient.

    Args:
        name: what the features are, for the error.
        fewest: objects that the measure needs.

    Raises:
        ValueError: for another shape, fewer objects, or features that are NaN or infinite.
    """
    samples = torch.as_tensor(x).detach().to("cpu", torch.float64)
    if samples.ndim != 2 or samples.shape[1] == 0:
        raise ValueError(f"{name} must have shape (N, D), a row for each object, got {tuple(samples.shape)}")
    if len(samples) < fewest:
        raise ValueError(f"{name}: this measure needs at least {fewest} objects, got {len(samples)}")
    broken = (~samples.isfinite()).any(dim=1).nonzero().flatten().tolist()
    if broken:
        raise ValueError(
            f"{name}: the features of {len(broken)} of {len(samples)} objects are NaN or infinite, the first "
            f"in row {broken[0]}; leave those objects out, or compute the features in float32"
        )
    return samples


def as_labels(y: Array, count: int, name: str) -> Tensor:
    """``(N,) -> (N,)`` int64 on the CPU: one class for each of ``count`` objects.

    Raises:
        ValueError: for another shape, or labels that are not whole numbers of at least 0.
    """
    labels = torch.as_tensor(y).detach().cpu()
    if labels.shape != (count,) or labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"{name} must be {count} whole numbers, a class for each object, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    if bool((labels < 0).any()):
        raise ValueError(f"{name} must be classes from 0 on, got {int(labels.min())}")
    return labels.long()


@dataclass(frozen=True)
class Standard:
    """Brings every channel to mean 0 and deviation 1 over the objects it was made from."""

    mean: Tensor
    """(D,)"""
    scale: Tensor
    """(D,) deviation (of the population); 1 for a channel that is constant, which becomes 0 for all."""

    @classmethod
    def of(cls, x: Tensor) -> Standard:
        """``(N, D)`` of the objects to learn from, and of no others."""
        mean, scale = x.mean(dim=0), x.std(dim=0, correction=0)
        return cls(mean, torch.where(scale > CONSTANT * x.abs().amax(dim=0), scale, 1.0))

    def __call__(self, x: Tensor) -> Tensor:
        """``(N, D) -> (N, D)``."""
        return (x - self.mean) / self.scale
