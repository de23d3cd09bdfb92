"""Point-MAE's names (Pang et al. 2022, arXiv:2203.06604), pre-trained or fine-tuned.

They are Point-BERT's, but for a tokenizer of the trunk's own width. Pre-training has no class token, which
fine-tuning adds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.sources import point_bert
from pointvit.checkpoints.sources.source import Facts, Source, Tensors, known_heads, rename_prefixes
from pointvit.config import ViTConfig

NAME = "point_mae"
PRETRAINED = "MAE_encoder."


def matches(names: Collection[str]) -> bool:
    tokenizer, trunk = "encoder.first_conv.0.weight", "blocks.blocks.0.attn.qkv.weight"
    prefix = PRETRAINED if PRETRAINED + trunk in names else ""
    return {prefix + tokenizer, prefix + trunk} <= set(names) and prefix + "reduce_dim.weight" not in names


def decode(tensors: Tensors) -> Tensors:
    named = rename_prefixes(rename_prefixes(tensors, {PRETRAINED: ""}), point_bert.NAMES)
    return point_bert.from_convolutions(named)


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    """The fine-tuned layout."""
    return point_bert.encode_plain(tensors, config, NAME)


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """
    Raises:
        ValueError: if half of the class token is missing, or a part of the head or of the tokenizer.
    """
    point_bert.check(tensors, class_token=False)
    return {
        **point_bert.EVERY_BLOCK,
        **point_bert.UP,
        "class_token": True,
        "head": point_bert.head_of(tensors, "point_mae"),
        **known_heads(tensors),
    }


SET_ASIDE = {
    "MAE_decoder.": "the decoder of masked pre-training",
    "decoder_pos_embed.": "the decoder of masked pre-training",
    "increase_dim.": "the decoder of masked pre-training",
    "mask_token": "used in pre-training only",
}
SOURCE = Source(
    NAME,
    matches,
    decode,
    encode,
    settings,
    SET_ASIDE,
    new=("cls_token", "tokenizer.cls_pos"),
    modality="points",
)
