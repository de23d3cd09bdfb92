"""Shapes: a synthetic stand-in for ModelNet40, made on the spot from boxes, tubes and surfaces of revolution.

It needs no download, so tutorials and tests always have something to train on. Numbers reached on it say that
the code works; they say nothing about real data sets.
"""

import logging
import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pointvit.data.dataset import DataError, PointCloudDataset
from pointvit.data.hdf5 import read_hdf5_split, write_hdf5_split
from pointvit.data.primitives import Rng, rotation, sample_surface
from pointvit.data.recipes import RECIPES

logger = logging.getLogger(__name__)

# Part of the cache key: raise it whenever the same seed gives other points.
GENERATOR_VERSION = 1
SHAPES_PER_CLASS = {"train": 80, "test": 20}
# Spread of a shape about its category's upright pose; clouds are about one unit wide when bent.
STRETCH, TILT_DEGREES, YAW_DEGREES, BEND = 0.22, 5.0, 180.0, 0.04
SHAPES_CLASSES = list(RECIPES)
_SPLIT_IDS = {"train": 0, "test": 1}
_OTHER_DATA = ("shape_names.txt", "train_files.txt", "modelnet40_shape_names.txt", "main_split", "train")


def make_shape(name: str, rng: Rng, num_points: int = 1024) -> NDArray[np.float32]:
    """-> (num_points, 3): one random shape of a category, z up, centred on its mean, within the unit sphere.

    The category's solids are stretched along each axis, turned about the vertical and tilted, sampled
    uniformly by area, and bent by a smooth random displacement.
    """
    if name not in RECIPES:
        raise ValueError(
            f"expected a category of Shapes, got {name!r}; choose from {', '.join(SHAPES_CLASSES)}."
        )
    if num_points < 1:
        raise ValueError(f"expected num_points of at least 1, got {num_points}.")
    triangles = np.concatenate(RECIPES[name](rng))
    triangles = triangles / np.ptp(triangles, axis=(0, 1)).max()
    stretch = np.exp(rng.normal(0.0, STRETCH, size=3))
    tilt_x, tilt_y = rng.normal(0.0, TILT_DEGREES, size=2)
    turned = rotation("x", tilt_x) @ rotation("y", tilt_y) @ rotation("z", rng.uniform(-1, 1) * YAW_DEGREES)
    # Everything about the surface is drawn before its points, so it does not depend on their number.
    waves, phase = rng.normal(0.0, 3.0, size=(3, 3)), rng.uniform(0.0, 2 * np.pi, size=3)
    push = rng.normal(0.0, BEND, size=(3, 3))
    points = sample_surface(triangles * stretch @ turned.T, num_points, rng)
    points = points + np.sin(points @ waves + phase) @ push
    points -= points.mean(axis=0)
    # A single point has no extent, and stays at the origin.
    return (points / (np.linalg.norm(points, axis=1).max() or 1.0)).astype(np.float32)


class Shapes(PointCloudDataset):
    """Twenty ModelNet40 categories made procedurally: 80 training and 20 test shapes each, z up, unit sphere.

    Shape `i` is of category `i % 20` and depends on (seed, split, i) alone, so a larger set begins with the
    smaller. The clouds are made on first use and kept in ModelNet40's HDF5 layout under `root`, in a folder
    named by every setting that shapes them. `root` defaults to `$XDG_CACHE_HOME/pointvit/shapes` or
    `~/.cache/pointvit/shapes`: the data can be made again at any time, so it belongs to the cache and not to
    the folder one happens to be in.

    A nearest neighbour on a 12^3 occupancy grid scores 65.5 % on the default splits; chance is 5 %.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        split: str = "train",
        num_points: int = 1024,
        shapes_per_class: int | None = None,
        seed: int = 0,
    ) -> None:
        if split not in _SPLIT_IDS:
            raise ValueError(f"expected split 'train' or 'test' for Shapes, got {split!r}.")
        per_class = SHAPES_PER_CLASS[split] if shapes_per_class is None else shapes_per_class
        if per_class < 1:
            raise ValueError(f"expected shapes_per_class of at least 1, got {per_class}.")
        _say_synthetic()
        key = f"v{GENERATOR_VERSION}_{split}_{per_class}x{num_points}_seed{seed}"
        folder = (_cache_folder() if root is None else Path(root)) / key
        if not folder.is_dir():
            _check_place(folder.parent)
            _write(folder, split, num_points, per_class, seed)
        points, labels, class_names, names = read_hdf5_split(folder, split)
        super().__init__(torch.as_tensor(points), torch.as_tensor(labels), class_names, names, up_axis="z")


@cache
def _say_synthetic() -> None:
    logger.warning("Shapes is a synthetic data set: accuracies on it say nothing about real ones.")


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointvit" / "shapes"


def _check_place(root: Path) -> None:
    """Refuses the folder of another data set: what is amiss then is the name of the data set."""
    other = next((name for name in _OTHER_DATA if (root / name).exists()), None)
    if other is not None:
        raise DataError(
            f"{root}: holds another data set ({other}), and Shapes are made data; name the data set that is "
            "there, or give another folder, or none"
        )


def _write(folder: Path, split: str, num_points: int, per_class: int, seed: int) -> None:
    """Make every cloud, write the split to a temporary folder, and give that its name once complete."""
    labels = np.arange(per_class * len(SHAPES_CLASSES)) % len(SHAPES_CLASSES)
    clouds = [
        make_shape(SHAPES_CLASSES[label], np.random.default_rng([seed, _SPLIT_IDS[split], index]), num_points)
        for index, label in enumerate(labels)
    ]
    names = [f"{SHAPES_CLASSES[label]}_{index:05d}" for index, label in enumerate(labels)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".shapes-") as scratch:
        complete = Path(scratch) / folder.name
        complete.mkdir()
        write_hdf5_split(complete, split, np.stack(clouds), labels, names, SHAPES_CLASSES)
        try:
            complete.rename(folder)
        except OSError:
            # Another process was faster: its folder holds the same bytes.
            if not folder.is_dir():
                raise
