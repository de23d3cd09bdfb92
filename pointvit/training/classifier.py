"""The LightningModule that trains and tests a point classifier."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from pointvit.checkpoints.saving import describe, load_training_checkpoint
from pointvit.config import near
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.module import Batch, PointCloudDataModule, step_seed
from pointvit.model import ViT
from pointvit.training.calibration import CLOUDS, calibrate_tokens, image_encoder
from pointvit.training.checks import check_classes, check_fit, check_settings, check_transfer
from pointvit.training.initial import CONTROLS, INITS, initialise
from pointvit.training.metrics import Scores
from pointvit.training.optim import parameter_groups
from pointvit.training.steps import SteppedModule, check_rates
from pointvit.training.transfer import TRANSFER_MODES, apply_transfer, reapply_transfer, resolve
from pointvit.training.voting import protocol, vote
from pointvit.variants import create_with_report, list_models

logger = logging.getLogger(__name__)


class PointClassifier(SteppedModule):
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
        votes: int = 1,
        seed: int = 0,
        transfer: str = "full",
        transfer_options: dict[str, Any] | None = None,
        init: str = "pretrained",
        layer_decay: float = 1.0,
        calibrate_tokens: bool = False,
    ) -> None:
        """
        Args:
            model: ``pointvit_tiny``, ``pointvit_small``, ``pointvit_base``, ``pointvit_large`` or
                ``pointvit_huge``; or ``auto``, the trunk of ``pretrained``.
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
            votes: in a test, score the mean over so many augmented copies of each cloud as well, under the
                names test/oa_voted and test/macc_voted.
            seed: of dropout and stochastic depth, step by step, of voting, and of what ``init`` draws.
            transfer: what learns of the trunk: ``full``, ``frozen``, ``head``, ``norm``, ``bias``, ``lora``,
                ``adapter``, ``prompt`` or ``blocks``; ``blocks=2`` is the last two (docs/transfer.md).
            transfer_options: of that mode: ``rank``, ``alpha`` and ``mlp`` of lora, ``bottleneck`` and
                ``scale`` of adapter, ``count`` of prompt, ``k`` of blocks; ``tokenizer`` of these, norm and
                bias.
            init: what becomes of what ``pretrained`` holds: ``pretrained``, it stays; ``scratch``, fresh
                random weights; ``shuffled``, its numbers in random order; ``random_gaussian_like``, random
                with its means and deviations.
            layer_decay: each block of the trunk learns more slowly than the next by this factor, in (0, 1].
            calibrate_tokens: give point tokens the mean and deviation of the checkpoint's image tokens.
        """
        super().__init__()
        check_rates(lr, weight_decay, trunk_lr_scale, warmup_epochs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"model.label_smoothing must lie in [0, 1), got {label_smoothing}")
        if not 0 < layer_decay <= 1:
            raise ValueError(f"model.layer_decay must lie in (0, 1], got {layer_decay}")
        if init not in INITS:
            raise ValueError(f"unknown model.init {init!r}; {near(init, INITS)}")
        if pretrained is None and (init in CONTROLS or calibrate_tokens):
            what = "model.calibrate_tokens" if calibrate_tokens else f"model.init={init}"
            raise ValueError(f"{what} needs model.pretrained, the checkpoint whose numbers it goes by")
        mode, _ = resolve(transfer, transfer_options or {})
        if trunk_lr_scale == 0 and TRANSFER_MODES[mode].pretrained:
            raise ValueError(
                f"model.trunk_lr_scale=0 leaves what model.transfer={transfer} trains in the trunk as it is; "
                "use model.transfer=frozen"
            )
        if votes < 1:
            raise ValueError(f"model.votes must be at least 1, got {votes}")
        # Lightning prefers what a checkpoint holds to what a test is given, and votes are the test's.
        self.save_hyperparameters(ignore=["votes"])
        self.votes = votes
        self.class_names: list[str] = []
        self.scores: Scores | None = None

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
            self.model = self._new_model(data, dataset, stage)
        else:
            # Lightning leaves the mode of modules as it finds it, and a resumed training needs dropout.
            self.model = load_training_checkpoint(checkpoint).train()
            check_fit(self.model, data, dataset, checkpoint)
            if stage == "fit":
                mode, chosen = self.hparams["transfer"], self.hparams["transfer_options"] or {}
                check_transfer(checkpoint, mode, chosen)
                reapply_transfer(self.model, mode, **chosen)
        norms = [m for m in self.model.head.modules() if isinstance(m, nn.BatchNorm1d)]
        if stage == "fit" and norms and data.batch_size == 1:
            raise ValueError(
                "data.batch_size=1 gives the head's batch norm no statistics; use at least 2, or "
                "model.settings={head: linear}"
            )
        self.confusion = MulticlassConfusionMatrix(num_classes=len(self.class_names))
        if self.votes > 1:
            self.voted = MulticlassConfusionMatrix(num_classes=len(self.class_names))
            self.protocol = protocol(data.augment, self.votes, self.hparams["seed"], 2 * data.batch_size)
        self.matrices = {name for name, parameter in self.model.named_parameters() if parameter.ndim > 1}
        self.model.trunk.grad_checkpointing = self.hparams["grad_checkpointing"]
        if self.hparams["compile"]:
            self.model.compile(dynamic=True)

    def _new_model(self, data: PointCloudDataModule, dataset: PointCloudDataset, stage: str) -> ViT:
        options = self.hparams
        given = {"num_classes": len(dataset.class_names), "in_chans": dataset.points.shape[2]}
        settings = {**given, **(options["settings"] or {})}
        check_settings(settings, given)
        tokenizer = settings.pop("tokenizer", "points" if options["model"] == "auto" else None)
        model, report = create_with_report(options["model"], options["pretrained"], tokenizer, settings)
        if model.config.modality != "points":
            known = ", ".join(list_models("pointvit"))
            raise ValueError(f"model.model={options['model']} takes images; expected one of {known}")
        if report is not None:
            replaced = initialise(model, options["init"], report.loaded, options["seed"])
            if replaced:
                logger.info("init=%s in place of %d tensors that were loaded", options["init"], len(replaced))
        if options["calibrate_tokens"] and stage == "fit":
            clouds = dataset.points[:: max(1, len(dataset) // CLOUDS)][:CLOUDS]
            image = image_encoder(options["pretrained"], settings)
            logger.info("%s", calibrate_tokens(model, image, clouds, up_axis=dataset.up_axis))
        apply_transfer(model, options["transfer"], **(options["transfer_options"] or {}))
        model.meta.class_names = dataset.class_names
        model.meta.num_points = data.num_points
        model.meta.up_axis = dataset.up_axis
        return model

    def parameter_groups(self) -> list[dict[str, Any]]:
        names = ("lr", "weight_decay", "trunk_lr_scale", "layer_decay")
        rates = {name: self.hparams[name] for name in names}
        return parameter_groups(self.model, **rates, matrices=self.matrices)

    def forward(self, points: Tensor) -> Tensor:
        return self.model(points)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        points, labels = batch
        loss = F.cross_entropy(self(points), labels, label_smoothing=self.hparams["label_smoothing"])
        self.watch(loss.detach(), batch_idx)
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True, batch_size=len(labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        points, labels = batch
        logits = self(points)
        self.log("val/loss", F.cross_entropy(logits, labels), batch_size=len(labels), sync_dist=True)
        self.confusion.update(logits.float().argmax(dim=1), labels)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        points, labels = batch
        self.confusion.update(self(points).float().argmax(dim=1), labels)
        if self.votes > 1:
            seed = step_seed(self.hparams["seed"], batch_idx, self.global_rank, stream=4)
            voted = vote(self, points, self._data().augment, self.votes, seed)
            self.voted.update(voted.argmax(dim=1), labels)

    def on_validation_epoch_end(self) -> None:
        self._score("val")

    def on_test_epoch_end(self) -> None:
        scores = self._score("test")
        log_dir = self.trainer.log_dir  # All ranks take part in asking for it.
        if self.trainer.is_global_zero and log_dir is not None:
            folder = Path(log_dir) / "test"
            scores.save(folder, self.class_names, "test split")
            self.print(f"Confusion matrix, per-class accuracy and metrics.json: {folder}")
        if self.votes > 1:
            self._score_votes(log_dir)

    def _score(self, split: str) -> Scores:
        self.scores = Scores.of(self.confusion.compute().cpu())
        self.confusion.reset()
        self.log(f"{split}/oa", self.scores.overall_accuracy, prog_bar=True, sync_dist=True)
        self.log(f"{split}/macc", self.scores.mean_class_accuracy, prog_bar=True, sync_dist=True)
        return self.scores

    def _score_votes(self, log_dir: str | None) -> None:
        scores = Scores.of(self.voted.compute().cpu())
        self.voted.reset()
        self.log("test/oa_voted", scores.overall_accuracy, sync_dist=True)
        self.log("test/macc_voted", scores.mean_class_accuracy, sync_dist=True)
        self.print(f"Voted: {self.protocol}")
        if self.trainer.is_global_zero and log_dir is not None:
            folder = Path(log_dir) / "test" / "voted"
            scores.save(folder, self.class_names, f"test split, {self.votes} votes")
            (folder / "protocol.txt").write_text(f"{self.protocol}\n", encoding="utf-8")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["pointvit"] = describe(self.model)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.class_names:
            check_classes(checkpoint["pointvit"]["meta"]["class_names"], self.class_names, "the checkpoint")

    def _data(self) -> PointCloudDataModule:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, PointCloudDataModule):
            raise TypeError(
                "PointClassifier takes its classes from a PointCloudDataModule: trainer.fit(module, data)"
            )
        return data
