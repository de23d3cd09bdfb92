"""Hugging Face's CLIP and SigLIP towers: round trips, folders that transformers opens, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from parity.huggingface_clip_rows import as_before_5, folder, vision, whole
from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.checkpoints.sources.huggingface_clip import SOURCE
from pointvit.checkpoints.sources.source import Facts
from pointvit.config import CLIP, UNIT

OURS: dict[str, Any] = {"img_size": 32, "patch_size": 8, "depth": 2, "mlp_ratio": 2.0, "num_classes": 0}
OF_CLIP: dict[str, Any] = {**OURS, "norm_eps": 1e-5, "norm_pre": True, "patch_bias": False,
                           "activation": "quick_gelu"}  # fmt: skip
OF_SIGLIP: dict[str, Any] = {**OURS, "class_token": False, "global_pool": "map", "activation": "gelu_tanh"}
UNUSUAL = {"activation": "gelu", "norm_eps": 1e-3, "num_heads": 6}
PROJECTION = {"num_classes": 16, "head": "projection"}
POSITIONS = "embeddings.position_embedding.weight"
KINDS = ("CLIPVisionModel", "SiglipVisionModel")


@pytest.fixture
def saved(randomise: Callable, tmp_path: Path) -> Callable[..., tuple[nn.Module, Path]]:
    """``saved(build)``: the model with random parameters, and the folder it is in."""

    def build(model: Callable[[], nn.Module], write: Callable = folder) -> tuple[nn.Module, Path]:
        theirs = randomise(model()).eval()
        return theirs, write(theirs, tmp_path / "saved")

    return build


@pytest.fixture
def ours(randomise: Callable) -> Callable[..., ViT]:
    return lambda **settings: randomise(create_model("vit_tiny_patch16_224", **settings)).eval()


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "build",
    [
        vision("CLIPVisionModelWithProjection", projection_dim=16),
        vision("CLIPVisionModel"),
        vision("SiglipVisionModel"),
    ],
    ids=["projection", "CLIP", "SigLIP"],
)
def test_there_and_back(build: Callable, saved: Callable) -> None:
    _, path = saved(build)
    state = load_file(path / "model.safetensors")
    if not any(name.startswith("vision_model.") for name in state):
        state = {f"vision_model.{name}": tensor for name, tensor in state.items()}
    checkpoint = Checkpoint.open(path)
    before = dict(checkpoint.tensors)
    encoded = SOURCE.encode(checkpoint.tensors, checkpoint.encoder_config())
    assert before == checkpoint.tensors
    assert encoded.keys() == state.keys()
    assert all(torch.equal(encoded[name], tensor) for name, tensor in state.items())
    again = SOURCE.decode(encoded)
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "settings", "output"),
    [
        ("CLIPVisionModel", OF_CLIP, "pooler_output"),
        (
            "CLIPVisionModel",
            {**OF_CLIP, "activation": "gelu", "norm_eps": 1e-3, "num_heads": 6},
            "pooler_output",
        ),
        (
            "CLIPVisionModelWithProjection",
            {**OF_CLIP, "num_classes": 16, "head": "projection"},
            "image_embeds",
        ),
        ("SiglipVisionModel", OF_SIGLIP, "pooler_output"),
        ("SiglipVisionModel", {**OF_SIGLIP, "in_chans": 1, "img_size": 40}, "pooler_output"),
    ],
)
def test_transformers_opens_the_folder_that_is_written(
    kind: str, settings: dict[str, Any], output: str, ours: Callable, tmp_path: Path, error_of: Callable
) -> None:
    model = ours(**settings)
    path = save_checkpoint(model, tmp_path / "clip", "huggingface_clip")
    assert {file.name for file in path.iterdir()} == {
        "model.safetensors",
        "config.json",
        "preprocessor_config.json",
    }
    public, report = getattr(transformers, kind).from_pretrained(path, output_loading_info=True)
    assert not any(report.values())
    tokenizer = model.config.tokenizer
    x = torch.randn(2, tokenizer.in_chans, *tokenizer.img_size)
    assert error_of(model(x), public.eval()(x)[output]) <= 1e-5
    assert json.loads((path / "config.json").read_text())["architectures"] == [kind]
    again = create_model("auto", pretrained=path)
    assert again.config.trunk == model.config.trunk
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_are_no_other_source_s(kind: str, saved: Callable) -> None:
    names = load_file(saved(vision(kind))[1] / "model.safetensors").keys()
    for present in (names, [f"vision_model.{name}" for name in names]):
        assert [source.name for source in SOURCES.values() if source.matches(present)] == ["huggingface_clip"]


@pytest.mark.parametrize("kind", ["CLIPModel", "SiglipModel"])
def test_the_text_tower_is_set_aside(kind: str, saved: Callable) -> None:
    _, path = saved(whole(kind))
    aside = load_checkpoint(create_model("auto", pretrained=path), path).set_aside
    texts = {
        "text_model",
        "logit_scale",
        *(("logit_bias",) if kind == "SiglipModel" else ("text_projection",)),
    }
    assert {name.split(".")[0] for name in aside} == texts
    assert set(aside.values()) == {"the text tower", "scale and bias of the contrastive loss"}


@pytest.mark.parametrize("kind", ["CLIPForImageClassification", "SiglipForImageClassification"])
def test_what_a_classifier_does_not_see_is_set_aside(kind: str, saved: Callable) -> None:
    _, path = saved(whole(kind))
    model = create_model("auto", pretrained=path)
    aside = load_checkpoint(model, path).set_aside
    part = "post_layernorm." if kind.startswith("CLIP") else "head."
    assert aside
    assert all(name.startswith(f"vision_model.{part}") for name in aside)
    assert (model.config.global_pool, model.num_classes) == ("mean", 5)


def test_numbers_of_positions_are_set_aside(saved: Callable) -> None:
    _, path = saved(vision("CLIPVisionModel"), as_before_5)
    report = load_checkpoint(create_model("auto", pretrained=path), path)
    assert report.set_aside == {"vision_model.embeddings.position_ids": "row numbers of the position table"}


@pytest.mark.parametrize(("kind", "colours"), [(KINDS[0], CLIP), (KINDS[1], UNIT)])
def test_colours_and_resampling(kind: str, colours: Any, saved: Callable) -> None:
    _, path = saved(vision(kind))
    model = create_model("auto", pretrained=path)
    assert (model.meta.image_mean, model.meta.image_std) == colours
    assert model.config.tokenizer.pos_resample == "bicubic"
    (path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3]}))
    assert create_model("auto", pretrained=path).meta.image_mean == (0.1, 0.2, 0.3)


def test_a_bare_clip_file_leaves_the_activation_open(saved: Callable, refused: Callable) -> None:
    _, path = saved(vision("CLIPVisionModel"))
    path = (path / "model.safetensors").rename(path / "alone.safetensors")
    with refused(path, "the huggingface_clip layout does not say activation"):
        create_model("auto", pretrained=path)


def settings_of(build: Callable[[], nn.Module], config: dict[str, Any]) -> dict[str, Any]:
    """What the source says of a model too large to be written here."""
    with torch.device("meta"):
        state = build().state_dict()
    return SOURCE.settings(SOURCE.decode(state), Facts(config, {n: tuple(t.shape) for n, t in state.items()}))


@pytest.mark.parametrize(
    ("kind", "expected"), [(KINDS[0], (12, "quick_gelu", 1e-5)), (KINDS[1], (12, "gelu_tanh", 1e-6))]
)
def test_a_config_may_be_short(kind: str, expected: Any) -> None:
    """As google/siglip-base-patch16-224 has it: what is the default of the class is left out."""
    build = vision(kind, hidden_size=768, num_hidden_layers=12, num_attention_heads=12)
    said = settings_of(build, {"vision_config": {"model_type": "any"}})
    assert (said["num_heads"], said["activation"], said["norm_eps"]) == expected
    assert "img_size" not in said, "the position table shows the grid"


@pytest.mark.parametrize(("kind", "heads"), [(KINDS[0], 24), (KINDS[1], 16)])
def test_heads_of_a_giant(kind: str, heads: int) -> None:
    assert settings_of(vision(kind, hidden_size=1536), {})["num_heads"] == heads


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 3}, "config.json describes 3 blocks, the weights have 2"),
        ({"hidden_act": "relu"}, "config.json asks for hidden_act='relu'"),
        ({"num_attention_heads": 5}, "embed_dim must be a multiple of num_heads"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps='small', expected a number above zero"),
        ({"image_size": 64}, "images of 64, that is 65 positions, the weights have 17"),
        ({"intermediate_size": 7}, "config.json describes 7 channels in the MLP"),
        ({"preprocessor": 1}, "preprocessor_config.json must be an object, got 1"),
        ({"vision_config": "tower"}, "vision_config in config.json must be an object, got 'tower'"),
    ],
)
def test_a_config_that_contradicts_the_weights(
    change: dict[str, Any], message: str, saved: Callable, refused: Callable
) -> None:
    _, path = saved(vision("CLIPVisionModel"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with refused(path, message):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("CLIPVisionModel", {"embeddings.class_embedding": None}, "CLIP has both class_embedding"),
        ("SiglipVisionModel", {"embeddings.class_embedding": torch.ones(192)}, "SigLIP neither"),
        ("CLIPVisionModel", {POSITIONS: None}, f"{POSITIONS} is missing"),
        ("CLIPVisionModel", {"encoder.layers.1.self_attn.k_proj.bias": None}, "self_attn.q_proj.bias"),
        ("CLIPVisionModel", {"encoder.layers.0.self_attn.k_proj.weight": None}, "attention .* is incomplete"),
        ("SiglipVisionModel", {"head.attention.in_proj_bias": None}, r"less than is known here .*kv.bias\)"),
        ("CLIPVisionModelWithProjection", {"visual_projection.weight": None},
         "asks for CLIPVisionModelWithProjection, whose visual_projection.weight is missing"),
        ("SiglipVisionModel", {"embeddings.patch_embedding.bias": None}, "of tokenizer.proj there is a"),
        ("SiglipVisionModel", {"head.probe": None}, r"less than is known here \(pool.attn_pool.latent\)"),
        ("SiglipVisionModel", {"head.layernorm.bias": None}, r"less than is known here .*norm.bias"),
        ("SiglipVisionModel", {"embeddings.patch_embedding.weight": torch.ones(192, 192)},
         "tokenizer.proj.weight should have 4 dimensions"),
    ],
)  # fmt: skip
def test_damaged_files(
    kind: str, change: dict[str, Tensor | None], message: str, saved: Callable, refused: Callable
) -> None:
    _, path = saved(vision(kind))
    state: dict[str, Any] = load_file(path / "model.safetensors") | change
    save_file({name: t for name, t in state.items() if t is not None}, path / "model.safetensors")
    with refused(path, message):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize("dropped", ["weight", "bias"])
def test_half_a_classifier(dropped: str, saved: Callable, refused: Callable) -> None:
    _, path = saved(whole("CLIPForImageClassification"))
    state = load_file(path / "model.safetensors")
    del state[f"classifier.{dropped}"]
    save_file(state, path / "model.safetensors")
    with refused(path, "of head there is a weight alone|whose classifier.weight is missing"):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**OF_CLIP, "norm_pre": False}, "norm_pre=False and class_token=True"),
        ({**OF_SIGLIP, "norm_pre": True}, "norm_pre=True and class_token=False"),
        ({**OF_CLIP, "patch_bias": True}, "a patch projection unless without bias"),
        ({**OF_SIGLIP, "patch_bias": False}, "a patch projection unless with bias"),
        ({**OF_CLIP, "global_pool": "mean"}, r"global_pool='mean' \(it is cls there\)"),
        ({**OF_SIGLIP, "global_pool": "mean"}, r"global_pool='mean' \(it is map there\)"),
        ({**OF_CLIP, "num_classes": 5}, "the head 'linear'"),
        ({**OF_SIGLIP, "num_classes": 5, "head": "projection"}, "the head 'projection'"),
        ({**OF_CLIP, "final_norm": False}, "without final norm"),
        ({**OF_CLIP, "img_size": (32, 40)}, r"images of \(32, 40\)"),
        ({**OF_CLIP, "patch_size": (8, 16)}, r"patches of \(8, 16\)"),
        ({**OF_CLIP, "layer_scale": 0.1}, "ls1.gamma"),
        ({**OF_CLIP, "num_reg_tokens": 1}, "reg_tokens"),
        ({**OF_CLIP, "swiglu": True, "mlp_norm": True}, "a gated MLP"),
        ({**OF_CLIP, "attn_norm": True}, "attn.norm"),
        ({**OF_CLIP, "qkv_bias": False}, "without qkv bias"),
    ],
)
def test_what_has_no_place(
    settings: dict[str, Any], message: str, ours: Callable, tmp_path: Path, refused: Callable
) -> None:
    model = ours(**settings)
    with refused(None, f"the huggingface_clip layout has no place for .*{message}", model):
        save_checkpoint(model, tmp_path / "clip", "huggingface_clip")
    assert not any(tmp_path.iterdir())
