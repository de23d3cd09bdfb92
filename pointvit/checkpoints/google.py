"""Google's ``.npz`` names: the ViT paper's own files, AugReg, the hybrids, and big_vision.

Kernels are (in, out), convolutions HWIO, attention kernels (D, heads, d) and, on the way out, (heads, d, D).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Any

import torch
from einops import rearrange

from pointvit.checkpoints.source import Source, Tensors, rename_prefixes
from pointvit.config import ViTConfig
from pointvit.resnetv2 import google_stem_name, timm_stem_name

PREFIXES = ("opt/target/", "params/img/", "params/")
BLOCK = "Transformer/encoderblock_{}/"
ATTENTION = "MultiHeadDotProductAttention_1/"
QKV = ("query", "key", "value")
TOP = {
    # ours: theirs; kernels and scales are both our "weight"
    "cls_token": "cls",
    "pos_embed": "Transformer/posembed_input/pos_embedding",
    "tokenizer.proj.weight": "embedding/kernel",
    "tokenizer.proj.bias": "embedding/bias",
    "trunk.norm.weight": "Transformer/encoder_norm/scale",
    "trunk.norm.bias": "Transformer/encoder_norm/bias",
    "pre_logits.0.weight": "pre_logits/kernel",
    "pre_logits.0.bias": "pre_logits/bias",
    "head.weight": "head/kernel",
    "head.bias": "head/bias",
}
IN_BLOCK = {
    "norm1.weight": "LayerNorm_0/scale",
    "norm1.bias": "LayerNorm_0/bias",
    "norm2.weight": "LayerNorm_2/scale",
    "norm2.bias": "LayerNorm_2/bias",
    "mlp.fc1.weight": "MlpBlock_3/Dense_0/kernel",
    "mlp.fc1.bias": "MlpBlock_3/Dense_0/bias",
    "mlp.fc2.weight": "MlpBlock_3/Dense_1/kernel",
    "mlp.fc2.bias": "MlpBlock_3/Dense_1/bias",
}


BIG_VISION = {
    # inside a block: big_vision's names -> the paper's
    "MultiHeadDotProductAttention_0/": ATTENTION,
    "LayerNorm_1/": "LayerNorm_2/",
    "MlpBlock_0/": "MlpBlock_3/",
}


def matches(names: Collection[str]) -> bool:
    pattern = r"(.+/)?Transformer/encoderblock(_0)?/MultiHeadDotProductAttention_[01]/query/kernel"
    return any(re.fullmatch(pattern, name) for name in names)


def decode(tensors: Tensors) -> Tensors:
    tensors = _as_in_paper(_strip(tensors))
    names = {theirs: ours for ours, theirs in TOP.items()} | _stem_names(tensors)
    blocks = {int(m[1]) for name in tensors if (m := re.match(r"Transformer/encoderblock_(\d+)/", name))}
    for n in blocks:
        names |= {BLOCK.format(n) + theirs: f"trunk.blocks.{n}.{ours}" for ours, theirs in IN_BLOCK.items()}
    decoded = {names.get(name, name): _from_flax(name, tensor) for name, tensor in tensors.items()}
    for n in blocks:
        ours, theirs = f"trunk.blocks.{n}.attn.", BLOCK.format(n) + ATTENTION
        if not all(f"{theirs}{x}/{y}" in decoded for x in (*QKV, "out") for y in ("kernel", "bias")):
            continue  # left under their names, which loading reports
        kernels, biases = ([decoded.pop(f"{theirs}{x}/{y}") for x in QKV] for y in ("kernel", "bias"))
        decoded[ours + "qkv.weight"] = torch.cat([rearrange(k, "d h e -> (h e) d") for k in kernels])
        decoded[ours + "qkv.bias"] = torch.cat([b.flatten() for b in biases])
        decoded[ours + "proj.weight"] = rearrange(decoded.pop(theirs + "out/kernel"), "h e d -> d (h e)")
        decoded[ours + "proj.bias"] = decoded.pop(theirs + "out/bias")
    return decoded


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    heads = config.trunk.num_heads
    encoded: Tensors = {}
    for name, tensor in tensors.items():
        if match := re.match(r"trunk\.blocks\.(\d+)\.(.+)", name):
            prefix, inner = BLOCK.format(match[1]), match[2]
            if inner.startswith("attn."):
                parts = _encode_attention(inner, tensor, heads)
                encoded |= {prefix + ATTENTION + part: value for part, value in parts.items()}
            else:
                encoded[prefix + _place(inner, IN_BLOCK)] = _to_flax(tensor)
        elif name.startswith("tokenizer.backbone."):
            encoded[google_stem_name(name.removeprefix("tokenizer.backbone."))] = _to_flax(tensor)
        else:
            encoded[_place(name, TOP)] = tensor if name in ("cls_token", "pos_embed") else _to_flax(tensor)
    return encoded


def _place(name: str, table: dict[str, str]) -> str:
    if name not in table:
        raise ValueError(f"the google layout has no place for {name}; use pointvit.save")
    return table[name]


def settings(tensors: Tensors, config: dict[str, Any] | None) -> dict[str, Any]:
    return {"norm_eps": 1e-6, "activation": "gelu"}


def num_heads(tensors: Tensors) -> int | None:
    """Heads as the file's attention kernels state them."""
    kernel = next((t for n, t in tensors.items() if n.endswith("/query/kernel")), None)
    return None if kernel is None else kernel.shape[-2]


def _encode_attention(name: str, tensor: torch.Tensor, heads: int) -> Tensors:
    if name == "attn.qkv.weight":
        parts = rearrange(tensor, "(qkv h e) d -> qkv d h e", qkv=3, h=heads)
        return {f"{x}/kernel": part.contiguous() for x, part in zip(QKV, parts, strict=True)}
    if name == "attn.qkv.bias":
        parts = rearrange(tensor, "(qkv h e) -> qkv h e", qkv=3, h=heads)
        return {f"{x}/bias": part.contiguous() for x, part in zip(QKV, parts, strict=True)}
    if name == "attn.proj.weight":
        return {"out/kernel": rearrange(tensor, "d (h e) -> h e d", h=heads).contiguous()}
    return {"out/bias": tensor}


def _strip(tensors: Tensors) -> Tensors:
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in tensors):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _as_in_paper(tensors: Tensors) -> Tensors:
    """big_vision's names and blocks, which may be stacked on a leading axis -> those of the paper's files."""
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        match = re.match(r"Transformer/encoderblock(_\d+)?/(.+)", name)
        if match is None:
            renamed[TOP["pos_embed"] if name == "pos_embedding" else name] = tensor
            continue
        inner = next(iter(rename_prefixes({match[2]: tensor}, BIG_VISION)))
        blocks = enumerate(tensor) if match[1] is None else [(int(match[1][1:]), tensor)]
        renamed |= {BLOCK.format(n) + inner: block for n, block in blocks}
    return renamed


def _stem_names(tensors: Tensors) -> dict[str, str]:
    """Their stem names -> ours, for those the file has; a stem without stages is named otherwise."""
    stages = any(re.match(r"block\d+/unit\d+/", name) for name in tensors)
    ours = {}
    for name in tensors:
        with contextlib.suppress(ValueError):  # not a name of the stem
            ours[name] = f"tokenizer.backbone.{timm_stem_name(name, stages)}"
    return ours


def _from_flax(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.ndim == 4 and name.endswith("kernel"):
        return rearrange(tensor, "h w i o -> o i h w").contiguous()
    if tensor.ndim == 2 and name.endswith("kernel"):
        return tensor.T.contiguous()
    if name.startswith(("gn_", "block")) and tensor.ndim > 1:
        return tensor.flatten()  # group norms of the stem are stored as (1, 1, 1, C)
    return tensor


def _to_flax(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.ndim == 4:
        return rearrange(tensor, "o i h w -> h w i o").contiguous()
    return tensor.T.contiguous() if tensor.ndim == 2 else tensor


SOURCE = Source("google", matches, decode, encode, settings)
