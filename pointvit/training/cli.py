"""``pointvit fit | validate | test``: LightningCLI with this project's defaults."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentError
from pytorch_lightning.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, RichProgressBar
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from pointvit.checkpoints.files import read_torch
from pointvit.checkpoints.saving import load_training_checkpoint, save
from pointvit.data.module import PointCloudDataModule
from pointvit.training.classifier import PointClassifier
from pointvit.training.memory import keep_freed_memory

BEST, LAST = "best", "last.ckpt"
logger = logging.getLogger(__name__)

# What Lightning and PyTorch say of things that are as they should be here.
CHATTER = (
    r"The number of training batches .* is smaller than the logging interval",
    r"The '.*_dataloader' does not have many workers",
    r"GPU available but not used",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # The mean of the shown training loss over the ranks is not worth a synchronisation in every step.
    r"It is recommended to use `self.log\('train/loss'",
)
TIP = "💡 Tip"
# Options of the trainer that, when off, leave no use for a callback.
SWITCHES: dict[str, type[Callback]] = {
    "logger": LearningRateMonitor,
    "enable_progress_bar": RichProgressBar,
    "enable_checkpointing": ModelCheckpoint,
}


class BestCheckpoint(ModelCheckpoint):
    """``best.ckpt`` by validation accuracy and ``last.ckpt`` for resuming, after every epoch.

    A resumed run has a folder of its own; the best checkpoint of the run it continues, which must stand
    beside the file it resumes from, is copied there and stays the one to beat.
    """

    def __init__(self) -> None:
        super().__init__(
            monitor="val/oa",
            mode="max",
            filename=BEST,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    @property
    def state_key(self) -> str:
        return super().state_key.replace(type(self).__qualname__, ModelCheckpoint.__qualname__)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            # Lightning's own save_last leaves out the epochs that are not the best so far.
            self.last_model_path = str(Path(self.dirpath or ".") / LAST)
            trainer.save_checkpoint(self.last_model_path, weights_only=False)

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._resumed_folder = Path(trainer.ckpt_path or ".").parent
        self._writes = trainer.is_global_zero

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not state_dict["best_model_path"]:
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
    """Writes the best checkpoint's model in the self-describing form, as ``model/`` beside the logs."""

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        log_dir = trainer.log_dir  # All ranks take part in asking for it.
        if trainer.is_global_zero and best and log_dir is not None:
            folder = save(load_training_checkpoint(best), Path(log_dir) / "model")
            pl_module.print(f"Best model, ready for `pointvit predict`: {folder}")


class PointVitCLI(LightningCLI):
    """LightningCLI without its ``predict``, with loggers below ``trainer.default_root_dir``.

    Data and model are read before Lightning starts: what is wrong with them leaves no run folder behind.
    """

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name != "predict"}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.seed", "model.seed")

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        assert isinstance(args, list)
        self.config = parser.parse_args(args)
        command = self.config.subcommand
        _check_checkpoint(command, self.config[command].ckpt_path)

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        config = self._get(self.config_init, "trainer")
        off = tuple(kind for option, kind in SWITCHES.items() if config[option] is False)
        ours = self.trainer_defaults["callbacks"]
        self.trainer_defaults["callbacks"] = [callback for callback in ours if not isinstance(callback, off)]
        if config.logger in (None, True):
            root = config.default_root_dir or "runs"
            csv = CSVLogger(root, name=None)
            kwargs["logger"] = [csv, TensorBoardLogger(root, name=None, version=csv.version)]
        return super().instantiate_trainer(**kwargs)

    def before_fit(self) -> None:
        self._build("fit")
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in self.model.model.parameters()]
        total, trained = sum(size for size, _ in sizes), sum(size for size, trains in sizes if trains)
        logger.info(
            "%s: %s parameters, %s trained", self.model.hparams["model"], f"{total:,}", f"{trained:,}"
        )

    def before_validate(self) -> None:
        self._build("validate")

    def before_test(self) -> None:
        self._build("test")

    def _build(self, stage: str) -> None:
        self.model.build(self.datamodule, stage, self._get(self.config_init, "ckpt_path"))


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
        "enable_model_summary": False,
        "callbacks": callbacks(),
    }


def callbacks(progress: bool = True) -> list[Callback]:
    """Best checkpoint by validation accuracy, last one for resuming, learning rate, progress, saved model."""
    return [
        BestCheckpoint(),
        LearningRateMonitor("step"),
        SaveBestModel(),
        *([RichProgressBar(leave=True)] if progress else []),
    ]


def run_lightning(args: list[str]) -> None:
    """Parses ``fit|validate|test --config ... --model.lr ...`` and runs it.

    Raises:
        ValueError, OSError: one sentence on what is wrong with the options, the data or a file.
        InterruptedError: after Ctrl-C, with the checkpoint to resume from.
        FloatingPointError: if the loss stops being finite.
    """
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")
    defaults = trainer_defaults()
    checkpoint = defaults["callbacks"][0]
    # jsonargparse then raises instead of printing its usage.
    raising: dict[str, Any] = {"exit_on_error": False}
    try:
        with quiet(), messages():
            PointVitCLI(
                PointClassifier,
                PointCloudDataModule,
                seed_everything_default=0,
                trainer_defaults=defaults,
                parser_kwargs={
                    "prog": "pointvit",
                    **raising,
                    **dict.fromkeys(PointVitCLI.subcommands(), raising),
                },
                args=args,
            )
    except (ArgumentError, MisconfigurationException) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except SystemExit as end:
        # Lightning turns Ctrl-C into an exit.
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        last = checkpoint.last_model_path
        hint = f"continue with --ckpt_path {last}" if last else "before the first checkpoint"
        raise InterruptedError(f"interrupted; {hint}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Leaves out the warnings and tips of Lightning that tell a user of this project nothing."""
    source = logging.getLogger("pytorch_lightning.utilities.rank_zero")

    def useful(record: logging.LogRecord) -> bool:
        return TIP not in record.getMessage()

    with warnings.catch_warnings():
        for message in CHATTER:
            warnings.filterwarnings("ignore", message)
        # How Lightning calls jsonargparse is between the two of them.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"pytorch_lightning\.cli")
        source.addFilter(useful)
        try:
            yield
        finally:
            source.removeFilter(useful)


@contextmanager
def messages() -> Iterator[None]:
    """Shows on the first rank's error stream what ``pointvit`` logs, such as what came from a checkpoint."""
    package = logging.getLogger("pointvit")
    handler, level = logging.StreamHandler(), package.level
    if os.environ.get("LOCAL_RANK", "0") == "0":
        package.addHandler(handler)
        package.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        package.setLevel(level)


def _check_checkpoint(command: str, path: str | None) -> None:
    """Refuses a checkpoint that cannot be read, and scoring without one: random weights would be scored."""
    if path is not None:
        read_torch(Path(path))
    elif command != "fit":
        raise ValueError(
            f"{command} needs a checkpoint, such as --ckpt_path runs/version_0/checkpoints/best.ckpt"
        )
