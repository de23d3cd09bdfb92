"""Folders and files that transformers writes, all parameters random, against transformers' own models."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from einops import rearrange
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pointvit import create_model, load_checkpoint
from pointvit.positions import resample_grid

transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

SMALL = {
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 32,
    "patch_size": 8,
}
BARE = {
    "vit": (ViTModel, ViTConfig, {"intermediate_size": 768}),
    "dinov2": (Dinov2Model, Dinov2Config, {}),
    "dinov2 with registers": (Dinov2WithRegistersModel, Dinov2WithRegistersConfig, {}),
}
WITH_HEAD = {
    "vit": (ViTForImageClassification, ViTConfig, {"intermediate_size": 768}),
    "dinov2": (Dinov2ForImageClassification, Dinov2Config, {}),
    "dinov2 with registers": (Dinov2WithRegistersForImageClassification, Dinov2WithRegistersConfig, {}),
}
Saved = tuple[nn.Module, Path]


@pytest.fixture
def saved(tmp_path: Path, randomise: Callable) -> Callable[..., Saved]:
    """``saved(row of a table, setting=...)``: the model with random parameters, and the folder it is in."""

    def build(row: tuple[Any, Any, dict[str, Any]], **settings: Any) -> Saved:
        model_class, config_class, own = row
        model = randomise(model_class(config_class(**{**SMALL, **own, **settings}))).eval()
        model.save_pretrained(tmp_path / "saved")
        return model, tmp_path / "saved"

    return build


def images(height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("kind", BARE)
def test_features_equal_transformers(kind: str, saved: Callable, error_of: Callable) -> None:
    theirs, folder = saved(BARE[kind])
    expected = theirs(images()).last_hidden_state
    for path in (folder, folder / "model.safetensors"):
        ours = create_model("auto", pretrained=path).eval()
        assert error_of(ours.forward_features(images()), expected) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", BARE)
def test_a_file_without_config_has_the_defaults_of_its_family(
    kind: str, saved: Callable, tmp_path: Path, error_of: Callable
) -> None:
    theirs, folder = saved(BARE[kind])
    path = (folder / "model.safetensors").rename(tmp_path / "alone.safetensors")
    ours = create_model("auto", pretrained=path).eval()
    assert ours.config.trunk.norm_eps == theirs.config.layer_norm_eps
    assert error_of(ours.forward_features(images()), theirs(images()).last_hidden_state) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", BARE)
@pytest.mark.parametrize("size", [(48, 48), (24, 40)])
def test_other_resolutions(kind: str, size: tuple[int, int], saved: Callable, error_of: Callable) -> None:
    """Everything but the interpolation kernel, which is antialiased here and, but for registers, not there.

    transformers interpolates with bicubic weights of a = -0.75, or of -0.5 where it antialiases, as timm and
    this library do. So the others are given the resampled positions; only their interpolation is left out.
    """
    theirs, folder = saved(BARE[kind])
    ours = create_model("auto", pretrained=folder).eval()
    if kind == "dinov2 with registers":
        expected = theirs(images(*size)).last_hidden_state
    else:
        table = theirs.embeddings.position_embeddings
        patches = resample_grid(table[:, 1:], (4, 4), (size[0] // 8, size[1] // 8))
        positions = torch.cat([table[:, :1], patches], dim=1)
        theirs.embeddings.interpolate_pos_encoding = lambda *_: positions
        options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
        expected = theirs(images(*size), **options).last_hidden_state
    assert error_of(ours.forward_features(images(*size)), expected) <= 1e-5


@torch.no_grad()
def test_the_difference_of_the_interpolations_is_small_on_smooth_positions(saved: Callable) -> None:
    theirs, _ = saved(BARE["vit"], image_size=128)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16), indexing="ij")
    waves = torch.stack([torch.sin(k * x + y) for k in range(1, 5)], dim=-1)
    table = rearrange(waves, "h w d -> 1 (h w) d").repeat(1, 1, 48)
    theirs.embeddings.position_embeddings[:, 1:] = table
    patches = torch.zeros(1, 1 + 12 * 12, 192)
    expected = theirs.embeddings.interpolate_pos_encoding(patches, 96, 96)[:, 1:]
    assert (resample_grid(table, (16, 16), (12, 12)) - expected).abs().max() < 0.05


@torch.no_grad()
@pytest.mark.parametrize("kind", WITH_HEAD)
def test_classification_models(kind: str, saved: Callable, error_of: Callable) -> None:
    theirs, folder = saved(WITH_HEAD[kind], num_labels=6)
    ours = create_model("auto", pretrained=folder).eval()
    report = load_checkpoint(ours, folder)
    assert report.coverage == 1.0
    if kind == "vit":
        assert error_of(ours(images()), theirs(images()).logits) <= 1e-5
        assert report.set_aside == {}
    else:  # the classifier sees the class token and the mean of the patches, which is no pool of ours
        assert ours.num_classes == 0
        assert set(report.set_aside) == {"head.weight", "head.bias", "embeddings.mask_token"}
        expected = theirs.base_model(images()).last_hidden_state
        assert error_of(ours.forward_features(images()), expected) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-3])
def test_norm_eps_is_taken_from_the_config(
    eps: float, saved: Callable, error_of: Callable, refused: Callable
) -> None:
    theirs, folder = saved(BARE["vit"], layer_norm_eps=eps)
    x = 1e-3 * images()  # activations so small that eps matters
    for parameter in theirs.embeddings.parameters():
        parameter.mul_(1e-3)
    theirs.save_pretrained(folder)
    ours = create_model("auto", pretrained=folder).eval()
    assert error_of(ours.forward_features(x), theirs(x).last_hidden_state) <= 1e-5
    other = create_model("auto", pretrained=folder, norm_eps=1e-4).eval()
    assert error_of(other.forward_features(x), theirs(x).last_hidden_state) > 1e-4
    with refused(folder, f"norm_eps={eps}, the model has 0.0001", other):
        load_checkpoint(other, folder)


@torch.no_grad()
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"])
def test_the_activation_is_taken_from_the_config(
    activation: str, saved: Callable, error_of: Callable, refused: Callable
) -> None:
    theirs, folder = saved(BARE["vit"], hidden_act=activation)
    ours = create_model("auto", pretrained=folder).eval()
    assert error_of(ours.forward_features(images()), theirs(images()).last_hidden_state) <= 1e-5
    other = "gelu" if activation == "quick_gelu" else "quick_gelu"
    wrong = create_model("auto", pretrained=folder, activation=other).eval()
    assert error_of(wrong.forward_features(images()), theirs(images()).last_hidden_state) > 1e-5
    with refused(folder, "activation=", wrong):
        load_checkpoint(wrong, folder)


@torch.no_grad()
def test_number_of_heads_and_a_missing_bias(saved: Callable, error_of: Callable) -> None:
    theirs, folder = saved(BARE["vit"], num_attention_heads=6, qkv_bias=False)
    ours = create_model("auto", pretrained=folder).eval()
    assert (ours.config.trunk.num_heads, ours.config.trunk.qkv_bias) == (6, False)
    assert error_of(ours.forward_features(images()), theirs(images()).last_hidden_state) <= 1e-5


@torch.no_grad()
def test_a_grid_that_is_not_square_is_taken_from_the_config(saved: Callable, error_of: Callable) -> None:
    theirs, folder = saved(BARE["vit"], image_size=[24, 40])
    ours = create_model("auto", pretrained=folder).eval()
    assert ours.config.tokenizer.img_size == (24, 40)
    assert error_of(ours.forward_features(images(24, 40)), theirs(images(24, 40)).last_hidden_state) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize(("first", "second"), [("query", "key"), ("key", "value")])
def test_swapped_projections_break_parity(
    first: str, second: str, saved: Callable, error_of: Callable
) -> None:
    theirs, folder = saved(BARE["dinov2"])
    state = load_file(folder / "model.safetensors")
    for kind in ("weight", "bias"):
        one, other = (f"encoder.layer.1.attention.attention.{part}.{kind}" for part in (first, second))
        state[one], state[other] = state[other], state[one]
    save_file(state, folder / "model.safetensors")
    ours = create_model("auto", pretrained=folder).eval()
    assert error_of(ours.forward_features(images()), theirs(images()).last_hidden_state) > 1e-3


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("num_hidden_layers", 3, "config.json describes 3 blocks, the weights have 2"),
        ("hidden_act", "relu", "config.json asks for hidden_act='relu'"),
        ("num_attention_heads", 5, "embed_dim must be a multiple of num_heads"),
        ("layer_norm_eps", "small", "could not convert string to float"),
    ],
)
def test_a_config_that_contradicts_the_weights(
    setting: str, value: Any, message: str, saved: Callable, refused: Callable
) -> None:
    _, folder = saved(BARE["vit"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, setting: value}))
    with refused(folder, message):
        create_model("auto", pretrained=folder)


@pytest.mark.parametrize("text", ["{", "[]", "\xff", ""])
def test_a_config_that_is_no_json_object(text: str, saved: Callable, refused: Callable) -> None:
    _, folder = saved(BARE["vit"])
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with refused(folder / "config.json", "not valid JSON|expected a JSON object"):
        create_model("auto", pretrained=folder)


@torch.no_grad()
def test_a_real_dinov2(data_root: Path, tmp_path: Path, error_of: Callable) -> None:
    path = data_root / "weights" / "dinov2_vits14_hf_fp16.safetensors"
    shutil.copy(path, tmp_path / "model.safetensors")
    config = Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)
    config.save_pretrained(tmp_path)
    theirs = Dinov2Model.from_pretrained(tmp_path, dtype=torch.float32).eval()
    x = images(518, 518)[:1]
    ours = create_model("auto", pretrained=path).eval()
    assert error_of(ours.forward_features(x), theirs(x).last_hidden_state) <= 1e-4
    named = create_model("vit_small_patch14_dinov2", pretrained=path)
    assert named.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(named.state_dict()[name], tensor)


def test_a_real_dinov2_initialises_a_point_model(data_root: Path) -> None:
    path = data_root / "weights" / "dinov2_vits14_hf_fp16.safetensors"
    model = create_model("pointvit_small", pretrained=path)
    report = load_checkpoint(model, path)
    assert report.coverage == 1.0
    trunk = {f"trunk.{name}" for name in model.trunk.state_dict()}
    assert set(report.loaded) == {*trunk, "cls_token"}
    assert len([name for name in trunk if name.startswith("trunk.blocks.")]) == 12 * 14
    assert set(report.set_aside) == {
        "embeddings.mask_token", "pos_embed", "tokenizer.proj.weight", "tokenizer.proj.bias"
    }  # fmt: skip
    assert {name.split(".")[0] for name in report.new} == {"tokenizer", "head"}
    in_file = {name: tensor.numel() for name, tensor in load_file(path).items()}
    aside = ("mask_token", "position", "patch")
    expected = sum(count for name, count in in_file.items() if not any(word in name for word in aside))
    assert sum(model.state_dict()[name].numel() for name in report.loaded) == expected
