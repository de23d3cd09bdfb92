"""OpenCLIP's configuration, as settings of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pointvit.checkpoints.sources import openclip_timm
from pointvit.checkpoints.sources.source import Facts, Tensors, known_heads, refuse_halves, size_of, width_of
from pointvit.config import CLIP, IMAGENET

POOLS = {
    # (whether it is CLIPA, pool_type, final_ln_after_pool); of one token, the norm may come first or last
    (True, "avg", True): "mean",
    (False, "tok", False): "cls",
    (False, "tok", True): "cls",
    (False, "avg", False): "mean",
}
ACTIVATIONS = {"none": "gelu", "tanh": "gelu_tanh"}
"""By the option ``approximate`` of torch's GELU."""
OPENAI = "input_resolution"
"""A number that only OpenAI's own files hold."""


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """From OpenCLIP's configuration (``open_clip_config.json``); heads else as the public models have.

    A bare file leaves open whether it wants QuickGELU (OpenAI's, and some of OpenCLIP's) or GELU.

    Raises:
        ValueError: if the configuration asks for what the trunk has not.
    """
    model = _section(facts.config, "model_cfg")
    vision, colours = _section(model, "vision_cfg"), _section(facts.config, "preprocess_cfg")
    if openclip_timm.has_trunk(facts.shapes):
        said = openclip_timm.settings(tensors, facts, vision)
    else:
        said = _own_settings(tensors, facts, model)
    if "image_size" in vision:
        said["img_size"] = size_of(vision["image_size"])
    return said | {
        f"image_{name}": tuple(float(value) for value in colours[name])
        for name in ("mean", "std")
        if len(colours.get(name, ())) == 3
    }


def _own_settings(tensors: Tensors, facts: Facts, model: Mapping[str, Any]) -> dict[str, Any]:
    vision, clipa = _section(model, "vision_cfg"), "fc_norm.weight" in tensors
    if "pos_embed" not in tensors:
        raise ValueError("visual.positional_embedding is missing")
    refuse_halves(tensors, ("fc_norm",))
    for name, theirs in (("cls_token", "visual.class_embedding"), ("head.weight", "visual.proj")):
        if name not in tensors:
            raise ValueError(f"{theirs} is missing")
    mean, std = IMAGENET if clipa else CLIP
    said: dict[str, Any] = {
        "norm_eps": 1e-5,
        "pos_resample": "antialias",
        "image_mean": mean,
        "image_std": std,
        **known_heads(tensors),
    }
    if vision:
        asked = clipa, vision.get("pool_type", "tok"), vision.get("final_ln_after_pool", False)
        if asked not in POOLS:
            raise ValueError(
                f"its configuration asks for pool_type={asked[1]!r} with final_ln_after_pool={asked[2]} "
                f"{'without' if clipa else 'with'} ln_pre, which is not supported"
            )
        said["global_pool"] = POOLS[asked]
        said["norm_eps"] = float(_section(vision, "norm_kwargs").get("eps", 1e-5))
        said["num_heads"] = width_of(tensors) // int(vision.get("head_width") or 64)
        said["activation"] = _activation(model, _section(vision, "act_kwargs"))
    if OPENAI in facts.shapes:
        said |= {"activation": "quick_gelu", "num_heads": width_of(tensors) // 64}
    return said


def _activation(model: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    approximate = options.get("approximate", "none")
    if options.keys() - {"approximate"} or approximate not in ACTIVATIONS:
        raise ValueError(f"its configuration asks for an activation with {options}, which is not supported")
    return "quick_gelu" if model.get("quick_gelu") else ACTIVATIONS[approximate]


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of the configuration; empty where there is none."""
    part = config.get(name) or {}
    if not isinstance(part, Mapping):
        raise ValueError(f"{name} in its configuration must be an object, got {part!r}")
    return part
