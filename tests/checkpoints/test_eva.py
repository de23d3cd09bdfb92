"""timm's EVA models: both layouts of a block, told from others', written, and relatives that are refused."""

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
from pointvit.checkpoints.sources import eva
from pointvit.checkpoints.sources.source import Facts
from pointvit.config import CLIP, ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

SMALL: dict[str, Any] = {"depth": 2, "num_classes": 7, "img_size": 32, "patch_size": 8, "embed_dim": 192,
                         "num_heads": 3}  # fmt: skip
PUBLIC = {
    "Ti": "eva02_tiny_patch14_336",
    "B": "eva02_base_patch14_448",
    "CLIP": "eva02_base_patch16_clip_224",
    "giant": "eva_giant_patch14_224",
    "giant CLIP": "eva_giant_patch14_clip_224",
    "rope": "vit_medium_patch16_rope_reg1_gap_256",
    "rope without bias": "vit_mediumd_patch16_rope_reg1_gap_256",
}
RELATIVES = {
    "vit_small_patch16_dinov3": "rotary ones of DINOv3 or RoPE-ViT",
    "vit_small_patch16_dinov3_qkvb": "rotary ones of DINOv3 or RoPE-ViT",
    "vit_small_patch16_rope_224": "rotary ones of DINOv3 or RoPE-ViT",
    "vit_small_patch16_rope_mixed_224": "learned rotary frequencies",
    "vit_base_patch16_sapiens2": "normalised queries and keys",
    "beit_base_patch16_224": "relative positions",
}
GATED = {"swiglu": True, "rope": True, "mlp_ratio": 8 / 3, "global_pool": "mean", "final_norm": False,
         "fc_norm": True}  # fmt: skip


@pytest.fixture
def theirs(randomise: Callable) -> Callable[[str], nn.Module]:
    return lambda kind: randomise(timm.create_model(PUBLIC[kind], **SMALL)).eval()


def source_of(state: dict[str, Tensor]) -> str:
    return next(source.name for source in SOURCES.values() if source.matches(state.keys()))


@torch.no_grad()
@pytest.mark.parametrize("kind", PUBLIC)
def test_names_and_numbers_come_back(
    kind: str, tmp_path: Path, theirs: Callable, randomise: Callable, error_of: Callable
) -> None:
    model = theirs(kind)
    state = model.state_dict()
    path = tmp_path / "eva.safetensors"
    save_file(state, path)
    checkpoint = Checkpoint.open(path)
    assert checkpoint.source is eva.SOURCE
    again = eva.encode(eva.decode(state), checkpoint.encoder_config())
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)

    written = save_checkpoint(create_model("auto", pretrained=path), tmp_path / "again.safetensors", "eva")
    randomise(model, seed=1)
    model.load_state_dict(load_file(written), strict=True)
    x = torch.randn(2, 3, 32, 32)
    assert error_of(create_model("auto", pretrained=written).eval()(x), model(x)) <= 1e-5


def test_files_are_of_one_source_each(theirs: Callable) -> None:
    for kind in PUBLIC:
        assert source_of(theirs(kind).state_dict()) == "eva"
    for name in ("vit_tiny_patch16_224", "vit_small_patch14_dinov2", "deit3_small_patch16_224"):
        assert not eva.matches(timm.create_model(name, depth=1).state_dict().keys())


@torch.no_grad()
def test_the_keys_bias_is_zero(theirs: Callable) -> None:
    for kind in ("Ti", "B"):
        decoded = eva.decode(theirs(kind).state_dict())
        query, key, value = decoded["trunk.blocks.1.attn.qkv.bias"].chunk(3)
        assert not key.any()
        assert query.all()
        assert value.all()


def test_blocks_alone_are_understood(theirs: Callable) -> None:
    """As they stand in other files, with another front end."""
    blocks = {n: t for n, t in theirs("B").state_dict().items() if n.startswith("blocks.")}
    decoded = eva.decode(blocks)
    expected = ViT(ViTConfig(TrunkConfig(192, 2, 3, 8 / 3, swiglu=True, mlp_norm=True))).trunk.blocks
    assert {n.removeprefix("trunk.blocks."): t.shape for n, t in decoded.items()} == {
        n: t.shape for n, t in expected.state_dict().items()
    }
    assert eva.settings(decoded, Facts()) == {"norm_eps": 1e-6, "activation": "gelu", "num_heads": 3}


def test_a_part_that_is_missing_is_reported(tmp_path: Path, theirs: Callable, refused: Callable) -> None:
    path = tmp_path / "eva.safetensors"
    for missing, message in (
        ("blocks.0.attn.k_proj.weight", "attention of its first block is incomplete"),
        ("blocks.1.attn.v_proj.bias", "lacks 1 .*trunk.blocks.1.attn.qkv.bias.* no place for"),
        ("blocks.0.mlp.fc1_g.weight", "block 0 has no complete MLP"),
        ("head.bias", "of head there is a weight alone"),
        ("head.weight", "of head there is a bias alone"),
        ("patch_embed.proj.bias", "of tokenizer.proj there is a weight alone"),
        ("blocks.1.mlp.norm.bias", "lacks 1 .*trunk.blocks.1.mlp.norm.bias"),
    ):
        state = theirs("B").state_dict()
        del state[missing]
        save_file(state, path)
        with refused(path, message):
            create_model("auto", pretrained=path)


def test_settings_of_images(tmp_path: Path, theirs: Callable) -> None:
    for kind, rope in (("Ti", True), ("B", True), ("giant", False), ("rope", True)):
        save_file(theirs(kind).state_dict(), tmp_path / "eva.safetensors")
        checkpoint = Checkpoint.open(tmp_path / "eva.safetensors")
        assert checkpoint.encoder_config().tokenizer.rope is rope
        assert ((checkpoint.meta["image_mean"], checkpoint.meta["image_std"]) == CLIP) == (kind != "rope")


def test_tables_of_old_files_are_set_aside(tmp_path: Path, theirs: Callable) -> None:
    path = tmp_path / "eva.safetensors"
    tables = {"rope.freqs_cos": torch.randn(16, 64), "blocks.1.attn.rope.freqs_sin": torch.randn(16, 64)}
    save_file(theirs("Ti").state_dict() | tables | {"mask_token": torch.randn(1, 1, 192)}, path)
    report = load_checkpoint(create_model("auto", pretrained=path), path)
    assert len(report.set_aside) == 3
    assert report.set_aside["rope.freqs_cos"] == "tables of rotary positions, which are computed here"


@pytest.mark.parametrize("name", RELATIVES)
def test_relatives_are_refused(name: str, tmp_path: Path, refused: Callable) -> None:
    settings = {"embed_dim": 192, "num_heads": 3, "depth": 2}
    if "sapiens" in name:
        settings["num_kv_heads"] = 3
    model = timm.create_model(name, **settings)
    save_file(model.state_dict(), tmp_path / "relative.safetensors")
    with refused(tmp_path / "relative.safetensors", f"{RELATIVES[name]}.*(is|are) not supported"):
        create_model("auto", pretrained=tmp_path / "relative.safetensors")


def test_post_norm_has_the_names_of_the_giant_and_is_told_by_its_width() -> None:
    with torch.device("meta"):
        state = timm.create_model("eva02_enormous_patch14_clip_224", depth=1).state_dict()
        giant = timm.create_model("eva_giant_patch14_clip_224", depth=1).state_dict()
    assert source_of(state) == "eva"
    assert state.keys() ^ giant.keys() <= {"head.weight", "head.bias"}
    with pytest.raises(ValueError, match="eva02_enormous, whose norms behind the branches are not supported"):
        eva.settings(eva.decode(state), Facts())
    assert eva.settings(eva.decode(giant), Facts())["num_heads"] == 16


OURS = ViTConfig(TrunkConfig(192, 2, 3), ImageTokenizerConfig((32, 32), (8, 8)), num_classes=7)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"rope": True}, "rope=True without a gated MLP"),
        ({**GATED, "rope": False}, "rope=False with a gated MLP"),
        ({**GATED, "num_reg_tokens": 2}, "registers beside learned positions"),
        ({**GATED, "qkv_bias": False}, "attention without qkv bias"),
        ({**GATED, "norm_eps": 1e-5}, "norm_eps=1e-05"),
        ({"activation": "quick_gelu"}, "activation='quick_gelu'"),
        ({"global_pool": "mean"}, "global_pool, final_norm and fc_norm"),
        ({"cls_pos": False}, "a class token without position"),
        ({"head": "projection"}, "the head 'projection'"),
    ],
)
def test_what_eva_is_not_is_not_written(
    settings: dict[str, Any], what: str, tmp_path: Path, refused: Callable
) -> None:
    with refused(None, f"the eva layout has no place for {what}"):
        save_checkpoint(ViT(OURS.override(settings)), tmp_path / "file.safetensors", "eva")


def test_a_keys_bias_is_not_written(tmp_path: Path, randomise: Callable, refused: Callable) -> None:
    with refused(None, "the eva layout has no place for the keys' bias"):
        save_checkpoint(randomise(ViT(OURS.override(GATED))), tmp_path / "file.safetensors", "eva")
    assert not list(tmp_path.iterdir())
