"""The benchmarks by name: their corruptions, their files, and the clouds that are made for them here."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pointvit.data.corruptions.clusters import denser
from pointvit.data.corruptions.corruption import Corruption
from pointvit.data.corruptions.modelnet40_c import MODELNET40_C
from pointvit.data.corruptions.modelnet_c import MODELNET_C
from pointvit.data.corruptions.sweeps import SWEEPS
from pointvit.data.module import step_seed

CLEAN = "clean"
NUM_POINTS = 1024
"""Of a cloud in both benchmarks."""
_CLOUDS_AT_A_TIME = 64
"""Part of what a seed gives: never changed for speed."""


@dataclass(frozen=True)
class Benchmark:
    """A set of corruptions, and how its public files are called.

    Attributes:
        title: as the authors write it, or of our own sweeps.
        corruptions: by their exact names.
        folder: of the public files; empty where there are none.
        clean: the file of the clouds as they were.
        pattern: of the others, with ``{name}``, and ``{severity}`` from 1 or ``{level}`` from 0.
    """

    title: str
    corruptions: dict[str, Corruption]
    folder: str = ""
    clean: str = ""
    pattern: str = ""

    def severities(self, corruption: str) -> range:
        """From 1; of what is clean 0 alone."""
        if corruption == CLEAN:
            return range(1)
        return range(1, len(self.corruptions[corruption].levels) + 1)

    def file(self, corruption: str, severity: int) -> str:
        """The name of a public file."""
        if corruption == CLEAN:
            return self.clean
        return self.pattern.format(name=corruption, severity=severity, level=severity - 1)


BENCHMARKS: dict[str, Benchmark] = {
    "modelnet40-c": Benchmark(
        "ModelNet40-C", MODELNET40_C, "modelnet40_c", "data_original.npy", "data_{name}_{severity}.npy"
    ),
    "modelnet-c": Benchmark("ModelNet-C", MODELNET_C, "modelnet_c", "clean.h5", "{name}_{level}.h5"),
    "sweeps": Benchmark("Sweeps", SWEEPS),
}


def made(
    benchmark: str,
    corruption: str,
    severity: int,
    clouds: Tensor,
    num_points: int = NUM_POINTS,
    seed: int = 0,
) -> Tensor:
    """``(N, S, 3) -> (N, P, 3)``: the clouds of a benchmark's set, by our generators.

    The same clouds, seed and set give the same numbers, whatever else is made before or after.

    Args:
        clouds: in the unit sphere; ``shear``, ``occlusion``, ``lidar`` and ``rotation_up`` take y to be up.
        num_points: points that a corruption starts from, at most S. Those that choose among twice as many
            take the first of :func:`dense_pool`.
    """
    if corruption == CLEAN:
        return clouds[:, :num_points]
    apply = BENCHMARKS[benchmark].corruptions[corruption]
    if apply.dense:
        clouds = dense_pool(clouds, 2 * num_points, seed)
    first = clouds[:, : 2 * num_points if apply.dense else num_points]
    return torch.cat(
        [
            apply(chunk, severity, generator)
            for chunk, generator in _seeded(first, f"{benchmark} {corruption}", severity, seed)
        ]
    )


def dense_pool(clouds: Tensor, count: int, seed: int = 0) -> Tensor:
    """``(N, S, 3) -> (N, max(S, count), 3)``: where too few points are stored, more between neighbours."""
    if clouds.shape[1] >= count:
        return clouds
    return torch.cat(
        [denser(chunk, count, generator) for chunk, generator in _seeded(clouds, "pool", 0, seed)]
    )


def _seeded(clouds: Tensor, use: str, severity: int, seed: int) -> Iterator[tuple[Tensor, torch.Generator]]:
    """Parts of the clouds, each with its generator."""
    stream = zlib.crc32(use.encode())
    for i, chunk in enumerate(clouds.split(_CLOUDS_AT_A_TIME)):
        yield chunk, torch.Generator().manual_seed(step_seed(seed, i, severity, stream))


def public_frame(points: Tensor, up_axis: str) -> Tensor:
    """``(..., 3) -> (..., 3)``: from clouds with this axis up to the frame of the public files, or back.

    Those have y up, as the HDF5 archive of PointNet's authors. (x, y, z) of the meshes, whose z is up, is
    (-x, z, y) there; the way back is the same. Clouds with y up are taken to be in that frame already.
    """
    if up_axis == "y":
        return points
    x, y, z = points.unbind(dim=-1)
    return torch.stack([-x, z, y], dim=-1)
