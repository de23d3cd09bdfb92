"""What a teacher gives for clouds: computed once, kept on disk, looked up where points fall in its views."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from pointvit import __version__
from pointvit.checkpoints.writing import new_folder
from pointvit.ops import group
from pointvit.training.teacher import Teacher
from pointvit.views import Cameras

logger = logging.getLogger(__name__)
OBJECTS, PATCHES, SEEN, MADE_FROM = "objects.npy", "patches.npy", "seen.npy", "made_from.json"
CLOUDS_AT_A_TIME = 8  # 24 images of 112 pixels are as fast as more, whose activations leave the cache
CLOUDS_IN_SCALE, POINTS_OF_EACH = 1024, 64


@dataclass(frozen=True)
class Targets:
    """What the teacher gives for N clouds, in their order."""

    clouds: Tensor
    """(N, P, 3+), as they were rendered."""
    objects: Tensor
    """(N, D) float32."""
    stored: Tensor
    """(N,) row of each cloud in the arrays below."""
    patches: np.ndarray | None
    """(S, V, h, w, D) float16, mapped from the disk; None where patches are not wanted."""
    seen: np.ndarray | None
    """(S, V, P): the points that a view shows."""
    cameras: Cameras

    def at_points(self, rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """``(B,), (B, G) -> (B, G, D), (B, G)``: patch tokens at the points ``index`` of the clouds ``rows``.

        As :func:`sample_patches`, on the device of ``index``; the second says which points any view shows.
        """
        assert self.patches is not None
        assert self.seen is not None
        stored = self.stored[rows.cpu()].numpy()
        patches, seen = (torch.from_numpy(of[stored]).to(index.device) for of in (self.patches, self.seen))
        places = group(self.clouds[rows.to(self.clouds.device), :, :3].to(index.device), index)
        shown = group(seen.mT, index).mT
        values = sample_patches(patches.float(), places, shown, self.cameras)
        return values, shown.any(dim=1)


@dataclass(frozen=True)
class Scale:
    """``(..., D) -> (..., D)``: to mean 0 and deviation 1 in each channel."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Scale:
        """``(N, D)``: the scale that standardises these rows; a channel that is constant becomes 0."""
        return cls(values.mean(dim=0), values.std(dim=0, correction=0).clamp_min(1e-6))

    @classmethod
    def of_patches(cls, targets: Targets) -> Scale:
        """That of patch tokens, at a few points of many clouds; points are stored in random order."""
        count, of_each = len(targets.clouds), min(targets.clouds.shape[1], POINTS_OF_EACH)
        rows = torch.linspace(0, count - 1, min(count, CLOUDS_IN_SCALE)).round().long()
        values = []
        for some in rows.split(CLOUDS_AT_A_TIME):
            given, shown = targets.at_points(some, torch.arange(of_each).expand(len(some), -1))
            values.append(given[shown])
        return cls.of(torch.cat(values))

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean.to(values.device)) / self.std.to(values.device)


def fingerprint(clouds: Tensor) -> str:
    """``(N, P, 3+)`` -> a hash of these clouds, whose order does not matter."""
    return _hash_of(np.unique(_digests(clouds)))


def sample_patches(patches: Tensor, points: Tensor, seen: Tensor, cameras: Cameras) -> Tensor:
    """``(B, V, h, w, D), (B, G, 3), (B, V, G) -> (B, G, D)``: patch tokens where points fall in the views.

    Bilinear between the middles of patches, then the mean over the views that show the point; 0 if none does.
    """
    pixels, _ = cameras.project(points)
    sampled = F.grid_sample(
        rearrange(patches, "b v h w d -> (b v) d h w"),
        rearrange(2 * pixels / cameras.size - 1, "b v g xy -> (b v) g 1 xy"),
        padding_mode="border",
        align_corners=False,
    )
    sampled = rearrange(sampled, "(b v) d g 1 -> b v g d", b=len(patches))
    weight = seen[..., None].to(sampled.dtype)
    return (sampled * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1)


class TargetStore:
    """The folder with the targets of some clouds, named by everything that they are made from.

    The key is a hash of the teacher's weights, the views, the clouds (their order does not matter) and of
    what this version renders. The folder appears complete or not at all.
    """

    def __init__(
        self, cache: Path, teacher: Teacher, weights: Mapping[str, str | int], clouds: Tensor, patches: bool
    ) -> None:
        """
        Args:
            cache: the folder of all such folders.
            weights: what identifies those of the teacher.
            clouds: (N, P, 3+), for which targets are wanted.
            patches: whether the patch tokens are wanted too.
        """
        self.teacher, self.clouds, self.patches = teacher, clouds, patches
        self._unique, self._first = np.unique(_digests(clouds), return_index=True)
        meta, views = teacher.model.meta, teacher.views
        self.made_from = {
            **weights,
            **asdict(views),
            "image_mean": meta.image_mean,
            "image_std": meta.image_std,
            "clouds": _hash_of(self._unique),
            # Whatever changes the pictures changes the key, also where nobody thought of it.
            "rendered": _digests((255 * views.render(clouds[self._first[:1]])).round().byte())[0],
            "pointvit": __version__,
        }
        text = json.dumps(self.made_from, sort_keys=True)
        self.folder = cache / hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        views, (h, w) = self.teacher.views.num_views, self.teacher.grid
        patches = 2 * views * h * w * self.teacher.model.embed_dim + views * self.clouds.shape[1]
        return len(self._unique) * (4 * self.teacher.width + (patches if self.patches else 0))

    @property
    def is_made(self) -> bool:
        wanted = (MADE_FROM, OBJECTS, *((PATCHES, SEEN) if self.patches else ()))
        return all((self.folder / name).is_file() for name in wanted)

    def make(self, device: torch.device, progress: bool = True) -> None:
        """Computes what is not there yet, on ``device``, and writes it; shows how far it is.

        Raises:
            OSError: if it cannot be written.
            ValueError: if the teacher gives numbers that are not finite.
        """
        if self.is_made:
            logger.info("teacher targets: found in %s", self.folder)
            return
        if self.folder.exists() and not _is_ours(self.folder):
            raise ValueError(f"{self.folder}: targets that do not say what they are of; delete the folder")
        count, views = len(self._unique), self.teacher.views
        pictures = f"{views.num_views} views of {views.size} px"
        logger.info(
            f"teacher targets: {count:,} clouds, {pictures}, {self.size / 1e6:,.0f} MB in {self.folder}"
        )
        begin = time.perf_counter()
        with new_folder(self.folder, _is_ours) as folder, contextlib.ExitStack() as stack:
            objects = np.empty((count, self.teacher.width), np.float32)
            seen = np.empty((count, views.num_views, self.clouds.shape[1]), bool)
            # Written, not mapped: a full disk is then an error, where mapped memory ends the process.
            file = stack.enter_context((folder / PATCHES).open("wb")) if self.patches else None
            if file is not None:
                shape = (count, views.num_views, *self.teacher.grid, self.teacher.model.embed_dim)
                header = {"descr": "<f2", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            for rows, of_objects, of_patches, of_seen in self._computed(device, progress):
                objects[rows], seen[rows] = _finite(of_objects), of_seen
                if file is not None:
                    file.write(_finite(of_patches.half()).numpy().data)
            np.save(folder / OBJECTS, objects)
            if file is not None:
                np.save(folder / SEEN, seen)
            (folder / MADE_FROM).write_text(json.dumps(self.made_from, indent=2) + "\n", encoding="utf-8")
        seconds = time.perf_counter() - begin
        logger.info(f"teacher targets: {seconds:.0f} seconds, {count / seconds:.1f} clouds a second")

    def _computed(
        self, device: torch.device, progress: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Rows of the store, and (B, D), (B, V, h, w, D) and (B, V, P) for them, on the CPU."""
        terminal = Console(stderr=True)
        columns = (TextColumn("teacher targets"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        quiet = not (progress and terminal.is_terminal)
        self.teacher.model.to(device)
        try:
            with Progress(*columns, console=terminal, transient=True, disable=quiet) as bar:
                task = bar.add_task("", total=len(self._first))
                for start in range(0, len(self._first), CLOUDS_AT_A_TIME):
                    rows = slice(start, start + CLOUDS_AT_A_TIME)
                    clouds = self.clouds[torch.from_numpy(self._first[rows])].to(device)
                    objects, patches = self.teacher(clouds)
                    seen = self.teacher.views.seen(clouds)
                    yield rows, objects.cpu(), patches.cpu(), seen.cpu()
                    bar.advance(task, len(clouds))
        finally:
            self.teacher.model.cpu()

    def read(self, clouds: Tensor) -> Targets:
        """``(M, P, 3+) ->`` the targets of these clouds, all of which the store has.

        Raises:
            ValueError: if the files are damaged.
        """
        stored = np.searchsorted(self._unique, _digests(clouds))
        patches = seen = None
        try:
            objects = np.load(self.folder / OBJECTS)
            if self.patches:
                patches = np.load(self.folder / PATCHES, mmap_mode="r")
                seen = np.load(self.folder / SEEN)
            if [None if of is None else of.shape for of in (objects, patches, seen)] != self._shapes():
                raise ValueError("of another shape")
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{self.folder}: targets that cannot be read; delete the folder") from error
        return Targets(
            clouds,
            torch.from_numpy(objects[stored]),
            torch.from_numpy(stored),
            patches,
            seen,
            self.teacher.views.cameras(),
        )

    def _shapes(self) -> list[tuple[int, ...] | None]:
        """Of the three arrays; None for those that are not wanted."""
        count, views = len(self._unique), self.teacher.views.num_views
        patches = (count, views, *self.teacher.grid, self.teacher.model.embed_dim)
        seen = (count, views, self.clouds.shape[1])
        return [(count, self.teacher.width), *((patches, seen) if self.patches else (None, None))]


def _hash_of(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _digests(values: Tensor) -> list[str]:
    """SHA-256 of each row; of clouds, whatever channels they have."""
    return [hashlib.sha256(row.contiguous().numpy().data).hexdigest() for row in values]


def _finite(values: Tensor) -> Tensor:
    if not bool(values.isfinite().all()):
        raise ValueError("the teacher gives numbers that are not finite; choose another checkpoint")
    return values


def _is_ours(folder: Path) -> bool:
    return (folder / MADE_FROM).is_file()
