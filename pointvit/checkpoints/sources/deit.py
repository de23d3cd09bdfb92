"""The official files of DeiT with a distillation token and of DeiT III (Touvron et al. 2021, 2022).

Their names are timm's but for DeiT III's LayerScale. Those of plain DeiT are timm's altogether, and nothing
tells the two apart: they are read as ``timm``, and so is DeiT III in timm's names. timm's distilled models
are read here; a ``config.json`` of timm's beside them says that positions are resampled in timm's way.

A distilled model without heads is pooled to its class token, as Hugging Face's; timm gives the mean of the
class and the distillation token, for which there is no pool here.

RoPE-ViT's models with learned positions (``vit_*_rope_ape_*``) have DeiT III's names and shapes; only their
``config.json`` tells them, and they are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.sources import timm
from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    invert,
    known_heads,
    refuse_obstacles,
    rename_blocks,
    unnamed_obstacles,
)
from pointvit.config import IMAGENET, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

BLOCK = "blocks.{}."
LAYER_SCALE = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}


def matches(names: Collection[str]) -> bool:
    third = "blocks.0.gamma_1" in names and "pos_embed" in names and "norm_pre.weight" not in names
    return timm.matches(names) and (third or "dist_token" in names)


def decode(tensors: Tensors) -> Tensors:
    return timm.decode(rename_blocks(tensors, BLOCK, BLOCK, LAYER_SCALE))


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    _refuse(config)
    return rename_blocks(timm.encode(tensors, config), BLOCK, BLOCK, invert(LAYER_SCALE))


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """What all of DeiT's models have in common; heads of public widths.

    Raises:
        ValueError: if the class token is missing, or one of the two heads of a distilled model.
    """
    timm.check(tensors)
    if "cls_token" not in tensors:
        raise ValueError("cls_token is missing, which all of DeiT's models have")
    mean, std = IMAGENET
    return {
        "norm_eps": 1e-6,
        "activation": "gelu",
        "pos_resample": "bicubic",
        "image_mean": mean,
        "image_std": std,
        **known_heads(tensors),
        **timm.stated(tensors, facts),
    }


def _refuse(config: ViTConfig) -> None:
    """Raises ValueError for what is neither of the two models, as their own code builds them."""
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    third, distilled = trunk.layer_scale is not None, front_end.dist_pos and config.num_reg_tokens == 1
    obstacles = {
        **unnamed_obstacles(config, square=True),
        "a class token without position": config.class_token and not front_end.cls_pos and not third,
        "a class token with a position beside LayerScale": front_end.cls_pos and third,
        "a model without class token": not config.class_token,
        "a model with neither LayerScale nor a distillation token (timm has)": not third and not distilled,
        "registers": config.num_reg_tokens > int(distilled and not third),
        f"norm_eps={trunk.norm_eps:g} (it is 1e-6 there)": trunk.norm_eps != 1e-6,
        f"activation={trunk.activation!r} (it is gelu there)": trunk.activation != "gelu",
        "norm_pre": trunk.norm_pre,
        "norms inside the branches": trunk.attn_norm or trunk.mlp_norm,
        "a trunk without final norm": not trunk.final_norm,
        "fc_norm": config.fc_norm,
        "a tanh layer before the head": config.representation_size is not None,
        f"global_pool={config.global_pool!r}": config.global_pool not in ("cls", "cls+dist"),
    }
    refuse_obstacles(obstacles, SOURCE.name)


SOURCE = Source("deit", matches, decode, encode, settings)
