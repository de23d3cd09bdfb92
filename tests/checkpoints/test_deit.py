"""DeiT's official files: told from timm's, read in DeiT's way, and written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.checkpoints.sources import deit
from pointvit.config import IMAGENET, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

SMALL: dict[str, Any] = {"depth": 2, "num_classes": 7, "img_size": 32, "patch_size": 8, "embed_dim": 192,
                         "num_heads": 3}  # fmt: skip
OURS = ViTConfig(TrunkConfig(192, 2, 3), ImageTokenizerConfig((32, 32), (8, 8)), num_classes=7)
DISTILLED = {"num_reg_tokens": 1, "dist_pos": True, "global_pool": "cls+dist", "head": "distilled"}
THIRD = {"layer_scale": 0.1, "cls_pos": False}
NAMES = {"distilled": "deit_tiny_distilled_patch16_224", "third": "deit3_small_patch16_224"}


@pytest.fixture
def theirs(randomise: Callable) -> Callable[[str], nn.Module]:
    return lambda kind: randomise(timm.create_model(NAMES[kind], **SMALL)).eval()


def official(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t for n, t in state.items()}


@pytest.mark.parametrize("kind", NAMES)
def test_names_and_numbers_come_back(kind: str, tmp_path: Path, theirs: Callable) -> None:
    state = official(theirs(kind).state_dict())
    save_file(state, tmp_path / "deit.safetensors")
    checkpoint = Checkpoint.open(tmp_path / "deit.safetensors")
    assert checkpoint.source is deit.SOURCE
    assert (checkpoint.meta["image_mean"], checkpoint.meta["image_std"]) == IMAGENET
    again = deit.encode(deit.decode(state), checkpoint.encoder_config())
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_files_are_of_one_source_each(theirs: Callable) -> None:
    """DeiT III in timm's names, and plain DeiT, hold nothing that tells them from timm's other models."""
    plain = timm.create_model("deit_tiny_patch16_224", depth=1).state_dict()
    files = {
        "timm": (plain, theirs("third").state_dict()),
        "deit": (theirs("distilled").state_dict(), official(theirs("third").state_dict())),
    }
    for expected, states in files.items():
        for state in states:
            assert next(s.name for s in SOURCES.values() if s.matches(state.keys())) == expected


@torch.no_grad()
@pytest.mark.parametrize(("kind", "settings"), [("distilled", DISTILLED), ("third", THIRD)])
def test_what_is_written_loads_strictly(
    kind: str,
    settings: dict[str, Any],
    tmp_path: Path,
    theirs: Callable,
    randomise: Callable,
    error_of: Callable,
) -> None:
    ours, model = randomise(ViT(OURS.override(settings))).eval(), theirs(kind)
    path = save_checkpoint(ours, tmp_path / "deit.safetensors", "deit")
    names = {v: k for k, v in zip(model.state_dict(), official(model.state_dict()), strict=True)}
    model.load_state_dict({names[name]: tensor for name, tensor in load_file(path).items()}, strict=True)
    x = torch.randn(2, 3, 32, 32)
    assert error_of(ours(x), model(x)) <= 1e-5
    assert torch.equal(create_model("auto", pretrained=path).eval()(x), ours(x))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({}, "a model with neither LayerScale nor a distillation token"),
        ({"layer_scale": 0.1}, "a class token with a position beside LayerScale"),
        ({**THIRD, "norm_eps": 1e-5}, "norm_eps=1e-05"),
        ({**THIRD, "activation": "gelu_tanh"}, "activation='gelu_tanh'"),
        ({**THIRD, "num_reg_tokens": 4}, "registers"),
        ({**THIRD, "global_pool": "mean"}, "global_pool='mean'"),
        ({**THIRD, "swiglu": True}, "a gated MLP"),
        ({**DISTILLED, "norm_pre": True}, "norm_pre"),
    ],
)
def test_what_deit_is_not_is_not_written(
    settings: dict[str, Any], what: str, tmp_path: Path, refused: Callable
) -> None:
    with refused(None, f"the deit layout has no place for {what}"):
        save_checkpoint(ViT(OURS.override(settings)), tmp_path / "file.safetensors", "deit")


@pytest.mark.parametrize("missing", ["head.weight", "head.bias", "head_dist.weight", "head_dist.bias"])
def test_one_head_without_the_other_is_refused(
    missing: str, tmp_path: Path, theirs: Callable, refused: Callable
) -> None:
    state = theirs("distilled").state_dict()
    del state[missing]
    save_file(state, tmp_path / "deit.safetensors")
    with refused(tmp_path / "deit.safetensors", "its two heads, head and head_dist, are incomplete"):
        create_model("auto", pretrained=tmp_path / "deit.safetensors")


def test_a_file_without_class_token_is_refused(tmp_path: Path, theirs: Callable, refused: Callable) -> None:
    for kind in NAMES:
        state = official(theirs(kind).state_dict())
        del state["cls_token"]
        save_file(state, tmp_path / "deit.safetensors")
        with refused(tmp_path / "deit.safetensors", "cls_token is missing"):
            create_model("auto", pretrained=tmp_path / "deit.safetensors")


@torch.no_grad()
def test_without_heads_a_distilled_model_gives_its_class_token(
    tmp_path: Path, randomise: Callable, error_of: Callable
) -> None:
    theirs = randomise(timm.create_model(NAMES["distilled"], **{**SMALL, "num_classes": 0})).eval()
    save_file(theirs.state_dict(), tmp_path / "deit.safetensors")
    ours, x = create_model("auto", pretrained=tmp_path / "deit.safetensors").eval(), torch.randn(2, 3, 32, 32)
    tokens = theirs.forward_features(x)
    assert error_of(ours.forward_features(x), tokens) <= 1e-5
    assert error_of(ours(x), tokens[:, 0]) <= 1e-5
    assert error_of(theirs(x), tokens[:, :2].mean(dim=1)) <= 1e-5


@torch.no_grad()
def test_the_trunk_of_a_distilled_model_takes_points(tmp_path: Path, theirs: Callable) -> None:
    model = theirs("distilled")
    save_file(model.state_dict(), tmp_path / "deit.safetensors")
    points = create_model("auto", pretrained=tmp_path / "deit.safetensors", tokenizer="points")
    report = load_checkpoint(points, tmp_path / "deit.safetensors")
    assert report.coverage == 1.0
    assert torch.equal(points.reg_tokens, model.dist_token)
    assert {n for n in report.set_aside if n.startswith("head.")} == set(deit.timm.HEAD)


def test_a_second_token_of_the_same_name_is_refused(theirs: Callable) -> None:
    state = theirs("distilled").state_dict()
    with pytest.raises(ValueError, match="names of the same tensor"):
        deit.decode({**state, "reg_token": state["dist_token"]})
