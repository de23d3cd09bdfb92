"""Fine-tuning of an image encoder on rendered views, with the training loop of the point classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from torch import Tensor

from pointvit.compare.multiview import ViewPool, Views, check_pool, check_views, view_logits
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.module import PointCloudDataModule
from pointvit.model import ViT
from pointvit.training.classifier import PointClassifier
from pointvit.variants import create_model
from pointvit.views import Mode, Rig, UpAxis


class MultiViewTraining(PointClassifier):
    """:class:`PointClassifier` whose model is an image encoder that sees views of the clouds.

    ``pl.Trainer(...).fit(MultiViewTraining(pretrained=PATH), PointCloudDataModule(...))``. The clouds are
    augmented first and rendered then, so that a rotation about the up axis moves the cameras.
    """

    def __init__(
        self,
        model: str = "auto",
        pretrained: str | None = None,
        settings: dict[str, Any] | None = None,
        num_views: int = 3,
        size: int = 112,
        mode: Mode = "normal",
        rig: Rig = "circle",
        pool: ViewPool = "mean",
        lr: float = 5e-4,
        weight_decay: float = 0.05,
        trunk_lr_scale: float = 0.1,
        warmup_epochs: float = 1.0,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        """
        Args:
            model: an image model of ``pointvit.list_models("vit")``, or ``auto``: that of ``pretrained``.
            pretrained: its checkpoint.
            settings: further settings of the model.
            num_views, size, mode, rig: of :class:`Views`; the up axis is the data's.
            pool: over the views, ``mean`` or ``max``.
            lr, weight_decay, trunk_lr_scale, warmup_epochs, label_smoothing, seed: as in the parent.
        """
        super().__init__(
            model,
            pretrained,
            settings,
            lr=lr,
            weight_decay=weight_decay,
            trunk_lr_scale=trunk_lr_scale,
            warmup_epochs=warmup_epochs,
            label_smoothing=label_smoothing,
            seed=seed,
        )
        check_pool(pool)

    def build(self, data: PointCloudDataModule, stage: str, checkpoint: str | Path | None = None) -> None:
        """As in the parent, for views with the up axis of the data."""
        super().build(data, stage, checkpoint)
        axis = data.dataset("test" if stage == "test" else "train").up_axis
        names = ("num_views", "size", "mode", "rig")
        self.views = Views(**{name: self.hparams[name] for name in names}, up_axis=cast(UpAxis, axis))
        check_views(self.model, self.views)

    def _new_model(self, data: PointCloudDataModule, dataset: PointCloudDataset, stage: str) -> ViT:
        options = self.hparams
        settings = {"num_classes": len(dataset.class_names), **(options["settings"] or {})}
        encoder = create_model(options["model"], options["pretrained"], **settings)
        encoder.meta.class_names = dataset.class_names
        encoder.meta.num_points, encoder.meta.up_axis = data.num_points, dataset.up_axis
        return encoder

    def forward(self, points: Tensor) -> Tensor:
        return view_logits(self.model, points, self.views, self.hparams["pool"])
