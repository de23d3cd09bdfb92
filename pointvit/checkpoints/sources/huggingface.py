"""Hugging Face's names of ViT and its kin (DeiT, ViT-MAE, ViT-MSN, I-JEPA) and of Dinov2.

On disk all keep the names of transformers' first versions. A state dict taken from a model in memory has
other ones since version 5, which are read too.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import torch

from pointvit.checkpoints.sources import huggingface_config
from pointvit.checkpoints.sources.source import (
    Source,
    Tensors,
    invert,
    refuse_obstacles,
    refuse_unplaced,
    rename_blocks,
    rename_prefixes,
)
from pointvit.config import ViTConfig

PREFIXES = ("vit.", "deit.", "ijepa.", "dinov2.", "dinov2_with_registers.")
KERNEL = "embeddings.patch_embeddings.projection.weight"
DISTILLATION, REGISTERS = "embeddings.distillation_token", "embeddings.register_tokens"
TOP = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection.": "tokenizer.proj.",
    "layernorm.": "trunk.norm.",
    "cls_classifier.": "head.cls.",
    "distillation_classifier.": "head.dist.",
    "classifier.": "head.",
}
BLOCK, IN_MEMORY_BLOCK, OURS = "encoder.layer.{}.", "layers.{}.", "trunk.blocks.{}."
QKV = tuple(f"attention.attention.{part}" for part in ("query", "key", "value"))
VIT_BLOCK = {
    "layernorm_before.": "norm1.",
    "attention.output.dense.": "attn.proj.",
    "layernorm_after.": "norm2.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
}
DINOV2_BLOCK = {
    "norm1.": "norm1.",
    "attention.output.dense.": "attn.proj.",
    "layer_scale1.lambda1": "ls1.gamma",
    "norm2.": "norm2.",
    "mlp.fc1.": "mlp.fc1.",
    "mlp.fc2.": "mlp.fc2.",
    "layer_scale2.lambda1": "ls2.gamma",
}
SWIGLU = {"mlp.weights_in.": "mlp.fc1.", "mlp.weights_out.": "mlp.fc2."}
IN_MEMORY = {"attention.o_proj.": "attn.proj.", "mlp.down_proj.": "mlp.fc2."}
JOINED = (
    # our layer, and the parts in which it stands there: on disk, in memory
    ("attn.qkv", QKV),
    ("attn.qkv", ("attention.q_proj", "attention.k_proj", "attention.v_proj")),
    ("mlp.fc1", ("mlp.gate_proj", "mlp.up_proj")),
)


def matches(names: Collection[str]) -> bool:
    pattern = r"(\w+\.)?(encoder\.layer|layers)\.0\.attention\.(attention\.query|q_proj)\.weight"
    patches = any(name.endswith(KERNEL) for name in names)
    return patches and any(re.fullmatch(pattern, name) for name in names)


def decode(tensors: Tensors) -> Tensors:
    tensors = rename_prefixes(tensors, dict.fromkeys(PREFIXES, ""))
    in_block = VIT_BLOCK | DINOV2_BLOCK | SWIGLU | IN_MEMORY  # their names do not clash
    for block in (BLOCK, IN_MEMORY_BLOCK):
        tensors = rename_blocks(tensors, block, OURS, in_block)
    decoded = rename_prefixes(tensors, TOP | dict.fromkeys((DISTILLATION, REGISTERS), "reg_tokens"))
    for block in {m[0] for name in tensors if (m := re.match(r"trunk\.blocks\.\d+\.", name))}:
        for layer, parts in JOINED:
            for kind in ("weight", "bias"):
                names = [f"{block}{part}.{kind}" for part in parts]
                if all(name in decoded for name in names) and f"{block}{layer}.{kind}" not in decoded:
                    decoded[f"{block}{layer}.{kind}"] = torch.cat([decoded.pop(name) for name in names])
    return decoded


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    """With a head, names have the prefix of the family, as those of transformers' classifiers have."""
    refuse_obstacles(huggingface_config.obstacles(config), SOURCE.name)
    kind = huggingface_config.kind_of(config)
    in_block = invert(DINOV2_BLOCK if kind.startswith("dinov2") else VIT_BLOCK)
    in_block |= invert(SWIGLU) if config.trunk.swiglu else {}
    top = invert(TOP) | {"reg_tokens": DISTILLATION if kind == "deit" else REGISTERS}
    refuse_unplaced(tensors, top, ("attn.qkv.", *in_block), SOURCE.name)
    encoded = rename_prefixes(rename_blocks(_split(tensors), OURS, BLOCK, in_block), top)
    if kind == "dinov2_with_registers":  # transformers expects one; it is used in pre-training only
        encoded["embeddings.mask_token"] = tensors["cls_token"].new_zeros(1, config.trunk.embed_dim)
    if config.num_classes == 0:
        return encoded
    return {n if "classifier." in n else f"{kind}.{n}": tensor for n, tensor in encoded.items()}


def _split(tensors: Tensors) -> Tensors:
    """Query, key and value of each block apart, under their names in a block of ours."""
    apart: Tensors = {}
    for name, tensor in tensors.items():
        block, found, kind = name.partition("attn.qkv.")
        names = [f"{block}{part}.{kind}" for part in QKV] if found else [name]
        apart |= dict(zip(names, tensor.chunk(3) if found else [tensor], strict=True))
    return apart


SET_ASIDE = {
    "embeddings.mask_token": "used in pre-training only",
    "pooler.": "the pooler of BERT-style heads, which ViT has not",
    "decoder.": "the decoder of masked pre-training",
}
SOURCE = Source(
    "huggingface",
    matches,
    decode,
    encode,
    huggingface_config.settings,
    SET_ASIDE,
    describe=huggingface_config.describe,
)
