"""A figure in all its forms: drawn, in words, as a table, and with places that can be asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from pointvit.report import Cell, svg

NO_VALUE = "–"
Places = tuple[Axes, ArrayLike, list[str]]
"""Axes, places along them, and what is said at each."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a figure, as shares of the figure's width and height from its upper left corner."""

    box: tuple[float, float, float, float]
    """Left, top, right, bottom."""
    x: list[float]
    """Places along the width, in the figure's shares."""
    y: list[float] | None
    """Along the height, for a heat map."""
    texts: list[Any]
    """What is said at each place; for a heat map, a list for each row."""


@dataclass(frozen=True)
class Drawn:
    """A figure, in all forms."""

    name: str
    """Of its files."""
    title: str
    figure: Figure
    alt: str
    caption: str
    header: list[str] = field(default_factory=list)
    rows: list[list[Cell]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)

    @cached_property
    def svg(self) -> str:
        """The figure as an SVG file; it is drawn once."""
        return svg(self.figure)


def number(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.3f}"


def array(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=float)


def freeze(figure: Figure) -> None:
    """Settles where everything is, so that places that are read off it are those of all its files."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _box(figure: Figure, axes: Axes) -> tuple[float, float, float, float]:
    low, high = figure.transFigure.inverted().transform(axes.get_window_extent().get_points())
    return float(low[0]), 1 - float(high[1]), float(high[0]), 1 - float(low[1])


def _places(figure: Figure, axes: Axes, xs: ArrayLike, axis: int) -> list[float]:
    points = np.zeros((len(np.asarray(xs)), 2))
    points[:, axis] = xs
    found = figure.transFigure.inverted().transform(axes.transData.transform(points))[:, axis]
    return [float(value) for value in (found if axis == 0 else 1 - found)]


def line(figure: Figure, axes: Axes, xs: ArrayLike, texts: list[str]) -> Panel:
    return Panel(_box(figure, axes), _places(figure, axes, xs, 0), None, texts)


def grid(figure: Figure, axes: Axes, texts: list[list[str]]) -> Panel:
    columns = _places(figure, axes, range(len(texts[0])), 0)
    return Panel(_box(figure, axes), columns, _places(figure, axes, range(len(texts)), 1), texts)


def whole_numbers(axes: Axes) -> None:
    """Ticks at layers, not between them."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
