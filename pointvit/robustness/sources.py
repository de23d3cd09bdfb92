"""Where the clouds of a set come from: public files, or our generators on a data set's test split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pointvit.data.corruptions import BENCHMARKS, CLEAN, NUM_POINTS, dense_pool, made, public_frame
from pointvit.data.corruptions.public import check_present, class_names_of, folder_of, is_ours, read_set
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.transforms import NormalizeUnitSphere

OURS, PUBLIC = "ours", "public"


@dataclass(frozen=True)
class Condition:
    """One set: severities count from 1, and what is clean has severity 0."""

    benchmark: str
    corruption: str
    severity: int

    @property
    def level(self) -> float | None:
        """What the severity stands for, such as a standard deviation."""
        if self.corruption == CLEAN:
            return None
        return BENCHMARKS[self.benchmark].corruptions[self.corruption].levels[self.severity - 1]


class Source(Protocol):
    """Clouds in the frame of the public files, y up, with labels that count ``class_names``."""

    made_by: str
    class_names: list[str]

    def described(self) -> str:
        """In a sentence, where the clouds come from."""

    def read(self, condition: Condition) -> tuple[Tensor, Tensor]:
        """``points (N, P, 3), labels (N,)``."""

    def fingerprint(self, condition: Condition) -> str:
        """Differs where the clouds may differ."""


class Generated:
    """Our corruptions of clouds that are in memory."""

    made_by = OURS

    def __init__(
        self,
        dataset: PointCloudDataset,
        num_points: int = NUM_POINTS,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        """
        Args:
            dataset: a test split; it should store twice ``num_points`` a cloud.
            num_points: points that corruptions start from.
            seed: of the corruptions and of the choice of clouds.
            limit: this many clouds of all, as evenly from the classes as can be.
        """
        chosen = balanced(dataset.labels, limit, seed)
        self.class_names, self.labels = dataset.class_names, dataset.labels[chosen]
        self.num_points, self.seed = num_points, seed
        clouds = public_frame(dataset.points[chosen, :, :3], dataset.up_axis)
        self.clouds = NormalizeUnitSphere()(clouds)
        self._pool: Tensor | None = None
        digest = hashlib.sha256(self.clouds.contiguous().numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        self._digest = digest.hexdigest()

    def read(self, condition: Condition) -> tuple[Tensor, Tensor]:
        clouds = self.clouds
        if condition.corruption != CLEAN and _is_dense(condition):
            if self._pool is None:  # the neighbours are found once, not for each of fifteen sets
                self._pool = dense_pool(self.clouds, 2 * self.num_points, self.seed)
            clouds = self._pool
        where = (condition.benchmark, condition.corruption, condition.severity)
        return made(*where, clouds, self.num_points, self.seed), self.labels

    def described(self) -> str:
        """In a sentence, what the corruptions start from."""
        stored, wanted = self.clouds.shape[1], 2 * self.num_points
        sizes = f"{len(self.clouds):,} clouds of {self.num_points:,} points"
        text = f"Our corruptions start from {sizes}, seed {self.seed}"
        if stored >= wanted:
            return f"{text}; density_inc, occlusion and lidar from {wanted:,}."
        return (
            f"{text}; density_inc, occlusion and lidar from {wanted:,}, of which {wanted - stored:,} lie "
            f"between neighbours, as {stored:,} are stored."
        )

    def fingerprint(self, condition: Condition) -> str:
        return f"{self._digest} {self.num_points} {self.seed} {condition.level}"


class PublicFiles:
    """The files of a benchmark, of which :func:`pointvit.data.corruptions.public.read_set` reads one set."""

    def __init__(self, benchmark: str, folder: Path, limit: int | None = None, seed: int = 0) -> None:
        self.benchmark, self.folder, self.limit, self.seed = benchmark, folder, limit, seed
        self.made_by = OURS if is_ours(folder) else PUBLIC
        self.class_names = class_names_of(folder)

    def described(self) -> str:
        """In a sentence, whose files they are and what their labels are taken to mean."""
        whose = "Files that were made here" if self.made_by == OURS else "The public files"
        return f"{whose}, of {self.folder}; labels count {self.class_names[0]} to {self.class_names[-1]}."

    def read(self, condition: Condition) -> tuple[Tensor, Tensor]:
        points, labels = read_set(
            self.benchmark, self.folder, condition.corruption, condition.severity, self.class_names
        )
        chosen = balanced(torch.from_numpy(labels), self.limit, self.seed)
        return torch.from_numpy(points[chosen]), torch.from_numpy(labels[chosen])

    def fingerprint(self, condition: Condition) -> str:
        path = self.folder / BENCHMARKS[self.benchmark].file(condition.corruption, condition.severity)
        state = path.stat()
        return f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {self.limit} {self.seed}"


def find_sources(
    wanted: Sequence[Condition],
    public: Path | None,
    test_split: Callable[[], PointCloudDataset] | None,
    num_points: int = NUM_POINTS,
    seed: int = 0,
    limit: int | None = None,
) -> dict[str, Source]:
    """By benchmark: public files where the folder has any of it, and our corruptions for the rest.

    Args:
        public: a folder with public files, or with folders of them under their usual names.
        test_split: reads what ours are made from; not called if there is nothing to make.

    Raises:
        FileNotFoundError: where a benchmark's files are there in part, or none of any.
        ValueError: if something has to be made, and there is nothing to make it from.
    """
    benchmarks = list(dict.fromkeys(condition.benchmark for condition in wanted))
    with_files = [name for name in benchmarks if BENCHMARKS[name].folder]
    sources: dict[str, Source] = {}
    if public is not None:
        folders = {name: folder_of(name, public) for name in with_files}
        found = {name: folder for name, folder in folders.items() if folder is not None}
        # Where there is nothing at all, the first benchmark's sentence says what belongs there.
        for name, folder in (found or dict.fromkeys(with_files[:1], public)).items():
            own = [(each.corruption, each.severity) for each in wanted if each.benchmark == name]
            check_present(name, folder, own)
            sources[name] = PublicFiles(name, folder, limit, seed)
    rest = [name for name in benchmarks if name not in sources]
    if rest and test_split is None:
        raise ValueError(
            f"{', '.join(rest)} would have to be made here from a test split: give --root DATA, or leave it "
            "out with --benchmark"
        )
    if rest and test_split is not None:
        sources.update(dict.fromkeys(rest, Generated(test_split(), num_points, seed, limit)))
    return sources


def balanced(labels: Tensor, limit: int | None, seed: int) -> np.ndarray:
    """``(N,) -> (min(limit, N),)`` indices in order: a seeded choice that takes from the classes in turn."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    turn = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels.numpy()):
        members = order[labels.numpy()[order] == label]
        turn[members] = np.arange(len(members))
    return np.sort(order[np.argsort(turn[order], kind="stable")][:limit])


def _is_dense(condition: Condition) -> bool:
    return BENCHMARKS[condition.benchmark].corruptions[condition.corruption].dense
