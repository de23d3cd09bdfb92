"""The HDF5 layout of ``modelnet40_ply_hdf5_2048``, read and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from pointvit.data.dataset import DataError, check_finite, check_labels

CLASS_FILE = "shape_names.txt"


def has_hdf5_split(root: Path, split: str) -> bool:
    """Whether ``root`` holds this split in the HDF5 layout."""
    return (root / f"{split}_files.txt").is_file() or any(root.glob(f"ply_data_{split}*.h5"))


def read_hdf5_split(
    root: Path, split: str, normals: bool = False
) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    """``points (N, P, 3|6) float32, labels (N,) int64, class_names, names`` of a split.

    ``{split}_files.txt`` lists the files; of each line only the file name counts, since published lists carry
    the prefix of some other machine. Without a list, all ``ply_data_{split}*.h5`` are read. ``normals``
    appends the ``normal`` array.

    Raises:
        FileNotFoundError: for a missing root, list, class list or file.
        DataError: for a damaged file, labels outside the class list, or coordinates that are not finite.
    """
    files, class_names = _files(root, split), read_class_names(root / CLASS_FILE)
    parts, names = [], []
    for path in files:
        points, labels = read_hdf5_file(path, normals)
        check_labels(labels, class_names, str(path))
        check_finite(points, str(path))
        parts.append((points, labels))
        names += _shape_names(path, len(points))
    sizes = {points.shape[1:] for points, _ in parts}
    if len(sizes) > 1:
        raise DataError(f"{root}: the files of the {split} split differ in number of points: {sorted(sizes)}")
    return np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts]), class_names, names


def write_hdf5_split(
    root: Path,
    split: str,
    points: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    class_names: Sequence[str],
) -> None:
    """Writes ``points`` (N, P, 3|6) and ``labels`` (N,) as one file of the layout into an existing folder."""
    name = f"ply_data_{split}0.h5"
    with h5py.File(root / name, "w") as file:
        compression = {"compression": "gzip", "compression_opts": 4}
        file.create_dataset("data", data=points[..., :3].astype(np.float32), **compression)
        kind = np.uint8 if len(class_names) <= 256 else np.int64
        file.create_dataset("label", data=labels.astype(kind)[:, None])
        if points.shape[2] >= 6:
            file.create_dataset("normal", data=points[..., 3:6].astype(np.float32), **compression)
    (root / f"ply_data_{split}_0_id2file.json").write_text(json.dumps(list(names)), encoding="utf-8")
    (root / f"{split}_files.txt").write_text(f"{name}\n", encoding="utf-8")
    (root / CLASS_FILE).write_text("\n".join(class_names) + "\n", encoding="utf-8")


def read_class_names(path: Path) -> list[str]:
    """The lines of a class list, in label order."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: expected the list of classes, one a line; it comes with the data set"
        )
    names = _lines(path)
    if len(set(names)) != len(names) or not names:
        raise DataError(
            f"{path}: expected distinct class names, one a line, got {len(names)}, {len(set(names))} distinct"
        )
    return names


def _lines(path: Path) -> list[str]:
    """Those of a text file that are not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected text in UTF-8, one name a line ({error.reason})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _files(root: Path, split: str) -> list[Path]:
    listing = root / f"{split}_files.txt"
    if listing.is_file():
        files = [root / Path(line.replace("\\", "/")).name for line in _lines(listing)]
    else:
        files = sorted(root.glob(f"ply_data_{split}*.h5"))
    if not files:
        raise FileNotFoundError(f"{root}: expected {split}_files.txt or ply_data_{split}*.h5, found neither")
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{file}: in {listing.name}, but not there; copy the whole data set")
    return files


def read_hdf5_file(path: Path, normals: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """``points (N, P, 3|6) float32, labels (N,) int64`` of one file, whatever integers its labels are.

    Raises:
        DataError: for a damaged file, absent arrays, or arrays of other shapes.
    """
    try:
        with h5py.File(path, "r") as file:
            wanted = ["data", "label", *(["normal"] if normals else [])]
            absent = [name for name in wanted if name not in file]
            if absent:
                found = ", ".join(file) or "none"
                raise DataError(f"{path}: expected the arrays {', '.join(wanted)}, found {found}")
            arrays = [np.asarray(file[name]) for name in wanted]
    except (OSError, RuntimeError, KeyError) as error:
        raise DataError(
            f"{path}: not a readable HDF5 file, cut short or damaged ({error}); copy it again"
        ) from error
    points, labels = arrays[0], arrays[1]
    if points.ndim != 3 or points.shape[2] != 3 or labels.shape not in ((len(points), 1), (len(points),)):
        raise DataError(
            f"{path}: expected data (N, P, 3) and label (N, 1), got {points.shape}, {labels.shape}"
        )
    if normals:
        if arrays[2].shape != points.shape:
            raise DataError(f"{path}: expected normal {points.shape} like data, got {arrays[2].shape}")
        points = np.concatenate([points, arrays[2]], axis=2)
    return points.astype(np.float32), labels.reshape(-1).astype(np.int64)


def _shape_names(path: Path, count: int) -> list[str]:
    """Names in ``ply_data_train_0_id2file.json`` beside ``ply_data_train0.h5``, else counted."""
    stem = path.stem.rstrip("0123456789")
    listing = path.with_name(f"{stem}_{path.stem[len(stem) :]}_id2file.json")
    if not listing.is_file():
        return [f"{path.stem}:{i}" for i in range(count)]
    try:
        names = json.loads(listing.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{listing}: not readable as JSON ({error}); copy it again, or remove it") from error
    if not isinstance(names, list) or len(names) != count:
        raise DataError(f"{listing}: expected a list of {count} names, one for each row of {path.name}")
    return [Path(str(name)).stem for name in names]
