"""Hugging Face's CLIP and SigLIP vision towers, alone or beside their text towers, as in their folders.

CLIP has a class token and a LayerNorm before the blocks (``pre_layrnorm``, as it is spelled there), SigLIP
attention pooling instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import torch

from pointvit.checkpoints.sources import huggingface_clip_config
from pointvit.checkpoints.sources.source import (
    Source,
    Tensors,
    invert,
    refuse_unplaced,
    rename_blocks,
    rename_prefixes,
)
from pointvit.config import ViTConfig

PREFIX = "vision_model."
"""Before the tower's names, unless transformers 5 wrote the tower alone."""
BLOCK, OURS = PREFIX + "encoder.layers.{}.", "trunk.blocks.{}."
TOP = {
    PREFIX + "embeddings.class_embedding": "cls_token",
    PREFIX + "embeddings.position_embedding.weight": "pos_embed",
    PREFIX + "embeddings.patch_embedding.": "tokenizer.proj.",
    PREFIX + "pre_layrnorm.": "trunk.norm_pre.",
    PREFIX + "post_layernorm.": "trunk.norm.",
    "visual_projection.": "head.",
}
CLASSIFIER = {"classifier.": "head."}
"""Of the models for classification, which take the mean of the patches."""
POOL = {
    PREFIX + "head.probe": "pool.attn_pool.latent",
    PREFIX + "head.attention.out_proj.": "pool.attn_pool.proj.",
    PREFIX + "head.layernorm.": "pool.attn_pool.norm.",
    PREFIX + "head.mlp.": "pool.attn_pool.mlp.",
}
IN_BLOCK = {
    "layer_norm1.": "norm1.",
    "self_attn.out_proj.": "attn.proj.",
    "layer_norm2.": "norm2.",
    "mlp.": "mlp.",
}
QKV = "self_attn.{}_proj."
POOL_QKV = PREFIX + "head.attention.in_proj_"


def matches(names: Collection[str]) -> bool:
    attention = r"(vision_model\.)?encoder\.layers\.0\.self_attn\.q_proj\.weight"
    patches = {"embeddings.patch_embedding.weight", PREFIX + "embeddings.patch_embedding.weight"}
    return not patches.isdisjoint(names) and any(re.fullmatch(attention, name) for name in names)


def decode(tensors: Tensors) -> Tensors:
    if not any(name.startswith(PREFIX) for name in tensors):
        tensors = {PREFIX + name: tensor for name, tensor in tensors.items()}
    table = TOP | (CLASSIFIER if "classifier.weight" in tensors else POOL)
    if "classifier.weight" in tensors and PREFIX + "pre_layrnorm.weight" in tensors:
        table.pop(PREFIX + "post_layernorm.")  # the class token's, which the classifier does not see
    decoded = rename_prefixes(rename_blocks(tensors, BLOCK, OURS, IN_BLOCK), table)
    if "cls_token" in decoded:
        decoded["cls_token"] = decoded["cls_token"][None, None]
    if "pos_embed" in decoded:
        decoded["pos_embed"] = decoded["pos_embed"][None]
    if "classifier.weight" not in tensors:
        _split_pool(decoded)
    return _join_qkv(decoded)


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    huggingface_clip_config.refuse(config)
    encoded = dict(tensors)
    if "cls_token" in encoded:
        encoded["cls_token"] = encoded["cls_token"][0, 0]
    encoded["pos_embed"] = encoded["pos_embed"][0]
    for kind in ("weight", "bias"):
        ours = [f"pool.attn_pool.{part}.{kind}" for part in ("q", "kv")]
        if ours[0] in encoded:
            encoded[POOL_QKV + kind] = torch.cat([encoded.pop(name) for name in ours])
    for name in [n for n in encoded if ".attn.qkv." in n]:
        block, kind = name.split("attn.qkv.")
        parts = zip("qkv", encoded.pop(name).chunk(3), strict=True)
        encoded |= {block + QKV.format(x) + kind: part for x, part in parts}
    top, in_block = invert(TOP | POOL), invert(IN_BLOCK)
    unplaced = {name: tensor for name, tensor in encoded.items() if name in tensors}
    refuse_unplaced(unplaced, top, in_block, huggingface_clip_config.NAME)
    return rename_prefixes(rename_blocks(encoded, OURS, BLOCK, in_block), top)


def _split_pool(decoded: Tensors) -> None:
    """Of SigLIP's attention pooling, the fused projection -> the query's, and those of keys and values."""
    for kind in ("weight", "bias"):
        if POOL_QKV + kind in decoded:
            fused = decoded.pop(POOL_QKV + kind)
            decoded[f"pool.attn_pool.q.{kind}"], decoded[f"pool.attn_pool.kv.{kind}"] = fused.split(
                [len(fused) // 3, len(fused) - len(fused) // 3]
            )


def _join_qkv(decoded: Tensors) -> Tensors:
    """Fuses queries, keys and values where all three are there; others stay, which loading reports."""
    for name in [n for n in decoded if re.fullmatch(r"trunk\.blocks\.\d+\.self_attn\.q_proj\.\w+", n)]:
        block, kind = name.split(QKV.format("q"))
        parts = [block + QKV.format(x) + kind for x in "qkv"]
        if all(part in decoded for part in parts):
            decoded[f"{block}attn.qkv.{kind}"] = torch.cat([decoded.pop(part) for part in parts])
    return decoded


SET_ASIDE = {
    "text_model.": "the text tower",
    "text_projection.": "the text tower",
    "logit_": "scale and bias of the contrastive loss",
    PREFIX + "embeddings.position_ids": "row numbers of the position table",
    PREFIX + "post_layernorm.": "the class token's norm, which the classifier does not see",
    PREFIX + "head.": "attention pooling, which the classifier does not see",
}
SOURCE = Source(
    huggingface_clip_config.NAME,
    matches,
    decode,
    encode,
    huggingface_clip_config.settings,
    SET_ASIDE,
    describe=huggingface_clip_config.describe,
)
