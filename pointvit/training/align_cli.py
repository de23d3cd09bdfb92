"""``pointvit align``: LightningCLI for the alignment, which ends with a saved point encoder."""

from __future__ import annotations

import logging
from pathlib import Path

from pytorch_lightning.callbacks import LearningRateMonitor, RichProgressBar
from pytorch_lightning.cli import ArgsType, LightningArgumentParser

from pointvit.checkpoints.saving import is_saved, load_training_checkpoint, save
from pointvit.checkpoints.writing import check_place, refuse_other_folder
from pointvit.training.alignment import AlignmentData, PointAligner
from pointvit.training.callbacks import BestCheckpoint
from pointvit.training.checks import check_resumed, settings_of
from pointvit.training.cli import KEYS, PointVitCLI, SavedConfig, running, trainer_defaults, usage

logger = logging.getLogger(__name__)
KEPT = ("model", "pretrained", "settings", "lr", "weight_decay", "trunk_lr_scale")
"""Settings of which a checkpoint's hold when an alignment goes on, whatever is given."""


class AlignCLI(PointVitCLI):
    """As ``pointvit fit``, with the teacher and the result as options of the command itself."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.seed", "model.seed")
        parser.add_argument(
            "--teacher", type=str, default="", help="a 2D ViT checkpoint to learn from; it must be given"
        )
        parser.link_arguments("teacher", "model.teacher")
        parser.add_argument("--output", type=str, required=True, help="folder for the aligned point encoder")
        parser.add_argument(
            "--ckpt_path", type=str | None, default=None, help="last.ckpt of an alignment that goes on"
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        assert isinstance(args, list)
        self.config = parser.parse_args(args)
        if not self.config.teacher:
            raise ValueError("align needs --teacher, a 2D ViT checkpoint to learn from")
        refuse_other_folder(Path(self.config.output), is_saved)
        check_place(Path(self.config.output))
        if self.config.ckpt_path is not None:
            saved = settings_of(Path(self.config.ckpt_path), PointAligner, "align")
            check_resumed(self.config.ckpt_path, saved, self.config.model.as_dict(), PointAligner, KEPT)

    def align(self) -> None:
        """Trains, then writes the encoder of the lowest validation loss to ``output``."""
        self.before_fit()
        self.trainer.fit(self.model, self.datamodule, ckpt_path=self.config.ckpt_path)
        if not self.trainer.is_global_zero or self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if not self.trainer.global_step:
            raise ValueError(
                "no step was taken, so nothing is aligned: look at trainer.max_epochs and its limits"
            )
        best = getattr(self.trainer.checkpoint_callback, "best_model_path", "")
        model = load_training_checkpoint(best) if best else self.model.model.cpu().eval()
        folder = save(model, self.config.output)
        logger.info(
            f"Aligned point encoder: {folder}\n"
            f"Start from it: pointvit fit --model.model auto --model.pretrained {folder}"
        )


def run_alignment(args: list[str]) -> None:
    """Parses ``--config ... --teacher CHECKPOINT --output FOLDER ...`` and runs it.

    Raises:
        ValueError, OSError, InterruptedError, FloatingPointError: as of
            :func:`pointvit.training.cli.run_lightning`.
    """
    checkpoint = BestCheckpoint("val/loss", "min")
    callbacks = [checkpoint, LearningRateMonitor("step"), RichProgressBar(leave=True)]
    with running(checkpoint):
        AlignCLI(
            PointAligner,
            AlignmentData,
            save_config_callback=SavedConfig,
            run=False,
            seed_everything_default=0,
            trainer_defaults={**trainer_defaults(), "max_epochs": 2, "callbacks": callbacks},
            parser_kwargs={
                "prog": "pointvit align",
                "usage": usage("align", "--teacher CHECKPOINT --output FOLDER [--config FILE]"),
                "description": "Teaches a point encoder, without labels, to give what a frozen image encoder "
                f"gives for rendered views of the same clouds. {KEYS}",
                "exit_on_error": False,
            },
            args=args,
        ).align()
