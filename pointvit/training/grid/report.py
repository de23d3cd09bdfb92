"""What a grid leaves behind: ``results.csv``, ``results.json``, the low-data picture and ``index.html``."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pointvit.checkpoints.writing import new_file
from pointvit.report import Page, code, figure, paragraph, svg
from pointvit.report.page import versions
from pointvit.training.grid.cells import Result, size_name
from pointvit.training.grid.contrasts import (
    Contrast,
    Pair,
    Runs,
    bounds,
    contrasts,
    finished,
    lead,
    summaries,
)
from pointvit.training.grid.picture import picture
from pointvit.training.grid.tables import (
    accuracy_table,
    cell_table,
    compute,
    contrast_table,
    described,
    search_table,
)

COLUMNS = (
    "init",
    "mode",
    "shapes_per_class",
    "seed",
    "lr",
    "search",
    "val_best",
    "best_epoch",
    "val_last",
    "epochs",
    "test_oa",
    "test_macc",
    "trainable",
    "total",
    "train_shapes",
    "seconds",
    "device",
    "versions",
)


CAUTION = (
    "An interval covers what the seeds vary: which shapes are trained on, their order, the augmentation and "
    "the new weights. The test split is the same throughout. Each interval stands for itself; of many such "
    "intervals, one in twenty misses by chance."
)
CAPTION = (
    "Test accuracy: small dots are seeds, large marks their mean, whiskers one standard deviation to each "
    "side. The axis of accuracy does not begin at 0."
)
SEARCH = (
    "Every arm was trained once with each learning rate, with seed 0; the best validation accuracy chose the "
    "rate. The test split was not read for it."
)
PROTOCOL = (
    "Training, validation and test never mix. The validation part is one seeded share of the training split, "
    "the same for all trainings. A seed decides which of the other shapes are trained on, in which order and "
    "how they are augmented; all arms of a seed see the same, for the same number of epochs. The weights of "
    "the epoch with the best validation accuracy are tested; the test split is read once for each training."
)


@dataclass(frozen=True)
class Report:
    """Everything that the files of a grid are made from.

    Attributes:
        results: of the cells that are done.
        missing: number of cells that are not.
        command: that made it, as its words.
        config: of the trainings, as YAML.
        settings: by an arm's name, what it has of its own.
        pairs: further arms to compare, (init, mode) minus (init, mode).
    """

    results: Sequence[Result]
    missing: int
    command: Sequence[str]
    config: str
    settings: Mapping[str, Any]
    pairs: Sequence[Pair] = ()

    @property
    def answer(self) -> str:
        """What the page begins with."""
        return lead(contrasts(finished(self.results), self.pairs), self.pairs)

    def write(self, folder: Path) -> Path:
        """Writes all files, each whole, and returns the page's path."""
        runs = finished(self.results)
        found = contrasts(runs, self.pairs)
        with new_file(folder / "results.csv") as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(row(result) for result in self.results)
        with new_file(folder / "results.json") as temporary:
            text = json.dumps(self._content(runs, found), indent=1, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        drawn = picture(runs) if runs else None
        if drawn is not None:
            with new_file(folder / "low_data.png") as temporary:
                drawn.savefig(temporary, dpi=120)
            with new_file(folder / "low_data.svg") as temporary:
                temporary.write_text(svg(drawn), encoding="utf-8")
        return self._page(runs, found, drawn).save(folder / "index.html")

    def _content(self, runs: Runs, found: Sequence[Contrast]) -> dict[str, Any]:
        return {
            "command": list(self.command),
            "versions": versions(),
            "config": self.config,
            "settings": dict(self.settings),
            "missing": self.missing,
            "answer": lead(found, self.pairs),
            "cells": [{**row(result), "curve": result.measured.curve} for result in self.results],
            "summary": [asdict(summary) for summary in summaries(runs)],
            "differences": [_difference(contrast) for contrast in found],
        }

    def _page(self, runs: Runs, found: Sequence[Contrast], drawn: Figure | None) -> Page:
        page = Page("Does the image transformer help?", lead(found, self.pairs), self.command)
        if self.missing:
            page.section("Not finished", paragraph(f"{self.missing} cells of this grid are not done yet."))
        if found:
            page.section("Differences", contrast_table(found), paragraph(CAUTION))
        page.section("Test accuracy", accuracy_table(runs))
        if drawn is not None:
            page.section("Amount of data", figure(drawn, described(runs), CAPTION))
        page.section("Every training", cell_table([r for r in self.results if not r.cell.search]))
        searches = [result for result in self.results if result.cell.search]
        if searches:
            page.section("Search of the learning rate", paragraph(SEARCH), search_table(searches, runs))
        page.section("Compute", *compute(self.results, runs))
        own = "\n".join(f"{arm}: {json.dumps(value)}" for arm, value in self.settings.items())
        page.section("Protocol", paragraph(PROTOCOL), code(self.config), *([code(own)] if own else []))
        return page


def row(result: Result) -> dict[str, Any]:
    """A finished cell as a line of ``results.csv``: accuracies as shares of 1, in full precision."""
    flat = {**asdict(result.measured), **asdict(result.cell)}
    flat |= {"shapes_per_class": size_name(result.cell.size), "lr": result.cell.rate}
    return {name: flat[name] for name in COLUMNS}


def _difference(contrast: Contrast) -> dict[str, Any]:
    low, high = (None, None) if contrast.interval is None else bounds(contrast.interval)
    return {
        "arm": ":".join(contrast.arm),
        "against": ":".join(contrast.against),
        "shapes_per_class": size_name(contrast.size),
        "seeds": contrast.seeds,
        "difference": contrast.difference,
        "low": low,
        "high": high,
        "verdict": contrast.verdict,
    }
