"""The public files of both benchmarks, read under their exact names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from pointvit.data.corruptions.benchmarks import BENCHMARKS, CLEAN
from pointvit.data.dataset import DataError, check_finite, check_labels

LABELS = "label.npy"
OURS = "made_by_pointvit.json"
"""Stands beside files that were made here, with their classes, so that nobody takes them for public ones."""
_MODELNET40 = """
    airplane bathtub bed bench bookshelf bottle bowl car chair cone cup curtain desk door dresser flower_pot
    glass_box guitar keyboard lamp laptop mantel monitor night_stand person piano plant radio range_hood sink
    sofa stairs stool table tent toilet tv_stand vase wardrobe xbox
"""
CLASS_NAMES = _MODELNET40.split()
"""What labels 0 to 39 of both are taken to mean: ModelNet40's own list, as the files hold numbers alone."""
SHOWN = 5
"""Missing files that a sentence names before it counts the others."""
WHERE = "data/README.md (ModelNet40-C and ModelNet-C) says where they come from"


def folder_of(benchmark: str, root: Path) -> Path | None:
    """``root`` or its folder of the benchmark's usual name, whichever holds files of it; None if neither."""
    for folder in (root, root / BENCHMARKS[benchmark].folder):
        if any((folder / name).is_file() for name in _names(benchmark)):
            return folder
    return None


def check_present(benchmark: str, folder: Path, sets: Iterable[tuple[str, int]]) -> None:
    """Raises FileNotFoundError unless the folder has the files of these ``(corruption, severity)``."""
    wanted = [BENCHMARKS[benchmark].file(*each) for each in sets]
    if labels_apart(benchmark):
        wanted.append(LABELS)
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        shown = ", ".join(missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise FileNotFoundError(
            f"{folder}: {len(missing)} of {len(wanted)} files of {BENCHMARKS[benchmark].title} are missing: "
            f"{shown}{more}; {WHERE}"
        )


def read_set(
    benchmark: str, folder: Path, corruption: str, severity: int, class_names: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """``points (N, P, 3) float32, labels (N,) int64`` of one file; y is up.

    Args:
        class_names: what the labels count, which the files do not say.

    Raises:
        FileNotFoundError: for a missing file.
        DataError: for a damaged one, other shapes, labels beyond the classes, or coordinates that are not
            finite.
    """
    check_present(benchmark, folder, [(corruption, severity)])
    path = folder / BENCHMARKS[benchmark].file(corruption, severity)
    if labels_apart(benchmark):
        points, labels, whose = _array(path), _array(folder / LABELS), folder / LABELS
    else:
        points, labels, whose = *_arrays(path), path
    if points.ndim != 3 or points.shape[2] != 3 or points.shape[1] < 2 or points.dtype.kind != "f":
        raise DataError(f"{path}: expected points (N, P, 3) of floats, got {points.shape} {points.dtype}")
    if labels.shape not in ((len(points), 1), (len(points),)) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{whose}: expected {len(points)} whole numbers, one for each cloud of {path.name}, got "
            f"{labels.shape} {labels.dtype}"
        )
    points, labels = points.astype(np.float32), labels.reshape(-1).astype(np.int64)
    check_labels(labels, class_names, str(whose))
    check_finite(points, str(path))
    return points, labels


def is_ours(folder: Path) -> bool:
    """Whether the files there were made by this project."""
    return (folder / OURS).is_file()


def class_names_of(folder: Path) -> list[str]:
    """What the labels there count: ModelNet40's classes, or those that the note of our own files says."""
    if not is_ours(folder):
        return list(CLASS_NAMES)
    try:
        note = json.loads((folder / OURS).read_text(encoding="utf-8"))
    except ValueError:
        note = None
    names = note.get("class_names") if isinstance(note, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise DataError(f"{folder / OURS}: does not say class_names, a list; write the sets again")
    return names


def _names(benchmark: str) -> Iterable[str]:
    known = BENCHMARKS[benchmark]
    for corruption in (CLEAN, *known.corruptions):
        for severity in known.severities(corruption):
            yield known.file(corruption, severity)


def labels_apart(benchmark: str) -> bool:
    """Whether the labels of all sets are in one file of their own."""
    return BENCHMARKS[benchmark].clean.endswith(".npy")


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path}: not a readable NumPy array, cut short or damaged ({error}); copy it again"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: expected one NumPy array, got an archive of several")
    return array


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with h5py.File(path, "r") as file:
            if not {"data", "label"} <= set(file):
                found = ", ".join(file) or "none"
                raise DataError(f"{path}: expected the arrays data and label, found {found}")
            return np.asarray(file["data"]), np.asarray(file["label"])
    except (OSError, RuntimeError, KeyError) as error:
        raise DataError(
            f"{path}: not a readable HDF5 file, cut short or damaged ({error}); copy it again"
        ) from error
