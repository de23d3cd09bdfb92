"""What the ``config.json`` says that timm's repositories have beside the weights."""

from __future__ import annotations

import math
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

HEADS = {"vit_base_patch16_gap_224": 16, "vit_small_resnet26d_224": 8, "vit_small_resnet50d_s16_224": 8}
"""timm's architectures with other heads than public ViTs of their width have."""
NO_CLASS_TOKEN = re.compile(r"_gap_|_map_|_siglip_|_so150m|_rpn_")
"""Parts of the names of timm's architectures without class token."""
REGISTERS = re.compile(r"_reg(\d+)_")
"""How many registers the names of timm's architectures state."""
READ = ("act_layer", "global_pool", "num_heads", "img_size", "class_token", "reg_tokens")
SHOWN = (
    *("patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias", "qkv_fused"),
    *("qk_norm", "proj_bias", "scale_attn_norm", "scale_mlp_norm", "init_values", "no_embed_class"),
    *("pre_norm", "final_norm", "fc_norm", "swiglu_mlp", "scale_mlp", "scale_attn_inner", "use_abs_pos_emb"),
    *("num_reg_tokens", "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm"),
)
"""Arguments of timm's models that names and shapes of tensors show: a wrong one does not load."""
HARMLESS = (
    *("dynamic_img_size", "dynamic_img_pad", "strict_img_size", "weight_init", "fix_init"),
    "head_init_scale",
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
)
"""Arguments that change nothing in what a trained model computes for images of its own size."""
ONLY: dict[str, Any] = {"pool_include_prefix": False, "pos_embed": "learn"}
"""Arguments that may be stated, but for this value only."""


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
    _refuse_arguments(name, arguments)
    asked = arguments.get("act_layer") or activation_of(name)
    said: dict[str, Any] = {
        "activation": _known("act_layer", asked, ACTIVATIONS),
        "pos_resample": "antialias",
        **_colours(trained),
    }
    pool = arguments.get("global_pool", config.get("global_pool"))
    if pool == "" and arguments.get("num_classes", config.get("num_classes")) != 0:
        raise ValueError("config.json asks for global_pool='', which gives the head every token")
    if pool and "distilled" not in name:
        said["global_pool"] = _known("global_pool", pool, POOLS)
    heads = arguments.get("num_heads", HEADS.get(_bare(name)))
    if heads is not None:
        said["num_heads"] = _whole("num_heads", heads)
    size = arguments.get("img_size", trained.get("input_size"))
    if size is not None:
        said["img_size"] = _pair(size)
    return said


def prefix_tokens(config: Mapping[str, Any]) -> tuple[bool, int] | None:
    """Whether timm's ViT has a class token, and how many registers; None if the config names none.

    Raises:
        ValueError: if they are stated as something else.
    """
    name, arguments = config.get("architecture"), config.get("model_args") or {}
    if not isinstance(name, str) or not name.startswith(("vit_", "flexivit_", "deit")):
        return None
    class_token = arguments.get("class_token", NO_CLASS_TOKEN.search(name) is None)
    if not isinstance(class_token, bool):
        raise ValueError(f"config.json states class_token={class_token!r}, expected true or false")
    named = REGISTERS.search(name)
    registers = arguments.get("reg_tokens", int(named[1]) if named else 0)
    return class_token, _whole("reg_tokens", registers)


def states_size(config: Mapping[str, Any]) -> bool:
    """Whether the size of images is that of the weights: ``input_size`` alone is what timm resamples to."""
    return "img_size" in (config.get("model_args") or {})


def activation_of(architecture: str) -> str:
    """What timm's model of that name has, if it is not told otherwise."""
    if "quickgelu" in architecture:
        return "quick_gelu"
    return "gelu_tanh" if GELU_TANH.match(architecture) else "gelu"


def _refuse_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for an argument that changes the result and is not understood."""
    for argument, value in arguments.items():
        usual = value is None or (argument in ONLY and value == ONLY[argument])
        if not usual and argument not in (*READ, *SHOWN, *HARMLESS):
            raise ValueError(f"config.json asks for {argument}={value!r}, which is not supported")
    if arguments.get("embed_dim") is not None and arguments.get("num_heads") is None:
        raise ValueError(f"config.json gives {name} another embed_dim and does not say num_heads")


def _bare(architecture: str) -> str:
    """Without the tag of its weights."""
    return architecture.split(".")[0]


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"config.json states {name}={value!r}, expected a whole number")
    return value


def _known(name: str, value: Any, table: dict[str, str]) -> str:
    if not isinstance(value, str) or value not in table:
        raise ValueError(f"config.json asks for {name}={value!r}, known are {', '.join(table)}")
    return table[value]


def _colours(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Of colour images; what is of other channels says nothing of ours."""
    colours = {}
    for name in ("mean", "std"):
        values = trained.get(name) or ()
        if not isinstance(values, (list, tuple)) or not all(_is_number(value) for value in values):
            raise ValueError(f"config.json states {name}={values!r}, expected a list of numbers")
        if len(values) == 3:
            colours[f"image_{name}"] = tuple(float(value) for value in values)
    return colours


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _pair(size: Any) -> tuple[int, int]:
    """(H, W) from one number, two, or channels and two."""
    numbers = size if isinstance(size, (list, tuple)) else [size]
    sound = (isinstance(number, int) and not isinstance(number, bool) and number > 0 for number in numbers)
    if len(numbers) not in (1, 2, 3) or not all(sound):
        raise ValueError(f"config.json states the size of images as {size!r}, expected whole numbers")
    return numbers[-2:][0], numbers[-1]
