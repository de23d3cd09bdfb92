"""One cell of a grid: a training, its best weights by validation, and one look at the test split."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import Namespace
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.cli import LightningArgumentParser

from pointvit import __version__
from pointvit.checkpoints import Checkpoint
from pointvit.data.module import PointCloudDataModule
from pointvit.data.sampling import lacking
from pointvit.training.averaging import AveragedWeights
from pointvit.training.callbacks import BEST, LAST, BestCheckpoint
from pointvit.training.classifier import PointClassifier
from pointvit.training.grid.cells import Arm, Cell, Measured
from pointvit.training.transfer import TRANSFER_MODES, resolve

logger = logging.getLogger(__name__)

OFF = ("logger", "enable_progress_bar", "enable_model_summary")
VALIDATIONS = 10
"""At most so many in a training, evenly spread, the last after its last epoch."""

Tick = Callable[[int, int, float | None], None]
"""``(epoch, epochs, last validation accuracy)``, told after every epoch."""


class CellClassifier(PointClassifier):
    """A :class:`PointClassifier` that keeps its test scores to itself."""

    def on_test_epoch_end(self) -> None:
        self._score("test")


class CellCheckpoint(BestCheckpoint):
    """Best and last checkpoint in a cell's own folder, after the epochs that are validated."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.dirpath = str(folder)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if _is_validated(trainer):
            super().on_train_epoch_end(trainer, pl_module)


class Watch(Callback):
    """Decides when to validate, and keeps what came out and how long it took, also across a resume."""

    def __init__(self, tick: Tick) -> None:
        self.tick = tick
        self.curve: list[tuple[int, float]] = []
        self.seconds = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin = time.perf_counter()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epochs = trainer.max_epochs or 1
        last = trainer.current_epoch + 1 == epochs
        trainer.check_val_every_n_epoch = 1 if last else math.ceil(epochs / VALIDATIONS)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now = time.perf_counter()
        self.seconds, self._begin = self.seconds + now - self._begin, now
        if _is_validated(trainer):
            assert isinstance(pl_module, PointClassifier)
            assert pl_module.scores is not None
            self.curve.append((trainer.current_epoch + 1, pl_module.scores.overall_accuracy))
        self.tick(
            trainer.current_epoch + 1, trainer.max_epochs or 1, self.curve[-1][1] if self.curve else None
        )

    def state_dict(self) -> dict[str, Any]:
        return {"curve": list(self.curve), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.curve = [(int(epoch), float(value)) for epoch, value in state_dict["curve"]]
        self.seconds = state_dict["seconds"]


class CellRunner:
    """Trains cells of one config, whose data is read once.

    Args:
        parser: has the groups ``model``, ``data`` and ``trainer``, and makes their objects.
        config: parsed by it.
        starts: further initial states, name -> folder of a saved point encoder.
        settings: by an arm's name, what differs from the config for this arm alone, as ``model.lr: 0.1``.
        tick: told of every epoch.
    """

    def __init__(
        self,
        parser: LightningArgumentParser,
        config: Namespace,
        starts: Mapping[str, str],
        settings: Mapping[str, Mapping[str, Any]],
        tick: Tick = lambda epoch, epochs, accuracy: None,
    ) -> None:
        self.parser, self.config, self.starts, self.settings = parser, config, starts, settings
        self.tick = tick
        plain = config.clone()
        plain.model.update(Namespace(init="scratch", transfer="full", transfer_options=None))
        self.data: PointCloudDataModule = _instances(parser, plain).data

    def check(self, arms: Sequence[Arm]) -> None:
        """Makes model and trainer of every arm, so that what is wrong is said before hours of training.

        Raises:
            ValueError, OSError: one sentence on what is wrong with data, model, trainer or a file.
        """
        for name in {arm.init for arm in arms} & self.starts.keys():
            folder = self.starts[name]
            if Checkpoint.open(folder).modality == "image":
                raise ValueError(
                    f"{folder}: the start {name} is an image encoder, expected a point encoder; image "
                    "weights go with --model.pretrained"
                )
        for arm in arms:
            cell = Cell(arm.init, arm.mode, arm.sizes[0], 0, self.config.model.lr)
            module, _, data = self._made(cell, Watch(self.tick))
            module.build(data, "fit")
        counts = [size for arm in arms for size in arm.sizes if isinstance(size, int)]
        if lack := lacking(self.data.dataset("train"), max(counts, default=None)):
            logger.warning("--shapes-per-class: %s", lack)

    def __call__(self, cell: Cell, folder: Path, searched: Measured | None) -> Measured:
        """Trains, or takes up what was killed at its last validation; tests unless the cell is a search.

        Args:
            cell: with its learning rate.
            folder: for checkpoints, empty or as an earlier attempt left it.
            searched: the same training, done in a search; then its best checkpoint is tested if it is there.

        Raises:
            ValueError, OSError: one sentence on what is wrong with data, model or a file.
            FloatingPointError: if the loss stops being finite; a search then has an accuracy of 0.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
            best = folder / f"{BEST}.ckpt"
            if searched is not None and best.is_file():
                return self._tested(cell, best, searched)
            trained = self._trained(cell, folder)
            return trained if cell.search else self._tested(cell, best, trained)

    def _trained(self, cell: Cell, folder: Path) -> Measured:
        pl.seed_everything(cell.seed, verbose=False)
        watch, last = Watch(self.tick), folder / LAST
        resumed = last if last.is_file() else None
        module, trainer, data = self._made(cell, watch, CellCheckpoint(folder))
        module.build(data, "fit", resumed)
        count = [(parameter.numel(), parameter.requires_grad) for parameter in module.model.parameters()]
        try:
            trainer.fit(module, data, ckpt_path=resumed)
            diverged = False
        except FloatingPointError:
            if not cell.search:
                raise
            diverged = True
        epoch, accuracy = max(watch.curve, key=lambda at: at[1], default=(0, 0.0))
        return Measured(
            train_shapes=len(data.dataset("train")),
            num_classes=len(module.class_names),
            val_best=0.0 if diverged else accuracy,
            best_epoch=0 if diverged else epoch,
            val_last=0.0 if diverged else watch.curve[-1][1],
            epochs=trainer.max_epochs or 0,
            curve=tuple(watch.curve),
            test_oa=None,
            test_macc=None,
            trainable=sum(size for size, learns in count if learns),
            total=sum(size for size, _ in count),
            seconds=watch.seconds,
            device=_device(trainer),
            versions=f"pointvit {__version__}, torch {torch.__version__}, pytorch-lightning {pl.__version__}",
        )

    def _tested(self, cell: Cell, best: Path, trained: Measured) -> Measured:
        begin = time.perf_counter()
        self.data.setup("test")  # read once for all cells
        module, trainer, data = self._made(cell)
        module.build(data, "test", best)  # with the weights of that checkpoint
        trainer.test(module, data, verbose=False)
        scores = module.scores
        assert scores is not None
        return replace(
            trained,
            test_oa=scores.overall_accuracy,
            test_macc=scores.mean_class_accuracy,
            seconds=trained.seconds + time.perf_counter() - begin,
        )

    def _made(self, cell: Cell, *ours: Callback) -> tuple[CellClassifier, pl.Trainer, PointCloudDataModule]:
        """The parts of a cell; with callbacks they train, without any they test."""
        made = self._objects(cell)
        given = made.trainer.callbacks or []
        callbacks = [*ours, *(given if isinstance(given, list) else [given])]
        if ours and self.config.ema_decay is not None:
            callbacks.append(AveragedWeights(self.config.ema_decay))
        switches = {**dict.fromkeys(OFF, False), "enable_checkpointing": bool(ours)}
        trainer = pl.Trainer(**{**made.trainer, **switches, "callbacks": callbacks})
        return made.model, trainer, self._data(cell)

    def _data(self, cell: Cell) -> PointCloudDataModule:
        count, share = (None, cell.size) if isinstance(cell.size, float) else (cell.size, None)
        return self.data.choose(count, share, cell.seed)

    def _objects(self, cell: Cell) -> Namespace:
        """Model and data of a cell, and the options of its trainer."""
        config = self.config.clone()
        for name, value in self.settings.get(f"{cell.init}:{cell.mode}", {}).items():
            config[name] = value
        start = self.starts.get(cell.init)
        if start is not None:
            config.model.model, config.model.pretrained = "auto", start
        config.model.init = "pretrained" if start is not None else cell.init
        mode, _ = resolve(cell.mode, {})
        options = config.model.transfer_options or {}
        config.model.transfer_options = {
            name: value for name, value in options.items() if name in TRANSFER_MODES[mode].options
        }
        config.model.transfer, config.model.lr, config.model.seed = cell.mode, cell.rate, cell.seed
        config.model.votes = 1
        return _instances(self.parser, config)


def _instances(parser: LightningArgumentParser, config: Namespace) -> Namespace:
    """The objects that a config describes, under the name that the method has in this version."""
    make = getattr(parser, "instantiate", None) or parser.instantiate_classes
    made: Namespace = make(config)
    return made


def _is_validated(trainer: pl.Trainer) -> bool:
    return (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0


def _device(trainer: pl.Trainer) -> str:
    device = trainer.strategy.root_device
    if device.type == "cuda":
        return f"{trainer.num_devices} × {torch.cuda.get_device_name(device)}"
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="ascii", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads() * trainer.num_devices
    return f"{names[0] if names else device.type}, {threads} thread{'s' if threads > 1 else ''}"
