"""Point-BERT, Point-MAE, Pix4Point and Uni3D against plain references, in the files their code writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from parity import Row
from point_reference import (
    Pix4Point,
    Pix4PointEncoder,
    PointTransformer,
    PretrainedPointBert,
    PretrainedPointMae,
    Uni3d,
    Uni3dEncoder,
    bert_head,
    mae_head,
)

DIM, DEPTH, HEADS, WIDTH, REDUCED, CLASSES = 48, 2, 4, 16, 24, 5
GROUPS = (9, 5)
SETTINGS: dict[str, Any] = {"num_groups": GROUPS[0], "group_size": GROUPS[1], "num_heads": HEADS}
"""What the files leave open, and the size of the groups, to which no tensor is tied."""
XYZ = ((2, 40, 3), (2, 70, 3))
XYZRGB = ((2, 40, 6), (2, 70, 6))


def writer(wrapper: str, **beside: Any) -> Callable[[nn.Module, Path], Path]:
    """Writes what the public training code does: the weights under ``wrapper``, other things beside them."""

    def write(model: nn.Module, folder: Path) -> Path:
        torch.save({wrapper: model.state_dict(), **beside}, folder / "ckpt.pth")
        return folder / "ckpt.pth"

    return write


OPTIMIZER = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 5e-4, "params": [0]}]}
base_model = writer(
    "base_model", optimizer=OPTIMIZER, epoch=300, metrics={"acc": 93.8}, best_metrics={"acc": 94.0}
)


def point_bert(dim: int = DIM, depth: int = DEPTH, heads: int = HEADS, width: int = WIDTH) -> nn.Module:
    reduced = REDUCED if width == WIDTH else width
    head = bert_head(dim, CLASSES if width == WIDTH else 40)
    return PointTransformer(dim, depth, heads, width, GROUPS, reduced, head=head)


def point_mae(dim: int = DIM, depth: int = DEPTH, heads: int = HEADS, width: int = WIDTH) -> nn.Module:
    head = mae_head(dim, CLASSES if width == WIDTH else 40)
    return PointTransformer(dim, depth, heads, width, GROUPS, head=head)


def pretrained_point_bert() -> nn.Module:
    return PretrainedPointBert(DIM, DEPTH, HEADS, WIDTH, GROUPS, REDUCED)


def pretrained_point_mae() -> nn.Module:
    return PretrainedPointMae(DIM, DEPTH, HEADS, WIDTH, GROUPS)


def pix4point(pooled: int = 3) -> nn.Module:
    return Pix4Point(DIM, Pix4PointEncoder(DIM, DEPTH, HEADS, WIDTH, GROUPS), CLASSES, pooled)


def uni3d(architecture: str, **settings: Any) -> nn.Module:
    size = {
        "embed_dim": DIM,
        "depth": DEPTH,
        "num_heads": HEADS,
        "img_size": 28,
        "num_classes": 3,
        **settings,
    }
    visual = timm.create_model(architecture, **size)
    return Uni3d(Uni3dEncoder(visual, DIM, WIDTH, REDUCED, CLASSES, GROUPS))


def without_class_token(model: nn.Module, x: Tensor) -> Tensor:
    """Features of a pre-trained Point-MAE, whose class token comes only with fine-tuning."""
    tokens = model.tokenizer(x)
    return model.trunk(tokens.x, tokens.pos)


def row(name: str, source: str, build: Callable[[], nn.Module], prefix: str = "", **fields: Any) -> Row:
    blocks = f"{prefix}blocks.blocks."
    return Row(
        name,
        source,
        build,
        **{
            "write": base_model,
            "features": lambda model, x: model.features(x),
            "inputs": XYZ,
            "settings": SETTINGS,
            "query_key": (f"{blocks}1.attn.qkv.weight",),
            "kernel": f"{blocks}0.attn.proj.weight",
            "dropped": f"{blocks}1.norm2.bias",
            **fields,
        },
    )


def uni3d_row(name: str, query_key: tuple[str, ...], architecture: str, **settings: Any) -> Row:
    blocks = "point_encoder.visual.blocks."
    return row(
        name,
        "uni3d",
        lambda: uni3d(architecture, **settings),
        write=writer("module", epoch=20),
        features=lambda model, x: model.point_encoder.features(x),
        logits=lambda model, x: model.point_encoder(x),
        inputs=XYZRGB,
        query_key=tuple(f"{blocks}1.attn.{name}.weight" for name in query_key),
        kernel=f"{blocks}0.attn.proj.weight",
        dropped=f"{blocks}1.norm2.bias",
    )


ROWS = [
    row("Point-BERT, fine-tuned", "point_bert", point_bert),
    row(
        "Point-BERT, pre-trained",
        "point_bert",
        pretrained_point_bert,
        "transformer_q.",
        features=lambda model, x: model.transformer_q.features(x),
        logits=None,
    ),
    row("Point-MAE, fine-tuned", "point_mae", point_mae),
    row(
        "Point-MAE, pre-trained",
        "point_mae",
        pretrained_point_mae,
        "MAE_encoder.",
        features=lambda model, x: model.MAE_encoder.features(x),
        ours=without_class_token,
        logits=None,
    ),
    *(
        row(
            name,
            "pix4point",
            lambda pooled=pooled: pix4point(pooled),
            write=writer("model", epoch=300, optimizer=OPTIMIZER, best_val=87.9),
            query_key=("encoder.blocks.1.attn.qkv.weight",),
            kernel="encoder.blocks.0.attn.proj.weight",
            dropped="encoder.blocks.1.norm2.bias",
        )
        for name, pooled in (("Pix4Point", 3), ("Pix4Point without the mean", 2))
    ),
    uni3d_row("Uni3D of EVA-02 Ti and S", ("qkv",), "eva02_tiny_patch14_224"),
    uni3d_row("Uni3D of EVA-02 B and L", ("q_proj", "k_proj"), "eva02_base_patch14_448"),
    uni3d_row("Uni3D of EVA giant", ("qkv",), "eva_giant_patch14_560"),
]
