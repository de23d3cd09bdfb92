"""The in-memory point cloud data set that all others are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class DataError(ValueError):
    """Data that is not what its format or its list of classes says."""


class PointCloudDataset(Dataset[tuple[Tensor, int]]):
    """N clouds of P points with labels, held as two tensors.

    Attributes:
        points: (N, P, C) float32, xyz first.
        labels: (N,) int64 in [0, len(class_names)).
        class_names: in label order.
        names: of the shapes, as their files have them.
        up_axis: ``z`` or ``y``, the vertical axis of the coordinates.
    """

    def __init__(
        self,
        points: Tensor,
        labels: Tensor,
        class_names: Sequence[str],
        names: Sequence[str],
        up_axis: str = "z",
    ) -> None:
        check_labels(labels, class_names, "data set")
        if up_axis not in ("y", "z"):
            raise ValueError(f"up_axis must be y or z, got {up_axis!r}")
        self.points, self.labels = points, labels
        self.class_names, self.names, self.up_axis = list(class_names), list(names), up_axis

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.points[index], int(self.labels[index])

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A whole batch at once, ``(B, P, C), (B,)``: one gather instead of B items and a stack."""
        rows = torch.as_tensor(indices)
        return self.points[rows], self.labels[rows]

    def subset(self, indices: Sequence[int] | np.ndarray) -> PointCloudDataset:
        """The same data set with only these shapes, in this order; or those where a mask (N,) is true."""
        chosen = np.asarray(indices)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ValueError(f"a mask must have shape ({len(self)},), got {chosen.shape}")
            chosen = np.flatnonzero(chosen)
        rows = torch.as_tensor(chosen, dtype=torch.int64)
        names = [self.names[i] for i in rows.tolist()]
        return PointCloudDataset(self.points[rows], self.labels[rows], self.class_names, names, self.up_axis)


def check_labels(labels: Tensor | np.ndarray, class_names: Sequence[str], where: str) -> None:
    """Raises DataError unless every label indexes ``class_names``."""
    if len(labels) == 0:
        raise DataError(f"{where}: holds no shapes")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(class_names):
        raise DataError(
            f"{where}: labels run from {low} to {high}, but the class list has {len(class_names)} names "
            f"(0 to {len(class_names) - 1})"
        )


def check_finite(points: np.ndarray, where: str) -> None:
    """Raises DataError naming the first clouds of ``points`` (N, P, C) that hold NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(points).all(axis=(1, 2)))
    if len(bad):
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise DataError(
            f"{where}: {len(bad)} of {len(points)} clouds hold NaN or infinite coordinates (rows {rows}); "
            "remove them"
        )


def split_by_class(labels: Tensor, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """``(N,) -> (kept indices), (held-out indices)``: a seeded ``fraction`` of each class is held out.

    At least one shape of every class that has two is held out, and at least one is kept.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the held-out fraction must lie in (0, 1), got {fraction}")
    rng = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels.numpy()):
        members = rng.permutation(np.flatnonzero(labels.numpy() == label))
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        held.append(members[:count])
    out = np.sort(np.concatenate(held))
    if not len(out):
        raise DataError("no class has two shapes, so that one could be held out for validation; add shapes")
    return np.setdiff1d(np.arange(len(labels)), out), out
