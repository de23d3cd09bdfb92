"""Files of Point-BERT, Point-MAE, Pix4Point and Uni3D, beyond parity: what they can and cannot hold."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import parity
from parity.point_rows import CLASSES, DIM, GROUPS, HEADS, ROWS, SETTINGS, pix4point, point_bert, point_mae
from point_reference import (
    Pix4PointEncoder,
    PointTransformer,
    PretrainedPointMae,
    Uni3d,
    Uni3dEncoder,
    bert_head,
    mae_head,
)
from pointvit import ViT, create_model, load_checkpoint, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint, CheckpointError
from pointvit.checkpoints.files import WeightFile

SIZE = {"embed_dim": DIM, "depth": 2, "num_heads": HEADS}
ENCODABLE = {"point_bert": point_bert, "point_mae": point_mae, "pix4point": pix4point}


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> parity.Row:
    return request.param


@pytest.fixture
def file_of(randomise: Callable, tmp_path: Path) -> Callable[[str], Path]:
    """``file_of("Point-MAE, pre-trained")``: a file of the parity row with that name."""

    def write(name: str) -> Path:
        row = next(row for row in ROWS if row.name == name)
        return row.write(randomise(row.build()), tmp_path)

    return write


def clouds(channels: int = 3) -> Tensor:
    return torch.randn(2, 40, channels, generator=torch.Generator().manual_seed(1))


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


def test_a_file_is_of_one_source(row: parity.Row) -> None:
    names = row.build().state_dict().keys()
    assert [source.name for source in SOURCES.values() if source.matches(names)] == [row.source]
    assert SOURCES[row.source].modality == "points"


def halves_swapped(row: parity.Row, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    endings = "second_conv.0.weight", "conv2.0.0.weight"
    names = [n for n in tensors if n.endswith(endings) and not n.startswith(("transformer_k.", "dvae."))]
    (name,) = names
    return {**tensors, name: torch.cat(tensors[name].chunk(2, dim=1)[::-1], dim=1)}


@torch.no_grad()
def test_the_order_of_global_and_point_features_matters(
    row: parity.Row, randomise: Callable, tmp_path: Path, error_of: Callable
) -> None:
    theirs = randomise(row.build()).eval()
    path, x = row.write(theirs, tmp_path), torch.randn(row.inputs[0])
    parity.rewrite(path, lambda tensors: halves_swapped(row, tensors))
    ours = create_model("auto", pretrained=path, **row.settings).eval()
    assert error_of(row.ours(ours, x), row.features(theirs, x)) > 1e-2


@torch.no_grad()
def test_where_positions_are_added_matters(
    row: parity.Row, randomise: Callable, tmp_path: Path, error_of: Callable
) -> None:
    path, x = row.write(randomise(row.build()), tmp_path), torch.randn(row.inputs[0])
    ours = create_model("auto", pretrained=path, **row.settings).eval()
    assert ours.config.pos_mode == ("once" if row.source == "uni3d" else "every_block")
    right = ours.forward_features(x)
    other = {"once": "every_block", "every_block": "once"}[ours.config.pos_mode]
    ours.config = replace(ours.config, pos_mode=other)
    assert error_of(ours.forward_features(x), right) > 1e-2


@pytest.mark.parametrize("name", ENCODABLE)
def test_conversion_there_and_back_is_the_identity(name: str, randomise: Callable, tmp_path: Path) -> None:
    source, state = SOURCES[name], randomise(ENCODABLE[name]()).state_dict()
    torch.save({"model": state}, tmp_path / "ckpt.pth")
    model = create_model("auto", pretrained=tmp_path / "ckpt.pth", **SETTINGS)
    assert source.encode is not None
    before = {n: t.clone() for n, t in state.items()}
    decoded = source.decode(state)
    assert same(dict(model.state_dict()), decoded)
    encoded = source.encode(decoded, model.config)
    assert same(encoded, state)
    assert same(source.decode(encoded), decoded)
    assert same(state, before)
    kernels = [t for n, t in decoded.items() if n.startswith("tokenizer.embed.") and t.ndim == 2]
    stored = {t.untyped_storage().data_ptr() for t in state.values()}
    assert {t.untyped_storage().data_ptr() for t in kernels} <= stored, "renaming copies"


@torch.no_grad()
@pytest.mark.parametrize("name", ENCODABLE)
def test_what_is_written_their_own_code_reads(
    name: str, randomise: Callable, tmp_path: Path, error_of: Callable
) -> None:
    theirs = ENCODABLE[name]()
    torch.save({"model": randomise(theirs).state_dict()}, tmp_path / "ckpt.pth")
    model = create_model("auto", pretrained=tmp_path / "ckpt.pth", **SETTINGS).eval()
    path = save_checkpoint(model, tmp_path / "again.pth", name)
    again = ENCODABLE[name]().eval()
    again.load_state_dict(parity.read(path), strict=True)
    assert error_of(model(clouds()), again(clouds())) <= 1e-5
    assert torch.equal(create_model("auto", pretrained=path).eval()(clouds()), model(clouds()))


@pytest.mark.parametrize("name", ENCODABLE)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm_eps": 1e-4}, r"no place for norm_eps=0.0001 \(it is 1e-0[56] there\); use pointvit.save"),
        ({"pos_mode": "once"}, "no place for pos_mode='once'"),
        ({"activation": "quick_gelu"}, "no place for activation='quick_gelu'"),
        ({"layer_scale": 1e-5}, "no place for layer_scale"),
        ({"num_reg_tokens": 1}, "no place for num_reg_tokens=1"),
        ({"global_pool": "max"}, "no place for global_pool='max'"),
        ({"head": "linear"}, "no place for the head 'linear'"),
    ],
)
def test_what_the_layouts_cannot_hold(
    name: str, settings: dict[str, object], message: str, randomise: Callable, tmp_path: Path
) -> None:
    source, state = SOURCES[name], ENCODABLE[name]().state_dict()
    torch.save({"model": randomise(ENCODABLE[name]()).state_dict()}, tmp_path / "ckpt.pth")
    model = create_model("auto", pretrained=tmp_path / "ckpt.pth", **SETTINGS)
    other = ViT(model.config.override(settings))
    assert source.encode is not None
    assert source.encode(source.decode(state), model.config).keys() == state.keys()
    with pytest.raises(ValueError, match=message):
        source.encode(dict(other.state_dict()), other.config)


def test_what_each_layout_cannot_hold() -> None:
    image = create_model("vit_tiny_patch16_224", img_size=32, patch_size=16, depth=1)
    small = create_model("pointvit_small", qkv_bias=False, norm_eps=1e-5, pos_mode="every_block", depth=1)
    pix = small.config.override(
        {"qkv_bias": True, "norm_eps": 1e-6, "global_pool": "cls+max+mean", "head": "pix4point"}
    )
    cases = {
        "point_mae": (small.config.override({"token_dim": 256}), "a tokenizer with token_dim"),
        "point_bert": (small.config, "a tokenizer without token_dim"),
        "pix4point": (pix, "tokenizer.embed.first.0.bias, which is not zero"),
    }
    for name, (config, message) in cases.items():
        encode, model = SOURCES[name].encode, ViT(config)
        assert encode is not None
        with pytest.raises(
            ValueError, match=f"the {name} layout has no place for {message}; use pointvit.save"
        ):
            encode(dict(model.state_dict()), config)
        with pytest.raises(ValueError, match=f"the {name} layout has no place for modality='image'"):
            encode(dict(image.state_dict()), image.config)
    heads = small.config.override({"num_heads": 12})
    assert SOURCES["point_mae"].encode is not None
    with pytest.raises(ValueError, match=r"no place for num_heads=12 \(it is 6 there\)"):
        SOURCES["point_mae"].encode(dict(ViT(heads).state_dict()), heads)


def test_a_pretrained_point_mae_has_no_class_token(file_of: Callable, tmp_path: Path) -> None:
    path = file_of("Point-MAE, pre-trained")
    model = create_model("auto", pretrained=path, **SETTINGS, num_classes=15)
    assert (model.config.head, model.config.global_pool, model.head[0].in_features) == (
        "point_mae",
        "cls+max",
        2 * DIM,
    )
    report = load_checkpoint(model, path)
    new = {name for name in report.new if not name.startswith("head.")}
    assert new == {"cls_token", "tokenizer.cls_pos"}
    assert set(report.set_aside.values()) == {
        "the decoder of masked pre-training",
        "used in pre-training only",
    }
    assert model.meta.up_axis == "y"


def test_a_pretrained_point_bert_leaves_its_second_encoder(file_of: Callable) -> None:
    path = file_of("Point-BERT, pre-trained")
    model = create_model("auto", pretrained=path, **SETTINGS)
    report = load_checkpoint(model, path)
    aside = {name.split(".")[0] for name in report.set_aside}
    assert aside == {"transformer_k", "dvae", "queue", "queue_ptr", "mask_token", "lm_head", "cls_head"}
    assert report.new == []
    assert torch.equal(model.cls_token, parity.read(path)["transformer_q.cls_token"])


def test_point_mae_starts_other_encoders(file_of: Callable) -> None:
    path = file_of("Point-MAE, pre-trained")
    theirs = parity.read(path)
    points = create_model("pointvit_small", pretrained=path, num_classes=15, **SIZE)
    image = create_model("vit_small_patch16_224", pretrained=path, img_size=32, num_classes=15, **SIZE)
    for model in (points, image):
        assert model.num_classes == 15
        assert model.config.trunk.norm_eps == 1e-5
        assert not model.config.trunk.qkv_bias
        for name, tensor in model.trunk.state_dict().items():
            inner = name.replace("blocks.", "blocks.blocks.")
            assert torch.equal(tensor, theirs[f"MAE_encoder.{inner}"]), name
    assert torch.equal(
        points.tokenizer.embed.first[0].weight, theirs["MAE_encoder.encoder.first_conv.0.weight"][..., 0]
    )
    report = load_checkpoint(points, path)
    assert {"cls_token", "tokenizer.cls_pos", "head.0.weight"} <= set(report.new)
    assert all(name.startswith(("cls_token", "tokenizer.cls_pos", "head.")) for name in report.new)
    assert image(torch.randn(1, 3, 32, 32)).shape == (1, 15)


@torch.no_grad()
def test_the_fine_tuned_heads_can_be_exchanged(
    randomise: Callable, tmp_path: Path, error_of: Callable
) -> None:
    theirs = randomise(PointTransformer(DIM, 2, HEADS, 16, GROUPS, head=bert_head(DIM, CLASSES))).eval()
    torch.save({"base_model": theirs.state_dict()}, tmp_path / "ckpt.pth")
    ours = create_model("auto", pretrained=tmp_path / "ckpt.pth", **SETTINGS).eval()
    assert ours.config.head == "point_bert"
    assert error_of(ours(clouds()), theirs(clouds())) <= 1e-5


def test_uni3d_reads_six_channels(file_of: Callable) -> None:
    path = file_of("Uni3D of EVA-02 Ti and S")
    model = create_model("auto", pretrained=path, num_heads=HEADS)
    tokenizer = model.config.tokenizer
    assert (tokenizer.in_chans, tokenizer.num_groups, tokenizer.group_size) == (6, 512, 64)
    assert (model.meta.num_points, model.meta.up_axis) == (10_000, "y")
    report = load_checkpoint(model, path)
    assert {name for name in report.set_aside if "visual" not in name} == {"logit_scale"}
    assert not any("blocks" in name for name in report.set_aside)


def test_what_training_code_puts_beside_the_weights(randomise: Callable, tmp_path: Path) -> None:
    content = {
        "base_model": {f"module.{n}": t for n, t in randomise(point_mae()).state_dict().items()},
        "optimizer": {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 5e-4}]},
        "epoch": np.int64(300),
        "metrics": {"acc": np.float64(93.8)},
        "best_metrics": {"acc": torch.tensor(94.0)},
    }
    torch.save(content, tmp_path / "ckpt-best.pth")
    checkpoint = Checkpoint.open(tmp_path / "ckpt-best.pth")
    assert checkpoint.source.name == "point_mae"
    assert create_model("auto", pretrained=tmp_path / "ckpt-best.pth", **SETTINGS).num_classes == CLASSES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("encoder.patch_embed.conv1.0.0.weight"), "coordinates alone .* found none"),
        (
            lambda state: state.update({"encoder.patch_embed.conv1.0.0.weight": torch.ones(8, 7, 1, 1)}),
            "coordinates alone .* found one of 7 channels",
        ),
        (
            lambda state: state.update({"prediction.head.0.0.weight": torch.ones(256, 4 * DIM)}),
            "the head takes in 4 times the trunk's width, expected 2 or 3 times",
        ),
    ],
    ids=["another tokenizer", "features", "another pool"],
)
def test_openpoints_files_that_are_no_plain_pix4point(
    change: Callable, message: str, tmp_path: Path, refused: Callable
) -> None:
    state = dict(pix4point().state_dict())
    change(state)
    path = tmp_path / "ckpt.pth"
    torch.save({"model": state}, path)
    with refused(path, message):
        Checkpoint.open(path)


def test_an_unusual_width_does_not_say_its_heads(file_of: Callable, refused: Callable) -> None:
    path = file_of("Point-MAE, fine-tuned")
    with refused(path, "does not say num_heads"):
        create_model("auto", pretrained=path)


def uni3d(architecture: str, dim: int) -> nn.Module:
    return Uni3d(Uni3dEncoder(timm.create_model(architecture), dim, 256, 512, 1024, (512, 64)))


PUBLISHED: dict[str, tuple[Callable[[], nn.Module], float, int]] = {
    # millions of parameters in a file, as published, and how many zeros ours has beside: biases left unsaid
    "Point-BERT": (lambda: PointTransformer(384, 12, 6, 256, GROUPS, 256, head=bert_head(384, 40)), 22.07, 0),
    "Point-MAE": (lambda: PointTransformer(384, 12, 6, 256, GROUPS, head=mae_head(384, 40)), 22.10, 0),
    "Pix4Point": (lambda: pix4point_encoder(384, 12, 6, 256), 21.84, 128 + 512),
    "Uni3D-Ti": (lambda: uni3d("eva02_tiny_patch14_224", 192), 6.38, 12 * 192),
    "Uni3D-S": (lambda: uni3d("eva02_small_patch14_224", 384), 22.82, 12 * 384),
    "Uni3D-B": (lambda: uni3d("eva02_base_patch14_448", 768), 88.96, 12 * 768),
    "Uni3D-L": (lambda: uni3d("eva02_large_patch14_448", 1024), 307.35, 24 * 1024),
    "Uni3D-g": (lambda: uni3d("eva_giant_patch14_560", 1408), 1017.36, 40 * 1408),
}


def pix4point_encoder(*size: int) -> nn.Module:
    return nn.ModuleDict({"encoder": Pix4PointEncoder(*size, GROUPS)})


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts(name: str) -> None:
    build, millions, unsaid = PUBLISHED[name]
    with torch.device("meta"):
        theirs = build()
        checkpoint = Checkpoint.from_file(WeightFile(Path("ckpt.pth"), dict(theirs.state_dict()), None, ""))
        ours = ViT(checkpoint.encoder_config({}))
    assert {n: t.shape for n, t in ours.state_dict().items()} == {
        n: t.shape for n, t in checkpoint.tensors.items()
    }
    in_file = sum(p.numel() for p in theirs.parameters())
    assert round(in_file / 1e6, 2) == millions
    assert sum(p.numel() for p in ours.parameters()) + sum(checkpoint.sizes.values()) == in_file + unsaid


def test_a_pretrained_point_mae_of_full_size() -> None:
    with torch.device("meta"):
        state = PretrainedPointMae(384, 12, 6, 256, GROUPS).state_dict()
        checkpoint = Checkpoint.from_file(WeightFile(Path("pretrain.pth"), dict(state), None, ""))
        ours = ViT(checkpoint.encoder_config({}))
    assert ours.config.trunk.num_heads == 6
    assert set(ours.state_dict()) - set(checkpoint.tensors) == {"cls_token", "tokenizer.cls_pos"}


def test_errors_name_the_file(file_of: Callable) -> None:
    path = file_of("Point-BERT, fine-tuned")
    parity.rewrite(path, lambda tensors: {**tensors, "img_token": torch.ones(1, 1, DIM)})
    with pytest.raises(
        CheckpointError, match=r"ckpt.pth .*holds 1 tensor the model has no place for \(img_token\)"
    ):
        create_model("auto", pretrained=path, **SETTINGS)


@pytest.mark.parametrize(
    ("kind", "dropped", "message"),
    [
        ("Point-BERT, fine-tuned", "cls_token", "its class token is missing"),
        ("Point-BERT, fine-tuned", "cls_pos", "its class token is missing, or the position of it"),
        ("Point-BERT, fine-tuned", "encoder.first_conv.3.weight", "its tokenizer is incomplete"),
        ("Point-BERT, fine-tuned", "cls_head_finetune.3.weight", "of head.3 there is a bias alone"),
        ("Point-MAE, fine-tuned", "cls_token", "its class token is missing"),
        ("Point-MAE, fine-tuned", "cls_head_finetune.8.bias", "of head.8 there is a weight alone"),
        ("Point-MAE, fine-tuned", "cls_head_finetune.8.", "its head has no last layer"),
        ("Pix4Point", "encoder.cls_token", "its class token is missing"),
        ("Pix4Point", "prediction.head.4.0.weight", "of head.8 there is a bias alone"),
        ("Uni3D of EVA-02 Ti and S", "point_encoder.cls_token", "its class token is missing"),
        ("Uni3D of EVA-02 Ti and S", "point_encoder.trans2embed.weight", "of head there is a bias alone"),
    ],
)
def test_what_is_missing_makes_no_other_model(
    kind: str, dropped: str, message: str, file_of: Callable, refused: Callable
) -> None:
    path = file_of(kind)
    parity.rewrite(path, lambda tensors: {n: t for n, t in tensors.items() if not n.startswith(dropped)})
    with refused(path, message):
        create_model("auto", pretrained=path, **SETTINGS)
