"""Google's `.npz` files against timm's own loader of them; every number in them is random."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pointvit import create_model, load_checkpoint
from pointvit.checkpoints import Checkpoint

Arrays = dict[str, np.ndarray]
TINY = {"width": 192, "heads": 3, "patch": 16, "rows": 197, "classes": 11}


def google_arrays(
    width: int,
    heads: int,
    patch: int,
    rows: int,
    classes: int,
    depth: int = 2,
    stem: tuple[int, ...] | None = None,
    representation: int | None = None,
) -> Arrays:
    """The arrays of such a file; kernels are scaled by their inputs, so that deep features stay near one."""
    rng, inner, mlp = np.random.default_rng(0), width // heads, 4 * width
    arrays: Arrays = {}

    def kernel(name: str, *shape: int, fan_in: int) -> None:
        arrays[name] = rng.normal(0, fan_in**-0.5, shape).astype(np.float32)

    def dense(name: str, *shape: int) -> None:
        kernel(f"{name}/kernel", *shape, fan_in=int(np.prod(shape[:-1])))
        arrays[f"{name}/bias"] = rng.normal(0, 0.3, shape[-1]).astype(np.float32)

    def norm(name: str, *shape: int) -> None:
        arrays[f"{name}/scale"] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        arrays[f"{name}/bias"] = rng.normal(0, 0.3, shape).astype(np.float32)

    channels, stride = 3, 1
    if stem is not None:
        channels = stem_arrays(kernel, norm, stem)
        stride = 4 * 2 ** max(0, len(stem) - 1)
    arrays["cls"] = rng.normal(0, 0.3, (1, 1, width)).astype(np.float32)
    dense("embedding", patch // stride, patch // stride, channels, width)
    arrays["Transformer/posembed_input/pos_embedding"] = rng.normal(0, 0.3, (1, rows, width)).astype(
        np.float32
    )
    for block in (f"Transformer/encoderblock_{n}" for n in range(depth)):
        norm(f"{block}/LayerNorm_0", width)
        for part in ("query", "key", "value"):
            attention = f"{block}/MultiHeadDotProductAttention_1/{part}"
            kernel(f"{attention}/kernel", width, heads, inner, fan_in=width)
            arrays[f"{attention}/bias"] = rng.normal(0, 0.3, (heads, inner)).astype(np.float32)
        dense(f"{block}/MultiHeadDotProductAttention_1/out", heads, inner, width)
        norm(f"{block}/LayerNorm_2", width)
        dense(f"{block}/MlpBlock_3/Dense_0", width, mlp)
        dense(f"{block}/MlpBlock_3/Dense_1", mlp, width)
    norm("Transformer/encoder_norm", width)
    if representation is not None:
        dense("pre_logits", width, representation)
    dense("head", representation or width, classes)
    return arrays


def stem_arrays(kernel: Callable[..., None], norm: Callable[..., None], stem: tuple[int, ...]) -> int:
    """Adds a ResNetV2 stem; its group norms are stored as (1, 1, 1, C). Returns its channels."""
    kernel("conv_root/kernel", 7, 7, 3, 64, fan_in=147)
    norm("gn_root", 64)
    before = 64
    for stage, units in enumerate(stem, start=1):
        mid = 64 * 2 ** (stage - 1)
        for unit in (f"block{stage}/unit{n}" for n in range(1, units + 1)):
            shapes = {"conv1": (1, before, mid), "conv2": (3, mid, mid), "conv3": (1, mid, 4 * mid)}
            if unit.endswith("unit1"):
                shapes["conv_proj"] = (1, before, 4 * mid)
            for name, (size, inputs, outputs) in shapes.items():
                kernel(f"{unit}/{name}/kernel", size, size, inputs, outputs, fan_in=size * size * inputs)
                norm(f"{unit}/{name.replace('conv_', 'gn_').replace('conv', 'gn')}", 1, 1, 1, outputs)
            before = 4 * mid
    return before


def as_big_vision(arrays: Arrays, stacked: bool = False) -> Arrays:
    """The same arrays under big_vision's names, optionally with the blocks stacked on a leading axis."""
    renamed: Arrays = {}
    table = {
        "Transformer/posembed_input/": "",
        "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
        "LayerNorm_2": "LayerNorm_1",
        "MlpBlock_3": "MlpBlock_0",
    }
    for name, array in arrays.items():
        for theirs, big_vision in table.items():
            name = name.replace(theirs, big_vision)
        renamed[name] = array
    if not stacked:
        return renamed
    blocks = [name for name in renamed if "encoderblock_0" in name]
    depth = sum("/LayerNorm_0/scale" in name for name in renamed)
    for name in blocks:
        parts = [renamed.pop(name.replace("_0/", f"_{n}/", 1)) for n in range(depth)]
        renamed[name.replace("encoderblock_0", "encoderblock")] = np.stack(parts)
    return renamed


def write(path: Path, arrays: Arrays, prefix: str = "") -> Path:
    np.savez(path, **{prefix + name: array for name, array in arrays.items()})
    return path


def timm_tiny(**settings: object) -> VisionTransformer:
    options = {"embed_dim": 192, "num_heads": 3, "depth": 2, "num_classes": 11, **settings}
    return VisionTransformer(img_size=224, patch_size=16, **options).eval()


def images(size: int = 224) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_logits_equal_timm_by_name_and_by_file(tmp_path: Path, error_of: Callable) -> None:
    path = write(tmp_path / "Ti_16.npz", google_arrays(**TINY, depth=12))
    theirs = timm_tiny(depth=12)
    theirs.load_pretrained(str(path))
    expected = theirs(images())
    for ours in (
        create_model("auto", pretrained=path),
        create_model("vit_tiny_patch16_224", pretrained=path, num_classes=11),
    ):
        assert error_of(ours.eval()(images()), expected) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["opt/target/", "params/", "params/img/"])
def test_prefixes(tmp_path: Path, prefix: str, error_of: Callable) -> None:
    arrays = google_arrays(**TINY)
    theirs = timm_tiny()
    theirs.load_pretrained(str(write(tmp_path / "bare.npz", arrays)))
    ours = create_model("auto", pretrained=write(tmp_path / "prefixed.npz", arrays, prefix)).eval()
    assert error_of(ours(images()), theirs(images())) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["params/", "params/img/"])
@pytest.mark.parametrize("stacked", [False, True])
def test_big_vision(tmp_path: Path, prefix: str, stacked: bool, error_of: Callable) -> None:
    """A model of big_vision's kind: no class token, the mean of the tokens behind the final norm."""
    arrays = google_arrays(**{**TINY, "rows": 196})
    del arrays["cls"]
    path = write(tmp_path / "s16.npz", as_big_vision(arrays, stacked), prefix)
    theirs = timm_tiny(class_token=False, global_pool="avg", fc_norm=False)
    theirs.load_pretrained(str(path))
    ours = create_model("auto", pretrained=path).eval()
    assert (ours.config.class_token, ours.config.global_pool) == (False, "mean")
    assert error_of(ours(images()), theirs(images())) <= 1e-5


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "stem", "patch", "rows"),
    [
        ("vit_small_r26_s32_224", (2, 2, 2, 2), 32, 50),
        pytest.param("vit_base_r50_s16_224", (3, 4, 9), 16, 197, marks=pytest.mark.slow),
        ("vit_tiny_r_s16_p8_224", (), 32, 50),
    ],
)
def test_hybrids_equal_timm(
    tmp_path: Path, name: str, stem: tuple[int, ...], patch: int, rows: int, error_of: Callable
) -> None:
    sizes = {"width": 192, "heads": 3, "patch": patch, "rows": rows, "classes": 11}
    path = write(tmp_path / "hybrid.npz", google_arrays(**sizes, stem=stem))
    theirs = timm.create_model(name, embed_dim=192, num_heads=3, depth=2, num_classes=11).eval()
    theirs.load_pretrained(str(path))
    ours = create_model("auto", pretrained=path).eval()
    assert ours.config.tokenizer.stem == stem
    assert error_of(ours(images()), theirs(images())) <= 1e-5


@torch.no_grad()
def test_representation_layer(tmp_path: Path, error_of: Callable) -> None:
    """The tanh layer of ImageNet-21k files, which timm no longer reads, before the head trained on it."""
    arrays = google_arrays(**TINY, representation=48)
    path = write(tmp_path / "in21k.npz", arrays)
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
    path = write(tmp_path / "in21k.npz", arrays)
    model = create_model("vit_tiny_patch16_224", num_classes=11)
    report = load_checkpoint(model, path)
    assert {n for n in report.set_aside if n.startswith(("head", "pre_logits"))} == {
        "pre_logits.0.weight", "pre_logits.0.bias", "head.weight", "head.bias"
    }  # fmt: skip
    assert {"head.weight", "head.bias"} <= set(report.new)


@torch.no_grad()
def test_the_number_of_heads_is_read_from_the_file(tmp_path: Path, error_of: Callable) -> None:
    path = write(tmp_path / "six.npz", google_arrays(**{**TINY, "heads": 6}))
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
    theirs.load_pretrained(str(write(tmp_path / "right.npz", arrays)))
    one, other = (f"Transformer/encoderblock_1/{name}" for name in (first, second))
    arrays[one], arrays[other] = arrays[other], arrays[one]
    ours = create_model("auto", pretrained=write(tmp_path / "swapped.npz", arrays)).eval()
    assert error_of(ours(images()), theirs(images())) > 1e-3


def test_every_array_is_used_once(tmp_path: Path) -> None:
    arrays = google_arrays(**TINY, stem=(1, 2), representation=48)
    checkpoint = Checkpoint.open(write(tmp_path / "all.npz", arrays))
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
    path = write(tmp_path / "rank.npz", arrays)
    with refused(path, message):
        create_model("auto", pretrained=path)


@torch.no_grad()
@pytest.mark.slow
def test_the_full_base_model(tmp_path: Path, error_of: Callable) -> None:
    arrays = google_arrays(width=768, heads=12, patch=16, rows=197, classes=1000, depth=12)
    path = write(tmp_path / "ViT-B_16.npz", arrays)
    assert sum(a.size for a in arrays.values()) == 86_567_656
    theirs = timm.create_model("vit_base_patch16_224").eval()
    theirs.load_pretrained(str(path))
    for name in ("auto", "vit_base_patch16_224"):
        assert error_of(create_model(name, pretrained=path).eval()(images()), theirs(images())) <= 1e-5


@torch.no_grad()
@pytest.mark.slow
def test_the_full_hybrid(tmp_path: Path, error_of: Callable) -> None:
    sizes = {"width": 384, "heads": 6, "patch": 32, "rows": 50, "classes": 1000}
    path = write(tmp_path / "R26_S_32.npz", google_arrays(**sizes, depth=12, stem=(2, 2, 2, 2)))
    theirs = timm.create_model("vit_small_r26_s32_224").eval()
    theirs.load_pretrained(str(path))
    for name in ("auto", "vit_small_r26_s32_224"):
        assert error_of(create_model(name, pretrained=path).eval()(images()), theirs(images())) <= 1e-5
