"""An exponential moving average of the weights, which is what is validated, kept and saved."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor

from pointvit.checkpoints.files import read_torch


class AveragedWeights(WeightAveraging):
    """Lightning's weight averaging, with a decay that grows to ``decay`` while there is little to average.

    The n-th step keeps min(decay, (1 + n) / (10 + n)) of the average, so that a short training is not held
    back by its first weights. Statistics of batch norms are averaged like weights. Validation, ``best.ckpt``
    and the saved model have the average; checkpoints hold both, for an exact resume.

    Every device must hold the whole model, so this does not go with FSDP.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema_decay must lie in (0, 1), got {decay}")
        super().__init__(multi_avg_fn=self._average)
        self.decay = decay

    def _average(self, averages: Sequence[Tensor], values: Sequence[Tensor], count: Any) -> None:
        change = 1 - ((1 + count) / (10 + count)).clamp(max=self.decay)
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point():
                average.lerp_(value, change.to(average.dtype))
            else:
                average.copy_(value)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # The module is not on its device yet, where its average belongs.
        self._device = trainer.strategy.root_device
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You're using the WeightAveraging callback with a model")
            super().setup(trainer, pl_module, stage)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        self._latest_update_step = checkpoint["global_step"]

    def state_dict(self) -> dict[str, Any]:
        """Nothing: all of it follows from the checkpoint, and a test of the average needs no callback."""
        return {}


def check_averaging(checkpoint: Path, decay: float | None) -> None:
    """Raises ValueError if a training is to go on with averaged weights that began without, or reversed."""
    averaged = "averaging_state" in read_torch(checkpoint)
    if averaged and decay is None:
        raise ValueError(f"{checkpoint}: was trained with averaged weights; give the same ema_decay to go on")
    if decay is not None and not averaged:
        raise ValueError(f"{checkpoint}: was trained without averaged weights; leave ema_decay out to go on")
