"""Google's ``.npz`` names: the ViT paper's own files, AugReg, and the hybrids.

Google's JAX code approximates GELU by tanh, timm evaluates these files with the exact one, and so does this
library; ``activation="gelu_tanh"`` gives the former.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.sources import flax
from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    invert,
    refuse_halves,
    refuse_obstacles,
    rename_prefixes,
    renamed_by,
    unnamed_obstacles,
)
from pointvit.config import UNIT, ViTConfig
from pointvit.resnetv2 import google_stem_name, timm_stem_name
from pointvit.tokenizers import ImageTokenizerConfig

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


def matches(names: Collection[str]) -> bool:
    pattern = rf"({'|'.join(PREFIXES)})?{BLOCK.format(0)}{ATTENTION}query/kernel"
    return any(re.fullmatch(pattern, name) for name in names)


def decode(tensors: Tensors) -> Tensors:
    return from_paper(strip(tensors))


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    pool = "cls" if config.class_token else "mean"
    refuse_obstacles(
        {
            **unnamed_obstacles(config),
            **google_obstacles(config),
            f"global_pool={config.global_pool!r} (it is {pool} there)": config.global_pool != pool,
        },
        SOURCE.name,
    )
    return to_paper(tensors, config, SOURCE.name)


def google_obstacles(config: ViTConfig) -> dict[str, bool]:
    """What neither the paper's files nor big_vision's have a place for, beside unnamed tensors."""
    trunk, tokenizer = config.trunk, config.tokenizer
    assert isinstance(tokenizer, ImageTokenizerConfig)
    grid = tokenizer.grid
    return {
        f"norm_eps={trunk.norm_eps:g} (it is 1e-6 there)": trunk.norm_eps != 1e-6,
        f"activation={trunk.activation!r} (it is gelu there)": trunk.activation != "gelu",
        f"a {grid[0]}x{grid[1]} grid of positions": grid[0] != grid[1],
        "a trunk without final norm": not trunk.final_norm,
        f"the head {config.head!r}": config.num_classes > 0 and config.head != "linear",
    }


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """Heads as the attention kernels state them, and what the paper's models have in common.

    Raises:
        ValueError: if there is no position table, which every such file has.
    """
    if "pos_embed" not in tensors:
        raise ValueError(f"{TOP['pos_embed']} is missing")
    return common_settings(tensors, facts)


def common_settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """Settings of all of Google's ViTs, the paper's and big_vision's."""
    refuse_halves(tensors, ("pre_logits.0", "head", "tokenizer.proj"))
    pattern = r"Transformer/encoderblock(_0)?/[^/]+/query/kernel$"
    kernel = next(shape for name, shape in facts.shapes.items() if re.search(pattern, name))
    mean, std = UNIT
    return {
        "norm_eps": 1e-6,
        "activation": "gelu",
        "num_heads": kernel[-2],
        "image_mean": mean,
        "image_std": std,
    }


def strip(tensors: Tensors) -> Tensors:
    """Removes the first of ``PREFIXES`` that occurs; names without it stay."""
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in tensors):
            return rename_prefixes(tensors, {prefix: ""})
    return tensors


def from_paper(tensors: Tensors) -> Tensors:
    """The paper's names without prefix -> ours; others are passed through."""
    names = invert(TOP) | _stem_names(tensors)
    blocks = {int(m[1]) for name in tensors if (m := re.match(r"Transformer/encoderblock_(\d+)/", name))}
    for n in blocks:
        names |= {BLOCK.format(n) + theirs: f"trunk.blocks.{n}.{ours}" for ours, theirs in IN_BLOCK.items()}
    turned = {name: flax.from_flax(name, tensor) for name, tensor in tensors.items()}
    decoded = renamed_by(lambda name: names.get(name, name), turned)
    for n in blocks:
        ours, theirs = f"trunk.blocks.{n}.attn.", BLOCK.format(n) + ATTENTION
        decoded |= flax.join_heads(decoded, theirs, {f"{ours}qkv": flax.QKV, f"{ours}proj": ("out",)})
    return decoded


def to_paper(tensors: Tensors, config: ViTConfig, source: str) -> Tensors:
    """Our names -> the paper's, without prefix; ``source`` is named where there is no place for one."""
    encoded: Tensors = {}
    for name, tensor in tensors.items():
        match = re.match(r"trunk\.blocks\.(\d+)\.(.+)", name)
        block, inner = (BLOCK.format(match[1]), match[2]) if match else ("", name)
        table = IN_BLOCK if match else TOP
        if match and re.fullmatch(r"attn\.(qkv|proj)\.(weight|bias)", inner):
            parts = flax.QKV if inner.startswith("attn.qkv.") else ("out",)
            split = flax.split_heads(inner, tensor, parts, config.trunk.num_heads)
            encoded |= {block + ATTENTION + part: value for part, value in split.items()}
        elif name.startswith("tokenizer.backbone."):
            encoded[google_stem_name(name.removeprefix("tokenizer.backbone."))] = flax.to_flax(tensor)
        elif inner not in table:
            raise ValueError(f"the {source} layout has no place for {name}; use pointvit.save")
        else:
            encoded[block + table[inner]] = flax.to_flax(tensor)
    return encoded


def _stem_names(tensors: Tensors) -> dict[str, str]:
    """Their stem names -> ours, for those the file has; a stem without stages is named otherwise."""
    stages = any(re.match(r"block\d+/unit\d+/", name) for name in tensors)
    ours = {}
    for name in tensors:
        with contextlib.suppress(ValueError):  # not a name of the stem
            ours[name] = f"tokenizer.backbone.{timm_stem_name(name, stages)}"
    return ours


SET_ASIDE = {"opt/state/": "the optimiser's state"}
SOURCE = Source("google", matches, decode, encode, settings, SET_ASIDE)
