"""Point-BERT's names (Yu et al. 2022, arXiv:2111.14819), pre-trained or fine-tuned, and what others share.

Its mini-PointNet is made of 1x1 convolutions, which are our linear layers with a trailing axis of one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    invert,
    known_heads,
    refuse_halves,
    refuse_obstacles,
    refuse_unplaced,
    rename_prefixes,
)
from pointvit.config import ViTConfig

NAME = "point_bert"
TOKENIZER = {
    "encoder.first_conv.": "tokenizer.embed.first.",
    "encoder.second_conv.": "tokenizer.embed.second.",
    "pos_embed.": "tokenizer.pos_embed.",
    "cls_pos": "tokenizer.cls_pos",
}
NAMES = {
    **TOKENIZER,
    "reduce_dim.": "tokenizer.reduce.",
    "blocks.blocks.": "trunk.blocks.",
    "norm.": "trunk.norm.",
    "cls_head_finetune.": "head.",
}
PRETRAINED = "transformer_q."
EMBED = "tokenizer.embed.first.3.weight"
HEADS = {"head.8.weight": "point_mae", "head.3.weight": "point_bert"}
"""The last layer of a fine-tuned head -> its kind; either code can be told to use the other's."""
EVERY_BLOCK: dict[str, Any] = {
    "norm_eps": 1e-5,
    "activation": "gelu",
    "pos_mode": "every_block",
    "global_pool": "cls+max",
}
"""Settings that Point-BERT and Point-MAE have in common, and do not write down."""
PLAIN: dict[str, Any] = {
    "modality": "points",
    "class_token": True,
    "cls_pos": True,
    "num_reg_tokens": 0,
    "norm_pre": False,
    "final_norm": True,
    "fc_norm": False,
    "swiglu": False,
    "attn_norm": False,
    "layer_scale": None,
    "representation_size": None,
}
"""Settings of all that these layouts can hold: what would add or take away tensors."""
UP = {"up_axis": "y"}
"""The vertical axis of ShapeNet, of ModelNet40 as resampled for PointNet++, and of ScanObjectNN."""


def matches(names: Collection[str]) -> bool:
    trunk = "blocks.blocks.0.attn.qkv.weight"
    return PRETRAINED + trunk in names or (trunk in names and "reduce_dim.weight" in names)


def decode(tensors: Tensors) -> Tensors:
    return from_convolutions(rename_prefixes(rename_prefixes(tensors, {PRETRAINED: ""}), NAMES))


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    """The fine-tuned layout."""
    return encode_plain(tensors, config, NAME)


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """
    Raises:
        ValueError: if the class token is missing, or a part of the head or of the tokenizer.
    """
    check(tensors)
    return {**EVERY_BLOCK, **UP, "head": head_of(tensors, "point_bert"), **known_heads(tensors)}


def check(tensors: Tensors, last: Collection[str] = tuple(HEADS), class_token: bool = True) -> None:
    """Raises ValueError for what would load as another model: without class token, head, or tokenizer.

    Args:
        last: the last layer of the head, one of these.
        class_token: whether all such files have one.
    """
    layers = {name.rpartition(".")[0] for name in last}
    refuse_halves(tensors, layers)
    if EMBED not in tensors:
        raise ValueError("its tokenizer is incomplete (the second layer of the first two)")
    head = any(name.startswith("head.") for name in tensors)
    if head and not any(name in tensors for name in last):
        raise ValueError("its head has no last layer")
    tokens = [name in tensors for name in ("cls_token", "tokenizer.cls_pos")]
    if (class_token or head or any(tokens)) and not all(tokens):
        raise ValueError("its class token is missing, or the position of it")


def head_of(tensors: Tensors, default: str) -> str:
    """The kind of head that a fine-tuned file holds; of one without, the family's own."""
    return next((head for last, head in HEADS.items() if last in tensors), default)


def from_convolutions(tensors: Tensors) -> Tensors:
    """1x1 convolutions (out, in, 1[, 1]) of the tokenizer -> linear layers (out, in)."""

    def linear(name: str) -> bool:
        tensor = tensors[name]
        return name.startswith("tokenizer.embed.") and tensor.ndim > 2 and tensor[0, 0].numel() == 1

    return {name: tensor.flatten(1) if linear(name) else tensor for name, tensor in tensors.items()}


def to_convolutions(tensors: Tensors, spatial: int = 1) -> Tensors:
    """The inverse of :func:`from_convolutions`, for names of ours, with ``spatial`` trailing axes."""
    return {
        name: tensor[(...,) + (None,) * spatial]
        if name.startswith("tokenizer.embed.") and tensor.ndim == 2
        else tensor
        for name, tensor in tensors.items()
    }


def encode_plain(tensors: Tensors, config: ViTConfig, source: str) -> Tensors:
    """The fine-tuned layout of Point-BERT, and without ``reduce_dim`` that of Point-MAE.

    Raises:
        ValueError: naming the first thing that the layout has no place for.
    """
    refuse_settings(config, {**PLAIN, **EVERY_BLOCK, "qkv_bias": False, **known_heads(tensors)}, source)
    reduced = "tokenizer.reduce.weight" in tensors
    obstacles = {
        f"a tokenizer {'with' if reduced else 'without'} token_dim": reduced != (source == NAME),
        f"the head {config.head!r}": config.num_classes > 0 and config.head not in HEADS.values(),
    }
    refuse_obstacles(obstacles, source)
    refuse_unplaced(tensors, (*NAMES.values(), "cls_token"), ("",), source)
    return rename_prefixes(to_convolutions(tensors), invert(NAMES))


def refuse_settings(config: ViTConfig, expected: dict[str, Any], source: str) -> None:
    """Raises ValueError at the first setting that readers of the layout would take for another."""
    owners = (config, config.trunk, config.tokenizer)
    for name, value in expected.items():
        actual = next((getattr(owner, name) for owner in owners if hasattr(owner, name)), None)
        refuse_obstacles({f"{name}={actual!r} (it is {value!r} there)": actual != value}, source)


SET_ASIDE = {
    "transformer_k.": "the momentum encoder of pre-training",
    "dvae.": "the tokenizer of masked pre-training",
    "queue": "the negative examples of pre-training",
    "mask_token": "used in pre-training only",
    "lm_head.": "the head of masked pre-training",
    "cls_head.": "the head of contrastive pre-training",
}
SOURCE = Source(NAME, matches, decode, encode, settings, SET_ASIDE, modality="points")
