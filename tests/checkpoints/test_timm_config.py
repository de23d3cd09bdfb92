"""timm's config.json, read against the models that timm builds for those names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from pointvit import create_model
from pointvit.checkpoints.sources import timm as source
from pointvit.checkpoints.sources.source import Facts
from pointvit.checkpoints.sources.timm_config import activation_of, described
from pointvit.config import CLIP, IMAGENET, UNIT

SMALL: dict[str, Any] = {"embed_dim": 192, "num_heads": 3, "depth": 2, "num_classes": 7}
NAMED = [*timm.list_models("vit_*siglip*"), *timm.list_models("vit_*clip*"), "vit_tiny_patch16_224"]
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}


def built(name: str, **settings: Any) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, depth=1, **settings)


@pytest.mark.parametrize("name", NAMED)
def test_activation_and_heads_are_those_of_timms_model(name: str) -> None:
    model = built(name)
    activation = ACTIVATIONS[type(model.blocks[0].mlp.act).__name__]
    assert activation_of(name) == activation
    bare = source.settings(source.decode(model.state_dict()), Facts())
    assert bare["num_heads"] == model.blocks[0].attn.num_heads
    assert bare.get("activation", activation) == activation
    assert ("activation" in bare) == ("siglip" in name or name == "vit_tiny_patch16_224")


def test_another_config_says_nothing() -> None:
    assert described({}) == {}
    assert described({"architectures": ["ViTModel"], "hidden_act": "gelu"}) == {}


@pytest.mark.parametrize(
    ("name", "colours"),
    [
        ("vit_tiny_patch16_224.augreg_in21k", UNIT),
        ("vit_base_patch32_clip_224.laion2b", CLIP),
        ("vit_small_patch14_dinov2", IMAGENET),
        ("deit_tiny_distilled_patch16_224", IMAGENET),
        ("eva02_tiny_patch14_336", CLIP),
    ],
)
def test_colours_and_sizes_come_from_the_config(name: str, colours: Any, tmp_path: Path) -> None:
    size = {"img_size": (16, 64), "patch_size": 8}  # 2x8 patches, whose number is also that of 4x4
    save_for_hf(timm.create_model(name, **SMALL, **size), tmp_path, safe_serialization=True)
    model = create_model("auto", pretrained=tmp_path)
    assert (model.meta.image_mean, model.meta.image_std) == colours
    assert model.config.tokenizer.img_size == (16, 64)
    assert model.num_classes == 7


def test_model_args_win_over_the_name(tmp_path: Path) -> None:
    arguments = {"act_layer": "gelu_tanh", "global_pool": "avg", "num_heads": 4, "img_size": 32}
    config = {"architecture": "vit_base_patch32_clip_quickgelu_224", "model_args": arguments}
    said = {"activation": "gelu_tanh", "global_pool": "mean", "num_heads": 4, "img_size": (32, 32)}
    assert described(config) == {**said, "pos_resample": "antialias"}
    assert described({"architecture": config["architecture"]})["activation"] == "quick_gelu"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architecture": "vit_small_patch16_rope_ape_224"}, "which has the rotary positions of RoPE-ViT"),
        ({"architecture": "vit_pe_core_base_patch16_224"}, "Perception Encoder"),
        ({"architecture": "vit_base_patch16_rpn_224"}, "norms behind the branches"),
        ({"architecture": "eva02_enormous_patch14_clip_224"}, "norms behind the branches"),
        ({"architecture": "vit_x", "model_args": {"act_layer": "mish"}}, "act_layer='mish', known are gelu"),
        ({"architecture": "vit_x", "global_pool": "avgmax"}, "global_pool='avgmax', known are avg"),
        ({"architecture": "vit_x", "model_args": ["depth", 2]}, "must be objects"),
        ({"architecture": "vit_x", "model_args": {"img_size": "224"}}, "the size of images as '224'"),
    ],
)
def test_what_the_trunk_has_not_is_refused(
    config: dict[str, Any], message: str, tmp_path: Path, refused: Callable
) -> None:
    """The weights are those of a plain ViT, whose names such models have too."""
    save_file(timm.create_model("vit_tiny_patch16_224", depth=1).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused(tmp_path, message):
        create_model("auto", pretrained=tmp_path)
