"""What was measured as pictures: errors by corruption and by severity, and the curves of the sweeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pointvit.data.corruptions import BENCHMARKS, CLEAN
from pointvit.plots import COLORS, MARKERS, new_figure
from pointvit.robustness.scores import METRICS, Row, Summary


def draw(benchmark: str, rows: Sequence[Row], summaries: Sequence[Summary]) -> Figure:
    """The picture of a benchmark that ``rows`` are of."""
    own = [row for row in rows if row.benchmark == benchmark]
    if benchmark not in METRICS:
        return _sweeps(own)
    return _benchmark(benchmark, own, [each for each in summaries if each.benchmark == benchmark])


def described(benchmark: str, summaries: Sequence[Summary]) -> str:
    """The picture of a benchmark in words."""
    if benchmark not in METRICS:
        return (
            "Lines of the overall accuracy of each model over number of points, angle and share of outliers."
        )
    scores = [f"{each.model} {shown(each)}" for each in summaries if each.benchmark == benchmark]
    return f"Errors of each model by corruption and by severity. {METRICS[benchmark]}: {'; '.join(scores)}."


def shown(summary: Summary) -> str:
    """The score in the benchmark's unit; of a part, with how large a part."""
    score = f"{summary.score:.3f}" if summary.benchmark == "modelnet-c" else f"{summary.score:.1%}"
    return score if summary.complete else f"{score} ({summary.sets} of {summary.of} sets)"


def _benchmark(benchmark: str, rows: Sequence[Row], summaries: Sequence[Summary]) -> Figure:
    names = list(dict.fromkeys(name for each in summaries for name in each.by_corruption))
    figure = new_figure(10, 1.6 + 0.28 * max(8, len(names)))
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    relative = benchmark == "modelnet-c"
    for each, (color, marker) in zip(summaries, _looks(), strict=False):
        values = [each.by_corruption.get(name, float("nan")) * (1 if relative else 100) for name in names]
        places = range(len(names))
        left.plot(values, places, marker, color=color, label=f"{each.model}: {shown(each)}")
        _by_severity(right, [row for row in rows if row.model == each.model], color, marker)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set_xlabel("corruption error (CE), 1 = DGCNN" if relative else "error rate (%)")
    left.set_xlim(left=0)
    if relative:
        left.axvline(1, color="0.6", linewidth=1, linestyle="--")
    left.grid(alpha=0.3)
    _legend(left, f"{METRICS[benchmark]} ({_made_by(rows)})")
    right.set_xlabel("severity (0 = clean)")
    right.set_ylabel("error rate (%), mean over corruptions")
    right.set_ylim(bottom=0)
    right.grid(alpha=0.3)
    figure.suptitle(BENCHMARKS[benchmark].title)
    return figure


def _by_severity(axes: Axes, rows: Sequence[Row], color: str, marker: str) -> None:
    errors: dict[int, list[float]] = {}
    for row in rows:
        errors.setdefault(row.severity, []).append(100 * (1 - row.overall_accuracy))
    found = sorted(errors)
    axes.plot(found, [sum(errors[s]) / len(errors[s]) for s in found], color=color, marker=marker)


def _sweeps(rows: Sequence[Row]) -> Figure:
    names = list(dict.fromkeys(row.corruption for row in rows if row.corruption != CLEAN))
    models = list(dict.fromkeys(row.model for row in rows))
    figure = new_figure(3.6 * len(names) + 0.4, 3.6)
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        for model, (color, marker) in zip(models, _looks(), strict=False):
            own = [row for row in rows if (row.model, row.corruption) == (model, name)]
            values = [100 * row.overall_accuracy for row in own]
            axes.plot([row.level for row in own], values, color=color, marker=marker, label=model)
        axes.set_xlabel(BENCHMARKS["sweeps"].corruptions[name].meaning)
        axes.grid(alpha=0.3)
        if name == "num_points":
            levels = [row.level for row in rows if row.corruption == name and row.level is not None]
            axes.set_xscale("log", base=2)
            axes.set_xticks(levels, [f"{level:g}" for level in levels])
            axes.minorticks_off()
    panels[0].set_ylabel("overall accuracy (%)")
    _legend(panels[0], "")
    return figure


def _legend(axes: Axes, title: str) -> None:
    legend = axes.legend(title=title, fontsize=8, title_fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a model may be called anything


def _looks() -> Iterator[tuple[str, str]]:
    """A colour and a marker for each model, none of which come together twice before the 36th."""
    for turn in range(len(MARKERS)):
        for i, color in enumerate(COLORS):
            yield color, MARKERS[(i + turn) % len(MARKERS)]


def _made_by(rows: Sequence[Row]) -> str:
    return "public files" if rows[0].made_by == "public" else "our corruptions"
