"""The names of timm's EVA models: EVA giant, EVA-02 and its CLIP variants, timm's ViTs with rotary positions.

There are two layouts of a block: one projection for queries, keys and values and one for gate and value of
the gated MLP, or one for each of them. Keys have no bias in either; in ours it is zero, and adding zero
leaves them as they are, bit for bit.

Images have rotary positions where the MLP is gated (EVA-02) or there are no others. The rotary positions of
DINOv3, RoPE-ViT and the Perception Encoder are of other kinds, and not supported.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch

from pointvit.checkpoints.sources import timm
from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    invert,
    known_heads,
    refuse_obstacles,
    refuse_unplaced,
    rename_blocks,
    rename_prefixes,
    renamed_by,
    width_of,
)
from pointvit.checkpoints.sources.timm_config import described
from pointvit.config import CLIP, UNIT, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

BLOCK, OURS = "blocks.{}.", "trunk.blocks.{}."
IN_BLOCK = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
SEPARATE = {"attn.q_proj.bias": "attn.q_bias", "attn.v_proj.bias": "attn.v_bias"}
"""The biases in the layout with separate projections, and as they are called in the other."""
ORIGINAL = {
    "attn.inner_attn_ln.": "attn.norm.",
    "mlp.ffn_ln.": "mlp.norm.",
    "mlp.w12.": "mlp.fc1.",
    "mlp.w1.": "mlp.fc1_g.",
    "mlp.w2.": "mlp.fc1_x.",
    "mlp.w3.": "mlp.fc2.",
    "attn.rope.": "rope.",
}
"""What EVA-02's own files call otherwise."""
PARTS: dict[str, tuple[str | None, ...]] = {
    # ours -> theirs, stacked in this order; None is the bias of the keys
    "attn.qkv.weight": ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"),
    "attn.qkv.bias": ("attn.q_bias", None, "attn.v_bias"),
    "mlp.fc1.weight": ("mlp.fc1_g.weight", "mlp.fc1_x.weight"),
    "mlp.fc1.bias": ("mlp.fc1_g.bias", "mlp.fc1_x.bias"),
}
UNSUPPORTED = {
    "rope.freqs": "learned rotary frequencies (RoPE-ViT)",
    "trunk.blocks.0.attn.relative_position_bias_table": "relative positions (BEiT)",
    "trunk.blocks.0.attn.q_norm.weight": "normalised queries and keys",
    "trunk.blocks.0.attn.gate.weight": "gated attention",
    "pool.attn_pool.latent": "attention pooling (Perception Encoder)",
}
"""Decoded names of models that the trunk cannot hold -> what they have."""
POST_NORM_WIDTH = 1792
"""Of ``eva02_enormous``, whose norms stand behind the branches, under the names of EVA giant's."""


def matches(names: Collection[str]) -> bool:
    marks = ("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight")
    no_table = "pos_embed" not in names and "blocks.0.gamma_1" in names
    return "patch_embed.proj.weight" in names and (no_table or any(mark in names for mark in marks))


def decode(tensors: Tensors) -> Tensors:
    """Also of blocks alone, whatever stands before and behind them."""
    decoded = rename_prefixes(rename_blocks(tensors, BLOCK, OURS, IN_BLOCK | SEPARATE | ORIGINAL), timm.NAMES)
    decoded = renamed_by(lambda name: re.sub(r"^(trunk\.blocks\.\d+\.)rope\.", r"rope.\1", name), decoded)
    for block in sorted({match[0] for name in decoded if (match := re.match(r"trunk\.blocks\.\d+\.", name))}):
        for ours, parts in PARTS.items():
            names = [block + part for part in parts if part is not None]
            if not all(name in decoded for name in names) or block + ours in decoded:
                continue  # one piece already, or left under their names, which loading reports
            found = [decoded.pop(name) for name in names]
            if None in parts:
                found.insert(parts.index(None), torch.zeros_like(found[0]))
            decoded[block + ours] = torch.cat(found)
    return decoded


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    """In the layout that the public models of that kind have: separate where the gated MLP has a norm."""
    _refuse(config)
    separate = config.trunk.mlp_norm
    refuse_unplaced(tensors, (*invert(timm.NAMES), *timm.SAME), ("",), SOURCE.name)
    encoded: Tensors = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(trunk\.blocks\.\d+\.)(.+)", name)
        if match is None or match[2] not in PARTS or not (separate or None in PARTS[match[2]]):
            encoded[name] = tensor
            continue
        parts = PARTS[match[2]]
        for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
            if part is not None:
                encoded[match[1] + part] = piece
            elif bool(piece.any()):
                raise ValueError(
                    f"the {SOURCE.name} layout has no place for the keys' bias; use pointvit.save"
                )
    table = invert(IN_BLOCK) | (invert(SEPARATE) if separate else {})
    return rename_prefixes(rename_blocks(encoded, OURS, BLOCK, table), invert(timm.NAMES))


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """What all of them have in common; of images also positions, and CLIP's colours.

    Raises:
        ValueError: for a model of the same family that the trunk cannot hold.
    """
    for name, what in UNSUPPORTED.items():
        if name in tensors:
            raise ValueError(f"it has {what}, which is not supported")
    timm.check_layers(tensors)
    gated = _is_gated(tensors)
    if width_of(tensors) == POST_NORM_WIDTH and not gated:
        raise ValueError(
            "its width is that of eva02_enormous, whose norms behind the branches are not supported"
        )
    said: dict[str, Any] = {"norm_eps": 1e-6, "activation": "gelu", **known_heads(tensors)}
    if "tokenizer.proj.weight" not in tensors:
        return said
    table = "pos_embed" in tensors
    if not table and ("cls_token" in tensors or "fc_norm.weight" not in tensors):
        raise ValueError(
            "its only positions are the rotary ones of DINOv3 or RoPE-ViT, which are not supported"
        )
    mean, std = CLIP if table else UNIT
    said |= {"rope": gated or not table, "pos_resample": "antialias", "image_mean": mean, "image_std": std}
    return said | described(facts.config)


def _is_gated(tensors: Tensors) -> bool:
    first, last = (tensors.get(f"trunk.blocks.0.mlp.{name}.weight") for name in ("fc1", "fc2"))
    return first is not None and last is not None and first.shape[0] == 2 * last.shape[-1]


def _refuse(config: ViTConfig) -> None:
    """Raises ValueError for a model that would be built as another one from this layout."""
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    table, gated = front_end.pos_embed != "none", trunk.swiglu
    pool = (config.global_pool, trunk.final_norm, config.fc_norm)
    refuse_obstacles(
        {
            "learned 2D positions": front_end.pos_embed == "learned_2d",
            f"pos_mode={config.pos_mode!r}": config.pos_mode != "once",
            f"rope={front_end.rope} {'with' if gated else 'without'} a gated MLP": front_end.rope
            != (gated or not table),
            f"norm_eps={trunk.norm_eps:g} (it is 1e-6 there)": trunk.norm_eps != 1e-6,
            f"activation={trunk.activation!r} (it is gelu there)": trunk.activation != "gelu" and not gated,
            "norm_pre": trunk.norm_pre,
            "attention without qkv bias": not trunk.qkv_bias and (table or trunk.layer_scale is None),
            "a class token without position": table and config.class_token and not front_end.cls_pos,
            "a distillation token": front_end.dist_pos,
            "registers beside learned positions": table and config.num_reg_tokens > 0,
            "a class token without learned positions": config.class_token and not table,
            "a patch projection without bias": not front_end.patch_bias,
            f"global_pool, final_norm and fc_norm = {pool}": pool
            not in (("cls", True, False), ("mean", False, True)),
            f"the head {config.head!r}": config.num_classes > 0 and config.head != "linear",
        },
        SOURCE.name,
    )


SET_ASIDE = {
    "rope.": "tables of rotary positions, which are computed here",
    "mask_token": "used in pre-training only",
    "lm_head.": "the head of masked pre-training",
}
SOURCE = Source("eva", matches, decode, encode, settings, SET_ASIDE)
