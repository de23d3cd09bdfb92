"""The numbers of a comparison, as plain values: what ``results.json`` holds and every figure shows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from pointvit.compare.cka import CKAMatrix, MinibatchCKA
from pointvit.compare.drift import drift_by_group, weight_drift
from pointvit.compare.multiview import Views
from pointvit.compare.objects import Objects
from pointvit.compare.positions import SimilarityByDistance, grid_structure, position_table
from pointvit.compare.probes import ProbeResult, knn_probe, linear_probe
from pointvit.compare.recording import Recording, record_objects
from pointvit.compare.retrieval import KS, cross_modal_retrieval
from pointvit.compare.subjects import Subjects

PAIRINGS = (
    ("image", "image"),
    ("points", "points"),
    ("image", "points"),
    ("image", "points_before"),
    ("image", "image_after"),
    ("image_after", "points"),
)
"""Encoders whose layers are compared with each other's, where both are there."""
RANDOM = {"image": "image_random", "points": "points_random"}
UNITS = {"image": "px", "points": "radii"}
NEIGHBOURS = 5
Numbers = dict[str, Any]
Told = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


@dataclass(frozen=True)
class Study:
    """Everything measured, and the features that it rests on."""

    numbers: Numbers
    fit: Mapping[str, Recording]
    seen: Mapping[str, Recording]


def measure(subjects: Subjects, fit: Objects, study: Objects, views: Views, seed: int, told: Told) -> Study:
    """All measurements of all encoders.

    Args:
        fit: objects that probes and maps are fitted to.
        study: other objects, which everything is measured on.
        told: is told how far it is.
    """
    curve = SimilarityByDistance()
    seen = record_objects(subjects, study, views, True, lambda done: told("objects", done, len(study)), curve)
    fitted = record_objects(
        subjects, fit, views, False, lambda done: told("objects to fit to", done, len(fit))
    )
    skipped: dict[str, str] = {}
    numbers: Numbers = {
        "cka": _all_cka(seen, seed, told),
        "attention": _attention(subjects, seen),
        "tokens": _tokens(seen),
        "probes": _attempt("probes", skipped, lambda: _probes(fitted, seen, fit, study, seed, told)),
        "retrieval": _attempt("retrieval", skipped, lambda: _retrieval(fitted, seen, seed, told)),
        "drift": _drift(subjects) if subjects.is_tuned else None,
        "positions": {
            "image": _attempt(
                "positions of the image encoder",
                skipped,
                lambda: grid_structure(position_table(subjects.image))._asdict(),
            ),
            "points": _attempt("positions of the point encoder", skipped, lambda: _curve(curve)),
        },
        "skipped": skipped,
    }
    numbers["same_depth"] = _same_depth(numbers["cka"])
    return Study(plain(numbers), fitted, seen)


def plain(value: Any) -> Any:
    """Tensors as lists, and numbers that are none (NaN, infinite) as None, which JSON has."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _attempt(name: str, skipped: dict[str, str], measured: Callable[[], Numbers]) -> Numbers | None:
    """A measurement, or None and why it does not exist for these objects or encoders."""
    try:
        return measured()
    except ValueError as error:
        skipped[name] = str(error)
        return None


def _all_cka(seen: Mapping[str, Recording], seed: int, told: Told) -> list[Numbers]:
    pairs = [pair for pair in PAIRINGS if set(pair) <= seen.keys()]
    found = []
    for done, (rows, columns) in enumerate(pairs, start=1):
        matrix = _cka(seen[rows], seen[columns], seed)
        entry: Numbers = {"rows": rows, "columns": columns, **asdict(matrix), "random": None}
        if rows in RANDOM and columns in RANDOM:
            control = _cka(seen[RANDOM[rows]], seen[RANDOM[columns]], seed)
            entry |= {"random": control.cka, "random_permuted_std": control.permuted_std}
        found.append(entry)
        told("similarity", done, len(pairs))
    return found


def _cka(first: Recording, second: Recording, seed: int) -> CKAMatrix:
    measured = MinibatchCKA(seed=seed)
    measured.update(first.layers, second.layers)
    return measured.result()


def _same_depth(matrices: list[Numbers]) -> list[Numbers]:
    """Along the diagonals of the comparisons across encoders; the random control is image and points'."""
    control = next(each for each in matrices if (each["rows"], each["columns"]) == ("image", "points"))
    found = []
    for each in matrices:
        if each["rows"] != each["columns"]:
            entry: Numbers = {"rows": each["rows"], "columns": each["columns"], "objects": each["objects"]}
            entry |= {name: each[name].diagonal() for name in ("cka", "permuted_mean", "permuted_std")}
            across = each["rows"].startswith("image") and each["columns"].startswith("points")
            for name in ("random", "random_permuted_std"):
                entry[name] = control[name].diagonal() if across else None
            found.append(entry)
    return found


def _attention(subjects: Subjects, seen: Mapping[str, Recording]) -> Numbers:
    found = {}
    for name, each in seen.items():
        if each.attention is None or each.uniform is None:
            continue
        summary = each.attention
        found[name] = {
            "unit": UNITS[subjects.encoders[name].config.modality],
            "count": summary.distance.count,
            "tokens": each.num_tokens,
            "uniform_distance": float(each.uniform.mean),
            "uniform_entropy": math.log(each.num_tokens),
            **{part: getattr(summary, part).mean for part in summary._fields},
            **{f"{part}_std": getattr(summary, part).std for part in summary._fields},
        }
    return found


def _tokens(seen: Mapping[str, Recording]) -> Numbers:
    found = {}
    for name, each in seen.items():
        if each.tokens is not None:
            summary = each.tokens
            found[name] = {
                "norm": summary.norm.mean,
                "norm_std": summary.norm.std,
                "max_norm": summary.max_norm,
                "mean": summary.mean.mean,
                "effective_rank": summary.effective_rank,
                "outliers": summary.outliers.mean,
            }
    return found


def _probes(
    fitted: Mapping[str, Recording],
    seen: Mapping[str, Recording],
    fit: Objects,
    study: Objects,
    seed: int,
    told: Told,
) -> Numbers:
    train_y, test_y = fit.data.labels, study.data.labels
    found: Numbers = {}
    done, total = 0, sum(len(each.layers) for each in seen.values())
    for name, each in seen.items():
        # C is chosen once an encoder: layers are standardised, and a choice of its own each takes five fits.
        final = _linear_probe(fitted[name].final, train_y, each.final, test_y, None, seed)
        nearest = knn_probe(fitted[name].final, train_y, each.final, test_y, NEIGHBOURS)
        curve = []
        for layer, (train_x, test_x) in enumerate(zip(fitted[name].layers, each.layers, strict=True)):
            linear = _linear_probe(train_x, train_y, test_x, test_y, final.regularization, seed)
            knn = knn_probe(train_x, train_y, test_x, test_y, NEIGHBOURS)
            curve.append({"layer": layer, "linear": linear._asdict(), "knn": knn._asdict()})
            done += 1
            told("probes", done, total)
        found[name] = {"layers": curve, "linear": final._asdict(), "knn": nearest._asdict()}
    return found


def _linear_probe(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, regularization: float | None, seed: int
) -> ProbeResult:
    with warnings.catch_warnings():
        # scikit-learn takes few objects of many classes for a regression; the counts stand in the report.
        warnings.filterwarnings("ignore", "The number of unique classes")
        return linear_probe(train_x, train_y, test_x, test_y, regularization, seed)


def _retrieval(
    fitted: Mapping[str, Recording], seen: Mapping[str, Recording], seed: int, told: Told
) -> Numbers:
    """From the view to the cloud, by the features of the last layer."""
    pairs = [pair for pair in (("image", "points"), ("image", "points_before")) if set(pair) <= seen.keys()]
    ks = [k for k in KS if k < len(seen["image"].final)]  # among all, everything is found
    found: Numbers = {}
    for done, (first, second) in enumerate(pairs, start=1):
        queries, gallery = (seen[name].layers[-1] for name in (first, second))
        fit_queries, fit_gallery = (fitted[name].layers[-1] for name in (first, second))
        found[second] = cross_modal_retrieval(queries, gallery, fit_queries, fit_gallery, ks, seed=seed)
        told("retrieval", done, len(pairs))
    return {"ks": ks, "objects": len(seen["image"].final), "queries": "image", "gallery": found}


def _drift(subjects: Subjects) -> Numbers:
    rows = weight_drift(subjects.image, subjects.points)
    return {
        "tensors": [row._asdict() for row in rows],
        "groups": [row._asdict() for row in drift_by_group(rows)],
    }


def _curve(curve: SimilarityByDistance) -> Numbers:
    found = curve.result()
    return {
        "rank_correlation": asdict(found.rank_correlation),
        "edges": found.edges,
        "similarity": found.similarity,
        "pairs": found.pairs,
    }
