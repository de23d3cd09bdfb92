"""Overall and mean class accuracy from one confusion matrix."""

from __future__ import annotations

import csv
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """What a confusion matrix says; independent of how the batches were cut.

    Attributes:
        overall_accuracy: OA, correct shapes over all shapes.
        mean_class_accuracy: mAcc, the mean over the classes that occur; absent classes do not count as zero.
        per_class: accuracy of each class, NaN where it does not occur.
        confusion: (K, K) counts, rows are true classes.
    """

    overall_accuracy: float
    mean_class_accuracy: float
    per_class: np.ndarray
    confusion: np.ndarray

    @classmethod
    def of(cls, confusion: Tensor | np.ndarray) -> Scores:
        """``(K, K)`` counts -> scores."""
        counts = np.asarray(confusion, dtype=np.int64)
        support, correct = counts.sum(axis=1), counts.diagonal()
        per_class = np.full(len(counts), np.nan)
        np.divide(correct, support, out=per_class, where=support > 0)
        if support.sum() == 0:
            raise ValueError("no shapes were scored")
        return cls(float(correct.sum() / support.sum()), float(np.nanmean(per_class)), per_class, counts)

    def save(self, folder: Path, class_names: list[str], title: str) -> None:
        """Writes ``metrics.json``, ``per_class.csv``, ``confusion.csv``, ``confusion.png``, each whole."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".scores-", dir=folder) as scratch:
            self._write(Path(scratch), class_names, title)
            for file in Path(scratch).iterdir():
                file.replace(folder / file.name)

    def _write(self, folder: Path, class_names: list[str], title: str) -> None:
        from pointvit import plots  # it imports Matplotlib, which training itself does without

        summary = {
            "overall_accuracy": self.overall_accuracy,
            "mean_class_accuracy": self.mean_class_accuracy,
            "shapes": int(self.confusion.sum()),
            "classes": len(class_names),
        }
        text = json.dumps(summary, indent=2, allow_nan=False)
        (folder / "metrics.json").write_text(text + "\n", encoding="utf-8")
        with (folder / "per_class.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["class", "shapes", "accuracy"])
            for name, row, accuracy in zip(class_names, self.confusion, self.per_class, strict=True):
                writer.writerow([name, row.sum(), "" if np.isnan(accuracy) else f"{accuracy:.4f}"])
        with (folder / "confusion.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["true \\ predicted", *class_names])
            writer.writerows([name, *row] for name, row in zip(class_names, self.confusion, strict=True))
        caption = f"{title}: OA {self.overall_accuracy:.1%}, mAcc {self.mean_class_accuracy:.1%}"
        plots.confusion_matrix(folder / "confusion.png", self.confusion, class_names, caption)
