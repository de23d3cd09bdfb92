"""What a training run leaves behind: the best and the last checkpoint, and the best model."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, RichProgressBar
from pytorch_lightning.trainer.states import TrainerFn

from pointvit.checkpoints.saving import load_training_checkpoint, save
from pointvit.training.averaging import AveragedWeights
from pointvit.training.transfer import merge_obstacle, merge_transfer

BEST, LAST = "best", "last.ckpt"
logger = logging.getLogger(__name__)


class BestCheckpoint(ModelCheckpoint):
    """``best.ckpt`` by what ``monitor`` names and ``last.ckpt`` for resuming, after every epoch.

    A resumed run has a folder of its own; the best checkpoint of the run it continues, which must stand
    beside the file it resumes from, is copied there and stays the one to beat.
    """

    def __init__(self, monitor: str = "val/oa", mode: str = "max") -> None:
        super().__init__(
            monitor=monitor,
            mode=mode,
            filename=BEST,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    @property
    def state_key(self) -> str:
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.monitor in trainer.callback_metrics:  # not after an epoch without validation
            super().on_train_epoch_end(trainer, pl_module)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            # Lightning's own save_last leaves out the epochs that are not the best so far.
            self.last_model_path = str(Path(self.dirpath or ".") / LAST)
            trainer.save_checkpoint(self.last_model_path, weights_only=False)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._resumed_folder = Path(trainer.ckpt_path or ".").parent
        self._resumes = trainer.state.fn == TrainerFn.FITTING  # a test needs no copy of what it tests
        self._writes = trainer.is_global_zero

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not (self._resumes and state_dict["best_model_path"]):
            return
        best = self._resumed_folder / Path(state_dict["best_model_path"]).name
        if not best.is_file():
            logger.warning("%s is not there, so the best score so far is not known and starts anew", best)
            return
        copy = Path(self.dirpath or ".") / best.name
        if self._writes and not (copy.exists() and copy.samefile(best)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            unfinished = copy.with_suffix(f".{os.getpid()}")
            shutil.copyfile(best, unfinished)
            unfinished.replace(copy)
        score = state_dict["best_model_score"]
        moved = {
            "dirpath": self.dirpath,
            "best_model_path": str(copy),
            "kth_best_model_path": str(copy),
            "best_k_models": {str(copy): score},
            "last_model_path": "",
        }
        super().load_state_dict({**state_dict, **moved})


class SaveBestModel(Callback):
    """Writes the best checkpoint's model in the self-describing form, as ``model/`` beside the logs.

    As a plain model: what a transfer mode has added to its trunk is merged, but for prompts, which cannot be.
    """

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        log_dir = trainer.log_dir  # All ranks take part in asking for it.
        if trainer.is_global_zero and best and log_dir is not None:
            model = load_training_checkpoint(best)
            if merge_obstacle(model) is None:
                merge_transfer(model)
            folder = save(model, Path(log_dir) / "model")
            pl_module.print(f"Best model, ready for `pointvit predict`: {folder}")


def callbacks(progress: bool = True, ema_decay: float | None = None) -> list[Callback]:
    """Best checkpoint by validation accuracy, last one for resuming, learning rate, progress, saved model.

    With ``ema_decay``, what is validated and kept is the moving average of the weights.
    """
    return [
        BestCheckpoint(),
        LearningRateMonitor("step"),
        SaveBestModel(),
        *([RichProgressBar(leave=True)] if progress else []),
        *([] if ema_decay is None else [AveragedWeights(ema_decay)]),
    ]
