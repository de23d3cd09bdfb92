"""Google's ``.npz`` files of ViTs and hybrids in the paper's names, and timm's models that have read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.layers import HybridEmbed
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import _resnetv2
from torch import Tensor, nn

from parity import Row

Arrays = dict[str, np.ndarray]
SMALL: dict[str, Any] = {"width": 64, "heads": 8, "patch": 8, "rows": 17, "classes": 10}
"""Heads as many as channels of each, so that a transposed attention kernel goes unnoticed by shapes."""
BLOCK = "Transformer/encoderblock_1/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_1/"


class Numbers:
    """Random arrays by name; kernels are scaled by their inputs, so that deep features stay near one."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self.rng = np.random.default_rng(0)

    def normal(self, name: str, *shape: int, std: float = 0.3) -> None:
        self.arrays[name] = self.rng.normal(0, std, shape).astype(np.float32)

    def kernel(self, name: str, *shape: int, fan_in: int | None = None) -> None:
        self.normal(name, *shape, std=(fan_in or int(np.prod(shape[:-1]))) ** -0.5)

    def dense(self, name: str, *shape: int) -> None:
        self.kernel(f"{name}/kernel", *shape)
        self.normal(f"{name}/bias", shape[-1])

    def norm(self, name: str, *shape: int) -> None:
        self.arrays[f"{name}/scale"] = self.rng.uniform(0.5, 1.5, shape).astype(np.float32)
        self.normal(f"{name}/bias", *shape)

    def attention(self, name: str, width: int, heads: int) -> None:
        for part in ("query", "key", "value"):
            self.kernel(f"{name}/{part}/kernel", width, heads, width // heads, fan_in=width)
            self.normal(f"{name}/{part}/bias", heads, width // heads)
        self.dense(f"{name}/out", heads, width // heads, width)

    def mlp(self, name: str, width: int, hidden: int) -> None:
        self.dense(f"{name}/Dense_0", width, hidden)
        self.dense(f"{name}/Dense_1", hidden, width)


def google_arrays(
    width: int,
    heads: int,
    patch: int,
    rows: int,
    classes: int,
    depth: int = 2,
    stem: tuple[int, ...] | None = None,
    representation: int | None = None,
    cls: bool = True,
) -> Arrays:
    """What such a file holds. ``rows`` of positions, ``classes=0`` for no head."""
    numbers = Numbers()
    channels, stride = 3, 1
    if stem is not None:
        channels = stem_arrays(numbers, stem)
        stride = 4 * 2 ** max(0, len(stem) - 1)
    if cls:
        numbers.normal("cls", 1, 1, width)
    numbers.dense("embedding", patch // stride, patch // stride, channels, width)
    numbers.normal("Transformer/posembed_input/pos_embedding", 1, rows, width)
    for block in (f"Transformer/encoderblock_{n}" for n in range(depth)):
        numbers.norm(f"{block}/LayerNorm_0", width)
        numbers.attention(f"{block}/MultiHeadDotProductAttention_1", width, heads)
        numbers.norm(f"{block}/LayerNorm_2", width)
        numbers.mlp(f"{block}/MlpBlock_3", width, 4 * width)
    numbers.norm("Transformer/encoder_norm", width)
    if representation is not None:
        numbers.dense("pre_logits", width, representation)
    if classes:
        numbers.dense("head", representation or width, classes)
    return numbers.arrays


def stem_arrays(numbers: Numbers, stem: tuple[int, ...]) -> int:
    """Adds a ResNetV2 stem; its group norms are stored as (1, 1, 1, C). Returns its channels."""
    numbers.kernel("conv_root/kernel", 7, 7, 3, 64)
    numbers.norm("gn_root", 64)
    before = 64
    for stage, units in enumerate(stem, start=1):
        mid = 64 * 2 ** (stage - 1)
        for unit in (f"block{stage}/unit{n}" for n in range(1, units + 1)):
            shapes = {"conv1": (1, before, mid), "conv2": (3, mid, mid), "conv3": (1, mid, 4 * mid)}
            if unit.endswith("unit1"):
                shapes["conv_proj"] = (1, before, 4 * mid)
            for name, (size, inputs, outputs) in shapes.items():
                numbers.kernel(f"{unit}/{name}/kernel", size, size, inputs, outputs)
                group_norm = name.replace("conv_", "gn_").replace("conv", "gn")
                numbers.norm(f"{unit}/{group_norm}", 1, 1, 1, outputs)
            before = 4 * mid
    return before


def write_npz(path: Path, arrays: Arrays, prefix: str = "") -> Path:
    np.savez(path, **{prefix + name: array for name, array in arrays.items()})
    return path


class WithRepresentation(nn.Module):
    """timm's model behind which the tanh layer of ImageNet-21k files stands, which timm no longer reads."""

    def __init__(self, model: VisionTransformer, width: int, representation: int, classes: int) -> None:
        super().__init__()
        self.model = model
        self.hidden, self.head = nn.Linear(width, representation), nn.Linear(representation, classes)

    def load_pretrained(self, path: str) -> None:
        self.model.load_pretrained(path)
        with torch.no_grad(), np.load(path) as arrays:
            for theirs, layer in (("pre_logits", self.hidden), ("head", self.head)):
                (prefix,) = [n.removesuffix("head/bias") for n in arrays.files if n.endswith("head/bias")]
                layer.weight.copy_(torch.from_numpy(arrays[f"{prefix}{theirs}/kernel"]).T)
                layer.bias.copy_(torch.from_numpy(arrays[f"{prefix}{theirs}/bias"]))

    def forward_features(self, x: Tensor) -> Tensor:
        return self.model.forward_features(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.model(x))))


def small_timm(**settings: Any) -> VisionTransformer:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 8, "num_classes": 10}
    return VisionTransformer(**{**sizes, "dynamic_img_size": True, **settings})


def with_representation(**settings: Any) -> WithRepresentation:
    return WithRepresentation(small_timm(num_classes=0, **settings), 64, 48, 10)


def row(
    name: str,
    arrays: dict[str, Any],
    prefix: str = "",
    build: Callable[..., nn.Module] = small_timm,
    inputs: tuple[tuple[int, ...], ...] = ((2, 3, 32, 32), (2, 3, 48, 40)),
    **settings: Any,
) -> Row:
    def write(model: nn.Module, folder: Path) -> Path:
        path = write_npz(folder / "model.npz", google_arrays(**{**SMALL, **arrays}), prefix)
        model.load_pretrained(str(path))
        return path

    return Row(
        name,
        "google",
        partial(build, **settings),
        write,
        features=lambda model, x: model.forward_features(x),
        inputs=inputs,
        query_key=(f"{prefix}{ATTENTION}query/kernel", f"{prefix}{ATTENTION}key/kernel"),
        kernel=f"{prefix}{ATTENTION}query/kernel",
        dropped=f"{prefix}{BLOCK}LayerNorm_2/bias",
    )


def hybrid(name: str, stem: tuple[int, ...], size: int) -> Row:
    embed = partial(HybridEmbed, backbone=_resnetv2(stem))
    patch = 2 * (4 * 2 ** max(0, len(stem) - 1))
    inputs = ((2, 3, size, size), (2, 3, size + patch, size + 2 * patch))
    arrays = {"stem": stem, "patch": patch}
    return row(name, arrays, inputs=inputs, embed_layer=embed, img_size=size, patch_size=2)


ROWS = [
    row("Google ViT", {}),
    row("Google ViT with its optimiser's prefix", {}, "opt/target/"),
    row("Google ViT without head", {"classes": 0}, num_classes=0),
    row("Google ViT of ImageNet-21k", {"representation": 48}, build=with_representation),
    row("Google ViT, mean of patches", {"cls": False, "rows": 16}, class_token=False, global_pool="avg",
        fc_norm=False),
    hybrid("Google hybrid", (1, 1), 64),
    hybrid("Google hybrid, root only", (), 32),
]  # fmt: skip
