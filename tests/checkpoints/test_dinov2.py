"""DINOv2's own files: told from others', heads, writing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from parity.dinov2_rows import Dinov2, chunked, training
from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.checkpoints.sources import dinov2
from pointvit.config import IMAGENET, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

OURS = ViTConfig(
    TrunkConfig(192, 2, 3, layer_scale=0.1), ImageTokenizerConfig((32, 32), (8, 8)), num_classes=0
)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # theirs, and the same as ours
    "plain": ({}, {}),
    "registers": ({"registers": 4}, {"num_reg_tokens": 4}),
    "giant": ({"gated": True}, {"swiglu": True, "mlp_ratio": 512 / 192}),
    "classifier": ({"classes": 7}, {"num_classes": 7, "global_pool": "cls+mean"}),
}


def source_of(state: dict[str, Tensor]) -> str:
    return next(source.name for source in SOURCES.values() if source.matches(state.keys()))


@pytest.fixture
def theirs(randomise: Callable) -> Callable[..., Dinov2]:
    return lambda **settings: randomise(Dinov2(**settings)).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_numbers_come_back(kind: str, tmp_path: Path, theirs: Callable) -> None:
    state = theirs(**KINDS[kind][0]).state_dict()
    save_file(state, tmp_path / "dinov2.safetensors")
    checkpoint = Checkpoint.open(tmp_path / "dinov2.safetensors")
    assert checkpoint.source is dinov2.SOURCE
    assert (checkpoint.meta["image_mean"], checkpoint.meta["image_std"]) == IMAGENET
    decoded = {n: t for n, t in dinov2.decode(state).items() if n != "mask_token"}
    again = dinov2.encode(decoded, checkpoint.encoder_config())
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state if name != "mask_token")
    assert not again["mask_token"].any()


def test_files_are_of_one_source_each(theirs: Callable) -> None:
    state = theirs(registers=4).state_dict()
    unmasked = {name: tensor for name, tensor in theirs().state_dict().items() if name != "mask_token"}
    assert source_of(state) == source_of(theirs().state_dict()) == source_of(chunked(unmasked)) == "dinov2"
    assert source_of(training(unmasked)["teacher"]) == "dinov2"
    assert source_of(unmasked) == "timm"  # with no mask token there is nothing that timm's has not
    for name in ("vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_tiny_patch16_224"):
        state = timm.create_model(name, depth=1, num_classes=0, embed_dim=192, num_heads=3).state_dict()
        assert source_of(state) == "timm"
    assert source_of({**state, "mask_token": torch.ones(1, 1, 64)}) == "timm"  # MAE's


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_loads_strictly(
    kind: str, tmp_path: Path, theirs: Callable, randomise: Callable, error_of: Callable
) -> None:
    ours, model = randomise(ViT(OURS.override(KINDS[kind][1]))).eval(), theirs(**KINDS[kind][0])
    path = save_checkpoint(ours, tmp_path / "dinov2.safetensors", "dinov2")
    model.load_state_dict(load_file(path), strict=True)
    x = torch.randn(2, 3, 32, 32)
    assert error_of(ours(x), model(x)) <= 1e-5
    assert torch.equal(create_model("auto", pretrained=path).eval()(x), ours(x))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"layer_scale": None}, "blocks without LayerScale"),
        ({"cls_pos": False}, "a class token without position"),
        ({"norm_eps": 1e-5}, "norm_eps=1e-05"),
        ({"activation": "gelu_tanh"}, "activation='gelu_tanh'"),
        ({"num_classes": 7}, "global_pool='cls'"),
        ({"global_pool": "mean"}, "global_pool='mean'"),
        ({"attn_norm": True}, "trunk.blocks.0.attn.norm.weight"),
        ({"rope": True}, "rotary positions"),
        ({"img_size": (32, 64)}, "images of"),
    ],
)
def test_what_dinov2_is_not_is_not_written(
    settings: dict[str, Any], what: str, tmp_path: Path, refused: Callable
) -> None:
    with refused(None, f"the dinov2 layout has no place for {what}"):
        save_checkpoint(ViT(OURS.override(settings)), tmp_path / "file.safetensors", "dinov2")


def test_a_classifier_on_four_blocks_is_set_aside(tmp_path: Path, theirs: Callable) -> None:
    save_file(theirs(classes=7, blocks_read=4).state_dict(), tmp_path / "dinov2.safetensors")
    model = create_model("auto", pretrained=tmp_path / "dinov2.safetensors")
    assert (model.num_classes, model.config.global_pool) == (0, "cls")
    report = load_checkpoint(model, tmp_path / "dinov2.safetensors")
    assert report.set_aside == {
        "mask_token": "used in pre-training only",
        "linear_head.weight": "a classifier on the tokens of several blocks",
        "linear_head.bias": "a classifier on the tokens of several blocks",
    }


def test_the_heads_of_training_are_set_aside(tmp_path: Path, theirs: Callable) -> None:
    torch.save(training(theirs().state_dict()), tmp_path / "teacher_checkpoint.pth")
    model = create_model("auto", pretrained=tmp_path / "teacher_checkpoint.pth")
    aside = load_checkpoint(model, tmp_path / "teacher_checkpoint.pth").set_aside
    assert set(aside) == {"mask_token", "dino_head.mlp.0.weight", "ibot_head.mlp.0.weight"}


def test_a_classifier_without_bias_is_refused(tmp_path: Path, theirs: Callable, refused: Callable) -> None:
    state = theirs(classes=7).state_dict()
    del state["linear_head.bias"]
    save_file(state, tmp_path / "dinov2.safetensors")
    with refused(tmp_path / "dinov2.safetensors", "its linear classifier is incomplete"):
        create_model("auto", pretrained=tmp_path / "dinov2.safetensors")


def test_dinov3_is_not_taken_for_it(tmp_path: Path, theirs: Callable, refused: Callable) -> None:
    state = theirs().state_dict()
    del state["pos_embed"]
    state |= {"storage_tokens": torch.randn(1, 4, 192), "rope_embed.periods": torch.randn(16)}
    save_file(state, tmp_path / "dinov3.safetensors")
    with refused(tmp_path / "dinov3.safetensors", "holds no pos_embed, .* rotary positions"):
        create_model("auto", pretrained=tmp_path / "dinov3.safetensors")


@pytest.mark.parametrize(
    ("dropped", "message"),
    [("cls_token", "cls_token is missing"), ("patch_embed.proj.bias", "of tokenizer.proj there is a weight")],
)
def test_a_missing_token_or_bias_is_refused(
    dropped: str, message: str, tmp_path: Path, theirs: Callable, refused: Callable
) -> None:
    state = theirs().state_dict()
    del state[dropped]
    save_file(state, tmp_path / "dinov2.safetensors")
    with refused(tmp_path / "dinov2.safetensors", message):
        create_model("auto", pretrained=tmp_path / "dinov2.safetensors")


def test_a_tensor_with_and_without_prefix_is_refused(theirs: Callable) -> None:
    state = theirs().state_dict()
    with pytest.raises(ValueError, match="names of the same tensor"):
        dinov2.decode({**state, "backbone.cls_token": state["cls_token"]})
