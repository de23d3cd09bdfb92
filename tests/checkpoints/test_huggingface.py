"""Folders and files that transformers writes: settings, what is set aside and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    BeitConfig,
    BeitModel,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from parity.huggingface_rows import ROWS as PARITY
from parity.huggingface_rows import SMALL, folder, in_memory
from pointvit import create_model, load_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.config import IMAGENET, UNIT

VIT = (ViTModel, ViTConfig, {"intermediate_size": 96})
VIT_HEAD = (ViTForImageClassification, ViTConfig, {"intermediate_size": 96, "num_labels": 6})
DINOV2 = (Dinov2Model, Dinov2Config, {})
DINOV2_HEAD = (Dinov2ForImageClassification, Dinov2Config, {"num_labels": 6})
REGISTERS = (Dinov2WithRegistersModel, Dinov2WithRegistersConfig, {})
Saved = tuple[nn.Module, Path]


@pytest.fixture
def saved(tmp_path: Path, randomise: Callable) -> Callable[..., Saved]:
    """``saved(class, config class and settings, setting=...)``: a random model, and the folder it is in."""

    def build(row: tuple[Any, Any, dict[str, Any]], **settings: Any) -> Saved:
        model_class, config_class, own = row
        model = randomise(model_class(config_class(**{**SMALL, **own, **settings}))).eval()
        model.save_pretrained(tmp_path / "saved")
        return model, tmp_path / "saved"

    return build


def images(height: int = 32, width: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def change(path: Path, **settings: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **settings}))


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-3])
@torch.no_grad()
def test_norm_eps_is_taken_from_the_config(
    eps: float, saved: Callable, error_of: Callable, refused: Callable
) -> None:
    theirs, path = saved(VIT, layer_norm_eps=eps)
    x = 1e-3 * images()  # activations so small that eps matters
    for parameter in theirs.embeddings.parameters():
        parameter.mul_(1e-3)
    theirs.save_pretrained(path)
    model = create_model("auto", pretrained=path).eval()
    assert error_of(model.forward_features(x), theirs(x).last_hidden_state) <= 1e-5
    other = create_model("auto", pretrained=path, norm_eps=1e-4).eval()
    assert error_of(other.forward_features(x), theirs(x).last_hidden_state) > 1e-4
    with refused(path, f"norm_eps={eps}, the model has 0.0001", other):
        load_checkpoint(other, path)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"])
@torch.no_grad()
def test_the_activation_is_taken_from_the_config(
    activation: str, saved: Callable, error_of: Callable, refused: Callable
) -> None:
    theirs, path = saved(VIT, hidden_act=activation)
    model = create_model("auto", pretrained=path).eval()
    expected = theirs(images()).last_hidden_state
    assert error_of(model.forward_features(images()), expected) <= 1e-5
    other = "gelu" if activation == "quick_gelu" else "quick_gelu"
    wrong = create_model("auto", pretrained=path, activation=other).eval()
    assert error_of(wrong.forward_features(images()), expected) > 1e-5
    with refused(path, "activation=", wrong):
        load_checkpoint(wrong, path)


@torch.no_grad()
def test_number_of_heads_and_a_missing_bias(saved: Callable, error_of: Callable) -> None:
    theirs, path = saved(VIT, num_attention_heads=6, qkv_bias=False)
    model = create_model("auto", pretrained=path).eval()
    assert (model.config.trunk.num_heads, model.config.trunk.qkv_bias) == (6, False)
    assert error_of(model.forward_features(images()), theirs(images()).last_hidden_state) <= 1e-5


@torch.no_grad()
def test_a_grid_that_is_not_square_is_taken_from_the_config(saved: Callable, error_of: Callable) -> None:
    theirs, path = saved(VIT, image_size=[24, 40])
    model = create_model("auto", pretrained=path).eval()
    assert model.config.tokenizer.img_size == (24, 40)
    x = images(24, 40)
    assert error_of(model.forward_features(x), theirs(x).last_hidden_state) <= 1e-5


@torch.no_grad()
def test_shards(saved: Callable, error_of: Callable) -> None:
    theirs, path = saved(VIT_HEAD)
    (path / "model.safetensors").unlink()
    theirs.save_pretrained(path, max_shard_size="40KB")
    assert len(list(path.glob("model-*.safetensors"))) > 2
    for found in (path, path / "model.safetensors.index.json"):
        model = create_model("auto", pretrained=found).eval()
        assert error_of(model(images()), theirs(images()).logits) <= 1e-5


@torch.no_grad()
def test_a_classifier_of_dinov2_sees_the_class_token_and_the_mean_of_the_patches(
    saved: Callable, error_of: Callable
) -> None:
    theirs, path = saved((Dinov2ForImageClassification, Dinov2Config, {"num_labels": 6}))
    model = create_model("auto", pretrained=path).eval()
    assert (model.config.global_pool, model.num_classes) == ("cls+mean", 6)
    report = load_checkpoint(model, path)
    assert (report.coverage, report.new) == (1.0, [])
    assert set(report.set_aside) == {"embeddings.mask_token"}
    assert error_of(model(images()), theirs(images()).logits) <= 1e-5


def test_what_is_set_aside(tmp_path: Path, randomise: Callable) -> None:
    expected = {
        "HF ViT": {"the pooler of BERT-style heads, which ViT has not"},
        "HF ViT, masked images": {"used in pre-training only", "the decoder of masked pre-training"},
        "HF DeiT": {"the pooler of BERT-style heads, which ViT has not"},
        "HF MAE, decoder": {"the decoder of masked pre-training"},
        "HF Dinov2": {"used in pre-training only"},
        "HF ViT, classifier": set(),
        "HF DeiT, two classifiers": set(),
    }
    for row in PARITY:
        if row.name in expected:
            (place := tmp_path / row.name).mkdir()
            path = row.write(randomise(row.build()), place)
            assert set(Checkpoint.open(path).set_aside.values()) == expected[row.name], row.name


@pytest.mark.parametrize(
    ("kind", "stated", "colours"),
    [
        (VIT, None, UNIT),
        (DINOV2, None, IMAGENET),
        (VIT, {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2] * 3}, ((0.4, 0.5, 0.6), (0.2, 0.2, 0.2))),
        (VIT, {"size": 224}, UNIT),
        (DINOV2, {"do_normalize": False, "image_mean": [0.4] * 3}, ((0.0,) * 3, (1.0,) * 3)),
    ],
)  # fmt: skip
def test_colours(kind: Any, stated: dict[str, Any] | None, colours: Any, saved: Callable) -> None:
    _, path = saved(kind)
    if stated is not None:
        change(path / "preprocessor_config.json", **stated)
    meta = create_model("auto", pretrained=path).meta
    assert (meta.image_mean, meta.image_std) == colours


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("num_hidden_layers", 3, "config.json describes 3 blocks, the weights have 2"),
        ("hidden_size", 64, "config.json describes 64 channels, the weights have 48"),
        ("hidden_act", "relu", "config.json asks for hidden_act='relu'"),
        ("model_type", "yolos", "config.json asks for model_type='yolos', known are vit, deit"),
        ("num_attention_heads", 5, "embed_dim must be a multiple of num_heads"),
        ("intermediate_size", 128, "config.json describes 128 channels in the MLP, the weights have 96"),
        ("num_channels", 1, "config.json describes 1 channels of images, the weights have 3"),
        ("patch_size", 16, "config.json describes patches of 16, the weights have those of 8x8"),
        ("qkv_bias", False, "config.json states qkv_bias=False, in the weights it is True"),
        ("image_size", 64, "images of 64, that is 65 positions, the weights have 17"),
        ("image_size", [64, 32], r"images of \[64, 32\], that is 33 positions, the weights have 17"),
        ("image_size", 10**9, "images of 1000000000, that is"),
        ("image_size", True, "images of True, that is"),
        ("num_attention_heads", 3.7, "num_attention_heads=3.7, expected a whole number"),
        ("num_attention_heads", True, "num_attention_heads=True, expected a whole number"),
        ("num_attention_heads", float("inf"), "num_attention_heads=inf, expected a whole number"),
        *(
            ("layer_norm_eps", eps, "layer_norm_eps=.*, expected a number above zero")
            for eps in (float("nan"), float("inf"), 0, -1, True, "1e-6")
        ),
        ("model_type", ["vit"], "config.json asks for model_type="),
        ("model_type", "ijepa", "embeddings.cls_token has no place in a model of ijepa"),
        ("model_type", "deit", "a model of deit has 1 tokens beside the class token, the weights 0"),
        ("preprocessor", 1, "preprocessor_config.json must be an object, got 1"),
        ("preprocessor", {"image_mean": 1}, "image_mean=1, expected a list of numbers"),
        ("preprocessor", {"image_std": [1, "a", 2]}, "expected a list of numbers"),
        ("layer_norm_eps", "small", "layer_norm_eps='small', expected a number above zero"),
        ("image_size", "big", "a size must be a whole number or a list of two, got 'big'"),
    ],
)
def test_a_config_that_contradicts_the_weights(
    setting: str, value: Any, message: str, saved: Callable, refused: Callable
) -> None:
    _, path = saved(VIT)
    change(path / "config.json", **{setting: value})
    with refused(path, message):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize("text", ["{", "[]", "\xff", ""])
def test_a_config_that_is_no_json_object(text: str, saved: Callable, refused: Callable) -> None:
    _, path = saved(VIT)
    (path / "config.json").write_bytes(text.encode("latin-1"))
    with refused(path / "config.json", "not valid JSON|expected a JSON object"):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit.embeddings.position_embeddings", "embeddings.position_embeddings is missing"),
        ("classifier.bias", "of head there is a weight alone"),
        ("vit.encoder.layer.1.attention.attention.key.bias", "tensors the model has no place for"),
        ("vit.encoder.layer.0.attention.attention.value.weight", "the attention of its first block"),
        ("vit.layernorm.bias", "lacks 1 tensor the model needs"),
    ],
)
def test_a_file_that_lacks_a_tensor(name: str, message: str, saved: Callable, refused: Callable) -> None:
    _, path = saved(VIT_HEAD)
    state = load_file(path / "model.safetensors")
    del state[name]
    save_file(state, path / "model.safetensors")
    with refused(path, message):
        create_model("auto", pretrained=path)


def test_an_unusual_width_alone_does_not_say_how_many_heads(saved: Callable, refused: Callable) -> None:
    _, path = saved(VIT)
    (path / "config.json").unlink()
    with refused(path, "does not say num_heads.*; state num_heads"):
        create_model("auto", pretrained=path)
    assert create_model("auto", pretrained=path, num_heads=3).config.trunk.num_heads == 3


def test_beit_is_refused(tmp_path: Path, refused: Callable) -> None:
    """Its names are ViT's for the most part; with a config.json that says so, or without."""
    BeitModel(BeitConfig(**SMALL, intermediate_size=96)).save_pretrained(tmp_path)
    with refused(tmp_path, "model_type='beit'|position_embeddings is missing"):
        create_model("auto", pretrained=tmp_path)
    (tmp_path / "config.json").unlink()
    with refused(tmp_path, "position_embeddings is missing"):
        create_model("auto", pretrained=tmp_path, num_heads=3)


def test_no_other_source_takes_such_a_file(tmp_path: Path) -> None:
    for row in PARITY:
        if row.write in (folder, in_memory):
            model = row.build()
            row.write(model, tmp_path)
            on_disk = load_file(tmp_path / "model.safetensors") if row.write is folder else model.state_dict()
            assert [n for n, s in SOURCES.items() if s.matches(on_disk.keys())] == ["huggingface"], row.name


# A real file.


@pytest.fixture
def real(data_root: Path) -> Path:
    return data_root / "weights" / "dinov2_vits14_hf_fp16.safetensors"


@torch.no_grad()
def test_a_real_dinov2(real: Path, tmp_path: Path, error_of: Callable) -> None:
    shutil.copy(real, tmp_path / "model.safetensors")
    config = Dinov2Config(hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14)
    config.save_pretrained(tmp_path)
    theirs = Dinov2Model.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = create_model("auto", pretrained=real).eval()
    assert load_checkpoint(model, real).coverage == 1.0
    assert (model.meta.image_mean, model.meta.image_std) == IMAGENET
    for size in (518, 224):
        x = images(size, size)[:1]
        assert error_of(model.forward_features(x), theirs(x).last_hidden_state) <= 1e-4, size
    named = create_model("vit_small_patch14_dinov2", pretrained=real)
    assert named.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(named.state_dict()[name], tensor)


def test_a_real_dinov2_initialises_a_point_model(real: Path) -> None:
    model = create_model("pointvit_small", pretrained=real)
    report = load_checkpoint(model, real)
    assert report.coverage == 1.0
    trunk = {f"trunk.{name}" for name in model.trunk.state_dict()}
    assert set(report.loaded) == {*trunk, "cls_token"}
    assert len([name for name in trunk if name.startswith("trunk.blocks.")]) == 12 * 14
    assert set(report.set_aside) == {
        "embeddings.mask_token", "pos_embed", "tokenizer.proj.weight", "tokenizer.proj.bias"
    }  # fmt: skip
    assert {name.split(".")[0] for name in report.new} == {"tokenizer", "head"}
    in_file = {name: tensor.numel() for name, tensor in load_file(real).items()}
    aside = ("mask_token", "position", "patch")
    expected = sum(count for name, count in in_file.items() if not any(word in name for word in aside))
    assert sum(model.state_dict()[name].numel() for name in report.loaded) == expected


@pytest.mark.parametrize(
    ("row", "dropped", "message"),
    [
        (VIT, ("embeddings.cls_token",), "embeddings.cls_token is missing"),
        (DINOV2_HEAD, ("dinov2.embeddings.cls_token",), "embeddings.cls_token is missing"),
        (DINOV2, ("embeddings.patch_embeddings.projection.bias",), "of tokenizer.proj there is a weight"),
        (REGISTERS, ("embeddings.register_tokens",), "has 4 tokens beside the class token, the weights 0"),
    ],
)
def test_tokens_and_biases_that_all_have(
    row: Any, dropped: tuple[str, ...], message: str, saved: Callable, refused: Callable
) -> None:
    _, path = saved(row)
    state = load_file(path / "model.safetensors")
    for name in dropped:
        del state[name]
    save_file(state, path / "model.safetensors")
    with refused(path, message):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize("text", ["1", "[]", "null", '"x"'])
def test_a_preprocessor_config_that_is_no_object(text: str, saved: Callable, refused: Callable) -> None:
    _, path = saved(VIT)
    (path / "preprocessor_config.json").write_text(text)
    with refused(path, "expected a JSON object"):
        create_model("auto", pretrained=path)
