"""What every training here does with its steps: a seed for each, AdamW with its schedule, a stop at NaN."""

from __future__ import annotations

import math
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer

from pointvit.data.module import Batch
from pointvit.data.sampling import step_seed
from pointvit.training.optim import adamw, warmup_cosine

_LOSSES_AT_A_TIME = 20


class SteppedModule(pl.LightningModule):
    """A LightningModule that has ``warmup_epochs`` and ``seed`` among its hyperparameters.

    Subclasses say what learns at which rate (:meth:`parameter_groups`), and show each loss to :meth:`watch`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._losses: list[tuple[int, int, Tensor]] = []

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Groups of parameters for the optimiser, each with its learning rate and weight decay."""
        raise NotImplementedError

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = adamw(self.parameter_groups(), scaled=self.trainer.precision == "16-mixed")
        total = int(self.trainer.estimated_stepping_batches)
        warmup = round(self.hparams["warmup_epochs"] * total / max(1, self.trainer.max_epochs or 1))
        scheduler = warmup_cosine(optimizer, warmup, total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's hook, which refuses to clip sharded gradients by their norm: only FSDP knows it."""
        sharded = self.trainer.strategy.model
        if gradient_clip_val and isinstance(sharded, FullyShardedDataParallel):
            sharded.clip_grad_norm_(gradient_clip_val)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout and stochastic depth are a function of (seed, batch), so that a resumed run repeats them.
        step = self.trainer.fit_loop.total_batch_idx
        torch.manual_seed(step_seed(self.hparams["seed"], step, self.global_rank, stream=3))
        if self.trainer.accumulate_grad_batches == 1:
            # Lightning does this after the forward pass, and holds the old gradients beside all it keeps.
            for optimizer in self.trainer.optimizers:
                optimizer.zero_grad()

    def watch(self, loss: Tensor, batch_idx: int) -> None:
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


def check_rates(lr: float, weight_decay: float, trunk_lr_scale: float, warmup_epochs: float) -> None:
    """Raises ValueError unless these are numbers to train with."""
    rest = (weight_decay, trunk_lr_scale, warmup_epochs)
    if not (0 < lr < math.inf and all(0 <= value < math.inf for value in rest)):
        raise ValueError(
            "model.lr must be positive and weight_decay, trunk_lr_scale, warmup_epochs not negative, got "
            f"{lr}, {weight_decay}, {trunk_lr_scale} and {warmup_epochs}"
        )


def _reading_waits(loss: Tensor) -> bool:
    return loss.device.type != "cpu"
