"""big_vision's ``.npz`` files, which timm reads but for fixed positions, whose formula stands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from parity import Row
from parity.google_rows import (
    SMALL,
    Arrays,
    Numbers,
    google_arrays,
    small_timm,
    with_representation,
    write_npz,
)

NAMES = {
    "Transformer/posembed_input/": "",
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}
NO_CLASS_TOKEN: dict[str, Any] = {"class_token": False, "global_pool": "avg", "fc_norm": False}
Change = Callable[[Arrays], Arrays]


def big_vision_arrays(stacked: bool = False, map_head: bool = False, **sizes: Any) -> Arrays:
    """What such a file holds: the positions of 16 patches, no class token unless ``cls``."""
    sizes = {**SMALL, "rows": 16, "cls": False, **sizes}
    arrays = as_big_vision(google_arrays(**sizes), stacked)
    if not map_head:
        return arrays
    numbers, width = Numbers(), sizes["width"]
    numbers.normal("MAPHead_0/probe", 1, 1, width)
    numbers.attention("MAPHead_0/MultiHeadDotProductAttention_0", width, sizes["heads"])
    numbers.norm("MAPHead_0/LayerNorm_0", width)
    numbers.mlp("MAPHead_0/MlpBlock_0", width, 4 * width)
    return arrays | numbers.arrays


def as_big_vision(arrays: Arrays, stacked: bool = False) -> Arrays:
    """The paper's arrays under big_vision's names, optionally with the blocks stacked on a leading axis."""
    renamed: Arrays = {}
    for name, array in arrays.items():
        for theirs, big_vision in NAMES.items():
            name = name.replace(theirs, big_vision)
        renamed[name] = array
    if not stacked:
        return renamed
    blocks = [name for name in renamed if "encoderblock_0" in name]
    depth = sum("/LayerNorm_0/scale" in name for name in renamed)
    for name in blocks:
        parts = [renamed.pop(name.replace("_0/", f"_{n}/", 1)) for n in range(depth)]
        renamed[name.replace("encoderblock_0", "encoderblock")] = np.stack(parts)
    return renamed


def sincos2d(grid: tuple[int, int], width: int) -> Tensor:
    """``posemb="sincos2d"``: sin(x w), cos(x w), sin(y w), cos(y w) with w_i = 10000^(-i / (D/4 - 1))."""
    w = 10_000.0 ** -(np.arange(width // 4) / (width // 4 - 1))
    places = [(y, x) for y in range(grid[0]) for x in range(grid[1])]
    rows = [np.concatenate([np.sin(x * w), np.cos(x * w), np.sin(y * w), np.cos(y * w)]) for y, x in places]
    return torch.from_numpy(np.stack(rows).astype(np.float32))[None]


def with_fixed_positions(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The model for images of another shape: its positions are computed, not resampled."""
    grid = (shape[2] // 8, shape[3] // 8)
    state = {**model.state_dict(), "pos_embed": sincos2d(grid, 64)}
    other = small_timm(**NO_CLASS_TOKEN, img_size=shape[2:])
    other.load_state_dict(state)
    return other.eval()


def beside_text(arrays: Arrays) -> Arrays:
    """The text tower and the two numbers of the loss, which stand beside an image tower."""
    numbers = Numbers()
    numbers.attention("params/txt/Encoder_0/encoderblock/MultiHeadDotProductAttention_0", 32, 4)
    numbers.normal("params/t", 1)
    numbers.normal("params/b", 1)
    return arrays | numbers.arrays


def without_positions(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if not name.endswith("pos_embedding")}


def before_2022(arrays: Arrays) -> Arrays:
    """The position table inside the encoder, where timm does not look for it."""
    return {name.replace("pos_embedding", "Transformer/pos_embedding"): a for name, a in arrays.items()}


def row(
    name: str,
    arrays: dict[str, Any],
    prefix: str = "params/",
    build: Callable[..., nn.Module] = small_timm,
    change: Change = lambda arrays: arrays,
    **settings: Any,
) -> Row:
    """``change`` makes the file of what timm has read."""
    stacked = "" if arrays.get("stacked") else "_1"
    block = f"{prefix}Transformer/encoderblock{stacked}/"
    attention = block + "MultiHeadDotProductAttention_0/"

    def write(model: nn.Module, folder: Path) -> Path:
        path = write_npz(folder / "model.npz", big_vision_arrays(**arrays), prefix)
        model.load_pretrained(str(path))
        with np.load(path) as archive:
            read = dict(archive)
        return write_npz(path, change(read))

    return Row(
        name,
        "big_vision",
        partial(build, **settings),
        write,
        features=lambda model, x: model.forward_features(x),
        query_key=(f"{attention}query/kernel", f"{attention}key/kernel"),
        kernel=f"{attention}query/kernel",
        dropped=f"{block}LayerNorm_1/bias",
    )


def fixed_positions() -> Row:
    """The released S/16 baselines: no table in the file, and the formula in the model."""
    plain = row("big_vision S/16 with fixed positions", {}, change=without_positions, **NO_CLASS_TOKEN)

    def write(model: nn.Module, folder: Path) -> Path:
        path = plain.write(model, folder)
        assert isinstance(model, VisionTransformer)
        with torch.no_grad():
            model.pos_embed.copy_(sincos2d((4, 4), 64))
        return path

    return replace(plain, write=write, at=with_fixed_positions)


MAP: dict[str, Any] = {**NO_CLASS_TOKEN, "global_pool": "map"}
ROWS = [
    row("big_vision, mean of patches", {}, **NO_CLASS_TOKEN),
    row("big_vision, stacked, without prefix", {"stacked": True}, "", **NO_CLASS_TOKEN),
    row("big_vision, class token", {"cls": True}, no_embed_class=True),
    row("big_vision, tanh layer", {"representation": 48}, build=with_representation, **NO_CLASS_TOKEN),
    row("big_vision before 2022", {}, change=before_2022, **NO_CLASS_TOKEN),
    row("big_vision, attention pooling", {"map_head": True}, **MAP),
    row("SigLIP's image tower", {"map_head": True, "stacked": True, "classes": 0}, "params/img/",
        change=beside_text, num_classes=0, **MAP),
    fixed_positions(),
]  # fmt: skip
