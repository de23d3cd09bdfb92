"""Which shapes are trained on, in which order: everything a function of seeds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from pointvit.data.dataset import PointCloudDataset


class Rows(Dataset[Tensor]):
    """The indices alone of data that is where the model is."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index])

    def __getitems__(self, indices: list[int]) -> Tensor:
        return torch.tensor(indices)


class EpochSampler(Sampler[int]):
    """A permutation of the data for every epoch, a function of (seed, epoch); each rank takes its share.

    Lightning calls ``set_epoch``, also when it resumes.
    """

    def __init__(self, size: int, rank: int = 0, world: int = 1, seed: int = 0) -> None:
        self.size, self.rank, self.world, self.seed, self.epoch = size, rank, world, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(step_seed(self.seed, self.epoch, stream=1))
        order = torch.randperm(self.size, generator=generator)
        return iter(order[self.rank : len(self) * self.world : self.world].tolist())

    def __len__(self) -> int:
        return self.size // self.world


def step_seed(seed: int, step: int, rank: int = 0, stream: int = 0) -> int:
    """A well-mixed seed for one step of one rank; ``stream`` keeps different uses apart."""
    return int(np.random.SeedSequence([seed, step, rank, stream]).generate_state(1, np.uint64)[0] >> 1)


def fewer_per_class(
    data: PointCloudDataset, count: int | None, fraction: float | None, seed: int
) -> PointCloudDataset:
    """Keeps ``count`` shapes of each class, or a ``fraction`` of them, at least one; or all for None.

    Nested: with one seed, a smaller choice is part of every larger one.
    """
    if count is None and fraction is None:
        return data
    generator = torch.Generator().manual_seed(step_seed(seed, 0, stream=2))
    order = torch.randperm(len(data), generator=generator)
    chosen = []
    for label in range(len(data.class_names)):
        members = order[data.labels[order] == label]
        keep = max(1, round(fraction * len(members))) if fraction is not None else count
        chosen.append(members[:keep])
    return data.subset(torch.cat(chosen).sort().values.numpy())


def lacking(data: PointCloudDataset, count: int | None) -> str | None:
    """A sentence on the classes that have fewer than ``count`` shapes, or None if all have so many."""
    sizes = data.labels.bincount(minlength=len(data.class_names)).tolist()
    small = [name for name, size in zip(data.class_names, sizes, strict=True) if size < (count or 0)]
    if not small:
        return None
    more = ", ..." if len(small) > 3 else ""
    return (
        f"{len(small)} of {len(sizes)} classes have fewer than {count} training shapes and give all they "
        f"have ({', '.join(small[:3])}{more}; the fewest are {min(sizes)})"
    )
