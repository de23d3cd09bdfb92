"""The page of a comparison: scores beside the published ones, pictures, every set, and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pointvit.data.corruptions import BENCHMARKS, CLEAN
from pointvit.report import Page, Part, figure, paragraph, table
from pointvit.report.parts import Cell
from pointvit.robustness.pictures import described, draw, shown
from pointvit.robustness.scores import DGCNN_ACCURACY, METRICS, PUBLISHED, Row, Summary

NOT_THEIRS = (
    "Rows marked ours are on clouds that were made by our generators from the parameters that the benchmark "
    "publishes, not on its files: compare them with each other, and with published rows only roughly."
)
PART = "Not all sets of the benchmark were measured: the score is that of a part, and not the benchmark's."


def save_page(
    path: Path,
    rows: Sequence[Row],
    summaries: Sequence[Summary],
    notes: Sequence[str],
    command: Sequence[str],
) -> Path:
    """Writes the page; ``notes`` say how it was measured."""
    page = Page("Robustness to corruptions", _lead(rows, summaries), command)
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        own = [row for row in rows if row.benchmark == benchmark]
        made = [each for each in summaries if each.benchmark == benchmark]
        page.section(BENCHMARKS[benchmark].title, *_parts(benchmark, own, made))
    page.section("How it was measured", *(paragraph(note) for note in notes), _parameters(rows))
    return page.save(path)


def compared(benchmark: str, summaries: Sequence[Summary]) -> tuple[list[str], list[list[Cell]]]:
    """Header and rows of one table: our models, then the published ones, which are marked."""
    measured = {name for each in summaries for name in each.by_corruption}
    names = [name for name in BENCHMARKS[benchmark].corruptions if name in measured]
    relative = benchmark == "modelnet-c"
    unit = "CE" if relative else "error, %"
    header = ["system", "source", METRICS[benchmark] + ("" if relative else ", %"), "clean error, %"]
    rows: list[list[Cell]] = []
    for each in summaries:
        errors = [_number(each.by_corruption.get(name), relative) for name in names]
        score = _number(each.score, relative) + ("" if each.complete else f" ({each.sets} of {each.of} sets)")
        clean = None if each.clean is None else _number(1 - each.clean, False)
        rows.append([each.model, each.made_by, score, clean, *errors])
    for name, value in PUBLISHED[benchmark].items():
        known = relative and name == "DGCNN"
        clean = _number(1 - DGCNN_ACCURACY[CLEAN], False) if known else None
        others: list[Cell] = [_number(1.0, True) if known else None for _ in names]
        rows.append([name, "published", _number(value, relative), clean, *others])
    return header + [f"{name} ({unit})" for name in names], rows


def _parts(benchmark: str, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[Part]:
    drawn = draw(benchmark, rows, summaries)
    picture = figure(drawn, described(benchmark, summaries), _caption(benchmark))
    if benchmark not in METRICS:
        return [picture, _every_set(rows)]
    notes = [NOT_THEIRS] if any(row.made_by == "ours" for row in rows) else []
    notes += [] if all(each.complete for each in summaries) else [PART]
    header, cells = compared(benchmark, summaries)
    title = f"{BENCHMARKS[benchmark].title}: models measured here and published ones; lower is better"
    return [*map(paragraph, notes), table(header, cells, title), picture, _every_set(rows)]


def _every_set(rows: Sequence[Row]) -> Part:
    models = list(dict.fromkeys(row.model for row in rows))
    accuracy = {(row.model, row.corruption, row.severity): row.overall_accuracy for row in rows}
    sets = {(row.corruption, row.severity): row for row in rows}
    cells: list[list[Cell]] = [
        [
            row.corruption,
            row.severity,
            None if row.level is None else f"{row.level:g}",
            row.points,
            row.clouds,
            *(f"{accuracy[model, row.corruption, row.severity]:.2%}" for model in models),
        ]
        for row in sets.values()
    ]
    header = ["set", "severity", "level", "points", "clouds", *models]
    return table(header, cells, "Overall accuracy on every set")


def _parameters(rows: Sequence[Row]) -> Part:
    used = dict.fromkeys((row.benchmark, row.corruption) for row in rows if row.corruption != CLEAN)
    cells: list[list[Cell]] = []
    for benchmark, name in used:
        each = BENCHMARKS[benchmark].corruptions[name]
        levels = ", ".join(f"{level:g}" for level in each.levels)
        cells.append([f"{BENCHMARKS[benchmark].title}: {name}", each.meaning, levels, each.ours or None])
    header = ["corruption", "what a level is", "levels", "otherwise in our generators"]
    return table(header, cells, "Parameters of the corruptions")


def _lead(rows: Sequence[Row], summaries: Sequence[Summary]) -> str:
    if not summaries:
        models = dict.fromkeys(row.model for row in rows)
        return f"Curves of the accuracy of {', '.join(models)}."
    said = []
    for benchmark in dict.fromkeys(each.benchmark for each in summaries):
        scores = [f"{each.model} {shown(each)}" for each in summaries if each.benchmark == benchmark]
        said.append(f"{METRICS[benchmark]} on {BENCHMARKS[benchmark].title}: {', '.join(scores)}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}. Lower is better."


def _caption(benchmark: str) -> str:
    return {
        "modelnet40-c": "Left: error rate of each corruption. Right: mean over corruptions by severity.",
        "modelnet-c": "Left: error of each corruption relative to DGCNN's. Right: error rate by severity.",
        "sweeps": "Overall accuracy over one quantity each.",
    }[benchmark]


def _number(value: float | None, relative: bool) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if relative else f"{100 * value:.1f}"
