"""What the ``config.json`` says that timm's repositories have beside the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "quickgelu": "quick_gelu",
}
POOLS = {"avg": "mean", "max": "max", "map": "map", "token": "cls"}
GELU_TANH = re.compile(
    r"vit_((base_patch32|giantopt_patch16|so400m_patch16)_siglip|large_patch16_siglip_(gap_)?512)"
)
"""timm's architectures with the approximate GELU; the other SigLIP ones have the exact one."""
UNSUPPORTED = {
    "_rope_(?!reg)": "the rotary positions of RoPE-ViT",
    "_pe_": "the rotary positions of the Perception Encoder",
    "_rpn_": "norms behind the branches",
    "_enormous_": "norms behind the branches",
    "dinov3": "the rotary positions of DINOv3",
    "beit": "relative positions or norms that the trunk has not",
}
"""Parts of timm's architecture names -> what the models have, under names of tensors that others have too."""


def described(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the model and its metadata; none if the ``config.json`` is not timm's.

    Raises:
        ValueError: if it asks for what the trunk has not.
    """
    name = config.get("architecture")
    if not isinstance(name, str):
        return {}
    for part, what in UNSUPPORTED.items():
        if re.search(part, name):
            raise ValueError(f"config.json describes {name}, which has {what}; this is not supported")
    arguments, trained = (config.get(part) or {} for part in ("model_args", "pretrained_cfg"))
    if not (isinstance(arguments, Mapping) and isinstance(trained, Mapping)):
        raise ValueError("model_args and pretrained_cfg in config.json must be objects")
    asked = arguments.get("act_layer") or activation_of(name)
    said: dict[str, Any] = {
        "activation": _known("act_layer", asked, ACTIVATIONS),
        "pos_resample": "antialias",
        **_colours(trained),
    }
    pool = arguments.get("global_pool", config.get("global_pool"))
    if pool and "distilled" not in name:
        said["global_pool"] = _known("global_pool", pool, POOLS)
    if "num_heads" in arguments:
        said["num_heads"] = int(arguments["num_heads"])
    size = arguments.get("img_size", trained.get("input_size"))
    if size is not None:
        said["img_size"] = _pair(size)
    return said


def activation_of(architecture: str) -> str:
    """What timm's model of that name has, if it is not told otherwise."""
    if "quickgelu" in architecture:
        return "quick_gelu"
    return "gelu_tanh" if GELU_TANH.match(architecture) else "gelu"


def _known(name: str, value: Any, table: dict[str, str]) -> str:
    if value not in table:
        raise ValueError(f"config.json asks for {name}={value!r}, known are {', '.join(table)}")
    return table[value]


def _colours(trained: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: trained[name] for name in ("mean", "std") if len(trained.get(name) or ()) == 3}
    return {f"image_{name}": tuple(float(value) for value in values) for name, values in given.items()}


def _pair(size: Any) -> tuple[int, int]:
    """(H, W) from one number, two, or channels and two."""
    numbers = size if isinstance(size, list) else [size]
    if not numbers or not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"config.json states the size of images as {size!r}, expected whole numbers")
    return numbers[-2:][0], numbers[-1]
