"""``pointvit fit | validate | test``: LightningCLI with this project's defaults."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentError
from pytorch_lightning.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, RichProgressBar
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from pointvit.data.module import PointCloudDataModule
from pointvit.training.averaging import AveragedWeights, check_averaging
from pointvit.training.callbacks import callbacks
from pointvit.training.checks import check_resumed, settings_of
from pointvit.training.classifier import PointClassifier
from pointvit.training.memory import keep_freed_memory

logger = logging.getLogger(__name__)

# What Lightning and PyTorch say of things that are as they should be here.
CHATTER = (
    r"The number of training batches .* is smaller than the logging interval",
    r"The '.*_dataloader' does not have many workers",
    r"GPU available but not used",
    # A frozen tokenizer's batch norms.
    r"Found \d+ module\(s\) in eval mode at the start of training",
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    # The mean of the shown training loss over the ranks is not worth a synchronisation in every step.
    r"It is recommended to use `self.log\('train/loss'",
)
TIP = "💡 Tip"
# Of each command: what its usage begins with, and what it does. Lightning's own usage lists all options.
COMMANDS = {
    "fit": ("[--config FILE]", "Trains a point classifier."),
    "validate": (
        "--ckpt_path CHECKPOINT [--config FILE]",
        "Scores a checkpoint on the held-out part of the training split.",
    ),
    "test": ("--ckpt_path CHECKPOINT [--config FILE]", "Scores a checkpoint on the test split."),
}
KEYS = "In FILE, --model.KEY VALUE is KEY: VALUE under model. Of what is given twice, the later counts."
# Options of the trainer that, when off, leave no use for a callback.
SWITCHES: dict[str, type[Callback]] = {
    "logger": LearningRateMonitor,
    "enable_progress_bar": RichProgressBar,
    "enable_checkpointing": ModelCheckpoint,
}


class SavedConfig(SaveConfigCallback):
    """``config.yaml`` beside the logs, and nowhere where there are none."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.loggers:
            super().setup(trainer, pl_module, stage)


class PointVitCLI(LightningCLI):
    """LightningCLI without its ``predict``, with loggers below ``trainer.default_root_dir``.

    Data and model are read before Lightning starts: what is wrong with them leaves no run folder behind.
    """

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {name: skipped for name, skipped in LightningCLI.subcommands().items() if name != "predict"}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """As LightningCLI's, with the many options of the trainer behind ours in the help."""
        kinds = {"model": self.model_class, "data": self.datamodule_class, "trainer": self.trainer_class}
        add_groups(parser, kinds, self.trainer_defaults)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.seed", "model.seed")
        parser.add_argument(
            "--ema_decay",
            type=float | None,
            default=None,
            help="validate and keep a moving average of the weights, with this decay a step (0.999)",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        assert isinstance(args, list)
        self.config = parser.parse_args(args)
        command = self.config.subcommand
        options = self.config[command]
        if options.ckpt_path is not None:
            saved = settings_of(Path(options.ckpt_path), PointClassifier, "fit")
            if command == "fit":
                check_resumed(options.ckpt_path, saved, options.model.as_dict(), PointClassifier)
        elif command != "fit":
            raise ValueError(
                f"{command} needs a checkpoint, such as --ckpt_path runs/version_0/checkpoints/best.ckpt"
            )

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        config = self._get(self.config_init, "trainer")
        off = tuple(kind for option, kind in SWITCHES.items() if config[option] is False)
        ours = self.trainer_defaults["callbacks"]
        self.trainer_defaults["callbacks"] = [callback for callback in ours if not isinstance(callback, off)]
        decay = self._get(self.config_init, "ema_decay")
        if decay is not None and self.config.subcommand == "fit":
            self.trainer_defaults["callbacks"].append(AveragedWeights(decay))
        if config.logger in (None, True):
            root = config.default_root_dir or "runs"
            csv = CSVLogger(root, name=None)
            kwargs["logger"] = [csv, TensorBoardLogger(root, name=None, version=csv.version)]
        return super().instantiate_trainer(**kwargs)

    def before_fit(self) -> None:
        checkpoint = self._get(self.config_init, "ckpt_path")
        if checkpoint is not None:
            check_averaging(Path(checkpoint), self._get(self.config_init, "ema_decay"))
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


def add_groups(
    parser: LightningArgumentParser, kinds: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """Adds the options of classes, in the order of the help; ``defaults`` are those of the trainer."""
    for group, kind in kinds.items():
        parser.add_lightning_class_args(kind, group)
    parser.set_defaults({f"trainer.{name}": of for name, of in defaults.items() if name != "callbacks"})


def usage(command: str, own: str) -> str:
    """``("fit", "[--config FILE]")`` -> the usage of a command that has the three groups of options."""
    indent = " " * len(f"usage: pointvit {command} ")
    model, data, trainer = (f"[--{group}.KEY VALUE ...]" for group in ("model", "data", "trainer"))
    return f"pointvit {command} {own}\n{indent}{model} {data}\n{indent}{trainer}"


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


def run_lightning(args: list[str]) -> None:
    """Parses ``fit|validate|test --config ... --model.lr ...`` and runs it.

    Raises:
        ValueError, OSError: one sentence on what is wrong with the options, the data or a file.
        InterruptedError: after Ctrl-C, with the checkpoint to resume from.
        FloatingPointError: if the loss stops being finite.
    """
    defaults = trainer_defaults()
    # jsonargparse then raises instead of printing its usage.
    raising: dict[str, Any] = {"exit_on_error": False}
    commands = {
        name: {"usage": usage(name, own), "description": f"{does} {KEYS}", **raising}
        for name, (own, does) in COMMANDS.items()
    }
    with running(defaults["callbacks"][0]):
        PointVitCLI(
            PointClassifier,
            PointCloudDataModule,
            save_config_callback=SavedConfig,
            seed_everything_default=0,
            trainer_defaults=defaults,
            parser_kwargs={"prog": "pointvit", **raising, **commands},
            args=args,
        )


@contextmanager
def running(checkpoint: ModelCheckpoint) -> Iterator[None]:
    """What a training on the command line runs in; Lightning's ways to end become errors of one sentence.

    Args:
        checkpoint: knows what an interrupted run is taken up from.
    """
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")
    try:
        with quiet(), messages(), sentences():
            yield
    except SystemExit as end:
        # Lightning turns Ctrl-C into an exit.
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        last = checkpoint.last_model_path
        hint = f"continue with --ckpt_path {last}" if last else "before the first checkpoint"
        raise InterruptedError(f"interrupted; {hint}") from None


@contextmanager
def sentences() -> Iterator[None]:
    """Errors of jsonargparse and Lightning about options as ValueError of one line."""
    try:
        yield
    except (ArgumentError, MisconfigurationException) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except ValueError as error:
        # Where an option may be None, what its class said is behind a list of all that was tried.
        cause = error.__cause__
        if isinstance(cause, ValueError) and str(error).startswith("Does not validate against"):
            raise ValueError(str(cause)) from error
        raise


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
