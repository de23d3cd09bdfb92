"""The two benchmarks' metrics, and what others published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pointvit.data.corruptions import BENCHMARKS, CLEAN

DGCNN_ACCURACY = {
    "clean": 0.926,
    "scale": 0.906,
    "jitter": 0.684,
    "rotate": 0.785,
    "dropout_global": 0.752,
    "dropout_local": 0.793,
    "add_global": 0.705,
    "add_local": 0.725,
}
"""Overall accuracy of DGCNN on ModelNet-C, mean of five levels, as published: what mCE is relative to."""

PUBLISHED: dict[str, dict[str, float]] = {
    "modelnet40-c": {"DGCNN": 0.259, "PCT": 0.255, "PointMLP": 0.319, "PCT + PointCutMix-R": 0.163},
    "modelnet-c": {"DGCNN": 1.0, "Point-BERT": 1.033, "PCT": 0.925, "PCT + WOLFMix": 0.574},
}
"""Mean error rate and mCE of others on the public files, from the benchmarks' papers and repositories."""
METRICS = {"modelnet40-c": "mean error rate", "modelnet-c": "mCE"}


@dataclass(frozen=True)
class Row:
    """How one model did on one set."""

    model: str
    benchmark: str
    corruption: str
    severity: int
    level: float | None
    made_by: str
    clouds: int
    points: int
    overall_accuracy: float
    mean_class_accuracy: float


@dataclass(frozen=True)
class Summary:
    """One model on one benchmark.

    Attributes:
        clean: overall accuracy on the clouds as they were; None if not measured.
        by_corruption: of ModelNet40-C the error rate, of ModelNet-C the corruption error (CE), each of the
            mean over severities.
        score: the mean of these: the mean error rate, or mCE.
        sets, of: how many sets were measured, of how many that the benchmark has.
    """

    model: str
    benchmark: str
    made_by: str
    clean: float | None
    by_corruption: dict[str, float]
    score: float
    sets: int
    of: int

    @property
    def complete(self) -> bool:
        """Whether the score is the benchmark's own, and not that of a part."""
        return self.sets == self.of


def error_rates(accuracies: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Accuracies over the severities of each corruption -> its mean error rate (ModelNet40-C)."""
    return {name: 1 - sum(values) / len(values) for name, values in accuracies.items()}


def corruption_errors(accuracies: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Accuracies over the levels of each corruption -> CE = (1 - OA) / (1 - OA of DGCNN) (ModelNet-C).

    OA is the mean over the levels. The benchmark's script rounds OA to three decimals before it divides; here
    nothing is rounded, so that the last digit can differ.
    """
    return {name: rate / (1 - DGCNN_ACCURACY[name]) for name, rate in error_rates(accuracies).items()}


_ERRORS = {"modelnet40-c": error_rates, "modelnet-c": corruption_errors}


def summarise(rows: Iterable[Row]) -> list[Summary]:
    """Rows of any models and sets -> one summary for each model and benchmark, in the order they come in."""
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.benchmark in _ERRORS:
            parts.setdefault((row.benchmark, row.model), []).append(row)
    return [
        _summary(benchmark, model, part) for (benchmark, model), part in parts.items() if _corrupted(part)
    ]


def _corrupted(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.corruption != CLEAN]


def _summary(benchmark: str, model: str, rows: Sequence[Row]) -> Summary:
    clean = [row.overall_accuracy for row in rows if row.corruption == CLEAN]
    accuracies: dict[str, list[float]] = {}
    for row in _corrupted(rows):
        accuracies.setdefault(row.corruption, []).append(row.overall_accuracy)
    errors = _ERRORS[benchmark](accuracies)
    known = BENCHMARKS[benchmark]
    return Summary(
        model=model,
        benchmark=benchmark,
        made_by=rows[0].made_by,
        clean=clean[0] if clean else None,
        by_corruption=errors,
        score=sum(errors.values()) / len(errors),
        sets=sum(map(len, accuracies.values())),
        of=sum(len(known.severities(name)) for name in known.corruptions),
    )
