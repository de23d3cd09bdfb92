"""``pointvit fit | validate | test``: LightningCLI with this project's defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, RichProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

from pointvit.checkpoints.saving import load_training_checkpoint, save
from pointvit.data.module import PointCloudDataModule
from pointvit.training.classifier import PointClassifier
from pointvit.training.memory import keep_freed_memory

BEST = "best"


class SaveBestModel(Callback):
    """Writes the best checkpoint's model in the self-describing form, as ``model/`` beside the logs."""

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if trainer.is_global_zero and best and trainer.log_dir is not None:
            folder = save(load_training_checkpoint(best), Path(trainer.log_dir) / "model")
            pl_module.print(f"Best model, ready for `pointvit predict`: {folder}")


class PointVitCLI(LightningCLI):
    """LightningCLI without its ``predict``, with loggers below ``trainer.default_root_dir``."""

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name != "predict"}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.seed", "model.seed")

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        config = self._get(self.config_init, "trainer")
        if config.logger in (None, True):
            root = config.default_root_dir or "runs"
            csv = CSVLogger(root, name=None)
            kwargs["logger"] = [csv, TensorBoardLogger(root, name=None, version=csv.version)]
        return super().instantiate_trainer(**kwargs)


def trainer_defaults() -> dict[str, Any]:
    """Trainer arguments that a config may override."""
    return {
        "max_epochs": 300,
        "accelerator": "auto",
        "devices": 1,
        "gradient_clip_val": 1.0,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 10,
        "use_distributed_sampler": False,
        "callbacks": callbacks(),
    }


def callbacks(progress: bool = True) -> list[Callback]:
    """Best checkpoint by validation accuracy, last checkpoint for resuming, learning rate, progress, saved model."""
    checkpoint = ModelCheckpoint(
        monitor="val/oa",
        mode="max",
        filename=BEST,
        save_last=True,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    return [
        checkpoint,
        LearningRateMonitor("step"),
        SaveBestModel(),
        *([RichProgressBar(leave=True)] if progress else []),
    ]


def run_lightning(args: list[str]) -> None:
    """Parses ``fit|validate|test --config ... --model.lr ...`` and runs it."""
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")
    PointVitCLI(
        PointClassifier,
        PointCloudDataModule,
        seed_everything_default=0,
        trainer_defaults=trainer_defaults(),
        args=args,
    )
