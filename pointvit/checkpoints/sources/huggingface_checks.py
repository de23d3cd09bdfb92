"""What Hugging Face's ``config.json`` and ``preprocessor_config.json`` state, held against the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pointvit.checkpoints.architecture import block_count
from pointvit.checkpoints.sources.source import Tensors, size_of, width_of

TOKENS = {
    # model_type: whether there is a class token, and how many registers (DeiT's token is one) if not stated
    "vit": (True, 0),
    "deit": (True, 1),
    "vit_mae": (True, 0),
    "vit_msn": (True, 0),
    "ijepa": (False, 0),
    "dinov2": (True, 0),
    "dinov2_with_registers": (True, None),
}


def check_config(config: Mapping[str, Any], tensors: Tensors) -> None:
    """Raises ValueError for a size in ``config.json`` that is not the weights', or is no whole number."""
    last, kernel = tensors.get("trunk.blocks.0.mlp.fc2.weight"), tensors.get("tokenizer.proj.weight")
    actual: dict[str, tuple[str, int]] = {
        "num_hidden_layers": ("blocks", block_count(tensors)),
        "hidden_size": ("channels", width_of(tensors)),
    }
    if last is not None:
        actual["intermediate_size"] = ("channels in the MLP", last.shape[1])
    if kernel is not None:
        actual["num_channels"] = ("channels of images", kernel.shape[1])
        if "patch_size" in config and size_of(config["patch_size"]) != tuple(kernel.shape[2:]):
            raise ValueError(
                f"config.json describes patches of {config['patch_size']}, the weights have those of "
                f"{kernel.shape[2]}x{kernel.shape[3]}"
            )
    for name, (what, number) in actual.items():
        if name in config and whole(name, config[name]) != number:
            raise ValueError(f"config.json describes {config[name]} {what}, the weights have {number}")
    biased = "trunk.blocks.0.attn.qkv.bias" in tensors
    if config.get("qkv_bias", biased) is not biased:
        raise ValueError(f"config.json states qkv_bias={config['qkv_bias']!r}, in the weights it is {biased}")


def check_tokens(kind: str, config: Mapping[str, Any], tensors: Tensors) -> None:
    """Raises ValueError unless the weights have the tokens of that ``model_type``, and positions for them."""
    class_token, registers = TOKENS[kind]
    if ("cls_token" in tensors) != class_token:
        wrong = "is missing" if class_token else f"has no place in a model of {kind}"
        raise ValueError(f"embeddings.cls_token {wrong}")
    found = tensors["reg_tokens"].shape[1] if "reg_tokens" in tensors else 0
    if registers is None:
        registers = whole("num_register_tokens", config.get("num_register_tokens", found))
    if found != registers:
        raise ValueError(
            f"a model of {kind} has {registers} tokens beside the class token, the weights {found}"
        )
    check_grid(config, tensors, int(class_token) + (1 if kind == "deit" else 0))


def check_grid(config: Mapping[str, Any], tensors: Tensors, prefix: int) -> None:
    """Raises ValueError unless the position table is one for images of the stated size.

    Args:
        prefix: how many of its rows stand before the patches'.
    """
    if "image_size" not in config or "tokenizer.proj.weight" not in tensors:
        return
    image, kernel = size_of(config["image_size"]), tensors["tokenizer.proj.weight"].shape
    patches, rows = (image[0] // kernel[2]) * (image[1] // kernel[3]), tensors["pos_embed"].shape[1]
    if rows != patches + prefix:
        raise ValueError(
            f"config.json describes images of {config['image_size']}, that is {patches + prefix} positions, "
            f"the weights have {rows}"
        )


def whole(name: str, value: Any) -> int:
    """The whole number that is stated, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"config.json states {name}={value!r}, expected a whole number")
    return value


def positive(name: str, value: Any) -> float:
    """The finite number above zero that is stated, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"config.json states {name}={value!r}, expected a number above zero")
    return float(value)


def preprocessor_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ``preprocessor_config.json`` says; empty where there is none.

    Raises:
        ValueError: if it is no object, or its mean or deviation no list of numbers.
    """
    said = config.get("preprocessor", {})
    if not isinstance(said, Mapping):
        raise ValueError(f"preprocessor_config.json must be an object, got {said!r}")
    for name in ("image_mean", "image_std"):
        values = said.get(name, [])
        numbers = isinstance(values, (list, tuple)) and not any(isinstance(v, bool) for v in values)
        if not numbers or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
            raise ValueError(f"preprocessor_config.json states {name}={values!r}, expected a list of numbers")
    return said
