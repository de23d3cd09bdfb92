"""Google's ``.npz`` names: the ViT paper's own files, AugReg, and the hybrids.

Layouts: kernels are (in, out), convolutions HWIO, attention kernels (D, heads, d) and, on the way out, (heads, d, D).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch
from einops import rearrange

from pointvit.checkpoints.source import Source, Tensors
from pointvit.config import ViTConfig
from pointvit.resnetv2 import google_stem_name

PREFIXES = ("opt/target/", "params/img/", "params/")
BLOCK = "Transformer/encoderblock_{}/"
ATTENTION = "MultiHeadDotProductAttention_1/"
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
STEM_UNIT = ("conv1", "conv2", "conv3", "norm1", "norm2", "norm3", "downsample.conv", "downsample.norm")


def matches(names: Collection[str]) -> bool:
    return any(name.endswith(BLOCK.format(0) + ATTENTION + "query/kernel") for name in names)


def decode(tensors: Tensors) -> Tensors:
    tensors = _strip(tensors)
    names = {theirs: ours for ours, theirs in TOP.items()} | _stem_names(tensors)
    blocks = {int(m[1]) for name in tensors if (m := re.match(r"Transformer/encoderblock_(\d+)/", name))}
    for n in blocks:
        names |= {BLOCK.format(n) + theirs: f"trunk.blocks.{n}.{ours}" for ours, theirs in IN_BLOCK.items()}
    decoded = {names.get(name, name): _from_flax(name, tensor) for name, tensor in tensors.items()}
    for n in blocks:
        ours, theirs = f"trunk.blocks.{n}.attn.", BLOCK.format(n) + ATTENTION
        if not all(f"{theirs}{x}/{y}" in decoded for x in ("query", "key", "value", "out") for y in ("kernel", "bias")):
            continue  # left under their names, which loading reports
        kernels, biases = ([decoded.pop(f"{theirs}{x}/{kind}") for x in ("query", "key", "value")] for kind in ("kernel", "bias"))
        decoded[ours + "qkv.weight"] = torch.cat([rearrange(k, "d h e -> (h e) d") for k in kernels])
        decoded[ours + "qkv.bias"] = torch.cat([b.flatten() for b in biases])
        decoded[ours + "proj.weight"] = rearrange(decoded.pop(theirs + "out/kernel"), "h e d -> d (h e)").contiguous()
        decoded[ours + "proj.bias"] = decoded.pop(theirs + "out/bias")
    return decoded


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    heads, encoded = config.trunk.num_heads, {}
    for name, tensor in tensors.items():
        if match := re.match(r"trunk\.blocks\.(\d+)\.(.+)", name):
            prefix, inner = BLOCK.format(match[1]), match[2]
            if inner.startswith("attn."):
                encoded |= {prefix + ATTENTION + k: v for k, v in _encode_attention(inner, tensor, heads).items()}
            else:
                encoded[prefix + IN_BLOCK[inner]] = _to_flax(tensor)
        elif name.startswith("tokenizer.backbone."):
            encoded[google_stem_name(name.removeprefix("tokenizer.backbone."))] = _to_flax(tensor)
        else:
            encoded[TOP[name]] = tensor if name in ("cls_token", "pos_embed") else _to_flax(tensor)
    return encoded


def settings(tensors: Tensors, config: dict[str, Any] | None) -> dict[str, Any]:
    return {"norm_eps": 1e-6, "activation": "gelu"}


def num_heads(tensors: Tensors) -> int | None:
    """Heads as the file's attention kernels state them."""
    kernel = next((t for n, t in tensors.items() if n.endswith(ATTENTION + "query/kernel")), None)
    return None if kernel is None else kernel.shape[1]


def _encode_attention(name: str, tensor: torch.Tensor, heads: int) -> Tensors:
    if name == "attn.qkv.weight":
        parts = rearrange(tensor, "(qkv h e) d -> qkv d h e", qkv=3, h=heads)
        return {f"{x}/kernel": part.contiguous() for x, part in zip(("query", "key", "value"), parts, strict=True)}
    if name == "attn.qkv.bias":
        parts = rearrange(tensor, "(qkv h e) -> qkv h e", qkv=3, h=heads)
        return {f"{x}/bias": part.contiguous() for x, part in zip(("query", "key", "value"), parts, strict=True)}
    if name == "attn.proj.weight":
        return {"out/kernel": rearrange(tensor, "d (h e) -> h e d", h=heads).contiguous()}
    return {"out/bias": tensor}


def _strip(tensors: Tensors) -> Tensors:
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in tensors):
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _stem_names(tensors: Tensors) -> dict[str, str]:
    """Their stem names -> ours, for the units the file has."""
    ours = ["stem.conv.weight", "stem.norm.weight", "stem.norm.bias"]
    for stage, unit in {(int(m[1]), int(m[2])) for n in tensors if (m := re.match(r"block(\d+)/unit(\d+)/", n))}:
        for layer in STEM_UNIT:
            kinds = ("weight",) if "conv" in layer else ("weight", "bias")
            ours += [f"stages.{stage - 1}.blocks.{unit - 1}.{layer}.{kind}" for kind in kinds]
    return {google_stem_name(name): f"tokenizer.backbone.{name}" for name in ours}


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
