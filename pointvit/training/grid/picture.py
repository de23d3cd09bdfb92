"""The picture of a grid: how much data each arm needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pointvit.plots import COLORS, MARKERS, new_figure
from pointvit.training.grid.contrasts import Runs, label

LINES = ("-", "--", ":", "-.")


def picture(runs: Runs) -> Figure:
    """Mean test accuracy over the size of the training set, a line an arm; with one size, a row an arm."""
    sizes = {size for _, _, size in runs}
    arms = list(dict.fromkeys((init, mode) for init, mode, _ in runs))
    chart = new_figure(8, 4.5 if len(sizes) > 1 else 1.4 + 0.45 * len(arms))
    axes = chart.add_subplot()
    (_draw_lines if len(sizes) > 1 else _draw_rows)(axes, runs, arms)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    return chart


def _draw_lines(axes: Axes, runs: Runs, arms: list[tuple[str, str]]) -> None:
    inits = list(dict.fromkeys(init for init, _ in arms))
    modes = list(dict.fromkeys(mode for _, mode in arms))
    ticks = set()
    for arm in arms:
        color = COLORS[inits.index(arm[0]) % len(COLORS)]
        style = modes.index(arm[1])
        line: list[tuple[float, float, float]] = []
        for key, by_seed in runs.items():
            if key[:2] == arm:
                measured = [result.measured for result in by_seed.values()]
                x = measured[0].train_shapes / measured[0].num_classes
                scores = _scores(runs, key)
                axes.plot([x] * len(scores), scores, ".", color=color, alpha=0.5, markersize=5)
                line.append((x, float(np.mean(scores)), _std(scores)))
                ticks.add(x)
        places, means, spreads = zip(*sorted(line), strict=True)
        axes.errorbar(
            places,
            means,
            spreads,
            color=color,
            linestyle=LINES[style % len(LINES)],
            marker=MARKERS[style % len(MARKERS)],
            capsize=3,
            label=label(*arm),
        )
    axes.set_xscale("log")
    axes.set_xticks(sorted(ticks), [f"{tick:g}" for tick in sorted(ticks)])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("training shapes per class")
    axes.set_ylabel("test accuracy (%)")
    axes.legend(fontsize=8)


def _draw_rows(axes: Axes, runs: Runs, arms: list[tuple[str, str]]) -> None:
    inits = list(dict.fromkeys(init for init, _ in arms))
    for position, key in enumerate(runs):
        scores, color = _scores(runs, key), COLORS[inits.index(key[0]) % len(COLORS)]
        axes.plot(scores, [position] * len(scores), ".", color=color, alpha=0.5)
        axes.errorbar(
            np.mean(scores), position, xerr=_std(scores), color=color, marker="D", capsize=4, linestyle="none"
        )
    axes.set_yticks(range(len(runs)), [label(init, mode) for init, mode, _ in runs], parse_math=False)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.set_xlabel("test accuracy (%)")


def _scores(runs: Runs, key: tuple[str, str, Any]) -> list[float]:
    found = [result.measured.test_oa for result in runs[key].values()]
    return [100 * score for score in found if score is not None]


def _std(scores: list[float]) -> float:
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
