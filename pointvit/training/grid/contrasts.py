"""What a grid of trainings says: means over seeds, paired differences, and the answer in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pointvit.statistics import Interval, mean_interval
from pointvit.training.grid.cells import Cell, Result, Size, in_order, size_name
from pointvit.training.initial import INITS

Runs = dict[tuple[str, str, Size], dict[int, Result]]
"""Finished cells by (init, mode, size), then by seed."""
Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two arms to compare, (init, mode) each."""
SCRATCH = "scratch"


@dataclass(frozen=True)
class Summary:
    """An arm at one size, over its seeds. Accuracies are shares of 1.

    Attributes:
        test_std: over the seeds (with n - 1), None for one seed.
        seconds: mean over the seeds.
    """

    init: str
    mode: str
    size: Size
    seeds: int
    test_oa: float
    test_std: float | None
    test_macc: float
    val_best: float
    rate: float
    trainable: int
    total: int
    seconds: float

    @property
    def label(self) -> str:
        return label(self.init, self.mode)


@dataclass(frozen=True)
class Contrast:
    """One arm minus another, in test OA, over the seeds that both have.

    Attributes:
        difference: the mean difference, a share of 1.
        interval: its 95 % interval; None for one seed, which does not have one.
    """

    arm: tuple[str, str]
    against: tuple[str, str]
    size: Size
    seeds: int
    difference: float
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """``yes``, ``no difference can be shown``, ``no, it cost``, or that one seed cannot tell."""
        if self.interval is None:
            return "one seed cannot tell"
        low, high = bounds(self.interval)
        return "yes" if low > 0 else "no, it cost" if high < 0 else "no difference can be shown"

    def sentence(self) -> str:
        """The verdict with its numbers, in points of a percent."""
        where = f"with {size_name(self.size)} shape{'' if self.size == 1 else 's'} per class"
        if self.size is None or isinstance(self.size, float):
            where = f"with {size_name(self.size)} of the shapes"
        arm, against = label(*self.arm), label(*self.against)
        points = f"{signed(self.difference)} points"
        if self.interval is None:
            return f"{arm} against {against} {where}: {self.verdict} ({points})"
        low, high = (signed(bound) for bound in bounds(self.interval))
        spread = f"95 % interval {low} to {high}, {self.seeds} seeds"
        return f"{arm} against {against} {where}: {self.verdict} ({points}, {spread})"


def label(init: str, mode: str) -> str:
    """``pretrained × full``"""
    return f"{init} × {mode}"


def bounds(interval: Interval) -> tuple[float, float]:
    """Where an interval begins and ends."""
    return interval.mean - interval.half, interval.mean + interval.half


def finished(results: Iterable[Result]) -> Runs:
    """The cells that are no searches, sorted by size; arms stay in the order in which they come."""
    runs: Runs = {}
    for result in sorted(results, key=lambda result: in_order(result.cell.size)):
        cell = result.cell
        if not cell.search:
            runs.setdefault((cell.init, cell.mode, cell.size), {})[cell.seed] = result
    return runs


def summaries(runs: Runs) -> list[Summary]:
    """One row for each arm and size."""
    return [_summary(key, list(by_seed.values())) for key, by_seed in runs.items()]


def contrasts(runs: Runs, pairs: Sequence[Pair] = ()) -> list[Contrast]:
    """Each arm against the one from scratch, ``pretrained`` against ``shuffled``, and pairs asked for.

    From scratch means the same mode, or where there is no such arm, ``scratch × full``. All arms see the same
    shapes of a seed in the same order, so differences are taken seed by seed.
    """
    found = []
    for init, mode, size in runs:
        baselines = [(SCRATCH, mode), (SCRATCH, "full")] if init != SCRATCH else []
        against = [base for base in baselines if (base[0], base[1], size) in runs][:1]
        if init == "pretrained" and ("shuffled", mode, size) in runs:
            against.append(("shuffled", mode))
        against += [second for first, second in pairs if first == (init, mode) and second not in against]
        found += [
            _contrast(runs, (init, mode), base, size) for base in against if (base[0], base[1], size) in runs
        ]
    return [contrast for contrast in found if contrast is not None]


def lead(contrasts: Sequence[Contrast], pairs: Sequence[Pair] = ()) -> str:
    """The answer in a few sentences, for the head of a page.

    Whether the image weights helped: ``pretrained`` against scratch, with full tuning if that was run.
    Then what was asked for: the pairs, and initial states of one's own against scratch.
    """
    weights = [c for c in contrasts if c.arm[0] == "pretrained" and c.against[0] == SCRATCH]
    weights = [c for c in weights if c.arm[1] == "full"] or weights
    asked = [c for c in contrasts if c.arm[0] not in INITS or (c.arm, c.against) in pairs]
    found = list(dict.fromkeys([*weights, *asked]))
    if not found:
        return "There is nothing to say yet: it takes a pretrained and a scratch arm."
    first = "Did the image weights help? " if weights else ""
    return first + " ".join(f"{_capital(c.sentence())}." for c in found)


def same_training(cell: Cell) -> Cell:
    """What a search and a cell have in common if they are one training."""
    return Cell(cell.init, cell.mode, cell.size, cell.seed, cell.rate)


def total_seconds(results: Iterable[Result]) -> float:
    """Of all trainings; one that a search began and a cell went on with counts once."""
    longest: dict[Cell, float] = {}
    for result in results:
        cell = same_training(result.cell)
        longest[cell] = max(longest.get(cell, 0.0), result.measured.seconds)
    return sum(longest.values())


def _summary(key: tuple[str, str, Size], results: list[Result]) -> Summary:
    measured = [result.measured for result in results]
    scores = [_tested(result) for result in results]

    def mean(values: Iterable[float | None]) -> float:
        return float(np.mean([value for value in values if value is not None]))

    return Summary(
        *key,
        seeds=len(results),
        test_oa=mean(scores),
        test_std=float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        test_macc=mean(m.test_macc for m in measured),
        val_best=mean(m.val_best for m in measured),
        rate=results[0].cell.rate or 0.0,
        trainable=measured[0].trainable,
        total=measured[0].total,
        seconds=mean(m.seconds for m in measured),
    )


def _contrast(runs: Runs, arm: tuple[str, str], against: tuple[str, str], size: Size) -> Contrast | None:
    ours, theirs = runs[arm[0], arm[1], size], runs[against[0], against[1], size]
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = [_tested(ours[seed]) - _tested(theirs[seed]) for seed in seeds]
    interval = mean_interval(differences) if len(seeds) > 1 else None
    return Contrast(arm, against, size, len(seeds), float(np.mean(differences)), interval)


def _tested(result: Result) -> float:
    assert result.measured.test_oa is not None, "a cell that is no search has a test score"
    return result.measured.test_oa


def signed(share: float) -> str:
    """A share as points of a percent, with its sign."""
    return f"{100 * share:+.1f}".replace("-", "−")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
