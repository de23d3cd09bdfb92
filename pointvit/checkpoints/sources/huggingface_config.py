"""Hugging Face's ``config.json`` of ViT and its kin: read as settings of ours, and written for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pointvit.checkpoints.sources.huggingface_checks import (
    check_config,
    check_tokens,
    positive,
    preprocessor_of,
    whole,
)
from pointvit.checkpoints.sources.source import (
    Facts,
    Tensors,
    invert,
    known_heads,
    refuse_halves,
    size_of,
    width_of,
)
from pointvit.config import IMAGENET, UNIT, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

DEFAULTS = {
    # model_type: LayerNorm eps and colours, where no file beside the weights states them
    "vit": (1e-12, UNIT),
    "deit": (1e-12, IMAGENET),
    "vit_mae": (1e-12, IMAGENET),
    "vit_msn": (1e-6, IMAGENET),
    "ijepa": (1e-12, IMAGENET),
    "dinov2": (1e-6, IMAGENET),
    "dinov2_with_registers": (1e-6, IMAGENET),
}
CLASSES = {
    # model_type, of those that are written: name of its classes, pool without and with a classifier
    "vit": ("ViT", "cls", "cls"),
    "deit": ("DeiT", "cls", "cls"),
    "ijepa": ("IJepa", "mean", "mean"),
    "dinov2": ("Dinov2", "cls", "cls+mean"),
    "dinov2_with_registers": ("Dinov2WithRegisters", "cls", "cls+mean"),
}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """From ``config.json`` and ``preprocessor_config.json``; without them, the family's defaults.

    Raises:
        ValueError: if they contradict the weights, or ask for what is not known here.
    """
    said = tower_settings(tensors, facts)
    kind, head = facts.config.get("model_type", _kind_of_tensors(tensors)), tensors.get("head.weight")
    refuse_halves(tensors, ("tokenizer.proj",))
    check_tokens(kind, facts.config, tensors)
    if kind.startswith("dinov2") and head is not None and head.shape[-1] == 2 * width_of(tensors):
        said["global_pool"] = "cls+mean"
    return said


def tower_settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """As :func:`settings`, whichever tokens, pool and head there are."""
    config = facts.config
    if "pos_embed" not in tensors:
        raise ValueError("embeddings.position_embeddings is missing")
    refuse_halves(tensors, ("head", "head.cls", "head.dist"))
    kind = config.get("model_type", _kind_of_tensors(tensors))
    activation = config.get("hidden_act", "gelu")
    for name, value, known in (("model_type", kind, DEFAULTS), ("hidden_act", activation, ACTIVATIONS)):
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"config.json asks for {name}={value!r}, known are {', '.join(known)}")
    check_config(config, tensors)
    eps, colours = DEFAULTS[kind]
    settings: dict[str, Any] = {
        "norm_eps": positive("layer_norm_eps", config.get("layer_norm_eps", eps)),
        "activation": ACTIVATIONS[activation],
        "pos_resample": "antialias" if kind == "dinov2_with_registers" else "bicubic",
        **known_heads(tensors),
        **_colours(preprocessor_of(config), colours),
    }
    if "num_attention_heads" in config:
        settings["num_heads"] = whole("num_attention_heads", config["num_attention_heads"])
    if "image_size" in config:
        settings["img_size"] = size_of(config["image_size"])
    return settings


def describe(config: ViTConfig) -> dict[str, Any]:
    """The ``config.json`` with which transformers opens what ``huggingface.encode`` returns."""
    kind, trunk, tokenizer = kind_of(config), config.trunk, config.tokenizer
    assert isinstance(tokenizer, ImageTokenizerConfig)
    own: dict[str, Any] = {"intermediate_size": trunk.hidden_dim}
    if kind.startswith("dinov2"):
        own = {
            "mlp_ratio": _dinov2_ratio(config),
            "use_swiglu_ffn": trunk.swiglu,
            "layerscale_value": trunk.layer_scale,
        }
    own |= {"use_mask_token": False} if kind == "dinov2" else {}
    own |= {"num_register_tokens": config.num_reg_tokens} if kind == "dinov2_with_registers" else {}
    classifier = "ForImageClassification" + ("WithTeacher" if config.head == "distilled" else "")
    return {
        "model_type": kind,
        "architectures": [CLASSES[kind][0] + (classifier if config.num_classes else "Model")],
        "hidden_size": trunk.embed_dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.num_heads,
        "hidden_act": invert(ACTIVATIONS)[trunk.activation],
        "layer_norm_eps": trunk.norm_eps,
        "qkv_bias": trunk.qkv_bias,
        "image_size": _one_or_both(tokenizer.img_size),
        "patch_size": _one_or_both(tokenizer.patch_size),
        "num_channels": tokenizer.in_chans,
        **own,
        **({"num_labels": config.num_classes} if config.num_classes else {}),
    }


def kind_of(config: ViTConfig) -> str:
    """The ``model_type`` as which a model is written."""
    if config.trunk.layer_scale is not None:
        return "dinov2_with_registers" if config.num_reg_tokens else "dinov2"
    if config.num_reg_tokens:
        return "deit"
    return "vit" if config.class_token else "ijepa"


def obstacles(config: ViTConfig) -> dict[str, bool]:
    """What the layout has no place for, where the names of tensors do not show it."""
    kind, trunk, tokenizer = kind_of(config), config.trunk, config.tokenizer
    assert isinstance(tokenizer, ImageTokenizerConfig)
    _, pool, pool_with_head = CLASSES[kind]
    if config.num_classes:
        pool = "cls+dist" if config.head == "distilled" else pool_with_head
    scaled, grid = kind.startswith("dinov2"), tokenizer.grid
    distilled = tokenizer.dist_pos and config.num_reg_tokens == 1
    heads = ("linear", "distilled") if kind == "deit" else ("linear",)
    return {
        "rotary positions": tokenizer.rope,
        f"{tokenizer.pos_embed} positions": tokenizer.pos_embed in ("none", "learned_2d"),
        f"pos_mode={config.pos_mode!r}": config.pos_mode != "once",
        "a class token without position": config.class_token and not tokenizer.cls_pos,
        "registers without LayerScale": kind == "deit" and not distilled,
        "a distillation token beside LayerScale": scaled and config.num_reg_tokens > 0 and tokenizer.dist_pos,
        "LayerScale or a distillation token without class token": kind != "ijepa" and not config.class_token,
        "a patch projection without bias": not tokenizer.patch_bias,
        "a trunk without final norm": not trunk.final_norm,
        "a gated MLP without LayerScale": trunk.swiglu and not scaled,
        f"an MLP of {trunk.hidden_dim} channels": scaled and not _dinov2_ratio(config),
        f"a {grid[0]}x{grid[1]} grid of positions": scaled and grid[0] != grid[1],
        f"the head {config.head!r}": config.num_classes > 0 and config.head not in heads,
        f"global_pool={config.global_pool!r} (it is {pool} there)": config.global_pool != pool,
    }


def _kind_of_tensors(tensors: Tensors) -> str:
    if "trunk.blocks.0.ls1.gamma" in tensors:
        return "dinov2_with_registers" if "reg_tokens" in tensors else "dinov2"
    if any(name.startswith("decoder.decoder_") for name in tensors):
        return "vit_mae"
    if "reg_tokens" in tensors:
        return "deit"
    return "vit" if "cls_token" in tensors else "ijepa"


def _dinov2_ratio(config: ViTConfig) -> int:
    """The ``mlp_ratio`` of a Dinov2 with such an MLP, a whole number; 0 if there is none."""
    width, hidden = config.trunk.embed_dim, config.trunk.hidden_dim
    of_ratio = {
        ratio: (ratio * width * 2 // 3 + 7) // 8 * 8 if config.trunk.swiglu else ratio * width
        for ratio in range(1, 17)
    }
    return next((ratio for ratio, channels in of_ratio.items() if channels == hidden), 0)


def _colours(said: Mapping[str, Any], default: tuple[Any, Any]) -> dict[str, Any]:
    """What a ``preprocessor_config.json`` says of mean and deviation, if it is of colour images."""
    names = ("image_mean", "image_std")
    colours = [said.get(name, usual) for name, usual in zip(names, default, strict=True)]
    if not said.get("do_normalize", True):
        colours = [(0.0,) * 3, (1.0,) * 3]
    if any(len(values) != 3 for values in colours):
        return {}
    return {name: tuple(map(float, values)) for name, values in zip(names, colours, strict=True)}


def _one_or_both(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
