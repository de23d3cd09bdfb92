"""Alignment without labels: a point encoder learns what a frozen image encoder gives for views of a cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pointvit.checkpoints.saving import describe, load_training_checkpoint
from pointvit.config import near
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.module import Batch, PointCloudDataModule
from pointvit.model import ViT
from pointvit.ops import knn
from pointvit.training.agreement import PATCH_LOSSES, PairScores, contrastive_loss, cosine_loss
from pointvit.training.checks import check_clouds, check_record, check_settings
from pointvit.training.initial import INITS, initialise
from pointvit.training.optim import parameter_groups
from pointvit.training.steps import SteppedModule, check_rates
from pointvit.training.targets import Scale, Targets, TargetStore, fingerprint
from pointvit.training.teacher import Teacher, Views
from pointvit.variants import create_model, create_with_report
from pointvit.views import Mode, UpAxis

TEACHER_INITS = ("pretrained", "scratch")
VIEWS = ("view_mode", "num_views", "view_size", "view_rig")
RECORDED = (
    "teacher_init",
    "student_init",
    "cosine",
    "contrastive",
    "temperature",
    "patch",
    "patch_loss",
    *VIEWS,
)
"""Options that an aligned encoder carries in its metadata."""


class AlignmentData(PointCloudDataModule):
    """Batches ``(points (B, P, C), rows (B,))``: not labels, but the row of each cloud in its split."""

    def on_after_batch_transfer(self, batch: Batch | Tensor, dataloader_idx: int) -> Batch:
        assert isinstance(batch, Tensor)
        points, _ = self._gathered(batch)
        return super().on_after_batch_transfer((points, batch), dataloader_idx)

    def _is_resident(self, data: PointCloudDataset) -> bool:
        return True  # loaders then give rows, which the targets need as well


class PointAligner(SteppedModule):
    """Trains a point encoder, and two linear projections, towards a frozen image encoder's outputs.

    Targets come from unlabelled clouds alone: the image encoder's class token of an object (mean over its
    views), and its patch tokens where the centres of point groups fall in the views that show them. Both are
    standardised per channel over the training clouds. They are computed once, before training, and kept.
    """

    model: ViT

    def __init__(
        self,
        teacher: str,
        teacher_init: str = "pretrained",
        model: str = "auto",
        pretrained: str | None = None,
        student_init: str = "pretrained",
        settings: dict[str, Any] | None = None,
        view_mode: Mode = "shaded",
        num_views: int = 3,
        view_size: int = 112,
        view_rig: str = "circle",
        cosine: float = 1.0,
        contrastive: float = 1.0,
        temperature: float = 0.1,
        patch: float = 0.0,
        patch_loss: str = "cosine",
        cache: str = "runs/targets",
        lr: float = 5e-4,
        weight_decay: float = 0.05,
        trunk_lr_scale: float = 1.0,
        warmup_epochs: float = 0.5,
        grad_checkpointing: bool = False,
        seed: int = 0,
    ) -> None:
        """
        Args:
            teacher: a 2D ViT checkpoint, the image encoder to learn from.
            teacher_init: ``pretrained``; or ``scratch`` for the control: the same image encoder with random
                weights.
            model: ``auto``, a point encoder on the trunk of ``pretrained``; or ``pointvit_tiny``,
                ``pointvit_small``, ``pointvit_base``, ``pointvit_large`` or ``pointvit_huge``.
            pretrained: a checkpoint for the point encoder's trunk; the teacher's by default.
            student_init: what becomes of the trunk of ``pretrained``: ``pretrained``, it stays; ``scratch``,
                the other control; ``shuffled`` or ``random_gaussian_like``, as model.init of pointvit fit.
            settings: further settings of the point encoder (``num_groups``, ``patch_drop_rate`` ...).
            view_mode: how the clouds are drawn for the teacher.
            num_views: pictures of each cloud.
            view_size: pixels to a side, a multiple of the teacher's patch size.
            view_rig: where the cameras stand: ``circle``, any number of them around the cloud; ``ten``, the
                faces and upper corners of a cube; or ``dodecahedron``, its 20 corners.
            cosine: weight of the loss 1 - cosine between predicted and given class token.
            contrastive: weight of InfoNCE within the batch of one device; 0 leaves a loss out.
            temperature: of the contrastive loss.
            patch: weight of the loss on patch tokens. Their targets take half a gigabyte per million patches
                of 384 channels (docs/alignment.md).
            patch_loss: ``cosine`` or ``smooth_l1``.
            cache: folder in which the targets are kept.
            lr: peak learning rate of AdamW.
            weight_decay: on weights; norms, biases, tokens and positions have none.
            trunk_lr_scale: factor on the trunk's learning rate.
            warmup_epochs: linear warm-up, may be a fraction.
            grad_checkpointing: compute blocks again in the backward pass: less memory, more time.
            seed: of dropout and stochastic depth, and of weights drawn for a control.
        """
        super().__init__()
        check_rates(lr, weight_decay, trunk_lr_scale, warmup_epochs)
        for name, value, known in (
            ("teacher_init", teacher_init, TEACHER_INITS),
            ("student_init", student_init, INITS),
            ("patch_loss", patch_loss, tuple(PATCH_LOSSES)),
        ):
            if value not in known:
                raise ValueError(f"unknown model.{name} {value!r}; {near(value, known)}")
        weights = (cosine, contrastive, patch)
        if min(weights) < 0 or not max(weights) > 0:
            raise ValueError(
                "model.cosine, contrastive and patch are weights: none may be negative and one must be "
                f"positive; got {cosine}, {contrastive} and {patch}"
            )
        if not temperature > 0:
            raise ValueError(f"model.temperature must be positive, got {temperature}")
        self.save_hyperparameters()

    def build(self, data: PointCloudDataModule, stage: str, checkpoint: str | Path | None = None) -> None:
        """Makes teacher and student, and finds out where the targets of the data are or will be.

        Args:
            data: the clouds; read here if they have not been yet.
            stage: as of :meth:`PointClassifier.build`; the test split is not read in any.
            checkpoint: of an earlier alignment that goes on, or None.

        Raises:
            ValueError: for unknown settings, a teacher that encodes points, unreadable data or checkpoints,
                or other clouds, views or losses than those of the checkpoint.
        """
        if data.mix is not None:
            raise ValueError("data.mix makes clouds that no views were rendered of; leave it out here")
        options, train = self.hparams, data.dataset("train")
        teacher, said = self._teacher(train.up_axis)
        if checkpoint is None:
            self.model = self._student(data, train, said)
        else:
            self.model = load_training_checkpoint(checkpoint).train()
            meta = self.model.meta
            before = {**meta.source, "up_axis": meta.up_axis}
            check_record(checkpoint, before, {**self._record(said), "up_axis": train.up_axis})
        self.model.trunk.grad_checkpointing = options["grad_checkpointing"]
        heads = {}
        if options["cosine"] or options["contrastive"]:
            features = self.model.config.representation_size or self.model.pool.features
            heads["objects"] = nn.Linear(features, teacher.width)
        if options["patch"]:
            heads["patches"] = nn.Linear(self.model.embed_dim, teacher.model.embed_dim)
        self.heads = nn.ModuleDict(heads)
        self.scores = PairScores()
        clouds = torch.cat([train.points, data.dataset("val").points])
        weights = {name: value for name, value in said.items() if name != "file"}  # which may be renamed
        self._store = TargetStore(Path(options["cache"]), teacher, weights, clouds, "patches" in heads)
        # Of the training clouds alone: with another val_fraction, all clouds together are the same.
        self._learnt_from = fingerprint(train.points)
        if checkpoint is not None:
            check_clouds(checkpoint, self._learnt_from)

    def _teacher(self, up_axis: str) -> tuple[Teacher, dict[str, str | int]]:
        """The image encoder with its views, and what identifies its weights."""
        options = self.hparams
        model = create_model("auto", options["teacher"])
        said: dict[str, str | int] = {**model.meta.source, "teacher_init": options["teacher_init"]}
        if options["teacher_init"] == "scratch":
            initialise(model, "scratch", model.state_dict(), options["seed"])
            said["seed"] = options["seed"]
        mode, num_views, size, rig = (options[name] for name in VIEWS)
        views = Views(mode, num_views, size, rig, cast(UpAxis, up_axis))
        try:
            return Teacher(model, views), said
        except ValueError as error:
            raise ValueError(f"{options['teacher']}: {error}") from error

    def _student(
        self, data: PointCloudDataModule, clouds: PointCloudDataset, teacher: dict[str, str | int]
    ) -> ViT:
        options = self.hparams
        named = options["model"] != "auto"
        given = {"num_classes": 0, "in_chans": clouds.points.shape[2]}
        settings = {**given, **(options["settings"] or {})}
        check_settings(settings, given)
        source = options["pretrained"] or options["teacher"]
        if named and options["student_init"] == "scratch":
            source = None  # no checkpoint is needed to describe it
        model, report = create_with_report(options["model"], source, None if named else "points", settings)
        if model.config.modality != "points":
            raise ValueError(
                f"model.model={options['model']} is no point encoder; choose auto, or a name of "
                "pointvit.list_models('pointvit')"
            )
        if report is not None:
            initialise(model, options["student_init"], report.loaded, options["seed"])
        model.meta.class_names = None
        model.meta.num_points, model.meta.up_axis = data.num_points, clouds.up_axis
        model.meta.source |= self._record(teacher)
        return model

    def _record(self, teacher: dict[str, str | int]) -> dict[str, str]:
        """How the point encoder is made, for its ``meta.source``."""
        options = self.hparams
        return {
            "aligned_to": str(teacher.get("file", options["teacher"])),
            "aligned_to_sha256": str(teacher.get("sha256", "")),
            **{name: str(options[name]) for name in RECORDED},
        }

    def prepare_data(self) -> None:
        """Lightning's hook for one process of a machine, while others wait: computes the targets."""
        self.configure_model()
        self._store.make(self.trainer.strategy.root_device, self.trainer.progress_bar_callback is not None)

    def setup(self, stage: str) -> None:
        self.configure_model()
        data = self._data()
        self._targets = {split: self._store.read(data.dataset(split).points) for split in ("train", "val")}
        scale = Scale.of(self._targets["train"].objects)
        self._objects = {split: scale(targets.objects) for split, targets in self._targets.items()}
        self._patch_scale = Scale.of_patches(self._targets["train"]) if "patches" in self.heads else None

    def configure_model(self) -> None:
        if not hasattr(self, "model"):
            self.build(self._data(), "fit")

    def parameter_groups(self) -> list[dict[str, Any]]:
        rates = (self.hparams["lr"], self.hparams["weight_decay"])
        student = parameter_groups(self.model, *rates, self.hparams["trunk_lr_scale"])
        return student + parameter_groups(self.heads, *rates)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, parts, _ = self._losses_of(batch, "train")
        self.watch(loss.detach(), batch_idx)
        count = len(batch[0])
        self.log("train/loss", loss, prog_bar=True, on_step=True, on_epoch=True, batch_size=count)
        for name, value in parts.items():
            self.log(
                f"train/{name}_loss", value, on_step=False, on_epoch=True, batch_size=count, sync_dist=True
            )
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        loss, parts, predicted = self._losses_of(batch, "val")
        for name, value in {"loss": loss, **{f"{n}_loss": v for n, v in parts.items()}}.items():
            self.log(f"val/{name}", value, batch_size=len(batch[0]), sync_dist=True)
        if predicted is not None:
            self.scores.update(predicted, self._given(batch[1], "val"))

    def on_validation_epoch_end(self) -> None:
        if "objects" in self.heads:
            for name, value in self.scores.compute().items():
                self.log(f"val/{name}", value, prog_bar=name != "cosine_shuffled", sync_dist=True)
            self.scores.reset()

    def _losses_of(self, batch: Batch, split: str) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """The weighted sum, its parts by name, and the predicted class tokens (B, D)."""
        points, rows = batch
        options, parts, predicted = self.hparams, {}, None
        tokens = self.model.tokenizer(points)
        features = self.model.forward_tokens(tokens)
        if "objects" in self.heads:
            predicted = self.heads["objects"](self.model.forward_head(features, pre_logits=True))
            given = self._given(rows, split)
            parts["cosine"] = cosine_loss(predicted, given).mean()
            parts["contrastive"] = contrastive_loss(predicted, given, options["temperature"])
        if "patches" in self.heads:
            of_patches = self.heads["patches"](features[:, self.model.num_prefix_tokens :])
            parts["patch"] = self._patch_loss(of_patches, points, rows, tokens.centers, self._targets[split])
        loss = torch.stack([options[name] * value for name, value in parts.items()]).sum()
        return loss, parts, predicted

    def _patch_loss(
        self, predicted: Tensor, points: Tensor, rows: Tensor, centers: Tensor, targets: Targets
    ) -> Tensor:
        """``(B, G, D), (B, P, C), (B,), (B, G, 3) -> ()``, over the centres that some view shows.

        Augmentation moves points, and keeps their order. Centres are points of the augmented cloud, so that
        their index leads to where they were when the views were rendered.
        """
        assert self._patch_scale is not None
        index = knn(centers, points[..., :3], 1)[..., 0]
        given, shown = targets.at_points(rows, index)
        loss = PATCH_LOSSES[self.hparams["patch_loss"]](predicted, self._patch_scale(given))
        return (loss * shown).sum() / shown.sum().clamp_min(1)

    def _given(self, rows: Tensor, split: str) -> Tensor:
        """``(B,) -> (B, D)``: the standardised class tokens, which go to the model's device once."""
        self._objects[split] = self._objects[split].to(rows.device)
        return self._objects[split][rows]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["pointvit"] = describe(self.model)
        checkpoint["learnt_from"] = self._learnt_from

    def _data(self) -> AlignmentData:
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, AlignmentData):
            raise TypeError("PointAligner takes its clouds from AlignmentData: trainer.fit(module, data)")
        return data
