"""torchvision's ViT names (``vit_b_16`` and its kin, SWAG's weights among them), older files as well."""

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
    rename_blocks,
    rename_prefixes,
    unnamed_obstacles,
)
from pointvit.config import IMAGENET, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

BLOCK, OURS = "encoder.layers.encoder_layer_{}.", "trunk.blocks.{}."
TOP = {
    "class_token": "cls_token",
    "conv_proj.": "tokenizer.proj.",
    "encoder.pos_embedding": "pos_embed",
    "encoder.ln.": "trunk.norm.",
    "heads.pre_logits.": "pre_logits.0.",
    "heads.head.": "head.",
}
IN_BLOCK = {
    "ln_1.": "norm1.",
    "self_attention.in_proj_": "attn.qkv.",
    "self_attention.out_proj.": "attn.proj.",
    "ln_2.": "norm2.",
    "mlp.0.": "mlp.fc1.",
    "mlp.3.": "mlp.fc2.",
}
BEFORE_0_14 = {"mlp.linear_1.": "mlp.fc1.", "mlp.linear_2.": "mlp.fc2."}
"""What torchvision called the MLP before version 0.14."""


def matches(names: Collection[str]) -> bool:
    return "encoder.layers.encoder_layer_0.self_attention.in_proj_weight" in names


def decode(tensors: Tensors) -> Tensors:
    """Names of now, or of before version 0.14.

    Raises:
        ValueError: for the convolutional stem of Xiao et al. 2021, which is no patch projection.
    """
    if any(name.startswith("conv_proj.conv_bn_relu_") for name in tensors):
        raise ValueError("its stem of several convolutions (conv_proj.conv_bn_relu_0, ...) has no place here")
    return rename_prefixes(rename_blocks(tensors, BLOCK, OURS, IN_BLOCK | BEFORE_0_14), TOP)


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    obstacles = {
        **unnamed_obstacles(config, square=True),
        f"norm_eps={trunk.norm_eps:g} (it is 1e-6 there)": trunk.norm_eps != 1e-6,
        f"activation={trunk.activation!r} (it is gelu there)": trunk.activation != "gelu",
        "a model without class token": not config.class_token,
        f"global_pool={config.global_pool!r} (it is cls there)": config.global_pool != "cls",
        "a trunk without final norm": not trunk.final_norm,
        "a patch projection without bias": not front_end.patch_bias,
        f"{front_end.in_chans} channels (there are 3)": front_end.in_chans != 3,
        "a model without head": config.num_classes == 0,
        f"the head {config.head!r} (it is linear there)": config.head != "linear",
    }
    refuse_obstacles(obstacles, SOURCE.name)
    top, in_block = invert(TOP), invert(IN_BLOCK)
    refuse_unplaced(tensors, top, in_block, SOURCE.name)
    return rename_prefixes(rename_blocks(tensors, OURS, BLOCK, in_block), top)


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """What all of torchvision's ViTs have in common; heads of its public widths.

    Raises:
        ValueError: if what all of them have is missing: positions, class token, a part of a layer.
    """
    if "pos_embed" not in tensors:
        raise ValueError("encoder.pos_embedding is missing")
    if "cls_token" not in tensors:
        raise ValueError("class_token is missing")
    refuse_halves(tensors, ("pre_logits.0", "head", "tokenizer.proj"))
    mean, std = IMAGENET
    return {
        "norm_eps": 1e-6,
        "activation": "gelu",
        "pos_resample": "aligned",
        "image_mean": mean,
        "image_std": std,
        **known_heads(tensors),
    }


SOURCE = Source("torchvision", matches, decode, encode, settings)
