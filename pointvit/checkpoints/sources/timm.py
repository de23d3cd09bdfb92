"""timm's ViT names (also those of DeiT, DINO and MAE): the trunk's names are ours already.

What names and shapes leave open is told by the ``config.json`` that timm's repositories have beside the
weights. A bare file has timm's defaults, but for CLIP's, which leave the activation open: OpenAI's want
QuickGELU, OpenCLIP's GELU. SigLIP's with the approximate GELU are told by their public sizes.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch

from pointvit.checkpoints.architecture import patch_of
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
    width_of,
)
from pointvit.checkpoints.sources.timm_config import POOLS, described, prefix_tokens, states_size
from pointvit.config import IMAGENET, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

NAMES = {
    "patch_embed.proj.": "tokenizer.proj.",
    "patch_embed.backbone.": "tokenizer.backbone.",
    "blocks.": "trunk.blocks.",
    "norm_pre.": "trunk.norm_pre.",
    "norm.": "trunk.norm.",
    "reg_token": "reg_tokens",
    "attn_pool.": "pool.attn_pool.",
    "pre_logits.fc.": "pre_logits.0.",
}
DISTILLED = {"dist_token": "reg_tokens", "head.": "head.cls.", "head_dist.": "head.dist."}
"""Names in files with DeiT's distillation token."""
SAME = ("cls_token", "pos_embed", "fc_norm.", "head.")
"""Beginnings that are ours as well."""
HEAD = ("head.cls.weight", "head.cls.bias", "head.dist.weight", "head.dist.bias")
SIGLIP_2 = {
    (768, 32, 64),
    (1024, 16, 1024),
    *((width, 16, side**2) for width in (1152, 1536) for side in (16, 24)),
    (1152, 16, 1024),
}
"""(width, patch, patches) of SigLIP 2's models in timm with the approximate GELU; the others' is exact."""


def matches(names: Collection[str]) -> bool:
    return "patch_embed.proj.weight" in names and "blocks.0.attn.qkv.weight" in names


def decode(tensors: Tensors) -> Tensors:
    """Positions that registers have of their own are added to them, which gives the same tokens."""
    token = tensors.get("dist_token")
    distilled = token is not None and token.ndim == 3  # or else something unknown, which loading reports
    decoded = rename_prefixes(tensors, NAMES | (DISTILLED if distilled else {}))
    if "pos_embed" not in decoded or "reg_tokens" not in decoded or distilled:
        return decoded
    table, registers, first = decoded["pos_embed"], decoded["reg_tokens"], int("cls_token" in decoded)
    count = _register_rows(table, registers, first)
    if count > 0:
        own, rest = table[:, first : first + count], table[:, first + count :]
        decoded["reg_tokens"] = registers + own
        decoded["pos_embed"] = torch.cat([table[:, :first], rest], dim=1) if first else rest
    return decoded


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    """Beside a class token with a position, registers get one that is zero: in timm all have one, or none."""
    _refuse(config)
    distilled = invert(DISTILLED) if _has_distillation_token(config) else {}
    table = invert(NAMES) | distilled
    refuse_unplaced(tensors, (*table, *SAME), ("",), SOURCE.name)
    encoded = rename_prefixes(tensors, table)
    if "reg_token" in encoded and "pos_embed" in encoded:
        positions, registers, count = encoded["pos_embed"], encoded["reg_token"], 0
        if _has_class_position(config):
            count = registers.shape[1]
            rows = [positions[:, :1], torch.zeros_like(registers), positions[:, 1:]]
            encoded["pos_embed"] = torch.cat(rows, dim=1)
        if _register_rows(encoded["pos_embed"], registers, int(config.class_token)) != count:
            raise ValueError(
                f"the {SOURCE.name} layout has no place for registers beside a grid that is not square, or "
                "that might be another; use pointvit.save"
            )
    return encoded


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """timm's defaults, then what its ``config.json`` says.

    Raises:
        ValueError: if the file is of an architecture that the trunk has not, or incomplete.
    """
    check(tensors)
    if not facts.config and _is_post_norm(tensors):
        raise ValueError(
            "its names are those of vit_base_patch16_rpn_224, whose norms behind the branches are not "
            "supported"
        )
    clip = "trunk.norm_pre.weight" in tensors
    said: dict[str, Any] = {
        "norm_eps": 1e-5 if clip else 1e-6,
        "pos_resample": "antialias",
        **known_heads(tensors),
    }
    if not clip:
        said["activation"] = "gelu_tanh" if _is_siglip_2(tensors) else "gelu"
    for start, method in PRETRAINING.items():
        if any(name.startswith(start) for name in tensors):
            said |= {"pos_resample": method, "image_mean": IMAGENET[0], "image_std": IMAGENET[1]}
    return said | stated(tensors, facts)


def stated(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """What timm's ``config.json`` says, but for a size of images that is not that of the weights.

    Raises:
        ValueError: if it contradicts the weights, or asks for what the trunk has not.
    """
    said, tokens = described(facts.config), prefix_tokens(facts.config)
    there = ("cls_token" in tensors, _count(tensors))
    if tokens is not None and "dist_token" not in facts.shapes and tokens != there:
        wanted, found = (f"{'a' if c else 'no'} class token and {r} registers" for c, r in (tokens, there))
        raise ValueError(f"config.json describes {wanted}, the weights have {found}")
    if not _fits(tensors, facts, said.get("img_size")):
        if states_size(facts.config):
            height, width = said["img_size"]
            raise ValueError(f"config.json describes images of {height}x{width}, the positions are of others")
        said.pop("img_size", None)  # what timm resamples the weights to
    return said


def _fits(tensors: Tensors, facts: Facts, size: tuple[int, int] | None) -> bool:
    """Whether the position table is one for images of that size.

    Raises:
        ValueError: if its rows were taken for others, or may be.
    """
    rows, registers = tensors["pos_embed"].shape[1], _count(tensors)
    distilled = "dist_token" in facts.shapes
    in_file = facts.shapes.get("pos_embed", (1, rows))[1]
    without = in_file - registers - int("cls_token" in tensors)
    high, wide = patch_of(tensors)
    patches = 0 if size is None else (size[0] // high) * (size[1] // wide)
    if patches not in (in_file, without):
        if registers and not distilled and _is_square(in_file) and _is_square(without):
            raise ValueError(f"its {in_file} positions may or may not be those of {registers} registers, too")
        return size is None
    if not distilled and rows != (in_file if patches == in_file else in_file - registers):
        raise ValueError(
            f"which of its {in_file} positions are those of {registers} registers cannot be told"
        )
    return True


def _count(tensors: Tensors) -> int:
    """How many registers there are."""
    registers = tensors.get("reg_tokens")
    return 0 if registers is None else registers.shape[1]


def check(tensors: Tensors) -> None:
    """Refuses what would load cleanly and compute something else."""
    if "pos_embed" not in tensors:
        raise ValueError("holds no pos_embed, which all of timm's ViTs have but those with rotary positions")
    if "pool.attn_pool.latent" in tensors and ("cls_token" in tensors or "reg_tokens" in tensors):
        raise ValueError(
            "its attention pool stands beside a class token or registers, which some of timm's models show "
            "it and some do not; this is not supported"
        )
    check_layers(tensors)


def check_layers(tensors: Tensors) -> None:
    """Refuses a head or patch projection without a part, which would be taken for another kind."""
    clip = "trunk.norm_pre.weight" in tensors  # its patch projection has no bias
    refuse_halves(tensors, ("head", "fc_norm", *(() if clip else ("tokenizer.proj",))))
    distilled = [name in tensors for name in HEAD]
    if any(distilled) and not all(distilled):
        raise ValueError("its two heads, head and head_dist, are incomplete")


def _is_siglip_2(tensors: Tensors) -> bool:
    """Whether the sizes are in ``SIGLIP_2``, and there is nothing that SigLIP has not."""
    others = ("cls_token", "reg_tokens", "fc_norm.weight")
    kernel, patches = tensors["tokenizer.proj.weight"], tensors["pos_embed"].shape[1]
    sizes = (width_of(tensors), kernel.shape[-1], patches)
    return sizes in SIGLIP_2 and not any(name in tensors for name in others)


def _is_post_norm(tensors: Tensors) -> bool:
    """Whether these are the names of timm's one public model with norms behind the branches."""
    absent = ("cls_token", "reg_tokens", "trunk.blocks.0.attn.qkv.bias", "trunk.blocks.0.ls1.gamma")
    return "fc_norm.weight" in tensors and not any(name in tensors for name in absent)


def _register_rows(table: torch.Tensor, registers: torch.Tensor, first: int) -> int:
    """How many rows of the table are the registers', behind the ``first`` of the class token.

    None, or one for each: which of these leaves a square grid of patches.
    """
    if not table.ndim == registers.ndim == 3:
        return 0  # which is reported later
    rows, count = table.shape[1], registers.shape[1]
    if _is_square(rows):
        return 0
    return count if _is_square(rows - first - count) else 0


def _is_square(rows: int) -> bool:
    return rows > 0 and math.isqrt(rows) ** 2 == rows


def _has_class_position(config: ViTConfig) -> bool:
    assert isinstance(config.tokenizer, ImageTokenizerConfig)
    return config.class_token and config.tokenizer.cls_pos


def _has_distillation_token(config: ViTConfig) -> bool:
    assert isinstance(config.tokenizer, ImageTokenizerConfig)
    return config.num_reg_tokens == 1 and config.tokenizer.dist_pos


def _refuse(config: ViTConfig) -> None:
    """Raises ValueError for a model that timm would build as another one, or not at all."""
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    distilled = _has_distillation_token(config)
    pools = ("cls", "cls+dist") if distilled else tuple(POOLS.values())
    heads = "distilled" if distilled else "linear"
    prefix, pool = config.num_prefix_tokens > 0, config.global_pool
    refuse_obstacles(
        {
            "rotary positions": front_end.rope,
            "learned 2D positions": front_end.pos_embed == "learned_2d",
            f"pos_mode={config.pos_mode!r}": config.pos_mode != "once",
            f"the head {config.head!r}": config.num_classes > 0 and config.head != heads,
            f"global_pool={pool!r}": pool not in pools,
            "attention pooling beside a class token or registers": pool == "map" and prefix,
            "a norm before the pool and one behind it": trunk.final_norm and config.fc_norm,
            "norm_pre and a patch projection with bias": trunk.norm_pre and front_end.patch_bias,
            "a patch projection without bias": not (trunk.norm_pre or front_end.patch_bias),
        },
        SOURCE.name,
    )


PRETRAINING = {"head.mlp.": "offset", "head.last_layer.": "offset", "decoder_": "bicubic"}
"""Names that only the pre-training files of DINO and MAE hold -> how their own code resamples positions."""
SET_ASIDE = {
    "mask_token": "used in pre-training only",
    "decoder_": "the decoder of masked pre-training",
    "head.mlp.": "DINO's projection head",
    "head.last_layer.": "DINO's projection head",
}
SOURCE = Source("timm", matches, decode, encode, settings, SET_ASIDE)
