"""torchvision's layout: round trips, files that torchvision loads strictly, and what has no place in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torchvision.models.vision_transformer import ConvStemConfig, VisionTransformer

from parity.torchvision_rows import SMALL, older
from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.checkpoints.sources.torchvision import SOURCE
from pointvit.config import IMAGENET

OURS: dict[str, Any] = {"img_size": 32, "patch_size": 8, "depth": 2, "num_classes": 10, "mlp_ratio": 2.0}


@pytest.fixture
def theirs(randomise: Callable) -> Callable[..., VisionTransformer]:
    return lambda **settings: randomise(VisionTransformer(**SMALL | settings)).eval()


@pytest.fixture
def ours(randomise: Callable) -> Callable[..., ViT]:
    return lambda **settings: randomise(create_model("vit_tiny_patch16_224", **OURS | settings)).eval()


@pytest.mark.parametrize("settings", [{}, {"representation_size": 24}], ids=["plain", "representation layer"])
def test_there_and_back(settings: dict[str, Any], theirs: Callable, tmp_path: Path) -> None:
    state = theirs(**settings).state_dict()
    torch.save(state, tmp_path / "vit.pth")
    checkpoint = Checkpoint.open(tmp_path / "vit.pth")
    before = dict(checkpoint.tensors)
    encoded = SOURCE.encode(checkpoint.tensors, checkpoint.encoder_config())
    assert before == checkpoint.tensors
    assert encoded.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(encoded[name], tensor)
    again = SOURCE.decode(encoded)
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, {"representation_size": 24}], ids=["plain", "representation layer"])
def test_torchvision_loads_what_is_written(
    settings: dict[str, Any], ours: Callable, tmp_path: Path, error_of: Callable
) -> None:
    model = ours(**settings)
    path = save_checkpoint(model, tmp_path / "vit.safetensors", "torchvision")
    public = VisionTransformer(**SMALL, **settings).eval()
    public.load_state_dict(load_file(path), strict=True)
    x = torch.randn(2, 3, 32, 32)
    assert error_of(public(x), model(x)) <= 1e-5
    assert load_checkpoint(ours(**settings), path).source == "torchvision"


@pytest.mark.parametrize("change", [dict, older], ids=["now", "before 0.14"])
def test_the_names_are_no_other_source_s(change: Callable, theirs: Callable) -> None:
    names = change(theirs().state_dict()).keys()
    assert [source.name for source in SOURCES.values() if source.matches(names)] == ["torchvision"]


def test_older_names_become_the_same_tensors(theirs: Callable) -> None:
    state = theirs().state_dict()
    decoded, old = SOURCE.decode(state), SOURCE.decode(older(state))
    assert decoded.keys() == old.keys()
    assert all(decoded[name] is old[name] for name in decoded)


def test_what_the_source_says(theirs: Callable, tmp_path: Path) -> None:
    torch.save(theirs().state_dict(), tmp_path / "vit.pth")
    model = create_model("auto", pretrained=tmp_path / "vit.pth")
    assert (model.meta.image_mean, model.meta.image_std) == IMAGENET
    assert (model.config.trunk.norm_eps, model.config.trunk.activation) == (1e-6, "gelu")
    assert model.config.tokenizer.pos_resample == "aligned"


def test_heads_of_an_unusual_width_are_asked_for(theirs: Callable, tmp_path: Path, refused: Callable) -> None:
    path = tmp_path / "vit.pth"
    torch.save(theirs(hidden_dim=48, num_heads=4).state_dict(), path)
    with refused(path, "does not say num_heads"):
        create_model("auto", pretrained=path)
    assert create_model("auto", pretrained=path, num_heads=4).config.trunk.num_heads == 4


def test_a_convolutional_stem_is_refused(theirs: Callable, tmp_path: Path, refused: Callable) -> None:
    stem = [ConvStemConfig(8, 3, 2), ConvStemConfig(16, 3, 2), ConvStemConfig(32, 3, 2)]
    path = tmp_path / "vit.pth"
    torch.save(theirs(conv_stem_configs=stem).state_dict(), path)
    with refused(path, "stem of several convolutions"):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        ("encoder.layers.encoder_layer_1.mlp.3.bias", r"lacks 1 tensor .*blocks.1.mlp.fc2.bias"),
        ("encoder.layers.encoder_layer_0.mlp.0.weight", "no complete MLP"),
        ("conv_proj.weight", "of tokenizer.proj there is a bias alone"),
        ("conv_proj.bias", "of tokenizer.proj there is a weight alone"),
        ("heads.head.bias", "of head there is a weight alone"),
        ("heads.head.weight", "of head there is a bias alone"),
        ("encoder.pos_embedding", "encoder.pos_embedding is missing"),
        ("class_token", "class_token is missing"),
    ],
)
def test_incomplete_files(
    dropped: str, message: str, theirs: Callable, tmp_path: Path, refused: Callable
) -> None:
    state: dict[str, Tensor] = dict(theirs().state_dict())
    del state[dropped]
    torch.save(state, tmp_path / "vit.pth")
    with refused(tmp_path / "vit.pth", message):
        create_model("auto", pretrained=tmp_path / "vit.pth")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm_eps": 1e-5}, "norm_eps=1e-05"),
        ({"activation": "quick_gelu"}, "activation='quick_gelu'"),
        ({"qkv_bias": False}, "without qkv bias"),
        ({"class_token": False, "global_pool": "mean"}, "without class token"),
        ({"cls_pos": False}, "a class token without position"),
        ({"global_pool": "mean"}, "global_pool='mean'"),
        ({"final_norm": False}, "without final norm"),
        ({"patch_bias": False}, "projection without bias"),
        ({"in_chans": 1}, "1 channels"),
        ({"img_size": (32, 40)}, r"images of \(32, 40\)"),
        ({"patch_size": (8, 16)}, r"patches of \(8, 16\)"),
        ({"num_classes": 0}, "a model without head"),
        ({"head": "projection"}, "the head 'projection'"),
        ({"swiglu": True}, "a gated MLP"),
        ({"rope": True}, "rotary positions"),
        ({"pos_embed": "learned_2d"}, "pos_embed='learned_2d'"),
        ({"pos_embed": "none"}, "pos_embed='none'"),
        ({"pos_mode": "every_block"}, "pos_mode='every_block'"),
        ({"num_reg_tokens": 4}, "reg_tokens"),
        ({"layer_scale": 0.1}, "ls1.gamma"),
        ({"norm_pre": True}, "norm_pre"),
        ({"fc_norm": True}, "fc_norm"),
        ({"attn_norm": True}, "attn.norm"),
    ],
)
def test_what_has_no_place(
    settings: dict[str, Any], message: str, ours: Callable, tmp_path: Path, refused: Callable
) -> None:
    model = ours(**settings)
    with refused(None, f"the torchvision layout has no place for .*{message}", model):
        save_checkpoint(model, tmp_path / "vit.safetensors", "torchvision")
    assert not any(tmp_path.iterdir())
