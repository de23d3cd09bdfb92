"""ModelNet40 and ModelNet10 (Wu et al. 2015), from whichever of their three published forms is on disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from pointvit.data.dataset import DataError, PointCloudDataset
from pointvit.data.hdf5 import has_hdf5_split, read_hdf5_split
from pointvit.data.prepare import modelnet_from_off, modelnet_from_text
from pointvit.data.transforms import NormalizeUnitSphere

SPLITS = ("train", "test")
MODELNET10 = (
    "bathtub",
    "bed",
    "chair",
    "desk",
    "dresser",
    "monitor",
    "night_stand",
    "sofa",
    "table",
    "toilet",
)


class ModelNet40(PointCloudDataset):
    """``[i] -> (points (P, C) float32, label)``: 12,311 CAD models of 40 classes.

    9,843 of them are to train, 2,468 to test.

    ``root`` holds one of

    - the HDF5 files of ``modelnet40_ply_hdf5_2048`` (z up as in the OFF files, or y up: see ``up_axis``),
    - the OFF meshes of the original archive, which are sampled once into HDF5 under ``root/prepared``,
    - the text files of ``modelnet40_normal_resampled`` (y up, with normals).

    Args:
        root: the folder, or one that holds the folder of the HDF5 files.
        split: ``train`` or ``test``.
        num_points: P; the first P of the stored points, which are in random order.
        normals: C = 6 instead of 3.
        up_axis: the stored vertical axis, where it differs from what the form usually has.

    Raises:
        FileNotFoundError: if root is missing or holds none of the three forms.
        DataError: for damaged files, or fewer stored points than asked for.
    """

    classes: tuple[str, ...] | None = None

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "train",
        num_points: int = 1024,
        normals: bool = False,
        up_axis: str | None = None,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"split must be train or test, got {split!r}")
        if num_points < 1:
            raise ValueError(f"num_points must be at least 1, got {num_points}")
        points, labels, class_names, names, axis = _read(Path(root), split, num_points, normals)
        if num_points > points.shape[1]:
            raise DataError(
                f"{root}: stores {points.shape[1]} points a shape, fewer than num_points={num_points}"
            )
        if self.classes is not None:
            points, labels, names = _only(self.classes, class_names, points, labels, names, Path(root))
            class_names = list(self.classes)
        clouds = torch.from_numpy(np.ascontiguousarray(points[:, :num_points]))
        super().__init__(clouds, torch.from_numpy(labels), class_names, names, up_axis or axis)


class ModelNet10(ModelNet40):
    """4,899 models of ten indoor classes of :class:`ModelNet40`: 3,991 to train, 908 to test."""

    classes = MODELNET10


def _read(
    root: Path, split: str, num_points: int, normals: bool
) -> tuple[np.ndarray, np.ndarray, list[str], list[str], str]:
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; data/README.md says where ModelNet comes from")
    for folder in (root, root / "modelnet40_ply_hdf5_2048"):
        if has_hdf5_split(folder, split):
            return (*read_hdf5_split(folder, split, normals), "z")
    if any(root.glob("modelnet*_shape_names.txt")) or any(root.glob("*/*_[0-9][0-9][0-9][0-9].txt")):
        points, labels, class_names, names = modelnet_from_text(root, split, num_points, normals)
        return NormalizeUnitSphere()(torch.from_numpy(points)).numpy(), labels, class_names, names, "y"
    if any(root.glob("*/train/*.off")):
        if normals:
            raise DataError(
                f"{root}: OFF meshes are sampled without normals; use modelnet40_normal_resampled"
            )
        prepared = modelnet_from_off(root, root / "prepared", max(2048, num_points))
        return (*read_hdf5_split(prepared, split), "z")
    raise FileNotFoundError(
        f"{root}: expected {split}_files.txt with HDF5 files, <class>/{split}/*.off meshes, or <class>/*.txt "
        "clouds, found none of them"
    )


def _only(
    classes: tuple[str, ...],
    class_names: list[str],
    points: np.ndarray,
    labels: np.ndarray,
    names: list[str],
    root: Path,
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    absent = [name for name in classes if name not in class_names]
    if absent:
        raise DataError(f"{root}: its class list lacks {', '.join(absent)}")
    new_label = {class_names.index(name): i for i, name in enumerate(classes)}
    rows = np.flatnonzero(np.isin(labels, list(new_label)))
    relabelled = np.array([new_label[int(label)] for label in labels[rows]], dtype=np.int64)
    return points[rows], relabelled, [names[i] for i in rows]
