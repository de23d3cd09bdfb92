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
    from scipy.stats import t

    std = float(numbers.std(ddof=1))
    half = float(t.ppf(0.5 + confidence / 2, len(numbers) - 1)) * std / math.sqrt(len(numbers))
    return Interval(tuple(numbers.tolist()), float(numbers.mean()), std, half, confidence)
