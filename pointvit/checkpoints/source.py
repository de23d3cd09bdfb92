"""What a checkpoint source is: a name, and pure functions between the file's names and ours.

"Ours" are the names of an image encoder's state dict (``trunk.blocks.0.attn.qkv.weight``,
``tokenizer.proj.weight``, ``head.weight``), except that the position table stays whole, as ``pos_embed``, and
is split and resampled while loading.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pointvit.config import ViTConfig

Tensors = dict[str, Tensor]
HEADS_BY_WIDTH = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24}
"""Attention heads of public ViTs by width, for files that do not say."""


@dataclass(frozen=True)
class Source:
    """One family of checkpoints.

    Attributes:
        name: as in ``load_checkpoint(source=...)``.
        matches: whether a file with these names is of this source.
        decode: file names and tensors -> ours; names it does not know are passed through, and reported.
        encode: ours -> file names and tensors; the inverse of ``decode``.
        settings: what names and shapes do not tell (LayerNorm eps, activation, heads), from the
            decoded file and its ``config.json``; the model asked for decides what is left out.
        set_aside: beginnings of decoded names that a model does not need, with the reason.
    """

    name: str
    matches: Callable[[Collection[str]], bool]
    decode: Callable[[Tensors], Tensors]
    encode: Callable[[Tensors, ViTConfig], Tensors]
    settings: Callable[[Tensors, dict[str, Any] | None], dict[str, Any]]
    set_aside: dict[str, str] = field(default_factory=dict)


def rename_prefixes(tensors: Tensors, table: dict[str, str]) -> Tensors:
    """Replaces the beginning of each name by the first row of ``table`` that fits; others stay."""

    def new_name(name: str) -> str:
        for old, new in table.items():
            if name.startswith(old):
                return new + name[len(old) :]
        return name

    return {new_name(name): tensor for name, tensor in tensors.items()}


def invert(table: dict[str, str]) -> dict[str, str]:
    """The table for the way back; its values must be distinct."""
    return {new: old for old, new in table.items()}


def heads_of(width: int) -> int:
    """Number of attention heads of a public ViT of this width; 64 channels a head where it is unknown."""
    return HEADS_BY_WIDTH.get(width, max(1, width // 64))
