"""Hugging Face ViT and Dinov2 names, as their folders have them on disk."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch

from pointvit.checkpoints.source import HEADS_BY_WIDTH, Source, Tensors, invert, rename_prefixes
from pointvit.config import ViTConfig

PREFIXES = ("vit.", "dinov2.", "dinov2_with_registers.", "deit.")
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
QKV = ("query", "key", "value")
TOP = {
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "reg_tokens",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection.": "tokenizer.proj.",
    "layernorm.": "trunk.norm.",
    "classifier.": "head.",
}
VIT_BLOCK = {
    "layernorm_before.": "norm1.",
    "layernorm_after.": "norm2.",
    "attention.output.dense.": "attn.proj.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
}
DINOV2_BLOCK = {
    "attention.output.dense.": "attn.proj.",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}


def matches(names: Collection[str]) -> bool:
    pattern = r"(\w+\.)?encoder\.layer\.0\.attention\.attention\.query\.weight"
    return any(re.fullmatch(pattern, name) for name in names)


def decode(tensors: Tensors) -> Tensors:
    tensors = rename_prefixes(tensors, dict.fromkeys(PREFIXES, ""))
    table = DINOV2_BLOCK if _is_dinov2(tensors) else VIT_BLOCK
    decoded = rename_prefixes(tensors, TOP)
    for name in list(decoded):
        if match := re.match(r"encoder\.layer\.(\d+)\.(.+)", name):
            inner = next(iter(rename_prefixes({match[2]: decoded[name]}, table)))
            decoded[f"trunk.blocks.{match[1]}.{inner}"] = decoded.pop(name)
    for name in [n for n in decoded if n.endswith("attention.attention.query.weight")]:
        block = name.removesuffix("attention.attention.query.weight")
        for kind in ("weight", "bias"):
            parts = [f"{block}attention.attention.{x}.{kind}" for x in QKV]
            if all(part in decoded for part in parts):
                decoded[f"{block}attn.qkv.{kind}"] = torch.cat([decoded.pop(part) for part in parts])
    return decoded


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    table = VIT_BLOCK if config.trunk.layer_scale is None else DINOV2_BLOCK
    encoded = rename_prefixes(tensors, invert(TOP))
    for name in list(encoded):
        if match := re.match(r"trunk\.blocks\.(\d+)\.(.+)", name):
            prefix, tensor = f"encoder.layer.{match[1]}.", encoded.pop(name)
            if match[2].startswith("attn.qkv."):
                kind = match[2].removeprefix("attn.qkv.")
                parts = zip(QKV, tensor.chunk(3), strict=True)
                encoded |= {f"{prefix}attention.attention.{x}.{kind}": part.contiguous() for x, part in parts}
            else:
                inner = next(iter(rename_prefixes({match[2]: tensor}, invert(table))))
                encoded[prefix + inner] = tensor
        elif name in tensors:
            raise ValueError(f"the huggingface layout has no place for {name}; use pointvit.save")
    return encoded


def settings(tensors: Tensors, config: dict[str, Any] | None) -> dict[str, Any]:
    """From ``config.json``; without one, the defaults of ``ViTConfig`` and ``Dinov2Config``.

    Raises:
        ValueError: if ``config.json`` contradicts the weights, or wants an activation that is not known.
    """
    config = config or {}
    width = tensors["trunk.blocks.0.attn.qkv.weight"].shape[1]
    eps = 1e-6 if "trunk.blocks.0.ls1.gamma" in tensors else 1e-12
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"config.json asks for hidden_act={activation!r}, known are {known}")
    depth = len({match[1] for name in tensors if (match := re.match(r"trunk\.blocks\.(\d+)\.", name))})
    stated = config.get("num_hidden_layers", depth)
    if stated != depth:
        raise ValueError(f"config.json describes {stated} blocks, the weights have {depth}")
    heads = config.get("num_attention_heads", HEADS_BY_WIDTH.get(width))
    settings = {"norm_eps": float(config.get("layer_norm_eps", eps)), "activation": ACTIVATIONS[activation]}
    return settings if heads is None else {**settings, "num_heads": int(heads)}


def stated_grid(config: dict[str, Any] | None) -> tuple[int, int] | None:
    """(rows, columns) of patches that ``config.json`` describes, if there is one."""
    config = config or {}
    if "image_size" not in config or "patch_size" not in config:
        return None
    size, patch = (v if isinstance(v, list) else [v, v] for v in (config["image_size"], config["patch_size"]))
    return size[0] // patch[0], size[1] // patch[1]


def _is_dinov2(tensors: Tensors) -> bool:
    return "encoder.layer.0.norm1.weight" in tensors


SET_ASIDE = {
    "embeddings.mask_token": "used in pre-training only",
    "pooler.": "the pooler of BERT-style heads, which ViT has not",
    "decoder.": "the decoder of masked pre-training",
}
SOURCE = Source("huggingface", matches, decode, encode, settings, SET_ASIDE)
