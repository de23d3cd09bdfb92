"""Pictures that need no display; readable in print and in colour blindness."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from torch import Tensor

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which stays distinct in colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P")


def contact_sheet(path: Path, images: Tensor, labels: Tensor, class_names: list[str]) -> Path:
    """``(N, 3, H, W)`` in [0, 1]: the first image of every class, captioned, as a PNG."""
    figure = new_figure(12, 1.4 * math.ceil(len(class_names) / 10))
    _draw_sheet(figure, images, labels, class_names, columns=10)
    figure.savefig(path, dpi=120)
    return path


def learning_curves(path: Path, curves: dict[str, list[float]], title: str) -> Path:
    """Validation accuracy (shares of 1) after each epoch, one line a name, as a PNG."""
    figure = new_figure(6, 4)
    _draw_curves(figure, curves, title)
    figure.savefig(path, dpi=120)
    return path


def sheet_and_curves(
    path: Path,
    images: Tensor,
    labels: Tensor,
    class_names: list[str],
    curves: dict[str, list[float]],
    title: str,
) -> Path:
    """What was looked at and what came of it, side by side in one PNG: both of the above."""
    figure = new_figure(11, 3.6)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.5, 1))[0]
    _draw_sheet(left, images, labels, class_names, columns=6)
    _draw_curves(right, curves, title)
    figure.savefig(path, dpi=120)
    return path


def confusion_matrix(path: Path, confusion: np.ndarray, class_names: list[str], title: str) -> Path:
    """``(K, K)`` counts, rows are true classes: shares of each true class as a PNG."""
    size = max(5.0, 0.26 * len(class_names) + 2.5)
    figure = new_figure(size + 1, size)
    axes = figure.add_subplot()
    support = np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(100 * confusion / support, cmap="cividis", vmin=0, vmax=100)
    ticks = range(len(class_names))
    axes.set_xticks(ticks, class_names, rotation=90, fontsize=8, parse_math=False)
    axes.set_yticks(ticks, class_names, fontsize=8, parse_math=False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title)
    figure.colorbar(image, ax=axes, shrink=0.7, label="% of the true class")
    figure.savefig(path, dpi=120)
    return path


def _draw_sheet(
    figure: FigureBase, images: Tensor, labels: Tensor, class_names: list[str], columns: int
) -> None:
    first = {int(label): i for i, label in reversed(list(enumerate(labels.tolist())))}
    shown = [(name, first[label]) for label, name in enumerate(class_names) if label in first]
    rows = math.ceil(len(shown) / columns)
    for position, (name, index) in enumerate(shown, start=1):
        axes = figure.add_subplot(rows, columns, position)
        axes.imshow(images[index].permute(1, 2, 0).cpu().numpy())
        axes.set_title(name.replace("_", " "), fontsize=8)
        axes.set_axis_off()


def _draw_curves(figure: FigureBase, curves: dict[str, list[float]], title: str) -> None:
    axes = figure.add_subplot()
    for (name, values), color, marker in zip(curves.items(), COLORS, MARKERS, strict=False):
        axes.plot(
            range(1, len(values) + 1), [100 * v for v in values], color=color, marker=marker, label=name
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy (%)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(title="trunk starts from")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, drawn without a display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
