"""The whole idea in minutes: an image ViT's trunk starts a point encoder, on synthetic shapes made here."""

from __future__ import annotations

import csv
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities.types import OptimizerLRScheduler
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pointvit import plots
from pointvit.checkpoints import load, save_checkpoint
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.module import PointCloudDataModule, step_seed
from pointvit.diagnosis import fast_bf16
from pointvit.model import ViT
from pointvit.training.callbacks import callbacks
from pointvit.training.classifier import PointClassifier
from pointvit.training.cli import quiet
from pointvit.training.memory import keep_freed_memory
from pointvit.training.optim import parameter_groups, warmup_cosine
from pointvit.variants import create_model
from pointvit.views import render_points

IMAGE_SIZE, VIEWS, SEED = 64, 2, 0
IMAGE_MODEL, IMAGE_PASSES = "vit_tiny_patch16_224", 1.5
# As in DINOv2, blocks begin as small corrections, so that tokens of another kind pass through them at first.
LAYER_SCALE = 0.1
POINT_SETTINGS = {
    "layer_scale": LAYER_SCALE,
    "num_groups": 48,
    "group_size": 16,
    "patch_drop_rate": 0.25,
    "head": "linear",
}


@dataclass(frozen=True)
class Arm:
    """One row of the result."""

    start: str
    overall_accuracy: float
    mean_class_accuracy: float
    seconds: float
    curve: list[float]
    """Validation accuracy after each epoch."""
    folder: Path


class ViewClassifier(pl.LightningModule):
    """Pre-trains an image encoder to name the class of rendered views."""

    def __init__(self, num_classes: int, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = lr
        self.model = create_model(
            IMAGE_MODEL, img_size=IMAGE_SIZE, num_classes=num_classes, layer_scale=LAYER_SCALE
        )

    def on_train_batch_start(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        torch.manual_seed(step_seed(SEED, self.global_step, stream=4))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        logits = self.model(images)
        self.log("accuracy", (logits.argmax(dim=1) == labels).float().mean(), prog_bar=True)
        return F.cross_entropy(logits, labels, label_smoothing=0.1)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.AdamW(parameter_groups(self.model, self.lr, 0.05))
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = warmup_cosine(optimizer, steps // 10, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


@quiet()
def run(output: Path, epochs: int, shapes_per_class: int | None, console: Console) -> list[Arm]:
    """Makes the data, pre-trains the image encoder, trains both arms, predicts one file, prints the table."""
    keep_freed_memory()
    output.mkdir(parents=True, exist_ok=True)
    data = PointCloudDataModule(
        "shapes", batch_size=32, val_fraction=0.1, shapes_per_class=shapes_per_class, seed=SEED
    )

    console.rule("1. Synthetic shapes, and views of them")
    train = data.dataset("train")
    images = _views(train)
    views_picture = plots.contact_sheet(output / "views.png", images[:, 0], train.labels, train.class_names)
    console.print(f"{len(train)} training shapes of {len(train.class_names)} classes; views: {views_picture}")

    console.rule("2. A small image ViT learns to name the views")
    checkpoint = _pretrain(images, train, output, epochs)
    console.print(f"Saved as a plain 2D checkpoint in timm's names: {checkpoint}")

    console.rule("3. A point encoder starts from its trunk, a twin from scratch")
    arms = [
        _train_arm("2D ViT", output / "from_2d", data, epochs, str(checkpoint)),
        _train_arm("scratch", output / "from_scratch", data, epochs, None),
    ]

    console.rule("4. What came out")
    curves = {arm.start: arm.curve for arm in arms}
    curves_picture = plots.learning_curves(output / "curves.png", curves, "Shapes (synthetic)")
    both = plots.sheet_and_curves(
        output / "demo.png", images[:, 0], train.labels, train.class_names, curves, "Shapes (synthetic)"
    )
    console.print(_table(arms))
    _predict_one(data.dataset("test"), output, arms[0], console)
    console.print(
        f"Pictures: {both}, {views_picture}, {curves_picture}, {arms[0].folder / 'test' / 'confusion.png'}"
    )
    return arms


def _views(data: PointCloudDataset) -> Tensor:
    """``(N, V, 3, 64, 64)``: shaded views of every cloud."""
    chunks = [
        render_points(points, num_views=VIEWS, size=IMAGE_SIZE, mode="shaded")
        for points in data.points.split(64)
    ]
    return torch.cat(chunks)


def _pretrain(images: Tensor, data: PointCloudDataset, output: Path, epochs: int) -> Path:
    module = ViewClassifier(len(data.class_names))
    labels = data.labels.repeat_interleave(VIEWS)
    order = torch.Generator().manual_seed(SEED)
    loader = DataLoader(
        TensorDataset(images.flatten(0, 1), labels),
        batch_size=32,
        shuffle=True,
        generator=order,
        drop_last=True,
    )
    _trainer(math.ceil(IMAGE_PASSES * epochs), output / "image").fit(module, loader)
    return save_checkpoint(module.model, output / "image_vit.safetensors", source="timm")


def _train_arm(
    start: str, folder: Path, data: PointCloudDataModule, epochs: int, pretrained: str | None
) -> Arm:
    begin = time.perf_counter()
    module = PointClassifier(
        "pointvit_tiny",
        pretrained,
        POINT_SETTINGS,
        lr=1e-3,
        trunk_lr_scale=0.5,
        label_smoothing=0.1,
        seed=SEED,
    )
    trainer = _trainer(epochs, folder)
    trainer.fit(module, data)
    seconds = time.perf_counter() - begin
    logs = Path(trainer.log_dir or folder)
    trainer.test(ckpt_path="best", datamodule=data, verbose=False)
    scores = module.scores
    assert scores is not None
    with (logs / "metrics.csv").open(encoding="utf-8") as file:
        curve = [float(row["val/oa"]) for row in csv.DictReader(file) if row.get("val/oa")]
    return Arm(start, scores.overall_accuracy, scores.mean_class_accuracy, seconds, curve, logs)


def _trainer(epochs: int, folder: Path) -> pl.Trainer:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    training_points = folder.name != "image"
    return pl.Trainer(
        max_epochs=epochs,
        accelerator=device,
        devices=1,
        precision="bf16-mixed" if fast_bf16(device) else "32-true",
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        log_every_n_steps=10,
        use_distributed_sampler=False,
        enable_model_summary=False,
        enable_checkpointing=training_points,
        callbacks=callbacks() if training_points else None,
        logger=CSVLogger(folder, name=None) if training_points else False,
        default_root_dir=folder,
    )


def _predict_one(data: PointCloudDataset, output: Path, arm: Arm, console: Console) -> None:
    index = int(np.random.default_rng(SEED).integers(len(data)))
    points, label = data[index]
    file = output / f"{data.class_names[label]}.xyz"
    np.savetxt(file, points.numpy(), fmt="%.6f")
    model = load(arm.folder / "model")
    assert isinstance(model, ViT)
    answer = ", ".join(f"{name} {probability:.0%}" for name, probability in model.predict(file, top=3))
    console.print(f"pointvit predict {arm.folder / 'model'} {file}  ->  {answer}")


def _table(arms: list[Arm]) -> Table:
    table = Table(
        "trunk starts from", "OA", "mAcc", "seconds", title="Held-out test shapes (synthetic data, one seed)"
    )
    for arm in arms:
        table.add_row(
            arm.start, f"{arm.overall_accuracy:.1%}", f"{arm.mean_class_accuracy:.1%}", f"{arm.seconds:.0f}"
        )
    return table
