"""The LightningModule that trains and tests a point classifier."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from pointvit.checkpoints.saving import describe, load_training_checkpoint
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.module import Batch, PointCloudDataModule, step_seed
from pointvit.model import ViT
from pointvit.training.metrics import Scores
from pointvit.training.optim import parameter_groups, warmup_cosine
from pointvit.variants import create_model, list_models

logger = logging.getLogger(__name__)
_LOSSES_AT_A_TIME = 20


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
        compile: bool = False,
        grad_checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        """
        Args:
            model: a name of ``pointvit.list_models("pointvit")``, or ``auto``: the trunk of ``pretrained``.
            pretrained: a 2D ViT checkpoint for the trunk, or nothing.
            settings: further settings of the model (``num_groups``, ``group_size``, ``drop_path_rate`` ...).
            lr: peak learning rate of AdamW.
            weight_decay: on weights; norms, biases, tokens and positions have none.
            trunk_lr_scale: factor on the trunk's learning rate.
            warmup_epochs: linear warm-up, may be a fraction.
            label_smoothing: of the cross-entropy, in [0, 1).
            compile: run the model through ``torch.compile``. The first step then takes a minute, and on a
                CPU the others are no faster (docs/performance.md).
            grad_checkpointing: compute blocks again in the backward pass: less memory, more time.
            seed: of dropout and stochastic depth, step by step.
        """
        super().__init__()
        if not (lr > 0 and weight_decay >= 0 and trunk_lr_scale >= 0 and warmup_epochs >= 0):
            raise ValueError(
                "model.lr must be positive and weight_decay, trunk_lr_scale, warmup_epochs not negative, got "
                f"{lr}, {weight_decay}, {trunk_lr_scale} and {warmup_epochs}"
            )
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"model.label_smoothing must lie in [0, 1), got {label_smoothing}")
        self.save_hyperparameters()
        self.class_names: list[str] = []
        self.scores: Scores | None = None
        self._losses: list[tuple[int, int, Tensor]] = []

    def configure_model(self) -> None:
        """Lightning's hook: builds the model unless :meth:`build` was called before."""
        if not hasattr(self, "model"):
            stage = "fit" if self.trainer.state.fn is None else self.trainer.state.fn.value
            self.build(self._data(), stage)

    def build(self, data: PointCloudDataModule, stage: str, checkpoint: str | Path | None = None) -> None:
        """Makes the model once the data is known: from the checkpoint being resumed or tested, or anew.

        Args:
            data: gives the classes, channels, number of points and up axis; read here if it has not been yet.
            stage: ``fit``, ``validate`` or ``test``.
            checkpoint: of an earlier training, or None for a new model.

        Raises:
            ValueError: for unknown settings, unreadable data, or a checkpoint of other classes or channels.
        """
        dataset = data.dataset("test" if stage == "test" else "train")
        self.class_names = dataset.class_names
        if checkpoint is None:
            self.model = self._new_model(data, dataset)
        else:
            # Lightning leaves the mode of modules as it finds it, and a resumed training needs dropout.
            self.model = load_training_checkpoint(checkpoint).train()
            _check_fit(self.model, data, dataset, checkpoint)
        norms = [m for m in self.model.head.modules() if isinstance(m, nn.BatchNorm1d)]
        if stage == "fit" and norms and data.batch_size == 1:
            raise ValueError(
                "data.batch_size=1 gives the head's batch norm no statistics; use at least 2, or "
                "model.settings={head: linear}"
            )
        self.confusion = MulticlassConfusionMatrix(num_classes=len(self.class_names))
        self.model.trunk.grad_checkpointing = self.hparams["grad_checkpointing"]
        if self.hparams["compile"]:
            self.model.compile(dynamic=True)

    def _new_model(self, data: PointCloudDataModule, dataset: PointCloudDataset) -> ViT:
        options = self.hparams
        given = {"num_classes": len(dataset.class_names), "in_chans": dataset.points.shape[2]}
        auto = {"tokenizer": "points"} if options["model"] == "auto" else {}
        settings = {**given, **auto, **(options["settings"] or {})}
        model = create_model(options["model"], options["pretrained"], **settings)
        if model.config.modality != "points":
            known = ", ".join(list_models("pointvit"))
            raise ValueError(f"model.model={options['model']} takes images; expected one of {known}")
        model.meta.class_names = dataset.class_names
        model.meta.num_points = data.num_points
        model.meta.up_axis = dataset.up_axis
        return model

    def configure_optimizers(self) -> OptimizerLRScheduler:
        options = self.hparams
        groups = parameter_groups(
            self.model, options["lr"], options["weight_decay"], options["trunk_lr_scale"]
        )
        # One kernel for all parameters; Lightning's mixed precision does not clip gradients beside it.
        optimizer = torch.optim.AdamW(groups, fused="mixed" not in str(self.trainer.precision))
        total = int(self.trainer.estimated_stepping_batches)
        warmup = round(options["warmup_epochs"] * total / max(1, self.trainer.max_epochs or 1))
        scheduler = warmup_cosine(optimizer, warmup, total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def forward(self, points: Tensor) -> Tensor:
        return self.model(points)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout and stochastic depth are a function of (seed, batch), so that a resumed run repeats them.
        step = self.trainer.fit_loop.total_batch_idx
        torch.manual_seed(step_seed(self.hparams["seed"], step, self.global_rank, stream=3))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        points, labels = batch
        loss = F.cross_entropy(self(points), labels, label_smoothing=self.hparams["label_smoothing"])
        self._watch(loss.detach(), batch_idx)
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True, batch_size=len(labels))
        return loss

    def _watch(self, loss: Tensor, batch_idx: int) -> None:
        """Stops at a loss that is not finite, and names the batch.

        On a GPU the question would make the host wait for the device in every step. There the losses are kept
        and looked at together, every so many steps and at the end of an epoch.
        """
        self._losses.append((self.global_step, batch_idx, loss))
        last = self.trainer.is_last_batch
        if _reading_waits(loss) and not last and len(self._losses) < _LOSSES_AT_A_TIME:
            return
        values = torch.stack([value for _, _, value in self._losses]).tolist()
        for (step, batch, _), value in zip(self._losses, values, strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the loss became {value} at epoch {self.current_epoch}, batch {batch} (step {step}); "
                    "lower model.lr or use trainer.precision=32-true"
                )
        self._losses.clear()

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
        log_dir = self.trainer.log_dir  # All ranks take part in asking for it.
        if self.trainer.is_global_zero and log_dir is not None:
            folder = Path(log_dir) / "test"
            scores.save(folder, self.class_names, "test split")
            self.print(f"Confusion matrix, per-class accuracy and metrics.json: {folder}")

    def _score(self, split: str) -> Scores:
        self.scores = Scores.of(self.confusion.compute().cpu())
        self.confusion.reset()
        self.log(f"{split}/oa", self.scores.overall_accuracy, prog_bar=True, sync_dist=True)
        self.log(f"{split}/macc", self.scores.mean_class_accuracy, prog_bar=True, sync_dist=True)
        return self.scores

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["pointvit"] = describe(self.model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.class_names:
            _check_classes(checkpoint["pointvit"]["meta"]["class_names"], self.class_names, "the checkpoint")

    def _data(self) -> PointCloudDataModule:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, PointCloudDataModule):
            raise TypeError(
                "PointClassifier takes its classes from a PointCloudDataModule: trainer.fit(module, data)"
            )
        return data


def _reading_waits(loss: Tensor) -> bool:
    return loss.device.type != "cpu"


def _check_fit(
    model: ViT, data: PointCloudDataModule, dataset: PointCloudDataset, checkpoint: str | Path
) -> None:
    """Refuses data of other classes or channels than the checkpoint; warns of another density or axis."""
    meta = model.meta
    _check_classes(meta.class_names or [], dataset.class_names, str(checkpoint))
    trained, given = model.config.tokenizer.in_chans, dataset.points.shape[2]
    if trained != given:
        raise ValueError(
            f"{checkpoint}: was trained on clouds of {trained} channels, the data has {given}; "
            "set data.normals as in its training"
        )
    for what, before, now in (
        ("points per cloud", meta.num_points, data.num_points),
        ("the up axis", meta.up_axis, dataset.up_axis),
    ):
        if before is not None and before != now:
            logger.warning("%s: %s was %s in training, now it is %s", checkpoint, what, before, now)


def _check_classes(trained: list[str], given: list[str], checkpoint: str) -> None:
    if trained != given:
        raise ValueError(
            f"{checkpoint}: was trained on the classes {_short(trained)}, the data has {_short(given)}; "
            "use the data set it was made for"
        )


def _short(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, ... ({len(names)})" if len(names) > 3 else shown
