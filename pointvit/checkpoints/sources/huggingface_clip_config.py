"""Hugging Face's ``config.json`` of CLIP's and SigLIP's vision towers: read as settings, and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pointvit.checkpoints.sources import huggingface_config
from pointvit.checkpoints.sources.huggingface_checks import check_grid, preprocessor_of
from pointvit.checkpoints.sources.source import (
    Facts,
    Tensors,
    invert,
    refuse_halves,
    refuse_obstacles,
    refuse_other_pools,
    unnamed_obstacles,
)
from pointvit.config import CLIP, UNIT, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

NAME = "huggingface_clip"
DEFAULTS = {"num_attention_heads": 12, "num_hidden_layers": 12}
CLIP_KIND = {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
SIGLIP_KIND = {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
"""What a config.json need not say; public ones are often short."""

WITH_HEAD = {
    **dict.fromkeys(("CLIPModel", "CLIPVisionModelWithProjection"), "visual_projection"),
    **dict.fromkeys(("CLIPForImageClassification", "SiglipForImageClassification"), "classifier"),
}
"""Classes of transformers' -> the head that their files hold."""


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    """From ``config.json``, and what it leaves unsaid from the defaults of its kind.

    Without one a CLIP file leaves open whether it wants QuickGELU (OpenAI's) or GELU (LAION's).

    Raises:
        ValueError: if ``config.json`` contradicts the weights, or wants an activation that is not known.
    """
    siglip = "trunk.norm_pre.weight" not in tensors
    if siglip == ("cls_token" in tensors):
        raise ValueError("CLIP has both class_embedding and pre_layrnorm, SigLIP neither; it has one of them")
    kind, (mean, std) = (SIGLIP_KIND, UNIT) if siglip else (CLIP_KIND, CLIP)
    refuse_other_pools(tensors)
    classified = "classifier.weight" in facts.shapes
    if classified:
        refuse_halves(tensors, ("head",))
    if siglip:
        refuse_halves(tensors, ("tokenizer.proj",))
    if "pos_embed" not in tensors:
        raise ValueError("embeddings.position_embedding.weight is missing")
    stated = facts.config.get("vision_config", facts.config)
    if not isinstance(stated, Mapping):
        raise ValueError(f"vision_config in config.json must be an object, got {stated!r}")
    told = bool(facts.config.keys() - {"preprocessor"})
    colours = {"image_mean": mean, "image_std": std, **preprocessor_of(facts.config)}
    config = {
        **kind,
        **({**DEFAULTS, **stated} if told else {}),
        "model_type": "vit",
        "preprocessor": colours,
    }
    tower = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    said = huggingface_config.tower_settings(tower, Facts(config, facts.shapes))
    check_grid(stated, tensors, int(not siglip))
    if "head.weight" not in tensors:
        _refuse_headless(facts.config)
    if not (told or siglip):
        del said["activation"]
    if classified:
        said |= {"global_pool": "mean", "final_norm": siglip}
    return said


def _refuse_headless(config: Mapping[str, Any]) -> None:
    """Raises ValueError if a file without head is to be of a class that has one."""
    asked = config.get("architectures") or []
    for name in asked if isinstance(asked, list) else [asked]:
        if name in WITH_HEAD:
            raise ValueError(f"config.json asks for {name}, whose {WITH_HEAD[name]}.weight is missing")


def describe(config: ViTConfig) -> dict[str, Any]:
    """The ``config.json`` that ``from_pretrained`` of CLIP's and SigLIP's vision models wants.

    Raises:
        ValueError: for a model that they have no place for.
    """
    refuse(config)
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    described = {
        "model_type": "clip_vision_model" if config.class_token else "siglip_vision_model",
        "architectures": [_architecture(config)],
        "hidden_size": trunk.embed_dim,
        "intermediate_size": trunk.hidden_dim,
        "num_hidden_layers": trunk.depth,
        "num_attention_heads": trunk.num_heads,
        "num_channels": front_end.in_chans,
        "image_size": front_end.img_size[0],
        "patch_size": front_end.patch_size[0],
        "hidden_act": invert(huggingface_config.ACTIVATIONS)[trunk.activation],
        "layer_norm_eps": trunk.norm_eps,
    }
    return described | ({"projection_dim": config.num_classes} if config.num_classes else {})


def _architecture(config: ViTConfig) -> str:
    if not config.class_token:
        return "SiglipVisionModel"
    return "CLIPVisionModelWithProjection" if config.num_classes else "CLIPVisionModel"


def refuse(config: ViTConfig) -> None:
    """Raises ValueError for what neither CLIP's nor SigLIP's vision tower is there."""
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    clip = config.class_token
    pool, bias = ("cls", "without") if clip else ("map", "with")
    refuse_obstacles(
        {
            **unnamed_obstacles(config, square=True),
            "a trunk without final norm": not trunk.final_norm,
            f"norm_pre={trunk.norm_pre} and class_token={clip}": trunk.norm_pre != clip,
            f"a patch projection unless {bias} bias": front_end.patch_bias == clip,
            f"global_pool={config.global_pool!r} (it is {pool} there)": config.global_pool != pool,
            f"the head {config.head!r}": config.num_classes > 0
            and not (clip and config.head == "projection"),
        },
        NAME,
    )
