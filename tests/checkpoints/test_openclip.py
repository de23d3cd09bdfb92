"""OpenAI's and OpenCLIP's towers: round trips, what OpenCLIP loads strictly, what is refused or left open."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from open_clip.modified_resnet import ModifiedResNet
from open_clip.transformer import VisionTransformer
from safetensors.torch import load_file, save_file
from torch import nn

from parity.openclip_rows import CLIPA, COLOURS, EMBED, OWN, WIDTH, build, config, folder, openai, prefixed
from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.checkpoints.sources.openclip import SOURCE
from pointvit.checkpoints.sources.source import Facts
from pointvit.config import CLIP, IMAGENET, UNIT

OURS: dict[str, Any] = {"img_size": 32, "patch_size": 8, "depth": 2, "mlp_ratio": 2.0, "norm_eps": 1e-5,
                        "norm_pre": True, "patch_bias": False, "head": "projection",
                        "num_classes": EMBED}  # fmt: skip
OURS_CLIPA = {"norm_pre": False, "final_norm": False, "fc_norm": True, "global_pool": "mean"}
SIGLIP = config(
    timm_model_name="vit_base_patch16_siglip_224", timm_pool="map", timm_proj="none", image_size=32
)
EVA = config(timm_model_name="eva02_base_patch16_clip_224", timm_pool="token", timm_proj=None, image_size=32)
LINEAR = {**EVA, "vision_cfg": {**EVA["vision_cfg"], "timm_proj": "linear"}}
TOWER = {"image_size": 32, "patch_size": 8, "width": WIDTH, "layers": 2, "heads": 3, "mlp_ratio": 2.0,
         "output_dim": EMBED}  # fmt: skip


@pytest.fixture
def theirs(randomise: Callable) -> Callable[..., nn.Module]:
    return lambda said=None, **vision: randomise(build(said or config(**vision))).eval()


@pytest.fixture
def ours(randomise: Callable) -> Callable[..., ViT]:
    return lambda **settings: randomise(create_model("vit_tiny_patch16_224", **OURS | settings)).eval()


def tower_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return prefixed(model.visual.state_dict())


@pytest.mark.parametrize("vision", [{}, {"ls_init_value": 0.1}, CLIPA], ids=["CLIP", "LayerScale", "CLIPA"])
def test_there_and_back(vision: dict[str, Any], theirs: Callable, tmp_path: Path) -> None:
    state = tower_of(theirs(**vision))
    torch.save(state, tmp_path / "clip.pth")
    checkpoint = Checkpoint.open(tmp_path / "clip.pth")
    before = dict(checkpoint.tensors)
    encoded = SOURCE.encode(checkpoint.tensors, checkpoint.encoder_config({"activation": "gelu"}))
    assert before == checkpoint.tensors
    assert encoded.keys() == state.keys()
    assert all(torch.equal(encoded[name], tensor) for name, tensor in state.items())
    again = SOURCE.decode(encoded)
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())


@torch.no_grad()
@pytest.mark.parametrize(
    ("settings", "vision"),
    [
        ({"activation": "quick_gelu"}, {"act_layer": open_clip.transformer.QuickGELU}),
        ({"activation": "gelu", "layer_scale": 0.1}, {"ls_init_value": 0.1}),
        (OURS_CLIPA, CLIPA),
    ],
    ids=["QuickGELU", "LayerScale", "CLIPA"],
)
def test_openclip_loads_what_is_written(
    settings: dict[str, Any], vision: dict[str, Any], ours: Callable, tmp_path: Path, error_of: Callable
) -> None:
    model = ours(**settings)
    path = save_checkpoint(model, tmp_path / "clip.safetensors", "openclip")
    state = {name.removeprefix("visual."): tensor for name, tensor in load_file(path).items()}
    public = VisionTransformer(**TOWER, **vision).eval()
    public.load_state_dict(state, strict=True)
    x = torch.randn(2, 3, 32, 32)
    assert error_of(public(x), model(x)) <= 1e-5
    again = create_model("auto", pretrained=path)
    assert again.config == model.config
    assert load_checkpoint(again, path).source == "openclip"


@pytest.mark.parametrize("said", [config(), SIGLIP], ids=["its own ViT", "timm's"])
def test_the_names_are_no_other_source_s(said: Any, theirs: Callable) -> None:
    model = theirs(said)
    for names in (model.state_dict(), tower_of(model)):
        assert [source.name for source in SOURCES.values() if source.matches(names)] == ["openclip"]


def test_a_whole_clip_is_set_aside_but_for_its_images(theirs: Callable, tmp_path: Path) -> None:
    path = openai(theirs(), tmp_path, config())
    model = create_model("auto", pretrained=path)
    aside = load_checkpoint(model, path).set_aside
    assert {name.split(".")[0] for name in aside} == {
        "transformer", "token_embedding", "positional_embedding", "ln_final", "text_projection",
        "logit_scale", "input_resolution", "context_length", "vocab_size",
    }  # fmt: skip
    assert set(aside.values()) == {
        "the text tower", "scale and bias of the contrastive loss", "a number that the shapes tell, too",
    }  # fmt: skip
    assert model.num_classes == EMBED


def test_siglip_s_text_tower_is_set_aside(theirs: Callable, tmp_path: Path) -> None:
    path = folder(theirs(SIGLIP), tmp_path, SIGLIP)
    model = create_model("auto", pretrained=path)
    aside = load_checkpoint(model, path).set_aside
    assert {name.split(".")[0] for name in aside} == {"text", "logit_scale"}
    assert model.config.global_pool == "map"


def test_the_activation_of_a_bare_file_is_asked_for(
    theirs: Callable, tmp_path: Path, refused: Callable
) -> None:
    path = tmp_path / "clip.pth"
    torch.save(theirs().state_dict(), path)
    with refused(path, "the openclip layout does not say activation"):
        create_model("auto", pretrained=path)
    for activation in ("gelu", "quick_gelu"):
        model = create_model("auto", pretrained=path, activation=activation)
        assert model.config.trunk.activation == activation


@pytest.mark.parametrize(("width", "heads"), [(512, 8), (1664, 16)])
def test_heads_of_public_widths(width: int, heads: int) -> None:
    with torch.device("meta"):
        state = tower_of(build(config(width=width)))
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert SOURCE.settings(SOURCE.decode(state), Facts({}, shapes))["num_heads"] == heads


def test_colours(theirs: Callable, tmp_path: Path) -> None:
    for i, (model, expected) in enumerate(
        [(theirs(), CLIP), (theirs(**CLIPA), IMAGENET), (theirs(SIGLIP), UNIT)]
    ):
        torch.save(tower_of(model), tmp_path / f"{i}.pth")
        meta = Checkpoint.open(tmp_path / f"{i}.pth").meta
        assert (meta["image_mean"], meta["image_std"]) == expected
    meta = Checkpoint.open(folder(theirs(), tmp_path, config())).meta
    assert (list(meta["image_mean"]), list(meta["image_std"])) == (COLOURS["mean"], COLOURS["std"])


@torch.no_grad()
def test_an_oblong_image_is_taken_from_the_configuration(
    theirs: Callable, tmp_path: Path, error_of: Callable
) -> None:
    public = theirs(image_size=[24, 48])
    model = create_model("auto", pretrained=folder(public, tmp_path, config(image_size=[24, 48]))).eval()
    assert model.config.tokenizer.img_size == (24, 48)
    x = torch.randn(2, 3, 24, 48)
    assert error_of(model(x), public.visual(x)) <= 1e-5


def test_the_named_model_leaves_the_projection_aside(randomise: Callable, tmp_path: Path) -> None:
    tower = VisionTransformer(
        **{**TOWER, "image_size": 224, "patch_size": 32, "width": 768, "layers": 1, "heads": 12}
    )
    path = tmp_path / "clip.pth"
    torch.save(prefixed(randomise(tower).state_dict()), path)
    model = create_model("vit_base_patch32_clip_quickgelu_224", depth=1, mlp_ratio=2.0, pretrained=path)
    assert load_checkpoint(model, path).set_aside == {
        "head.weight": "the file's head, which differs from the model's"
    }
    assert model.config.trunk.activation == "quick_gelu"


def resnet() -> nn.Module:
    return ModifiedResNet([1, 1, 1, 1], output_dim=EMBED, heads=2, image_size=32, width=8)


def with_tower(tower: nn.Module) -> dict[str, torch.Tensor]:
    return prefixed(tower.state_dict())


UNSUPPORTED: dict[str, tuple[Callable[[], dict[str, torch.Tensor]], str]] = {
    "ResNet": (lambda: with_tower(resnet()), "has a ResNet"),
    "CoCa": (
        lambda: with_tower(VisionTransformer(**TOWER, attentional_pool=True, attn_pooler_heads=2)),
        "has CoCa's attentional pooler",
    ),
    "two-layer projection": (
        lambda: tower_of(build(SIGLIP)) | {"visual.head.mlp.fc1.weight": torch.ones(2, 2)},
        "has a projection of two layers",
    ),
    "ConvNeXt": (
        lambda: {"visual.trunk.stem.0.weight": torch.ones(4, 3, 4, 4)},
        "none of timm's ViTs that are supported",
    ),
    "Perception Encoder": (
        lambda: tower_of(build(SIGLIP)) | {"visual.trunk.norm_pre.weight": torch.ones(WIDTH)},
        "a Perception Encoder",
    ),
    "normalised queries": (
        lambda: with_tower(VisionTransformer(**TOWER, qk_norm=True)),
        r"holds 8 tensors the model has no place for .*attn\.ln_q",
    ),
    "half a norm": (
        lambda: {n: t for n, t in tower_of(build(config(**CLIPA))).items() if n != "visual.ln_post.bias"},
        "of fc_norm there is a weight alone",
    ),
    "half a pool": (
        lambda: {n: t for n, t in tower_of(build(SIGLIP)).items() if not n.endswith("latent")},
        r"less than is known here \(pool.attn_pool.latent\)",
    ),
    "no positions": (
        lambda: {n: t for n, t in tower_of(build(config())).items() if "positional" not in n},
        "visual.positional_embedding is missing",
    ),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_what_the_trunk_cannot_hold(kind: str, tmp_path: Path, refused: Callable) -> None:
    state, message = UNSUPPORTED[kind]
    torch.save(state(), tmp_path / "clip.pth")
    with refused(tmp_path / "clip.pth", message):
        create_model("auto", pretrained=tmp_path / "clip.pth", activation="gelu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool_type": "none"}, "pool_type='none' with final_ln_after_pool=False with ln_pre"),
        ({"pool_type": "avg", "final_ln_after_pool": True}, "pool_type='avg' with final_ln_after_pool=True"),
        ({"act_kwargs": {"inplace": True}}, "asks for an activation with {'inplace': True}"),
        ({"act_kwargs": {"approximate": "sigmoid"}}, "asks for an activation with"),
        ({"act_kwargs": [1]}, r"act_kwargs in its configuration must be an object, got \[1\]"),
        ({"image_size": "large"}, "a size must be a whole number or a list of two, got 'large'"),
        ({"head_width": 5}, "embed_dim must be a multiple of num_heads"),
        ({"head_width": 1000}, "num_heads >= 1"),
        ({"head_width": "wide"}, "invalid literal for int"),
        ({"norm_kwargs": {"eps": "tiny"}}, "could not convert string to float"),
    ],
)
def test_a_configuration_that_asks_for_what_is_not_there(
    change: dict[str, Any], message: str, theirs: Callable, tmp_path: Path, refused: Callable
) -> None:
    folder(theirs(), tmp_path, {**config(), "vision_cfg": {**OWN, **change}})
    with refused(tmp_path, message):
        create_model("auto", pretrained=tmp_path)


@pytest.mark.parametrize("part", ["model_cfg", "preprocess_cfg"])
def test_a_configuration_of_another_kind(
    part: str, theirs: Callable, tmp_path: Path, refused: Callable
) -> None:
    folder(theirs(), tmp_path, config())
    (tmp_path / "open_clip_config.json").write_text(json.dumps({part: "ViT-B-32"}))
    with refused(tmp_path, f"{part} in its configuration must be an object, got 'ViT-B-32'"):
        create_model("auto", pretrained=tmp_path, activation="gelu")


def test_clipa_s_names_with_another_pool_are_refused(
    theirs: Callable, tmp_path: Path, refused: Callable
) -> None:
    folder(theirs(no_ln_pre=True), tmp_path, config(no_ln_pre=True))
    with refused(tmp_path, "pool_type='tok' with final_ln_after_pool=False without ln_pre"):
        create_model("auto", pretrained=tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm_eps": 1e-6}, "norm_eps=1e-06"),
        ({"activation": "gelu_tanh"}, "activation='gelu_tanh'"),
        ({"class_token": False, "global_pool": "mean"}, "without class token"),
        (
            {"global_pool": "mean"},
            r"global_pool, final_norm and fc_norm = \('mean', True, False\) with norm_pre",
        ),
        ({"norm_pre": False}, r"= \('cls', True, False\) without norm_pre"),
        ({"patch_bias": True}, "projection with bias"),
        ({"in_chans": 1}, "1 channels"),
        ({"num_classes": 0}, "a model without head"),
        ({"head": "linear"}, "the head 'linear'"),
        ({"num_reg_tokens": 1}, "reg_tokens"),
        ({"attn_norm": True}, "attn.norm"),
        ({"representation_size": 8}, "pre_logits"),
        ({"swiglu": True}, "a gated MLP"),
    ],
)
def test_what_has_no_place(
    settings: dict[str, Any], message: str, ours: Callable, tmp_path: Path, refused: Callable
) -> None:
    model = ours(**settings)
    with refused(None, f"the openclip layout has no place for .*{message}", model):
        save_checkpoint(model, tmp_path / "clip.safetensors", "openclip")
    assert not any(tmp_path.iterdir())


def test_a_bare_tower_and_a_prefixed_one_are_the_same(theirs: Callable, tmp_path: Path) -> None:
    state = theirs().visual.state_dict()
    save_file({name: t.contiguous() for name, t in state.items()}, tmp_path / "bare.safetensors")
    bare = Checkpoint.open(tmp_path / "bare.safetensors").tensors
    whole = SOURCE.decode(prefixed(state))
    assert bare.keys() == whole.keys()
    assert all(torch.equal(bare[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("said", "dropped", "message"),
    [
        (config(), "visual.proj", "visual.proj is missing"),
        (config(), "visual.class_embedding", "visual.class_embedding is missing"),
        (EVA, "visual.trunk.head.bias", "of head there is a weight alone"),
        (EVA, "visual.trunk.head.weight", "projection, which is missing|of head there is a bias alone"),
        (LINEAR, "visual.head.proj.weight", "its configuration asks for a projection, which is missing"),
    ],
)
def test_a_projection_that_is_missing(
    said: Any, dropped: str, message: str, theirs: Callable, tmp_path: Path, refused: Callable
) -> None:
    folder(theirs(said), tmp_path, said)
    (path,) = [p for p in tmp_path.iterdir() if p.suffix == ".safetensors"]
    state = load_file(path)
    del state[dropped]
    save_file(state, path)
    with refused(tmp_path, message):
        create_model("auto", pretrained=tmp_path)


def test_two_projections_are_refused(theirs: Callable) -> None:
    state = dict(theirs(EVA).state_dict())
    with pytest.raises(ValueError, match="two projections"):
        SOURCE.decode({**state, "visual.head.proj.weight": torch.ones(EMBED, WIDTH)})
