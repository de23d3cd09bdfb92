"""Folders that transformers opens, and the way back to the names they had; what has no place is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageClassification,
    DeiTForImageClassificationWithTeacher,
)

from parity.huggingface_rows import ROWS as PARITY
from parity.huggingface_rows import folder
from pointvit import ViT, create_model, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint
from pointvit.checkpoints.sources.source import Tensors
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

HF = SOURCES["huggingface"]
MODEL = ViTConfig(TrunkConfig(48, 2, 3), ImageTokenizerConfig((32, 32), (8, 8)), num_classes=0)
SCALED: dict[str, Any] = {"layer_scale": 0.1}
DISTILLED: dict[str, Any] = {"num_reg_tokens": 1, "dist_pos": True}
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    # the model_type as which it is written, and the model as settings beside MODEL
    "ViT": ("vit", {}),
    "ViT, classifier": ("vit", {"num_classes": 6}),
    "ViT, other arithmetic": ("vit", {"norm_eps": 1e-3, "activation": "quick_gelu", "qkv_bias": False}),
    "ViT, GELU by tanh": ("vit", {"activation": "gelu_tanh", "mlp_ratio": 2.5, "num_heads": 4}),
    "ViT, oblong": ("vit", {"img_size": (16, 40), "in_chans": 1}),
    "ViT, oblong patches": ("vit", {"patch_size": (8, 16)}),
    "ViT, fixed positions": ("vit", {"pos_embed": "sincos_2d"}),
    "DeiT": ("deit", DISTILLED),
    "DeiT, classifier": ("deit", {**DISTILLED, "num_classes": 6}),
    "DeiT, two classifiers": (
        "deit", {**DISTILLED, "num_classes": 6, "head": "distilled", "global_pool": "cls+dist"}
    ),
    "I-JEPA": ("ijepa", {"class_token": False, "cls_pos": False, "global_pool": "mean"}),
    "I-JEPA, classifier": (
        "ijepa", {"class_token": False, "cls_pos": False, "global_pool": "mean", "num_classes": 6}
    ),
    "Dinov2": ("dinov2", SCALED),
    "Dinov2, classifier": ("dinov2", {**SCALED, "num_classes": 6, "global_pool": "cls+mean"}),
    "Dinov2, SwiGLU": ("dinov2", {**SCALED, "swiglu": True, "mlp_ratio": 128 / 48}),
    "Dinov2, MLP ratio": ("dinov2", {**SCALED, "mlp_ratio": 2.0, "norm_eps": 1e-5}),
    "registers": ("dinov2_with_registers", {**SCALED, "num_reg_tokens": 3}),
    "registers, classifier": (
        "dinov2_with_registers",
        {**SCALED, "num_reg_tokens": 1, "num_classes": 6, "global_pool": "cls+mean", "swiglu": True,
         "mlp_ratio": 128 / 48},
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "norm_pre": ({"norm_pre": True}, "trunk.norm_pre.weight"),
    "no final norm": ({"final_norm": False}, "a trunk without final norm"),
    "norm in attention": ({"attn_norm": True}, "trunk.blocks.0.attn.norm.weight"),
    "fc_norm": ({"fc_norm": True}, "fc_norm.weight"),
    "tanh layer": ({"representation_size": 24}, "pre_logits.0.weight"),
    "hybrid": ({"stem": ()}, "tokenizer.backbone.conv.weight"),
    "patches without bias": ({"patch_bias": False}, "a patch projection without bias"),
    "rotary positions": ({"rope": True}, "rotary positions"),
    "no positions": ({"pos_embed": "none"}, "none positions"),
    "2D positions": ({"pos_embed": "learned_2d"}, "learned_2d positions"),
    "every block": ({"pos_mode": "every_block"}, "pos_mode='every_block'"),
    "class token without position": ({"cls_pos": False}, "a class token without position"),
    "gated MLP": ({"swiglu": True}, "a gated MLP without LayerScale"),
    "registers": ({"num_reg_tokens": 3}, "registers without LayerScale"),
    "LayerScale, oblong": ({**SCALED, "img_size": (16, 64)}, "a 2x8 grid of positions"),
    "LayerScale, MLP": ({**SCALED, "mlp_ratio": 2.5}, "an MLP of 120 channels"),
    "LayerScale, gated MLP": ({**SCALED, "swiglu": True, "mlp_ratio": 2.5}, "an MLP of 120 channels"),
    "LayerScale, no class token": (
        {**SCALED, "class_token": False, "cls_pos": False, "global_pool": "mean"},
        "LayerScale or a distillation token without class token",
    ),
    "LayerScale, distilled": (
        {**SCALED, **DISTILLED}, "a distillation token beside LayerScale"
    ),
    "mean": ({"global_pool": "mean", "num_classes": 6}, "global_pool='mean' .it is cls there"),
    "LayerScale, classifier of cls": (
        {**SCALED, "num_classes": 6}, "global_pool='cls' .it is cls.mean there"
    ),
    "deep head": ({"head": "point_mae", "num_classes": 6}, "the head 'point_mae'"),
}  # fmt: skip


@pytest.fixture
def ours(randomise: Callable) -> Callable[..., ViT]:
    return lambda settings: randomise(ViT(MODEL.override(settings))).eval()


@pytest.fixture
def real(data_root: Path) -> Path:
    return data_root / "weights" / "dinov2_vits14_hf_fp16.safetensors"


def images(height: int = 32, width: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", WRITTEN)
@torch.no_grad()
def test_transformers_opens_what_is_written(
    name: str, tmp_path: Path, ours: Callable, error_of: Callable
) -> None:
    """Nothing is left out but a pooler, which transformers' headless ViT and DeiT have on top."""
    kind, settings = WRITTEN[name]
    model = ours(settings)
    path = save_checkpoint(model, tmp_path / "written", "huggingface")
    assert AutoConfig.from_pretrained(path).model_type == kind
    opener: Any = AutoModelForImageClassification if model.num_classes else AutoModel
    if model.config.head == "distilled":
        opener = DeiTForImageClassificationWithTeacher
    theirs, info = opener.from_pretrained(path, output_loading_info=True)
    assert {n for n in info["missing_keys"] if not n.startswith("pooler.")} == set()
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    tokenizer = model.config.tokenizer
    x = images(*tokenizer.img_size, tokenizer.in_chans)
    theirs.eval()
    features = theirs.base_model(x).last_hidden_state
    assert error_of(model.forward_features(x), features) <= 1e-5
    if model.num_classes:
        assert error_of(model(x), theirs(x).logits) <= 1e-5


@pytest.mark.parametrize("name", WRITTEN)
@torch.no_grad()
def test_what_is_written_is_read_again(name: str, tmp_path: Path, ours: Callable) -> None:
    model = ours(WRITTEN[name][1])
    path = save_checkpoint(model, tmp_path / "written", "huggingface")
    again = create_model("auto", pretrained=path).eval()
    tokenizer = model.config.tokenizer
    x = images(*tokenizer.img_size, tokenizer.in_chans)
    assert torch.equal(again(x), model(x))
    assert torch.equal(again.forward_features(x), model.forward_features(x))
    fields = ("num_classes", "global_pool", "head", "num_reg_tokens", "class_token")
    assert [getattr(again.config, f) for f in fields] == [getattr(model.config, f) for f in fields]
    assert again.config.tokenizer.img_size == tokenizer.img_size


@pytest.mark.parametrize("name", [row.name for row in PARITY if row.write is folder])
def test_round_trip(name: str, tmp_path: Path, randomise: Callable) -> None:
    """The tensors that a model uses come back bit for bit, under the names they had."""
    (row,) = [row for row in PARITY if row.name == name]
    checkpoint = Checkpoint.open(row.write(randomise(row.build()), tmp_path))
    file = load_file(tmp_path / "model.safetensors")
    before = {name: tensor.clone() for name, tensor in file.items()}
    decoded = {n: t for n, t in HF.decode(file).items() if n not in checkpoint.set_aside}
    assert equal(file, before)
    encoded = HF.encode(decoded, checkpoint.encoder_config())
    kept = {n: t for n, t in file.items() if not n.startswith("decoder.") and "mask_token" not in n}
    kept = {n: t for n, t in kept.items() if not n.startswith("pooler.")}
    written = {n: t for n, t in encoded.items() if "mask_token" not in n}
    if name in ("HF ViT, masked images", "HF MAE, decoder", "HF MSN, classifier"):  # written otherwise
        kept, written = (
            {n.removeprefix("vit."): t for n, t in tensors.items()} for tensors in (kept, written)
        )
    assert equal(written, kept)
    again = HF.decode(encoded)
    again.pop("embeddings.mask_token", None)
    assert equal(again, decoded)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_is_not_written(
    name: str, tmp_path: Path, ours: Callable, refused: Callable
) -> None:
    settings, message = REFUSED[name]
    with refused(None, f"the huggingface layout has no place for {message}"):
        save_checkpoint(ours(settings), tmp_path / "written", "huggingface")
    assert not list(tmp_path.iterdir())


def test_a_real_dinov2_in_every_layout_that_can_hold_it(real: Path) -> None:
    checkpoint = Checkpoint.open(real)
    config, file = checkpoint.encoder_config(), load_file(real)
    assert sum(t.numel() for t in checkpoint.tensors.values()) == sum(
        t.numel() for name, t in file.items() if "mask_token" not in name
    )
    held = set()
    for name, source in SOURCES.items():
        if source.encode is None or source.modality == "points":
            continue
        try:
            encoded = source.encode(checkpoint.tensors, config)
        except ValueError:  # the layout has no place for LayerScale
            continue
        held.add(name)
        again = source.decode(encoded)
        for aside in [n for n in again if n.startswith(tuple(source.set_aside))]:
            del again[aside]
        assert equal(
            {n: t.float() for n, t in again.items()}, {n: t.float() for n, t in checkpoint.tensors.items()}
        )
    assert held >= {"pointvit", "huggingface", "timm"}
    assert not held & {"google", "big_vision"}


@torch.no_grad()
def test_transformers_opens_a_real_dinov2_that_came_through_timm(
    real: Path, tmp_path: Path, error_of: Callable
) -> None:
    model = create_model("auto", pretrained=real)
    by_timm = create_model("auto", pretrained=save_checkpoint(model, tmp_path / "timm.safetensors", "timm"))
    path = save_checkpoint(by_timm.eval(), tmp_path / "written", "huggingface")
    theirs = AutoModel.from_pretrained(path).eval()
    x = images(224, 224)[:1]
    assert error_of(theirs(x).last_hidden_state, model.eval().forward_features(x)) <= 1e-4
    written, file = load_file(path / "model.safetensors"), load_file(real)
    assert equal(written, {name: tensor.float() for name, tensor in file.items() if "mask_token" not in name})
