"""ScanObjectNN (Uy et al. 2019): objects cut from indoor scans, from the HDF5 files of its archive."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import torch

from pointvit.data.dataset import DataError, PointCloudDataset, check_finite, check_labels
from pointvit.data.hdf5 import read_class_names, read_hdf5_file
from pointvit.data.transforms import NormalizeUnitSphere

logger = logging.getLogger(__name__)


class Variant(NamedTuple):
    """Where a variant's files lie, how their names end, and how many clouds they hold."""

    folder: str
    suffix: str
    counts: dict[str, int]


VARIANTS = {
    "obj_bg": Variant("main_split", "", {"train": 2309, "test": 581}),
    "obj_only": Variant("main_split_nobg", "", {"train": 2309, "test": 581}),
    "pb_t50_rs": Variant("main_split", "_augmentedrot_scale75", {"train": 11416, "test": 2882}),
}
CLASSES = (
    "bag",
    "bin",
    "box",
    "cabinet",
    "chair",
    "desk",
    "display",
    "door",
    "shelf",
    "table",
    "bed",
    "pillow",
    "sink",
    "sofa",
    "toilet",
)
CLASS_FILES = ("shape_names_ext.txt", "shape_names.txt")
SOURCE = "h5_files.zip (data/README.md says where it comes from)"
_ROLES = {"train": "training", "test": "test"}
_BACKGROUND = -1  # in the array `mask`


class ScanObjectNN(PointCloudDataset):
    """``[i] -> (points (P, 3) float32, label)``: scanned objects of 15 classes, y up, in the unit sphere.

    Three variants are in use, and their scores do not compare:

    - ``obj_bg``: the objects with what stood around them; 2,309 to train, 581 to test.
    - ``obj_only``: the same without it.
    - ``pb_t50_rs``: the hard one. Boxes shifted by up to half their size, turned and scaled: up to five
      clouds of each object with background, 11,416 to train, 2,882 to test. The files do not say which clouds
      are of one object, so a part held out of the training split holds other clouds of objects trained on,
      and scores too high.

    Files are told apart by their names and checked for their role: a file with as many clouds as another
    variant or split has is refused. Another number still is a warning.

    Args:
        root: the folder with ``main_split`` and ``main_split_nobg``, or one with ``h5_files`` in it.
        split: ``train`` or ``test``.
        variant: ``pb_t50_rs``, ``obj_bg`` or ``obj_only``.
        num_points: P. The stored points come in the order of the scan, so P of the stored 2,048 places are
            taken in an order that was drawn once, the same for every cloud.

    Raises:
        FileNotFoundError: if the folder or the variant's file is not there; it names what is.
        DataError: for a damaged file, one of another variant or split, another class list, or too few points.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "train",
        variant: str = "pb_t50_rs",
        num_points: int = 1024,
    ) -> None:
        if split not in _ROLES:
            raise ValueError(f"split must be train or test, got {split!r}")
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        if num_points < 1:
            raise ValueError(f"num_points must be at least 1, got {num_points}")
        path = _find(Path(root), split, variant)
        _check_classes(path)
        points, labels = read_hdf5_file(path)
        _check_role(path, len(points), split, variant)
        check_labels(labels, CLASSES, str(path))
        check_finite(points, str(path))
        stored = points.shape[1]
        if num_points > stored:
            raise DataError(f"{path}: stores {stored} points a cloud, fewer than num_points={num_points}")
        # RandomState, because NumPy promises its numbers for good.
        order = np.random.RandomState(0).permutation(stored)[:num_points]
        clouds = NormalizeUnitSphere()(torch.from_numpy(points[:, order]))
        names = [f"{path.stem}:{i}" for i in range(len(labels))]
        super().__init__(clouds, torch.from_numpy(labels), CLASSES, names, up_axis="y")


def _find(root: Path, split: str, variant: str) -> Path:
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; ScanObjectNN comes as {SOURCE}")
    wanted = _relative(split, variant)
    for folder in (root, root / "h5_files"):
        if (folder / wanted).is_file():
            return folder / wanted
    known = {str(_relative(s, v)): f"{v}, {s}" for v in VARIANTS for s in _ROLES}
    found = []
    for file in sorted([*root.glob("*.h5"), *root.glob("*/*.h5"), *root.glob("h5_files/*/*.h5")]):
        role = known.get(str(Path(file.parent.name) / file.name))
        found.append(f"{file.relative_to(root)}{f' ({role})' if role else ''}")
    raise FileNotFoundError(
        f"{root / wanted}: expected this file for variant {variant}, split {split}; it comes in {SOURCE}; "
        f"found {', '.join(found[:8]) or 'no .h5 file'}{', ...' if len(found) > 8 else ''}"
    )


def _relative(split: str, variant: str) -> Path:
    folder, suffix, _ = VARIANTS[variant]
    return Path(folder) / f"{_ROLES[split]}_objectdataset{suffix}.h5"


def _check_classes(path: Path) -> None:
    """Compares the archive's list of classes, where there is one beside the file or above it."""
    for file in (folder / name for folder in (path.parent, path.parent.parent) for name in CLASS_FILES):
        if file.is_file() and (names := read_class_names(file)) != list(CLASSES):
            differing = next(
                (
                    f"{i} is {a}, not {b}"
                    for i, (a, b) in enumerate(zip(names, CLASSES, strict=False))
                    if a != b
                ),
                f"it has {len(names)} names, not {len(CLASSES)}",
            )
            raise DataError(
                f"{file}: is not the class list of ScanObjectNN ({differing}); remove or correct it"
            )


def _check_role(path: Path, count: int, split: str, variant: str) -> None:
    """Refuses a file that has the right name and is another one; warns of a number of clouds nobody knows."""
    expected = VARIANTS[variant].counts[split]
    others = [f"{v}, {s}" for v, each in VARIANTS.items() for s, n in each.counts.items() if n == count]
    if count != expected and others:
        raise DataError(
            f"{path}: expected the {expected:,} clouds of variant {variant}, split {split}, found {count:,}, "
            f"which is {' or '.join(others)}; copy the file of this name and folder out of {SOURCE}"
        )
    if count != expected:
        logger.warning("%s: holds %s clouds, the published file %s", path, f"{count:,}", f"{expected:,}")
    with h5py.File(path, "r") as file:
        mask = np.asarray(file["mask"]) if "mask" in file else None
    if mask is None:
        return
    background = bool((mask == _BACKGROUND).any())
    if variant == "obj_only" and background:
        logger.warning("%s: its mask marks background, which %s should not have", path, variant)
    if variant != "obj_only" and not background:
        raise DataError(
            f"{path}: expected clouds with background for variant {variant}, found a mask that marks none, "
            f"as in main_split_nobg; copy {VARIANTS[variant].folder}/{path.name} out of {SOURCE}"
        )
