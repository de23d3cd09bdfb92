"""The tables of a grid's page."""

from __future__ import annotations

from collections.abc import Sequence

from pointvit.report import Cell, Part, paragraph, table
from pointvit.training.grid.cells import Result, size_name
from pointvit.training.grid.contrasts import (
    Contrast,
    Runs,
    Summary,
    bounds,
    label,
    same_training,
    signed,
    summaries,
    total_seconds,
)


def described(runs: Runs) -> str:
    """What the picture shows, in words."""
    parts = [f"{s.label} with {size_name(s.size)} a class {_percent(s.test_oa)} %" for s in summaries(runs)]
    return f"Test accuracy: {'; '.join(parts)}."


def accuracy_table(runs: Runs) -> Part:
    """Each arm at each size."""
    header = ["arm", "shapes per class", "seeds", "OA (%)", "mAcc (%)", "validation OA (%)", "learning rate"]
    header += ["trained parameters", "of"]
    rows: list[list[Cell]] = [
        [
            s.label,
            size_name(s.size),
            s.seeds,
            _with_spread(s),
            _percent(s.test_macc),
            _percent(s.val_best),
            f"{s.rate:g}",
            s.trainable,
            s.total,
        ]
        for s in summaries(runs)
    ]
    return table(header, rows, "Test accuracy, mean ± standard deviation over the seeds")


def contrast_table(found: Sequence[Contrast]) -> Part:
    """Each paired difference."""
    header = [
        "arm",
        "against",
        "shapes per class",
        "seeds",
        "difference (points)",
        "95 % interval",
        "better?",
    ]
    return table(header, [_contrast_row(c) for c in found], "Paired differences in test OA")


def _contrast_row(contrast: Contrast) -> list[Cell]:
    interval = None if contrast.interval is None else bounds(contrast.interval)
    return [
        label(*contrast.arm),
        label(*contrast.against),
        size_name(contrast.size),
        contrast.seeds,
        signed(contrast.difference),
        "not defined" if interval is None else f"{signed(interval[0])} to {signed(interval[1])}",
        contrast.verdict,
    ]


def cell_table(results: Sequence[Result]) -> Part:
    """One row a training."""
    header = ["arm", "shapes per class", "seed", "learning rate", "test OA (%)", "test mAcc (%)"]
    header += ["best validation OA (%)", "in epoch", "last validation OA (%)", "of epochs", "seconds"]
    rows = [
        [
            label(cell.init, cell.mode),
            size_name(cell.size),
            cell.seed,
            f"{cell.rate:g}",
            *(None if share is None else f"{100 * share:.2f}" for share in (m.test_oa, m.test_macc)),
            f"{100 * m.val_best:.2f}",
            m.best_epoch,
            f"{100 * m.val_last:.2f}",
            m.epochs,
            f"{m.seconds:.0f}",
        ]
        for cell, m in ((result.cell, result.measured) for result in results)
    ]
    return table(header, rows, "Every training; results.csv has the same numbers")


def search_table(searches: Sequence[Result], runs: Runs) -> Part:
    """Which learning rate each arm was best with."""
    used = {same_training(r.cell) for by_seed in runs.values() for r in by_seed.values()}
    rates = {(cell.init, cell.mode): cell.rate for cell in used}
    tried = sorted({result.cell.rate or 0.0 for result in searches})
    rows = []
    for arm in dict.fromkeys((result.cell.init, result.cell.mode) for result in searches):
        own = [r for r in searches if (r.cell.init, r.cell.mode) == arm]
        found = {r.cell.rate or 0.0: r.measured.val_best for r in own}
        rate = rates.get(arm)
        edge = "; at the end of what was tried" if rate in (min(found), max(found)) else ""
        shown = [f"{100 * found[rate]:.2f}" if rate in found else None for rate in tried]
        rows.append([label(*arm), *shown, "not yet" if rate is None else f"{rate:g}{edge}"])
    return table(
        ["arm", *(f"{rate:g}" for rate in tried), "used"], rows, "Best validation OA (%) by learning rate"
    )


def compute(results: Sequence[Result], runs: Runs) -> list[Part]:
    """What the trainings took."""
    minutes = total_seconds(results) / 60
    devices = "; ".join(dict.fromkeys(result.measured.device for result in results))
    rows = [[s.label, size_name(s.size), f"{s.seconds:.0f}"] for s in summaries(runs)]
    text = f"All trainings, those of the search too: {minutes:.1f} minutes. Device: {devices or 'none yet'}."
    caption = "Seconds of a training with its validation and test, mean over the seeds"
    return [paragraph(text), table(["arm", "shapes per class", "seconds"], rows, caption)]


def _with_spread(summary: Summary) -> str:
    mean = _percent(summary.test_oa)
    return mean if summary.test_std is None else f"{mean} ± {_percent(summary.test_std)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
