"""big_vision's files: both ways, what is set aside, and what is not written; parity has rows of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity.big_vision_rows import (
    NO_CLASS_TOKEN,
    beside_text,
    big_vision_arrays,
    sincos2d,
    without_positions,
)
from parity.google_rows import Arrays, google_arrays, small_timm, write_npz
from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import SOURCES
from pointvit.checkpoints.sources.source import Tensors
from pointvit.config import UNIT, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

BIG_VISION = SOURCES["big_vision"]
MODEL = ViTConfig(
    TrunkConfig(64, 2, 8),
    ImageTokenizerConfig((32, 32), (8, 8), cls_pos=False),
    num_classes=10,
    class_token=False,
    global_pool="mean",
)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # what the file holds, and the model that it describes beside MODEL
    "mean": ({}, {}),
    "class token": ({"cls": True}, {"class_token": True, "global_pool": "cls"}),
    "attention pooling": ({"map_head": True}, {"global_pool": "map"}),
    "no head": ({"classes": 0}, {"num_classes": 0}),
    "tanh layer": ({"representation": 24}, {"representation_size": 24}),
}


def tensors(arrays: Arrays, prefix: str = "params/") -> Tensors:
    return {prefix + name: torch.from_numpy(array) for name, array in arrays.items()}


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str) -> None:
    sizes, settings = KINDS[kind]
    file, config = tensors(big_vision_arrays(**sizes)), MODEL.override(settings)
    decoded = BIG_VISION.decode(file)
    encoded = BIG_VISION.encode(decoded, config)
    assert equal(encoded, file)
    assert equal(BIG_VISION.decode(encoded), decoded)


TIMM: dict[str, dict[str, Any]] = {
    "mean": NO_CLASS_TOKEN,
    "class token": {"no_embed_class": True},
    "attention pooling": {**NO_CLASS_TOKEN, "global_pool": "map"},
    "no head": {**NO_CLASS_TOKEN, "num_classes": 0},
}


@pytest.mark.parametrize("kind", TIMM)
@torch.no_grad()
def test_timm_reads_what_is_written(
    kind: str, tmp_path: Path, randomise: Callable, error_of: Callable
) -> None:
    ours = randomise(ViT(MODEL.override(KINDS[kind][1]))).eval()
    theirs = small_timm(**TIMM[kind]).eval()
    theirs.load_pretrained(str(save_checkpoint(ours, tmp_path / "model.npz", "big_vision")))
    x = torch.randn(2, 3, 32, 32)
    assert error_of(theirs.forward_features(x), ours.forward_features(x)) <= 1e-5
    assert error_of(theirs(x), ours(x)) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_stacked_blocks_are_the_same_blocks(kind: str) -> None:
    sizes, _ = KINDS[kind]
    apart, stacked = (tensors(big_vision_arrays(**sizes, stacked=stacked)) for stacked in (False, True))
    assert len(stacked) < len(apart)
    assert equal(BIG_VISION.decode(stacked), BIG_VISION.decode(apart))


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_read_from_the_file(kind: str, tmp_path: Path) -> None:
    sizes, settings = KINDS[kind]
    path = write_npz(tmp_path / "model.npz", big_vision_arrays(**sizes), "params/")
    model = create_model("auto", pretrained=path)
    assert model.config == MODEL.override(settings)
    assert (model.meta.image_mean, model.meta.image_std) == UNIT


def test_what_stands_beside_an_image_tower_is_set_aside(tmp_path: Path) -> None:
    arrays = {f"params/img/{name}": array for name, array in big_vision_arrays(map_head=True).items()}
    others = {"params/llm/layers/mlp": np.ones(4, np.float32), "opt/0/count": np.ones(1)}
    path = write_npz(tmp_path / "pair.npz", beside_text(arrays) | others)
    report = load_checkpoint(create_model("auto", pretrained=path), path)
    reasons: dict[str, set[str]] = {}
    for name, why in report.set_aside.items():
        reasons.setdefault(why, set()).add(name)
    text = reasons.pop("the text tower")
    assert len(text) == 8
    assert all(name.startswith("params/txt/") for name in text)
    assert reasons == {
        "the temperature of contrastive training": {"params/t"},
        "the bias of contrastive training": {"params/b"},
        "the language model": {"params/llm/layers/mlp"},
        "the optimiser's state": {"opt/0/count"},
    }


def test_heads_are_those_of_the_image_tower(tmp_path: Path) -> None:
    """The text tower, with four, stands first in this file."""
    text = beside_text({})
    arrays = {f"params/img/{name}": array for name, array in big_vision_arrays(stacked=True).items()}
    model = create_model("auto", pretrained=write_npz(tmp_path / "pair.npz", text | arrays))
    assert model.config.trunk.num_heads == 8


@torch.no_grad()
def test_fixed_positions(tmp_path: Path) -> None:
    """Such a file does not say its size: 224 px is taken, and another is a matter of the formula."""
    path = write_npz(tmp_path / "s16.npz", without_positions(big_vision_arrays()), "params/")
    model = create_model("auto", pretrained=path)
    assert (model.config.tokenizer.pos_embed, model.config.tokenizer.img_size) == ("sincos_2d", (224, 224))
    for ours, size in (
        (model, (224, 224)),
        (create_model("auto", pretrained=path, img_size=(32, 48)), (32, 48)),
    ):
        expected = sincos2d((size[0] // 8, size[1] // 8), 64)
        assert (ours.tokenizer.pos_embed - expected).abs().max() <= 1e-6
        assert not any(name.endswith("pos_embed") for name, _ in ours.named_parameters())
        assert load_checkpoint(ours, path).missing == []
    assert (model.tokenizer(torch.zeros(1, 3, 40, 24)).pos - sincos2d((5, 3), 64)).abs().max() <= 1e-6
    config = model.config.override({"img_size": 32})
    assert equal(
        BIG_VISION.encode(BIG_VISION.decode(tensors(big_vision_arrays())), config),
        tensors(without_positions(big_vision_arrays())),
    )


@torch.no_grad()
def test_fixed_positions_fill_a_model_that_learns_its_own(tmp_path: Path, randomise: Callable) -> None:
    path = write_npz(tmp_path / "s16.npz", without_positions(big_vision_arrays()), "params/")
    learned = create_model(
        "auto", pretrained=write_npz(tmp_path / "learned.npz", big_vision_arrays(), "params/")
    )
    randomise(learned)
    assert "tokenizer.pos_embed" in load_checkpoint(learned, path).loaded
    assert (learned.tokenizer.pos_embed - sincos2d((4, 4), 64)).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("norm_eps", 1e-5, "norm_eps=1e-05"),
        ("activation", "gelu_tanh", "activation='gelu_tanh'"),
        ("global_pool", "max", "global_pool='max' .it is mean or map there"),
        ("img_size", (32, 16), "a 4x2 grid of positions"),
        ("stem", (), "a hybrid stem"),
        ("final_norm", False, "a trunk without final norm"),
        ("qkv_bias", False, "attention without qkv bias"),
        ("pos_embed", "none", "pos_embed='none'"),
    ],
)
def test_what_others_would_read_as_another_model_is_not_written(
    setting: str, value: object, message: str, refused: Callable
) -> None:
    decoded = BIG_VISION.decode(tensors(big_vision_arrays()))
    with refused(None, f"the big_vision layout has no place for {message}"):
        BIG_VISION.encode(decoded, MODEL.override({setting: value}))


def test_a_class_token_with_a_position_is_not_written(refused: Callable) -> None:
    config = MODEL.override({"class_token": True, "cls_pos": True, "global_pool": "cls"})
    with refused(None, "the big_vision layout has no place for a class token with a position"):
        BIG_VISION.encode({}, config)


@pytest.mark.parametrize("name", ["trunk.blocks.0.ls1.gamma", "fc_norm.weight", "reg_tokens"])
def test_tensors_without_a_place_are_not_written(name: str, refused: Callable) -> None:
    decoded = BIG_VISION.decode(tensors(big_vision_arrays())) | {name: torch.ones(64)}
    with refused(None, f"the big_vision layout has no place for {name}"):
        BIG_VISION.encode(decoded, MODEL)


@pytest.mark.parametrize("part", ["probe", "MultiHeadDotProductAttention_0/key/bias", "LayerNorm_0/scale"])
def test_an_incomplete_attention_pool_is_refused(part: str, tmp_path: Path, refused: Callable) -> None:
    arrays = big_vision_arrays(map_head=True)
    del arrays[f"MAPHead_0/{part}"]
    path = write_npz(tmp_path / "part.npz", arrays, "params/")
    with refused(path, "MAPHead_0/.* is missing|holds 7 tensors the model has no place for"):
        create_model("auto", pretrained=path)


def test_no_other_source_takes_such_a_file() -> None:
    for prefix in ("", "params/", "params/img/", "opt/target/"):
        for stacked in (False, True):
            names = [prefix + name for name in big_vision_arrays(stacked=stacked)]
            assert [name for name, source in SOURCES.items() if source.matches(names)] == ["big_vision"]
    assert not BIG_VISION.matches(list(google_arrays(64, 8, 8, 17, 10)))
