"""A cloud as a picture, or as an animation that turns it, without a display."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PathCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from pointvit.checkpoints.writing import new_file
from pointvit.data.io import unit_sphere
from pointvit.model import Pair, ViT
from pointvit.plots import new_figure
from pointvit.viewer.looks import COLORMAP, Coloring, Look, checked, coloring
from pointvit.viewer.output import PICTURES, checked_name
from pointvit.viewer.scene import Scene, make_scene
from pointvit.views import UpAxis, camera_rotations

FRAMES = 36
FRAMES_PER_SECOND = 12
SHOWN = 20_000
"""Points of a picture at most; at its size more would only lie on top of each other."""
SIZE = 6.0
DPI = 100
FAINT = (0.80, 0.82, 0.84)


def write_image(
    cloud: Any,
    model: ViT | Pair | None = None,
    path: str | os.PathLike[str] = "view.png",
    up: str = "auto",
    look: Look | None = None,
) -> Path:
    """Draws what the page shows first, and returns the picture's path; needs no display.

    A GIF turns the cloud once about its vertical axis; coloured by ``order``, its groups appear meanwhile in
    the order of farthest point sampling. Arguments and errors as :func:`pointvit.viewer.write_page`, with a
    name ending in .png or .gif.
    """
    path = checked_name(path, PICTURES)
    scene = cloud if isinstance(cloud, Scene) else make_scene(cloud, model, up)
    picture = _Picture(scene, checked(scene, look or Look()))
    with new_file(path) as temporary:
        if path.suffix.lower() == ".png":
            picture.turn(camera_rotations(8, up_axis=cast(UpAxis, scene.up))[1])
            picture.figure.savefig(temporary, dpi=DPI)
        else:
            writer = PillowWriter(fps=FRAMES_PER_SECOND)
            with writer.saving(picture.figure, str(temporary), DPI):
                for _ in picture.frames():
                    writer.grab_frame()
    return path


class _Picture:
    """The figure, whose points are moved for every camera."""

    def __init__(self, scene: Scene, look: Look) -> None:
        self.scene, self.look = scene, look
        self.points = unit_sphere(scene.cloud.points)
        self.shown = _shown(scene)
        self.figure = new_figure(SIZE, SIZE)
        axes = self.figure.add_subplot()
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.set_xlim(-1.05, 1.05)
        axes.set_ylim(-1.05, 1.05)
        axes.set_title(_title(scene), fontsize=11, parse_math=False)
        self.colors = point_colors(scene, look)
        # The diameter of a point in typographic points, for as dense a surface as the cloud has points.
        side = 2.2 / np.sqrt(max(64, len(self.shown))) / 2.1 * SIZE * 72
        self.dots = axes.scatter([], [], s=side**2, linewidths=0.4)
        self.rings = _rings(axes, 1.6 * side, 1.3)
        self.center = _rings(axes, max(14.0, 3 * side), 2.5)
        _explain(self.figure, axes, coloring(scene, look))

    def turn(self, rotation: torch.Tensor, groups: int | None = None) -> None:
        """Seen from one camera; ``groups``: only the first so many have their colour yet."""
        camera = self.points @ rotation.numpy().T
        order = self.shown[np.argsort(camera[self.shown, 2], kind="stable")]
        colors = self.colors
        if groups is not None:
            colors = np.full_like(colors, FAINT)
            taken = self.scene.groups.members[:groups].reshape(-1)
            colors[taken] = self.colors[taken]
        # Nearer points are lighter, which separates a surface from the one behind it.
        colors = colors[order] * np.interp(camera[order, 2], (-1, 1), (0.8, 1.0))[:, None]
        self.dots.set_offsets(camera[order, :2])
        self.dots.set_facecolor(colors)
        self.dots.set_edgecolor(0.7 * colors)
        if self.look.group is not None:
            self.rings.set_offsets(camera[self.scene.groups.members[self.look.group - 1], :2])
            self.center.set_offsets(camera[self.scene.groups.centers[[self.look.group - 1]], :2])

    def frames(self) -> Iterator[None]:
        """Moves on to the next frame each time."""
        count = len(self.scene.groups.centers)
        steps = self.look.color == "order"
        for frame, rotation in enumerate(camera_rotations(FRAMES, up_axis=cast(UpAxis, self.scene.up))):
            self.turn(rotation, -(-count * (frame + 1) // FRAMES) if steps else None)
            yield
            self.figure.set_layout_engine("none")  # found once, so that nothing jumps


def _shown(scene: Scene) -> NDArray[np.int64]:
    """The points of the picture: every member of a group, and a random part of the others."""
    count = len(scene.cloud.points)
    if count <= SHOWN:
        return np.arange(count)
    order = np.random.default_rng(0).permutation(count)
    in_group = np.isin(order, scene.groups.members)
    needed = order[in_group]
    return np.concatenate([needed, order[~in_group][: max(0, SHOWN - len(needed))]])


def _title(scene: Scene) -> str:
    name = scene.name.encode("utf-8", "replace").decode()
    best = ", ".join(f"{label} {probability:.0%}" for label, probability in (scene.classes or [])[:3])
    return f"{name}\n{best}" if best else name


def point_colors(scene: Scene, look: Look) -> NDArray[np.float64]:
    """A checked look -> (P, 3) in [0, 1]."""
    given = coloring(scene, look)
    if given.rgb is not None:
        return given.rgb
    assert given.values is not None
    return np.asarray(colormaps[COLORMAP](Normalize()(given.values)), dtype=np.float64)[:, :3]


def _rings(axes: Axes, size: float, width: float) -> PathCollection:
    return axes.scatter([], [], s=size**2, facecolors="none", edgecolors="black", linewidths=width)


def _explain(figure: Figure, axes: Axes, coloring: Coloring) -> None:
    """A colour bar, or a line of text where a colour is no number."""
    if coloring.values is None:
        axes.text(0.5, 0, coloring.label, transform=axes.transAxes, ha="center", va="top", fontsize=9)
        return
    scale = ScalarMappable(Normalize(coloring.values.min(), coloring.values.max()), COLORMAP)
    ticks = MaxNLocator(5)
    figure.colorbar(
        scale, ax=axes, orientation="horizontal", shrink=0.7, pad=0.02, label=coloring.label, ticks=ticks
    )
