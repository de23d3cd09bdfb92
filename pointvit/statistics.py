"""Means with their confidence intervals, for the few runs or episodes that one can afford."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """The mean of some runs, their spread, and where the mean of all such runs lies at ``confidence``.

    Attributes:
        values: one a run.
        std: of the runs (with n - 1).
        half: half the width of the interval: it runs from ``mean - half`` to ``mean + half``.
    """

    values: tuple[float, ...]
    mean: float
    std: float
    half: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.std:.2g} ({self.confidence:.0%} interval ± {self.half:.2g})"


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """``(N,)`` numbers -> their mean with Student's interval. For a paired comparison, give the differences.

    Raises:
        ValueError: for fewer than two numbers, which have no spread.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if len(numbers) < 2:
        raise ValueError(f"an interval needs at least 2 runs, got {len(numbers)}; use more seeds or episodes")
    std = float(numbers.std(ddof=1))
    half = t_quantile(0.5 + confidence / 2, len(numbers) - 1) * std / math.sqrt(len(numbers))
    return Interval(tuple(numbers.tolist()), float(numbers.mean()), std, half, confidence)


def t_quantile(probability: float, freedom: int) -> float:
    """The value that Student's t of ``freedom`` degrees stays below with ``probability``, in [0.5, 1)."""
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ValueError(f"expected a probability in [0.5, 1) and freedom >= 1, got {probability}, {freedom}")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _inside(angle, freedom) < 2 * probability - 1 else (low, angle)
    return math.sqrt(freedom) * math.tan(angle)


def _inside(angle: float, freedom: int) -> float:
    """P(|t| < sqrt(freedom) tan(angle)), a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    odd, cosine = freedom % 2, math.cos(angle)
    term, total = cosine if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
