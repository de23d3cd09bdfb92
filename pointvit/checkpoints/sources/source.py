"""What a checkpoint source is: a name, and pure functions between the file's names and ours.

"Ours" are the names of an encoder's state dict (``trunk.blocks.0.attn.qkv.weight``,
``tokenizer.proj.weight``, ``head.weight``), except that an image encoder's position table stays whole, as
``pos_embed``: rows for the class and distillation token, then the patches. It is split and resampled while
loading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

Tensors = dict[str, Tensor]
HEADS_BY_WIDTH = {192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 640: 10, 768: 12, 832: 13, 896: 14, 1024: 16,
                  1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 1792: 16}  # fmt: skip
"""Attention heads of public ViTs by width, for files that do not say."""
SIGLIP_HEADS = {1536: 16}
"""The same of ViTs without class token, where they differ (SigLIP 2's giant)."""
POOL = {
    "latent",
    *(
        f"{n}.{kind}"
        for n in ("q", "kv", "proj", "norm", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    ),
}
"""Names in an attention pool."""


@dataclass(frozen=True)
class Facts:
    """What a file says beside its tensors."""

    config: dict[str, Any] = field(default_factory=dict)
    """The ``config.json`` beside the weights; empty if there is none."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Every name in the file, as it stands there, with its shape."""


@dataclass(frozen=True)
class Source:
    """One family of checkpoints.

    Attributes:
        name: as in ``load_checkpoint(source=...)``.
        matches: whether a file with these names is of this source.
        decode: file names and tensors -> ours; names it does not know are passed through, and reported. The
            results may be views: nothing is copied that need not be, so that large files fit in memory.
        encode: ours -> file names and tensors, the inverse of ``decode``; None if such files are only read.
            Raises ValueError, naming what the layout has no place for.
        settings: what names and shapes do not tell, from the decoded file and its facts: any field of
            :class:`~pointvit.config.ViTConfig` and its parts (LayerNorm eps, activation, heads, pos_mode), or
            of :class:`~pointvit.model.Metadata` (colours). The model asked for decides what is left out.
        set_aside: beginnings of decoded names that a model does not need, with the reason.
        new: names of parameters that such files need not hold, since they are learned later.
        modality: ``image`` or ``points``, or None where a file may hold either.
        describe: the ``config.json`` that others expect beside the weights, for sources that are written as
            folders.
    """

    name: str
    matches: Callable[[Collection[str]], bool]
    decode: Callable[[Tensors], Tensors]
    encode: Callable[[Tensors, ViTConfig], Tensors] | None
    settings: Callable[[Tensors, Facts], dict[str, Any]]
    set_aside: dict[str, str] = field(default_factory=dict)
    new: tuple[str, ...] = ()
    modality: str | None = "image"
    describe: Callable[[ViTConfig], dict[str, Any]] | None = None


def rename_prefixes(tensors: Tensors, table: dict[str, str]) -> Tensors:
    """Replaces the beginning of each name by the first row of ``table`` that fits; others stay.

    Raises:
        ValueError: if two names become one.
    """
    return renamed_by(lambda name: _with_new_beginning(name, table), tensors)


def rename_blocks(tensors: Tensors, old: str, new: str, table: dict[str, str]) -> Tensors:
    """Replaces the prefix of each block, and within it names as :func:`rename_prefixes` does; others stay.

    Args:
        old, new: the prefix with ``{}`` for the block's number, such as ``encoder.layer.{}.``.
        table: beginnings of names inside a block.

    Raises:
        ValueError: if two names become one.
    """
    before, after = old.split("{}")
    pattern = re.compile(rf"{re.escape(before)}(\d+){re.escape(after)}(.+)")

    def new_name(name: str) -> str:
        match = pattern.fullmatch(name)
        if match is None:
            return name
        return new.format(match[1]) + _with_new_beginning(match[2], table)

    return renamed_by(new_name, tensors)


def _with_new_beginning(name: str, table: Mapping[str, str]) -> str:
    old = next((old for old in table if name.startswith(old)), None)
    return name if old is None else table[old] + name[len(old) :]


def renamed_by(new_name: Callable[[str], str], tensors: Tensors) -> Tensors:
    """Each tensor under its new name.

    Raises:
        ValueError: if two names become one: a tensor would be lost without a word.
    """
    old: dict[str, str] = {}
    for name in tensors:
        first = old.setdefault(new_name(name), name)
        if first != name:
            raise ValueError(f"{first} and {name} are names of the same tensor, expected one of them")
    return {new: tensors[name] for new, name in old.items()}


def invert(table: dict[str, str]) -> dict[str, str]:
    """The table for the way back; its values must be distinct."""
    return {new: old for old, new in table.items()}


def refuse_unplaced(tensors: Tensors, top: Collection[str], in_block: Collection[str], source: str) -> None:
    """Raises ValueError for a name of ours with no beginning in ``top`` or, inside a block, ``in_block``."""
    for name in tensors:
        inner = re.sub(r"^trunk\.blocks\.\d+\.", "", name)
        if not inner.startswith(tuple(top if inner == name else in_block)):
            raise ValueError(f"the {source} layout has no place for {name}; use pointvit.save")


def unnamed_obstacles(config: ViTConfig, square: bool = False) -> dict[str, bool]:
    """What the layout of a plain image ViT has no place for, and the names of tensors do not show.

    Args:
        square: whether images and patches must be square there.
    """
    trunk, tokenizer = config.trunk, config.tokenizer
    assert isinstance(tokenizer, ImageTokenizerConfig)
    image, patch = tokenizer.img_size, tokenizer.patch_size
    return {
        "a gated MLP": trunk.swiglu,
        "attention without qkv bias": not trunk.qkv_bias,
        "rotary positions": tokenizer.rope,
        f"pos_embed={tokenizer.pos_embed!r}": tokenizer.pos_embed in ("learned_2d", "none"),
        f"pos_mode={config.pos_mode!r}": config.pos_mode != "once",
        "a class token without position": config.class_token and not tokenizer.cls_pos,
        f"images of {image} (they are square there)": square and image[0] != image[1],
        f"patches of {patch} (they are square there)": square and patch[0] != patch[1],
    }


def refuse_obstacles(obstacles: Mapping[str, bool], source: str) -> None:
    """Raises ValueError for the first thing that is so, and that the layout has no place for."""
    for obstacle, present in obstacles.items():
        if present:
            raise ValueError(f"the {source} layout has no place for {obstacle}; use pointvit.save")


def size_of(stated: Any) -> tuple[int, int]:
    """One number, or a list of height and width, as configurations state sizes -> ``(height, width)``.

    Raises:
        ValueError: if it is neither.
    """
    pair = stated if isinstance(stated, (list, tuple)) else (stated, stated)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise ValueError(f"a size must be a whole number or a list of two, got {stated!r}")
    return pair[0], pair[1]


def refuse_halves(tensors: Tensors, layers: Collection[str]) -> None:
    """Raises ValueError if a file has the weight of one of these layers without the bias, or the reverse.

    Of a layer of the head, loading would take the half for another head and start with a new one.
    """
    for layer in layers:
        there = [kind for kind in ("weight", "bias") if f"{layer}.{kind}" in tensors]
        if len(there) == 1:
            raise ValueError(f"of {layer} there is a {there[0]} alone")


def refuse_other_pools(tensors: Tensors) -> None:
    """Raises ValueError if a file's attention pool is not just ours: loading would start with a new one."""
    prefix = "pool.attn_pool."
    there = {name.removeprefix(prefix) for name in tensors if name.startswith(prefix)}
    for name in sorted(there ^ POOL) if there else ():
        wrong = "more" if name in there else "less"
        raise ValueError(f"its attention pool has {wrong} than is known here ({prefix}{name})")


def width_of(tensors: Tensors) -> int:
    return tensors["trunk.blocks.0.attn.qkv.weight"].shape[1]


def known_heads(tensors: Tensors) -> dict[str, int]:
    """``{"num_heads": n}`` where the trunk's width is that of a public ViT, else nothing."""
    width = width_of(tensors)
    known = HEADS_BY_WIDTH | ({} if "cls_token" in tensors else SIGLIP_HEADS)
    return {"num_heads": known[width]} if width in known else {}
