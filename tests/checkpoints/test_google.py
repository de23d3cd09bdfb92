"""Google's `.npz` files against timm's own loader of them; every number in them is random."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from parity.google_rows import Arrays, google_arrays, write_npz
from pointvit import create_model, load_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.checkpoints.sources.source import Tensors
from pointvit.config import UNIT, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

GOOGLE = SOURCES["google"]
TINY = {"width": 192, "heads": 3, "patch": 16, "rows": 197, "classes": 11}
MODEL = ViTConfig(TrunkConfig(192, 2, 3), ImageTokenizerConfig((224, 224), (16, 16)), num_classes=11)


def timm_tiny(**settings: object) -> VisionTransformer:
    options = {"embed_dim": 192, "num_heads": 3, "depth": 2, "num_classes": 11, **settings}
    return VisionTransformer(img_size=224, patch_size=16, **options).eval()


def images(size: int = 224) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_logits_equal_timm_by_name_and_by_file(tmp_path: Path, error_of: Callable) -> None:
    path = write_npz(tmp_path / "Ti_16.npz", google_arrays(**TINY, depth=12))
    theirs = timm_tiny(depth=12)
    theirs.load_pretrained(str(path))
    expected = theirs(images())
    for ours in (
        create_model("auto", pretrained=path),
        create_model("vit_tiny_patch16_224", pretrained=path, num_classes=11),
    ):
        assert error_of(ours.eval()(images()), expected) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["params/", "params/img/"])
def test_prefixes(tmp_path: Path, prefix: str, error_of: Callable) -> None:
    arrays = google_arrays(**TINY)
    theirs = timm_tiny()
    theirs.load_pretrained(str(write_npz(tmp_path / "bare.npz", arrays)))
    ours = create_model("auto", pretrained=write_npz(tmp_path / "prefixed.npz", arrays, prefix)).eval()
    assert error_of(ours(images()), theirs(images())) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "stem", "patch", "rows"),
    [
        ("vit_small_r26_s32_224", (2, 2, 2, 2), 32, 5),
        pytest.param("vit_base_r50_s16_224", (3, 4, 9), 16, 17, marks=pytest.mark.slow),
        ("vit_tiny_r_s16_p8_224", (), 32, 5),
    ],
)
def test_hybrids_equal_timm(
    tmp_path: Path, name: str, stem: tuple[int, ...], patch: int, rows: int, error_of: Callable
) -> None:
    sizes = {"width": 192, "heads": 3, "patch": patch, "rows": rows, "classes": 11}
    path = write_npz(tmp_path / "hybrid.npz", google_arrays(**sizes, stem=stem))
    small = {"embed_dim": 192, "num_heads": 3, "depth": 2, "num_classes": 11, "img_size": 64}
    theirs = timm.create_model(name, **small).eval()
    theirs.load_pretrained(str(path))
    ours = create_model("auto", pretrained=path).eval()
    assert ours.config.tokenizer.stem == stem
    assert error_of(ours(images(64)), theirs(images(64))) <= 1e-5


@torch.no_grad()
def test_representation_layer(tmp_path: Path, error_of: Callable) -> None:
    """The tanh layer of ImageNet-21k files, which timm no longer reads, before the head trained on it."""
    arrays = google_arrays(**TINY, representation=48)
    path = write_npz(tmp_path / "in21k.npz", arrays)
    theirs = timm_tiny(num_classes=0)
    theirs.load_pretrained(str(path))
    weights = {n: torch.from_numpy(arrays[n]) for n in arrays if n.startswith(("pre_logits", "head"))}
    pooled = theirs.forward_features(images())[:, 0]
    hidden = torch.tanh(pooled @ weights["pre_logits/kernel"] + weights["pre_logits/bias"])
    expected = hidden @ weights["head/kernel"] + weights["head/bias"]
    ours = create_model("auto", pretrained=path).eval()
    assert ours.config.representation_size == 48
    assert error_of(ours(images()), expected) <= 1e-5


def test_a_head_is_not_loaded_without_the_representation_layer_it_was_trained_on(tmp_path: Path) -> None:
    arrays = google_arrays(**TINY, depth=12, representation=192)
    path = write_npz(tmp_path / "in21k.npz", arrays)
    model = create_model("vit_tiny_patch16_224", num_classes=11)
    report = load_checkpoint(model, path)
    assert {n for n in report.set_aside if n.startswith(("head", "pre_logits"))} == {
        "pre_logits.0.weight", "pre_logits.0.bias", "head.weight", "head.bias"
    }  # fmt: skip
    assert {"head.weight", "head.bias"} <= set(report.new)


@torch.no_grad()
def test_the_number_of_heads_is_read_from_the_file(tmp_path: Path, error_of: Callable) -> None:
    path = write_npz(tmp_path / "six.npz", google_arrays(**{**TINY, "heads": 6}))
    theirs = timm_tiny(num_heads=6)
    theirs.load_pretrained(str(path))
    ours = create_model("auto", pretrained=path).eval()
    assert ours.config.trunk.num_heads == 6
    assert error_of(ours(images()), theirs(images())) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("MultiHeadDotProductAttention_1/query/kernel", "MultiHeadDotProductAttention_1/key/kernel"),
        ("MultiHeadDotProductAttention_1/query/bias", "MultiHeadDotProductAttention_1/key/bias"),
        ("MultiHeadDotProductAttention_1/key/kernel", "MultiHeadDotProductAttention_1/value/kernel"),
        ("LayerNorm_0/scale", "LayerNorm_2/scale"),
        ("LayerNorm_0/bias", "LayerNorm_2/bias"),
    ],
)
def test_swapped_arrays_break_parity(tmp_path: Path, first: str, second: str, error_of: Callable) -> None:
    arrays = google_arrays(**TINY)
    theirs = timm_tiny()
    theirs.load_pretrained(str(write_npz(tmp_path / "right.npz", arrays)))
    one, other = (f"Transformer/encoderblock_1/{name}" for name in (first, second))
    arrays[one], arrays[other] = arrays[other], arrays[one]
    ours = create_model("auto", pretrained=write_npz(tmp_path / "swapped.npz", arrays)).eval()
    assert error_of(ours(images()), theirs(images())) > 1e-3


def test_every_array_is_used_once(tmp_path: Path) -> None:
    arrays = google_arrays(**TINY, stem=(1, 2), representation=48)
    checkpoint = Checkpoint.open(write_npz(tmp_path / "all.npz", arrays))
    assert sum(t.numel() for t in checkpoint.tensors.values()) == sum(a.size for a in arrays.values())
    model = create_model("auto", pretrained=checkpoint.path)
    assert sum(p.numel() for p in model.parameters()) == sum(a.size for a in arrays.values())


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel",
            (192, 192),
            "not a sound google",
        ),
        ("Transformer/posembed_input/pos_embedding", (197, 192), "pos_embed should have 3 dimensions"),
        ("embedding/kernel", (768, 192), "tokenizer.proj.weight should have 4 dimensions"),
    ],
)
def test_arrays_of_another_rank(
    tmp_path: Path, name: str, shape: tuple[int, ...], message: str, refused: Callable
) -> None:
    arrays = google_arrays(**TINY)
    arrays[name] = arrays[name].reshape(shape)
    path = write_npz(tmp_path / "rank.npz", arrays)
    with refused(path, message):
        create_model("auto", pretrained=path)


def tensors(arrays: Arrays) -> Tensors:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("representation", [None, 48])
@pytest.mark.parametrize("cls", [True, False])
def test_round_trip(representation: int | None, cls: bool) -> None:
    sizes = {**TINY, "rows": 196 + cls}
    file = tensors(google_arrays(**sizes, representation=representation, cls=cls))
    pool = {"class_token": cls, "global_pool": "cls" if cls else "mean"}
    config = MODEL.override({"representation_size": representation, "cls_pos": cls, **pool})
    decoded = GOOGLE.decode(file)
    assert all(not name.startswith("Transformer") for name in decoded)
    encoded = GOOGLE.encode(decoded, config)
    assert equal(encoded, file)
    assert equal(GOOGLE.decode(encoded), decoded)


def test_round_trip_of_a_hybrid() -> None:
    """But for the shape of group norms, (1, 1, 1, C) in some files."""
    file = tensors(google_arrays(**TINY, stem=(1, 2)))
    config = MODEL.override({"stem": (1, 2)})
    decoded = GOOGLE.decode(file)
    encoded = GOOGLE.encode(decoded, config)
    assert equal(encoded, {n: t.flatten() if "/gn" in n else t for n, t in file.items()})
    assert equal(GOOGLE.decode(encoded), decoded)


def test_nothing_is_copied_but_what_is_joined() -> None:
    file = tensors(google_arrays(**TINY))
    before = {name: tensor.clone() for name, tensor in file.items()}
    storages = {tensor.untyped_storage().data_ptr() for tensor in file.values()}
    decoded = GOOGLE.decode(file)
    copied = {n for n, t in decoded.items() if t.untyped_storage().data_ptr() not in storages}
    assert {name.split(".", 3)[-1] for name in copied} == {"attn.qkv.weight", "attn.qkv.bias"}
    storages = {tensor.untyped_storage().data_ptr() for tensor in decoded.values()}
    encoded = GOOGLE.encode(decoded, MODEL)
    assert all(tensor.untyped_storage().data_ptr() in storages for tensor in encoded.values())
    assert equal(file, before)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("norm_eps", 1e-5, "norm_eps=1e-05 .it is 1e-6 there"),
        ("activation", "quick_gelu", "activation='quick_gelu' .it is gelu there"),
        ("global_pool", "mean", "global_pool='mean' .it is cls there"),
        ("cls_pos", False, "a class token without position"),
        ("img_size", (224, 112), "a 14x7 grid of positions"),
        ("pos_embed", "none", "pos_embed='none'"),
        ("head", "projection", "the head 'projection'"),
        ("final_norm", False, "a trunk without final norm"),
        ("qkv_bias", False, "attention without qkv bias"),
    ],
)
def test_what_others_would_read_as_another_model_is_not_written(
    setting: str, value: object, message: str, refused: Callable
) -> None:
    decoded = GOOGLE.decode(tensors(google_arrays(**TINY)))
    with refused(None, f"the google layout has no place for {message}"):
        GOOGLE.encode(decoded, MODEL.override({setting: value}))


@pytest.mark.parametrize("name", ["trunk.blocks.0.ls1.gamma", "trunk.norm_pre.weight", "reg_tokens"])
def test_tensors_without_a_place_are_not_written(name: str, refused: Callable) -> None:
    decoded = GOOGLE.decode(tensors(google_arrays(**TINY))) | {name: torch.ones(192)}
    with refused(None, f"the google layout has no place for {name}"):
        GOOGLE.encode(decoded, MODEL)


def test_the_optimiser_is_set_aside_and_colours_are_known(tmp_path: Path) -> None:
    arrays = {f"opt/target/{name}": array for name, array in google_arrays(**TINY).items()}
    state = {"opt/state/step": np.ones(1, np.float32), "opt/state/param_states/cls/grad_ema": np.ones(9)}
    path = write_npz(tmp_path / "trained.npz", arrays | state)
    report = load_checkpoint(model := create_model("auto", pretrained=path), path)
    assert report.set_aside == dict.fromkeys(state, "the optimiser's state")
    assert (model.meta.image_mean, model.meta.image_std) == UNIT


def test_a_file_without_positions_is_refused(tmp_path: Path, refused: Callable) -> None:
    arrays = google_arrays(**TINY)
    del arrays["Transformer/posembed_input/pos_embedding"]
    path = write_npz(tmp_path / "none.npz", arrays)
    with refused(path, "Transformer/posembed_input/pos_embedding is missing"):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize("name", ["head/bias", "pre_logits/bias", "head/kernel"])
def test_half_a_head_is_refused(name: str, tmp_path: Path, refused: Callable) -> None:
    arrays = google_arrays(**TINY, representation=48)
    del arrays[name]
    path = write_npz(tmp_path / "half.npz", arrays)
    with refused(path, f"of {name.partition('/')[0]}.* there is a (weight|bias) alone"):
        create_model("auto", pretrained=path)


def test_an_incomplete_attention_is_refused(tmp_path: Path, refused: Callable) -> None:
    arrays = google_arrays(**TINY)
    del arrays["Transformer/encoderblock_1/MultiHeadDotProductAttention_1/key/bias"]
    path = write_npz(tmp_path / "part.npz", arrays)
    with refused(path, "lacks 4 tensors the model needs"):
        create_model("auto", pretrained=path)


def test_no_other_source_takes_such_a_file() -> None:
    for prefix in ("", "opt/target/", "params/"):
        names = [prefix + name for name in google_arrays(**TINY)]
        assert [name for name, source in SOURCES.items() if source.matches(names)] == ["google"]


@torch.no_grad()
@pytest.mark.slow
def test_the_full_base_model(tmp_path: Path, error_of: Callable) -> None:
    arrays = google_arrays(width=768, heads=12, patch=16, rows=197, classes=1000, depth=12)
    path = write_npz(tmp_path / "ViT-B_16.npz", arrays)
    assert sum(a.size for a in arrays.values()) == 86_567_656
    theirs = timm.create_model("vit_base_patch16_224").eval()
    theirs.load_pretrained(str(path))
    for name in ("auto", "vit_base_patch16_224"):
        assert error_of(create_model(name, pretrained=path).eval()(images()), theirs(images())) <= 1e-5


@torch.no_grad()
@pytest.mark.slow
def test_the_full_hybrid(tmp_path: Path, error_of: Callable) -> None:
    sizes = {"width": 384, "heads": 6, "patch": 32, "rows": 50, "classes": 1000}
    path = write_npz(tmp_path / "R26_S_32.npz", google_arrays(**sizes, depth=12, stem=(2, 2, 2, 2)))
    theirs = timm.create_model("vit_small_r26_s32_224").eval()
    theirs.load_pretrained(str(path))
    for name in ("auto", "vit_small_r26_s32_224"):
        assert error_of(create_model(name, pretrained=path).eval()(images()), theirs(images())) <= 1e-5


def test_a_tensor_of_two_names_is_refused(tmp_path: Path, refused: Callable) -> None:
    arrays = google_arrays(**TINY)
    path = write_npz(tmp_path / "vit.npz", {**arrays, "cls_token": arrays["cls"]})
    with refused(path, "names of the same tensor"):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize("dropped", ["embedding/bias", "head/kernel"])
def test_half_a_layer_is_refused(dropped: str, tmp_path: Path, refused: Callable) -> None:
    arrays = {name: array for name, array in google_arrays(**TINY).items() if name != dropped}
    path = write_npz(tmp_path / "vit.npz", arrays)
    with refused(path, "there is a (weight|bias) alone"):
        create_model("auto", pretrained=path)
