"""A folder of class folders with point or mesh files, as a data set in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from pointvit.data.dataset import PointCloudDataset
from pointvit.data.io import READERS, read_points, unit_sphere

Item = TypeVar("Item")
PROGRESS_ABOVE = 64


class PointCloudFolder(PointCloudDataset):
    """Clouds of `root/<class>/<file>`, each brought to `num_points` points in the unit sphere.

    With `split`, the files lie in `root/<split>/<class>/` or, as in ModelNet, in `root/<class>/<split>/`.
    Every file that `read_points` knows is read, sub-folders and other files are not; names beginning with
    `.` or `__` are skipped. Meshes are sampled by area, larger clouds are thinned at random, and smaller
    ones are repeated: the whole cloud as often as it fits, then a random choice of its points.

    Args:
        root: the folder.
        num_points: points in every cloud.
        split: "train" or another folder name; None where there are no splits.
        class_names: the classes in label order, for example those of a trained model; a class may lack a
            folder, but not the other way round. By default the sorted names of the folders.
        seed: of all sampling; one seed gives the same clouds.
        up_axis: of the files, kept with the data set; nothing is turned.

    Raises:
        FileNotFoundError: there is no such folder, or no class folder or file in it.
        ValueError: a class folder that is not among `class_names`, or a file that cannot be read.
    """

    def __init__(
        self,
        root: str | Path,
        num_points: int = 1024,
        split: str | None = None,
        class_names: Sequence[str] | None = None,
        seed: int = 0,
        up_axis: str = "z",
    ) -> None:
        root = Path(root)
        if num_points < 1:
            raise ValueError(f"num_points: expected at least 1, got {num_points}.")
        folders = class_folders(root, split)
        names = sorted(folders) if class_names is None else list(class_names)
        if unknown := sorted(folders.keys() - set(names)):
            raise ValueError(
                f"{root} has folders that are not among the {len(names)} class names: {', '.join(unknown)}; "
                f"expected {', '.join(names)}."
            )
        files = [(file, names.index(name)) for name in folders for file in point_files(folders[name])]
        clouds = [
            unit_sphere(_read_exactly(file, num_points, seed))
            for file, _ in track_many(files, len(files), f"reading {root.name}")
        ]
        super().__init__(
            points=torch.from_numpy(np.stack(clouds)),
            labels=torch.tensor([label for _, label in files], dtype=torch.int64),
            class_names=names,
            names=[file.relative_to(root).as_posix() for file, _ in files],
            up_axis=up_axis,
        )


def class_folders(root: Path, split: str | None) -> dict[str, Path]:
    """Class name -> the folder with its files, sorted by name."""
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; expected one folder for each class in it.")
    if split is not None and _folders(root / split):
        root, split = root / split, None
    folders = {folder.name: folder / (split or "") for folder in _folders(root)}
    if not folders:
        raise FileNotFoundError(f"{root} has no class folders; expected {root}/<class>/<file>.")
    if lacking := [name for name, folder in folders.items() if not folder.is_dir()]:
        raise FileNotFoundError(
            f"{root} has no split {split!r} of {', '.join(lacking)}; "
            f"expected {root}/{split}/<class>/ or {root}/<class>/{split}/."
        )
    return folders


def point_files(folder: Path) -> list[Path]:
    """The files of a folder that `read_points` knows, sorted by name."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in READERS and _shown(file))
    if not files:
        inner = ", ".join(each.name for each in _folders(folder))
        hint = f"; it has the folders {inner}: is one of them a split?" if inner else ""
        raise FileNotFoundError(f"{folder} has no file of a known kind ({', '.join(READERS)}){hint}.")
    return files


def track_many(items: Iterable[Item], total: int, description: str) -> Iterable[Item]:
    """The items, with a progress bar on the error stream where there are more than 64."""
    if total <= PROGRESS_ABOVE:
        return items
    return track(items, description, total, console=Console(stderr=True))


def _folders(root: Path) -> list[Path]:
    return sorted(each for each in root.iterdir() if each.is_dir() and _shown(each)) if root.is_dir() else []


def _shown(path: Path) -> bool:
    return not path.name.startswith((".", "__"))


def _read_exactly(file: Path, num_points: int, seed: int) -> NDArray[np.float32]:
    points = read_points(file, num_points, seed).points
    repeats, rest = divmod(num_points, len(points))
    chosen = np.random.default_rng(seed).choice(len(points), rest, replace=False)
    return np.concatenate([points] * repeats + [points[chosen]])
