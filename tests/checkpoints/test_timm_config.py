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
NOT_VITS = ("sapiens2", "relpos", "srelpos", "radio", "resnet", "naflex")
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
    arguments = {
        "act_layer": "gelu_tanh",
        "global_pool": "avg",
        "num_heads": 4,
        "img_size": 32,
    }
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
        ({"architecture": "vit_x", "model_args": {"img_size": True}}, "the size of images as True"),
        ({"architecture": "vit_x", "model_args": {"num_heads": 3.7}}, "num_heads=3.7, expected a whole"),
        ({"architecture": "vit_x", "model_args": {"num_heads": True}}, "num_heads=True, expected a whole"),
        ({"architecture": "vit_x", "model_args": {"pool_include_prefix": True}}, "pool_include_prefix=True"),
        ({"architecture": "vit_x", "model_args": {"norm_layer": "rmsnorm"}}, "norm_layer='rmsnorm'"),
        ({"architecture": "vit_x", "model_args": {"embed_dim": 192}}, "does not say num_heads"),
        ({"architecture": "vit_x", "model_args": {"class_token": 1}}, "class_token=1, expected true or"),
        ({"architecture": "vit_x", "model_args": {"global_pool": ""}}, "gives the head every token"),
        ({"architecture": "vit_x", "global_pool": ""}, "gives the head every token"),
        ({"architecture": "vit_x", "pretrained_cfg": {"mean": 1}}, "mean=1, expected a list of numbers"),
        ({"architecture": "vit_tiny_patch16_reg4_gap_256"}, "no class token and 4 registers, the weights"),
        ({"architecture": "vit_x", "model_args": {"reg_tokens": 4}}, "a class token and 4 registers"),
        ({"architecture": "vit_x", "model_args": {"img_size": 64}}, "images of 64x64, the positions are"),
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


VITS = [name for name in timm.list_models("vit_*") if not any(part in name for part in NOT_VITS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", VITS)
def test_heads_and_tokens_are_those_of_every_vit_of_timms(name: str) -> None:
    model = built(name)
    state = dict(model.state_dict())
    attention = hasattr(model.blocks[0], "attn")
    if not (attention and source.matches(state.keys()) and "pos_embed" in state):
        pytest.skip("another kind of file")
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    try:
        said = source.settings(source.decode(state), Facts({"architecture": name}, shapes))
    except ValueError as error:
        reason = str(error)
    else:
        reason = ""
        assert said["num_heads"] == model.blocks[0].attn.num_heads
    assert "not supported" in reason or not reason


def test_a_config_without_pool_needs_no_head() -> None:
    config = {"architecture": "vit_x", "num_classes": 0, "global_pool": ""}
    assert "global_pool" not in described(config)


@torch.no_grad()
def test_an_architecture_with_other_heads(tmp_path: Path, randomise: Callable, error_of: Callable) -> None:
    theirs = randomise(timm.create_model("vit_base_patch16_gap_224", depth=1, num_classes=3)).eval()
    save_for_hf(theirs, tmp_path, safe_serialization=True)
    ours = create_model("auto", pretrained=tmp_path).eval()
    assert ours.config.trunk.num_heads == 16
    x = torch.randn(1, 3, 224, 224)
    assert error_of(ours(x), theirs(x)) <= 1e-5


def test_a_size_that_timm_resamples_to_is_not_the_weights(tmp_path: Path) -> None:
    """A bare ``input_size`` says what timm builds, whatever positions the file holds."""
    save_file(timm.create_model("vit_tiny_patch16_224", depth=1).state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": [3, 64, 64]}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert create_model("auto", pretrained=tmp_path).config.tokenizer.img_size == (224, 224)
