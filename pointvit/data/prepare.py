"""The other two forms of ModelNet: the archive of OFF meshes, and text files with normals."""

import hashlib
import json
import multiprocessing
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pointvit.data.folder import class_folders, track_many
from pointvit.data.hdf5 import write_hdf5_split
from pointvit.data.io import read_points, unit_sphere

# Raised whenever the same meshes would give other points, so that an older cache is not taken for this one.
FORMAT_VERSION = 1
SPLITS = ("train", "test")


def modelnet_from_off(
    archive_root: str | Path,
    cache_root: str | Path,
    num_points: int = 2048,
    seed: int = 0,
    workers: int | None = None,
) -> Path:
    """ModelNet10 or ModelNet40 as OFF files -> the folder under `cache_root` with the sampled clouds as HDF5.

    `archive_root/<class>/<train|test>/*.off` are sampled by area, centred on their mean and scaled to the
    unit sphere, z up, and written in the layout of `modelnet40_ply_hdf5_2048`; label order is the sorted
    class names. The folder is named after what it was made from (file names, sizes and times of change,
    `num_points`, `seed`): a second call returns it at once, and a changed mesh gives another folder. It
    appears only when it is complete, and may lie inside `archive_root`.

    Args:
        workers: processes that read meshes, by default one for each CPU; 1 reads in this process. They are
            spawned, so a script needs the guard `if __name__ == "__main__":`.

    Raises:
        FileNotFoundError: no folder, or no class folders with `train` and `test` in it.
        ValueError: a mesh that cannot be read or sampled, named.
    """
    archive_root, cache_root = Path(archive_root), Path(cache_root)
    if num_points < 1:
        raise ValueError(f"num_points: expected at least 1, got {num_points}.")
    meshes = {split: _meshes(archive_root, split) for split in SPLITS}
    every = [file for split in SPLITS for file in meshes[split]]
    class_names = sorted({file.parent.parent.name for file in every})
    fingerprint = _fingerprint(archive_root, every, num_points, seed)
    made_from = {
        "version": FORMAT_VERSION,
        "num_points": num_points,
        "seed": seed,
        "fingerprint": fingerprint,
    }
    prepared = cache_root / f"modelnet{len(class_names)}_{fingerprint[:12]}"
    if _is_prepared(prepared, made_from):
        return prepared
    cache_root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preparing-", dir=cache_root) as scratch:
        unfinished = Path(scratch) / prepared.name
        unfinished.mkdir()
        clouds = track_many(_sample_all(every, num_points, seed, workers), len(every), "sampling meshes")
        points = dict(zip(every, clouds, strict=True))
        for split in SPLITS:
            write_hdf5_split(
                unfinished,
                split,
                points=np.stack([points[file] for file in meshes[split]]),
                labels=np.array([class_names.index(file.parent.parent.name) for file in meshes[split]]),
                names=[file.stem for file in meshes[split]],
                class_names=class_names,
            )
        (unfinished / "prepared.json").write_text(json.dumps(made_from, indent=2) + "\n")
        try:
            unfinished.rename(prepared)
        except OSError:
            # Another process was first; what it made from the same meshes is the same.
            if not _is_prepared(prepared, made_from):
                raise
    return prepared


def modelnet_from_text(
    root: str | Path, split: str | None, num_points: int, normals: bool
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[str], list[str]]:
    """`modelnet40_normal_resampled` -> points (N, P, 3|6), labels (N,), class names and shape names; y is up.

    The first `num_points` of the 10,000 rows of each file are taken, which are in random order; they are
    neither centred nor scaled. Columns 4 to 6 are unit normals. `modelnet40_<split>.txt` lists the shapes
    of a split and `modelnet40_shape_names.txt` the classes in label order. In a copy without these lists
    the classes are the sorted folder names and all files are taken, with a warning if a split was asked
    for. `split=None`: all shapes.

    Raises:
        FileNotFoundError: the folder, or a file that its lists name, is not there.
        ValueError: an unknown split, or a file without `num_points` rows of numbers, named.
    """
    root = Path(root)
    if split not in (None, *SPLITS):
        raise ValueError(f"split: expected 'train', 'test' or None, got {split!r}.")
    if num_points < 1:
        raise ValueError(f"num_points: expected at least 1, got {num_points}.")
    folders = class_folders(root, None)
    wanted = SPLITS if split is None else (split,)
    if all((root / f"modelnet40_{name}.txt").exists() for name in ("shape_names", *wanted)):
        class_names = _listed(root / "modelnet40_shape_names.txt")
        shapes = [shape for name in wanted for shape in _listed(root / f"modelnet40_{name}.txt")]
        files = [root / shape.rpartition("_")[0] / f"{shape}.txt" for shape in shapes]
    else:
        class_names = list(folders)
        files = [file for folder in folders.values() for file in sorted(folder.glob("*.txt"))]
        if split is not None:
            warnings.warn(
                f"{root} lacks modelnet40_{split}.txt or modelnet40_shape_names.txt, so its {split} split "
                f"cannot be told: all {len(files)} shapes are taken.",
                stacklevel=2,
            )
    if not files:
        raise FileNotFoundError(f"{root} has no shapes; expected files such as airplane/airplane_0001.txt.")
    if unknown := sorted({file.parent.name for file in files} - set(class_names)):
        raise ValueError(f"{root}: {', '.join(unknown)} not among the classes of modelnet40_shape_names.txt.")
    points = [
        _first_rows(file, num_points, normals)
        for file in track_many(files, len(files), f"reading {root.name}")
    ]
    labels = np.array([class_names.index(file.parent.name) for file in files], dtype=np.int64)
    return np.stack(points), labels, class_names, [file.stem for file in files]


def _meshes(archive_root: Path, split: str) -> list[Path]:
    meshes = sorted(archive_root.glob(f"*/{split}/*.off"))
    if not meshes:
        raise FileNotFoundError(f"{archive_root} has no meshes; expected <class>/{split}/*.off in it.")
    return meshes


def _fingerprint(archive_root: Path, files: list[Path], num_points: int, seed: int) -> str:
    stats = [(file.relative_to(archive_root).as_posix(), file.stat()) for file in files]
    made_from = [FORMAT_VERSION, num_points, seed, [(name, s.st_size, s.st_mtime_ns) for name, s in stats]]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()


def _is_prepared(folder: Path, made_from: dict[str, object]) -> bool:
    if not folder.exists():
        return False
    record = folder / "prepared.json"
    if not record.exists() or json.loads(record.read_text()) != made_from:
        raise ValueError(
            f"{folder} was changed after it was made ({record.name} differs); delete it and try again."
        )
    return True


def _sample_all(
    files: list[Path], num_points: int, seed: int, workers: int | None
) -> Iterator[NDArray[np.float32]]:
    sample = partial(_sample_mesh, num_points=num_points, seed=seed)
    if workers == 1:
        yield from map(sample, files)
        return
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(sample, files, chunksize=8)
    finally:
        # After an error or an interrupt the meshes still waiting are not read.
        pool.shutdown(cancel_futures=True)


def _sample_mesh(file: Path, num_points: int, seed: int) -> NDArray[np.float32]:
    return unit_sphere(read_points(file, num_points, seed).points)


def _first_rows(file: Path, num_points: int, normals: bool) -> NDArray[np.float32]:
    if not file.exists():
        raise FileNotFoundError(
            f"There is no {file}, which the list of shapes names; the copy is incomplete."
        )
    width = 6 if normals else 3
    try:
        rows = np.loadtxt(file, np.float32, delimiter=",", usecols=range(width), max_rows=num_points, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{file}: expected rows of {width} numbers between commas: {error}") from error
    if len(rows) < num_points:
        raise ValueError(
            f"{file} has {len(rows)} points, fewer than num_points={num_points}; lower num_points."
        )
    return rows


def _listed(file: Path) -> list[str]:
    return file.read_text().split()
