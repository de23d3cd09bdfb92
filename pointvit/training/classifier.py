"""The LightningModule that trains and tests a point classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from pointvit.checkpoints.saving import describe, load_training_checkpoint
from pointvit.data.module import Batch, PointCloudDataModule, step_seed
from pointvit.model import ViT
from pointvit.training.metrics import Scores
from pointvit.training.optim import parameter_groups, warmup_cosine
from pointvit.variants import create_model


class PointClassifier(pl.LightningModule):
    """Cross-entropy training with AdamW, warm-up and cosine; OA and mAcc on validation and test."""

    model: ViT

    def __init__(
        self,
        model: str = "pointvit_tiny",
        pretrained: str | None = None,
        settings: dict[str, Any] | None = None,
        lr: float = 5e-4,
        weight_decay: float = 0.05,
        trunk_lr_scale: float = 1.0,
        warmup_epochs: float = 1.0,
        label_smoothing: float = 0.0,
        seed: int = 0,
    ) -> None:
        """
        Args:
            model: a name of ``pointvit.list_models("pointvit")``.
            pretrained: a 2D ViT checkpoint for the trunk, or nothing.
            settings: further settings of the model (``num_groups``, ``group_size``, ``drop_path_rate`` ...).
            lr: peak learning rate of AdamW.
            weight_decay: on weights; norms, biases, tokens and positions have none.
            trunk_lr_scale: factor on the trunk's learning rate.
            warmup_epochs: linear warm-up, may be a fraction.
            label_smoothing: of the cross-entropy, in [0, 1).
            seed: of dropout and stochastic depth, step by step.
        """
        super().__init__()
        self.save_hyperparameters()
        self.class_names: list[str] = []
        self.scores: Scores | None = None

    def configure_model(self) -> None:
        """Builds the model once the data is known: from the checkpoint being resumed or tested, or anew."""
        if hasattr(self, "model"):
            return
        data = self._data()
        dataset = data.dataset("test" if self.trainer.testing else "train")
        self.class_names = dataset.class_names
        if self.trainer.ckpt_path is not None:
            self.model = load_training_checkpoint(self.trainer.ckpt_path)
            known = self.model.meta.class_names
            if known != self.class_names:
                raise ValueError(
                    f"{self.trainer.ckpt_path}: was trained on the classes {_short(known or [])}, the data has "
                    f"{_short(self.class_names)}; test it on the data set it was made for"
                )
        else:
            options = self.hparams
            settings = {"num_classes": len(self.class_names), "in_chans": dataset.points.shape[2], **(options.settings or {})}
            self.model = create_model(options.model, options.pretrained, **settings)
            self.model.meta.class_names = self.class_names
            self.model.meta.num_points = data.num_points
            self.model.meta.up_axis = dataset.up_axis
        self.confusion = MulticlassConfusionMatrix(num_classes=len(self.class_names))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        options = self.hparams
        groups = parameter_groups(self.model, options.lr, options.weight_decay, options.trunk_lr_scale)
        optimizer = torch.optim.AdamW(groups)
        total = int(self.trainer.estimated_stepping_batches)
        warmup = round(options.warmup_epochs * total / max(1, self.trainer.max_epochs or 1))
        scheduler = warmup_cosine(optimizer, warmup, total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def forward(self, points: Tensor) -> Tensor:
        return self.model(points)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout and stochastic depth are a function of (seed, step), so that a resumed run repeats them.
        torch.manual_seed(step_seed(self.hparams.seed, self.global_step, self.global_rank, stream=3))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        points, labels = batch
        loss = F.cross_entropy(self(points), labels, label_smoothing=self.hparams.label_smoothing)
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True, batch_size=len(labels))
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        loss = self.trainer.callback_metrics.get("train/loss_step")
        if loss is not None and not bool(torch.isfinite(loss)):
            raise FloatingPointError(
                f"the loss became {float(loss)} at epoch {self.current_epoch}, step {self.global_step}; lower model.lr "
                "or use trainer.precision=32-true"
            )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        points, labels = batch
        logits = self(points)
        self.log("val/loss", F.cross_entropy(logits, labels), batch_size=len(labels), sync_dist=True)
        self.confusion.update(logits.float().argmax(dim=1), labels)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        points, labels = batch
        self.confusion.update(self(points).float().argmax(dim=1), labels)

    def on_validation_epoch_end(self) -> None:
        self._score("val")

    def on_test_epoch_end(self) -> None:
        scores = self._score("test")
        if self.trainer.is_global_zero and self.trainer.log_dir is not None:
            folder = Path(self.trainer.log_dir) / "test"
            scores.save(folder, self.class_names, "test split")
            self.print(f"Confusion matrix, per-class accuracy and metrics.json: {folder}")

    def _score(self, split: str) -> Scores:
        self.scores = Scores.of(self.confusion.compute().cpu())
        self.confusion.reset()
        self.log(f"{split}/oa", self.scores.overall_accuracy, prog_bar=True)
        self.log(f"{split}/macc", self.scores.mean_class_accuracy, prog_bar=True)
        return self.scores

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["pointvit"] = describe(self.model)

    def _data(self) -> PointCloudDataModule:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, PointCloudDataModule):
            raise TypeError("PointClassifier takes its classes from a PointCloudDataModule: trainer.fit(module, datamodule)")
        return data


def _short(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, ... ({len(names)})" if len(names) > 3 else shown
