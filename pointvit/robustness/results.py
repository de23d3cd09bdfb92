"""What was measured: kept from run to run, and written as CSV, JSON and files in the public layout."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pointvit.checkpoints.writing import new_file
from pointvit.data.corruptions import BENCHMARKS
from pointvit.data.corruptions.public import LABELS, OURS, folder_of, is_ours, labels_apart
from pointvit.robustness.scores import Row, Summary
from pointvit.robustness.sources import Condition

MEASURED = {"clouds", "points", "overall_accuracy", "mean_class_accuracy"}
AGREEMENT = {"same", "clouds"}


class Done:
    """Finished measurements by key, in one JSON file that is complete after every addition."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises ValueError if there is such a file and it cannot be read."""
        self.path = path = Path(path)
        self._results: dict[str, dict[str, float]] = {}
        if path.exists():
            try:
                found = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{path}: is not readable as JSON ({error}); remove it to measure everything again"
                ) from error
            if not isinstance(found, dict) or not all(map(_is_measurement, found.values())):
                raise ValueError(
                    f"{path}: holds no finished measurements; choose another folder for --output"
                )
            self._results = found

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def get(self, key: str) -> Mapping[str, float]:
        """The result under a key that is there."""
        return self._results[key]

    def add(self, key: str, result: Mapping[str, float]) -> None:
        """Keeps a result."""
        self._results[key] = dict(result)
        with new_file(self.path) as temporary:
            temporary.write_text(json.dumps(self._results, allow_nan=False) + "\n", encoding="utf-8")


def _is_measurement(value: Any) -> bool:
    """Whether this is a result, or the agreement of two precisions."""
    return (
        isinstance(value, dict)
        and value.keys() in (MEASURED, AGREEMENT)
        and all(isinstance(number, int | float) for number in value.values())
    )


def save_results(
    folder: Path, rows: Sequence[Row], summaries: Sequence[Summary], about: Mapping[str, Any]
) -> None:
    """``results.csv``, a row for each model and set, and ``results.json``, the same with the summaries."""
    with (
        new_file(folder / "results.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    content = {
        **about,
        "summaries": [{**asdict(each), "complete": each.complete} for each in summaries],
        "rows": [asdict(row) for row in rows],
    }
    with new_file(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def check_writable(benchmark: str, root: Path) -> None:
    """Raises FileExistsError if ``root`` has files of the benchmark that were not made here."""
    folder = root / BENCHMARKS[benchmark].folder
    if not is_ours(folder) and folder_of(benchmark, folder) is not None:
        raise FileExistsError(
            f"{folder}: holds files of {BENCHMARKS[benchmark].title} that were not made here; choose another "
            "folder"
        )


def write_set(
    root: Path, condition: Condition, points: np.ndarray, labels: np.ndarray, class_names: Sequence[str]
) -> Path:
    """``(N, P, 3), (N,)`` into the benchmark's folder in ``root``, as the public file is called and laid out.

    A note beside them says that they are ours, and of which classes.

    Raises:
        FileExistsError: if the folder has files of the benchmark without that note.
    """
    benchmark = condition.benchmark
    check_writable(benchmark, root)
    folder = root / BENCHMARKS[benchmark].folder
    with new_file(folder / OURS) as temporary:
        note = {"made_by": "pointvit robustness --write", "class_names": list(class_names)}
        temporary.write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
    path = folder / BENCHMARKS[benchmark].file(condition.corruption, condition.severity)
    stored = labels.astype(np.uint8 if labels.max() < 256 else np.int64)[:, None]
    if labels_apart(benchmark):
        for name, array in ((path, points.astype(np.float32)), (folder / LABELS, stored)):
            with new_file(name) as temporary, temporary.open("wb") as stream:
                np.save(stream, array, allow_pickle=False)
        return path
    with new_file(path) as temporary, h5py.File(temporary, "w") as file:
        file.create_dataset("data", data=points.astype(np.float32))
        file.create_dataset("label", data=stored)
    return path
