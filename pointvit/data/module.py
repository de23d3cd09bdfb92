"""The Lightning DataModule: splits, loaders, and augmentation on the model's device."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pointvit.data.dataset import DataError, PointCloudDataset, split_by_class
from pointvit.data.episodes import FewShot
from pointvit.data.folder import PointCloudFolder, class_folders
from pointvit.data.mixing import Mixing
from pointvit.data.modelnet import ModelNet10, ModelNet40
from pointvit.data.sampling import EpochSampler, Rows, fewer_per_class, lacking, step_seed
from pointvit.data.scanobjectnn import VARIANTS, ScanObjectNN
from pointvit.data.shapes import Shapes
from pointvit.data.transforms import Compose, RandomScaleTranslate, Transform

logger = logging.getLogger(__name__)

DATASETS = ("modelnet40", "modelnet10", "scanobjectnn", "shapes", "folder")
UP_AXES = {"shapes": "z", "scanobjectnn": "y"}
Batch = tuple[Tensor, Tensor]


class PointCloudDataModule(pl.LightningDataModule):
    """Train, validation and test batches ``(points (B, P, C), labels (B,))``.

    With ``mix``, training batches have soft labels (B, number of classes) instead.
    Validation is a seeded, class-balanced part of the training split; only ``test`` reads the test split.
    Workers only read: training batches are augmented where the model is, each from its own seed, so that a
    resumed run sees the numbers an uninterrupted one would.
    """

    def __init__(
        self,
        name: str = "shapes",
        root: str | None = None,
        num_points: int = 1024,
        batch_size: int = 32,
        val_fraction: float = 0.05,
        augment: Sequence[Transform] | None = None,
        mix: Mixing | None = None,
        normals: bool = False,
        up_axis: str | None = None,
        variant: str | None = None,
        shapes_per_class: int | None = None,
        train_fraction: float | None = None,
        few_shot: FewShot | None = None,
        num_workers: int = 0,
        resident: bool | None = None,
        seed: int = 0,
    ) -> None:
        """
        Args:
            name: ``modelnet40``, ``modelnet10``, ``scanobjectnn``, ``shapes`` (synthetic, made on first use)
                or ``folder``.
            root: the data set's folder; only ``shapes`` has a default.
            num_points: points of each cloud, P.
            batch_size: clouds per step and device.
            val_fraction: share of every class of the training split that is held out for validation.
            augment: transforms of training batches, in order; RandomScaleTranslate by default, [] for none.
            mix: mixes two clouds of a training batch, after ``augment``.
            normals: xyz and normals instead of xyz.
            up_axis: ``y`` or ``z``, the stored vertical axis, where it is not the data set's usual one.
            variant: of ScanObjectNN, ``pb_t50_rs`` (the default), ``obj_bg`` or ``obj_only``.
            shapes_per_class: keep this many training shapes of each class (seeded), or all. With one seed, a
                smaller choice is part of every larger one.
            train_fraction: keep this share of each class of the training shapes instead, at least one; nested
                in the same way.
            few_shot: train and test on one episode of a few classes; it has seeds of its own.
            num_workers: reading processes; the data is in memory, so 0 is fastest.
            resident: hold the data on the model's device and send indices instead of clouds; None: on a GPU,
                if it takes less than a quarter of the memory that is free there.
            seed: of the split, the order of batches and the augmentation.
        """
        super().__init__()
        if name not in DATASETS:
            raise ValueError(f"data.name must be one of {', '.join(DATASETS)}, got {name!r}")
        if root is None and name != "shapes":
            raise ValueError(
                f"data.name={name} needs data.root, the folder of the data set (see data/README.md)"
            )
        if normals and name not in ("modelnet40", "modelnet10"):
            raise ValueError(f"data.normals is for ModelNet, data.name={name} has xyz alone")
        if up_axis not in (None, "y", "z") or (up_axis and name in UP_AXES):
            known = ", ".join(f"{each} is {axis} up" for each, axis in UP_AXES.items())
            raise ValueError(f"data.up_axis must be y or z, and {known}; got {up_axis!r} for {name}")
        counts = {
            "num_points": num_points,
            "batch_size": batch_size,
            "shapes_per_class": 1 if shapes_per_class is None else shapes_per_class,
        }
        for option, count in counts.items():
            if count < 1:
                raise ValueError(f"data.{option} must be at least 1, got {count}")
        if not 0 < val_fraction < 1:
            raise ValueError(f"data.val_fraction must lie between 0 and 1, got {val_fraction}")
        for option, count in {"num_workers": num_workers, "seed": seed}.items():
            if count < 0:
                raise ValueError(f"data.{option} must not be negative, got {count}")
        if variant is not None and name != "scanobjectnn":
            raise ValueError(f"data.variant is for ScanObjectNN, data.name is {name}")
        if variant not in (None, *VARIANTS):
            raise ValueError(f"data.variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        if train_fraction is not None and not 0 < train_fraction <= 1:
            raise ValueError(f"data.train_fraction must lie in (0, 1], got {train_fraction}")
        fewer = {"shapes_per_class": shapes_per_class, "train_fraction": train_fraction, "few_shot": few_shot}
        if len(given := [option for option, value in fewer.items() if value is not None]) > 1:
            raise ValueError(f"data.{' and data.'.join(given)} both choose the training shapes; give one")
        self.name, self.root, self.num_points, self.batch_size = name, root, num_points, batch_size
        self.augment = Compose([RandomScaleTranslate()] if augment is None else list(augment))
        self.mix, self.variant, self.few_shot = mix, variant, few_shot
        self.val_fraction, self.normals, self.up_axis = val_fraction, normals, up_axis
        self.shapes_per_class, self.train_fraction = shapes_per_class, train_fraction
        self.num_workers, self.resident, self.seed = num_workers, resident, seed
        self._splits: dict[str, PointCloudDataset] = {}
        self._on_device: dict[str, Batch] = {}

    def setup(self, stage: str) -> None:
        if stage == "test":
            if "test" not in self._splits:
                test = self._read("test")
                self._splits["test"] = (
                    self.few_shot.query_set(self._read("train"), test) if self.few_shot else test
                )
        elif "train" not in self._splits:
            full, support = self._read("train"), None
            if self.few_shot:
                support, full = self.few_shot.split(full)
            train, val = split_by_class(full.labels, self.val_fraction, self.seed)
            self._splits["val"] = full.subset(val)
            rest = full.subset(train)
            few = (self.shapes_per_class, self.train_fraction, self.seed)
            if lack := lacking(rest, self.shapes_per_class):
                logger.warning("data.shapes_per_class: %s", lack)
            self._splits["train"] = support or fewer_per_class(rest, *few)

    def dataset(self, split: str) -> PointCloudDataset:
        """The data behind ``train``, ``val`` or ``test``, read if it has not been yet."""
        self.setup("test" if split == "test" else "fit")
        return self._splits[split]

    def choose(
        self, shapes_per_class: int | None, train_fraction: float | None, seed: int
    ) -> PointCloudDataModule:
        """The same data, read once, with the same validation part, of which other shapes are trained on.

        Args:
            shapes_per_class: as in the constructor.
            train_fraction: as in the constructor.
            seed: of the choice, of the order of batches and of the augmentation; not of the validation part.
        """
        train = fewer_per_class(self.dataset("train"), shapes_per_class, train_fraction, seed)
        chosen = copy.copy(self)
        chosen.shapes_per_class, chosen.train_fraction, chosen.seed = shapes_per_class, train_fraction, seed
        chosen._splits, chosen._on_device = {**self._splits, "train": train}, {}
        return chosen

    def train_dataloader(self) -> DataLoader[Any]:
        data = self.dataset("train")
        per_device = len(data) // self._world()[1]
        if per_device < 2:
            raise DataError(f"training needs at least two shapes per device, got {len(data)}")
        # A last batch of one sample has no batch statistics, so incomplete batches are left out of an epoch.
        sampler = EpochSampler(len(data), *self._world(), seed=self.seed)
        return self._loader(data, sampler, min(self.batch_size, per_device), drop_last=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self._eval_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        return self._eval_loader("test")

    def on_after_batch_transfer(self, batch: Batch | Tensor, dataloader_idx: int) -> Batch:
        if isinstance(batch, Tensor):
            batch = self._gathered(batch)
        if self.trainer is None or not self.trainer.training:
            return batch
        points, labels = batch
        # Lightning counts a batch after moving it: this is the one at hand, from 0 and over all epochs.
        step = self.trainer.fit_loop.total_batch_idx + 1
        seed = step_seed(self.seed, step, self.trainer.global_rank)
        generator = torch.Generator(points.device).manual_seed(seed)
        points = self.augment(points, generator)
        if self.mix is None:
            return points, labels
        return self.mix(points, labels, len(self.dataset("train").class_names), generator)

    def _gathered(self, rows: Tensor) -> Batch:
        """The clouds and labels of these rows, from the split at hand, which is moved to the device once."""
        assert self.trainer is not None
        split = "train" if self.trainer.training else "test" if self.trainer.testing else "val"
        if split not in self._on_device:
            data = self.dataset(split)
            self._on_device[split] = data.points.to(rows.device), data.labels.to(rows.device)
        points, labels = self._on_device[split]
        return points[rows], labels[rows]

    def _is_resident(self, data: PointCloudDataset) -> bool:
        if self.trainer is None:
            return False
        if self.resident is not None:
            return self.resident
        device = self.trainer.strategy.root_device
        if device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(device)
        return data.points.numel() * data.points.element_size() < free / 4

    def _eval_loader(self, split: str) -> DataLoader[Any]:
        data = self.dataset(split)
        rank, world = self._world()
        # Every sample once, also under DDP: ranks take turns, and nothing is repeated to even them out.
        return self._loader(data, list(range(rank, len(data), world)), 2 * self.batch_size)

    def _loader(
        self, data: PointCloudDataset, sampler: Any, batch_size: int, drop_last: bool = False
    ) -> DataLoader[Any]:
        return DataLoader(
            Rows(len(data)) if self._is_resident(data) else data,
            batch_size=batch_size,
            sampler=sampler,
            drop_last=drop_last,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            collate_fn=_as_it_is,
        )

    def _world(self) -> tuple[int, int]:
        trainer = self.trainer
        return (0, 1) if trainer is None else (trainer.global_rank, trainer.world_size)

    def _read(self, split: str) -> PointCloudDataset:
        if self.name == "shapes":
            return Shapes(self.root, split=split, num_points=self.num_points)
        root = Path(os.fspath(self.root or ""))
        if self.name == "folder":
            up = self.up_axis or "z"
            names = None if split == "train" else _training_classes(root)
            return PointCloudFolder(root, self.num_points, split, names, self.seed, up)
        if self.name == "scanobjectnn":
            return ScanObjectNN(root, split, self.variant or "pb_t50_rs", self.num_points)
        kind = ModelNet40 if self.name == "modelnet40" else ModelNet10
        return kind(root, split, self.num_points, self.normals, self.up_axis)


def _training_classes(root: Path) -> list[str] | None:
    """Class names of the training split, of which the test split may lack some; None where there is none."""
    try:
        return list(class_folders(root, "train"))
    except FileNotFoundError:
        return None


def _as_it_is(batch: Any) -> Any:
    return batch
