"""Checks of a checkpoint before anything is built from it: shapes, and what its description says."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from pointvit.checkpoints.architecture import (
    FC1,
    FC2,
    POINTS,
    QKV,
    STEM_ROOTS,
    block_count,
    stem_of,
)
from pointvit.checkpoints.shapes import ShapesAlone
from pointvit.checkpoints.sources import native
from pointvit.config import ViTConfig
from pointvit.model import ViT
from pointvit.tokenizers import ImageTokenizerConfig

UNSOUND = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)
"""What reading damaged or contradictory content raises; RuntimeError: shapes, from torch."""
RANKS = {QKV: 2, FC1: 2, FC2: 2, POINTS: 2, "pos_embed": 3, "tokenizer.proj.weight": 4, "reg_tokens": 3,
         "cls_token": 3, "head.weight": 2, "head.cls.weight": 2, "head.3.weight": 2, "head.8.weight": 2,
         "pre_logits.0.weight": 2, "tokenizer.embed.first.3.weight": 2, "tokenizer.reduce.weight": 2,
         **dict.fromkeys(STEM_ROOTS, 4)}  # fmt: skip
"""Dimensions of the tensors whose shapes are read before they are compared with the model's."""


def reason_of(error: Exception, most: int = 300) -> str:
    """An error's message on one line, without the end of one that repeats what a file holds at length."""
    text = " ".join(str(error).split())
    return text if len(text) <= most else f"{text[:most]}..."


def check_tensors(tensors: Mapping[str, Tensor], aside: Collection[str] = ()) -> None:
    """Raises ValueError unless the tensors of an encoder have dimensions and numbers to derive it from.

    Args:
        aside: names of tensors that no model needs.
    """
    if QKV not in tensors:
        raise ValueError("the attention of its first block is incomplete")
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if tensor.ndim != RANKS.get(name, tensor.ndim):
            raise ValueError(f"{name} should have {RANKS[name]} dimensions, its shape is {shape}")
        if 0 in shape and name not in aside:
            raise ValueError(f"{name} holds no numbers, its shape is {shape}")


def is_finite(tensor: Tensor) -> bool:
    """``(...) -> ()``: whether there is no NaN and nothing infinite, without a mask of the tensor's size."""
    return tensor.numel() == 0 or all(bool(torch.isfinite(end)) for end in tensor.aminmax())


def check_described(config: ViTConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError unless a model of ``config`` has the shapes of ``tensors`` (under our names).

    Tensors that one side alone has are left to loading, but for a head's, which loading could set aside.
    Numbers that building takes time or memory by are compared first; then it is built of shapes alone.
    """
    trunk, tokenizer = config.trunk, config.tokenizer
    pairs = {
        "blocks": (trunk.depth, block_count(tensors)),
        "width": (trunk.embed_dim, tensors[QKV].shape[1]),
        "registers": (
            config.num_reg_tokens,
            tensors["reg_tokens"].shape[1] if "reg_tokens" in tensors else 0,
        ),
    }
    if isinstance(tokenizer, ImageTokenizerConfig):
        pairs["stages of a stem"] = (len(tokenizer.stem or ()), len(stem_of(tensors) or ()))
    for what, (said, held) in pairs.items():
        if said != held:
            raise ValueError(f"its description says {what}: {said:.6g}, its weights have {held}")
    if isinstance(tokenizer, ImageTokenizerConfig) and tokenizer.stem != stem_of(tensors):
        raise ValueError(f"its description says stem={tokenizer.stem}, its weights have {stem_of(tensors)}")
    with torch.device("meta"), ShapesAlone():
        wanted = native.decode(ViT(config).state_dict())
    for name, tensor in tensors.items():
        if name.startswith("head.") and name not in wanted:
            raise ValueError(f"its description has no place for {name}")
        if name in wanted and wanted[name].shape != tensor.shape:
            shapes = f"{tuple(wanted[name].shape)}, its weights have {tuple(tensor.shape)}"
            raise ValueError(f"its description makes {name} of shape {shapes}")
