"""Strict loading: what does not fit is refused, and what was done is reported."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pointvit import Pair, ViT, create_model, create_pair, load_checkpoint, save_checkpoint
from pointvit.checkpoints import Checkpoint
from pointvit.config import ViTConfig
from pointvit.positions import resample_grid
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

TRUNK = TrunkConfig(192, 3, 3)
IMAGE = ViTConfig(TRUNK, ImageTokenizerConfig((32, 32), (8, 8)), num_classes=5)
POINTS = ViTConfig(TRUNK, PointTokenizerConfig(8, 4), num_classes=4, global_pool="cls+max", head="point_mae")


@pytest.fixture
def model(randomise: Callable) -> ViT:
    return randomise(ViT(IMAGE), seed=1).eval()


@pytest.fixture
def points(randomise: Callable) -> ViT:
    return randomise(ViT(POINTS), seed=2).eval()


@pytest.fixture(params=["image", "points", "pair"])
def any_model(request: pytest.FixtureRequest, model: ViT, points: ViT) -> ViT | Pair:
    return {"image": model, "points": points, "pair": Pair(model, points)}[request.param]


@pytest.fixture
def tensors(tmp_path: Path, randomise: Callable) -> dict[str, Tensor]:
    """A file of the model's architecture in timm's names, and other numbers."""
    return load_file(save_checkpoint(randomise(ViT(IMAGE), seed=3), tmp_path / "source.safetensors", "timm"))


def write(tmp_path: Path, tensors: dict[str, Tensor], name: str = "file.safetensors") -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / name)
    return tmp_path / name


def images(height: int = 32, width: int = 32) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def test_a_fitting_file_is_loaded_whole(tmp_path: Path, tensors: dict[str, Tensor], model: ViT) -> None:
    report = load_checkpoint(model, write(tmp_path, tensors))
    assert (report.source, report.coverage) == ("timm", 1.0)
    assert sorted(report.loaded) == sorted(model.state_dict())
    others = (report.set_aside, report.new, report.missing, report.unexpected, report.resampled)
    assert not any(others)
    assert torch.equal(model.trunk.blocks[2].attn.qkv.weight, tensors["blocks.2.attn.qkv.weight"])
    assert torch.equal(model.tokenizer.cls_pos, tensors["pos_embed"][:, :1])
    assert model.meta.source["file"] == "file.safetensors"
    assert len(model.meta.source["sha256"]) == 64


def lacks(pattern: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if pattern not in name}


def changed(
    name: str, change: Callable[[Tensor], Tensor]
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {**tensors, name: change(tensors[name])}


def with_nan(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.flatten()[7] = torch.nan
    return tensor


REFUSALS = {
    "a block in the middle is missing": (lacks("blocks.1."), "blocks up to number 2, but none of number 1"),
    "the last block is missing": (lacks("blocks.2."), "and 2 blocks, the model has width 192 and 3 blocks"),
    "the first block is missing": (lacks("blocks.0."), "no known layout"),
    "one tensor is missing": (lacks("blocks.2.norm2.bias"), "lacks 1 tensor .*trunk.blocks.2.norm2.bias"),
    "the final norm is missing": (lacks("norm."), "lacks 2 tensors .*trunk.norm.bias"),
    "an extra tensor": (lambda t: {**t, "blocks.1.extra": torch.ones(2)}, "no place for .*1.extra"),
    "an extra top tensor": (lambda t: {**t, "dist_token": torch.ones(9)}, "no place for .*dist_token"),
    "swapped shapes": (changed("blocks.1.mlp.fc1.weight", lambda t: t.T), r"has shape \(192, 768\)"),
    "swapped shapes of block 0": (changed("blocks.0.mlp.fc1.weight", lambda t: t.T), "has shape"),
    "NaN": (changed("blocks.2.attn.proj.weight", with_nan), "attn.proj.weight holds NaN"),
    "infinite": (changed("blocks.0.norm1.bias", lambda t: t / 0), "norm1.bias holds NaN or infinite"),
    "integers": (changed("blocks.0.norm1.bias", Tensor.int), "norm1.bias is torch.int32"),
    "a flat projection": (changed("blocks.0.attn.qkv.weight", Tensor.flatten), "should have 2 dimensions"),
    "separate projections": (
        lambda t: {n.replace("qkv", "query"): v for n, v in t.items()}, "expected a ViT checkpoint"
    ),
    "a CNN": (lambda _: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).state_dict(), "no known layout"),
    "a language model": (lambda _: {"lm_head.weight": torch.ones(3, 3)}, "no known layout"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit_is_refused_and_nothing_changes(
    case: str, tmp_path: Path, tensors: dict[str, Tensor], any_model: ViT | Pair, refused: Callable
) -> None:
    change, message = REFUSALS[case]
    path = write(tmp_path, change(tensors))
    meta = repr(any_model.image.meta if isinstance(any_model, Pair) else any_model.meta)
    with refused(path, message, any_model):
        load_checkpoint(any_model, path)
    assert repr(any_model.image.meta if isinstance(any_model, Pair) else any_model.meta) == meta


@pytest.mark.parametrize(
    "case",
    ["a CNN", "NaN", "an extra tensor", "a block in the middle is missing", "the final norm is missing"],
)
def test_create_model_refuses_the_same(
    case: str, tmp_path: Path, tensors: dict[str, Tensor], refused: Callable
) -> None:
    change, message = REFUSALS[case]
    path = write(tmp_path, change(tensors))
    with refused(path, message):
        create_model("auto", pretrained=path)


@pytest.mark.parametrize("name", ["vit_small_patch16_224", "pointvit_small"])
def test_a_base_model_is_refused_by_a_small_one(name: str, tmp_path: Path, refused: Callable) -> None:
    width = 768
    shapes = {"patch_embed.proj.weight": (width, 3, 16, 16), "patch_embed.proj.bias": (width,),
              "cls_token": (1, 1, width), "pos_embed": (1, 197, width), "norm.weight": (width,),
              "norm.bias": (width,)}  # fmt: skip
    for n in range(12):
        block = {"attn.qkv.weight": (3 * width, width), "mlp.fc1.weight": (4 * width, width),
                 "mlp.fc2.weight": (width, 4 * width)}  # fmt: skip
        shapes |= {f"blocks.{n}.{part}": shape for part, shape in block.items()}
    # One number stands for each tensor's: only the shapes matter before the sizes are compared.
    path = tmp_path / "base.pth"
    torch.save({name: torch.zeros(1).expand(shape) for name, shape in shapes.items()}, path)
    assert Checkpoint.open(path).trunk_config().embed_dim == 768
    message = "width 768 and 12 blocks, the model has width 384 and 12 blocks; choose the model of that size"
    with refused(path, message):
        create_model(name, pretrained=path)
    model = create_model(name)
    with refused(path, message, model):
        load_checkpoint(model, path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"norm_eps": 1e-5}, "was trained with trunk.norm_eps=1e-06, the model has 1e-05"),
        (
            {"activation": "quick_gelu"},
            "was trained with trunk.activation='gelu', the model has 'quick_gelu'",
        ),
        ({"num_heads": 6}, "was trained with trunk.num_heads=3, the model has 6"),
        ({"qkv_bias": False}, "was trained with trunk.qkv_bias=True"),
        ({"norm_pre": True}, "was trained with trunk.norm_pre=False"),
        ({"layer_scale": 1e-5}, "lacks 6 tensors the model needs .*ls1.gamma"),
        ({"swiglu": True}, "was trained with trunk.swiglu=False"),
        ({"attn_norm": True}, "was trained with trunk.attn_norm=False"),
        ({"rope": True}, "was trained with tokenizer.rope=False"),
        ({"stem": (), "patch_size": (32, 32)}, r"stem=None, the model asked for \(\)"),
        ({"class_token": False, "global_pool": "mean", "cls_pos": False}, "no place for .*cls_token"),
        ({"num_reg_tokens": 2}, "lacks 1 tensor the model needs .*reg_tokens"),
        ({"cls_pos": False}, "no place for .*cls_pos"),
        ({"pos_embed": "learned_2d"}, "lacks 2 tensors the model needs .*pos_embed"),
    ],
)
def test_a_model_of_other_settings_refuses(
    setting: dict, message: str, tmp_path: Path, tensors: dict[str, Tensor], refused: Callable
) -> None:
    model = ViT(IMAGE.override(setting))
    path = write(tmp_path, tensors)
    with refused(path, message, model):
        load_checkpoint(model, path)


def test_the_refused_settings_would_have_changed_the_output(
    tmp_path: Path, tensors: dict[str, Tensor], error_of: Callable
) -> None:
    path = write(tmp_path, tensors)
    right = create_model("auto", pretrained=path).eval()
    with torch.no_grad():
        for setting in ({"norm_eps": 1e-3}, {"activation": "quick_gelu"}, {"num_heads": 6}):
            wrong = create_model("auto", pretrained=path, **setting).eval()
            assert error_of(wrong(images()), right(images())) > 1e-4


@pytest.mark.parametrize("source", ["tim", "keras", ""])
def test_unknown_source(
    source: str, tmp_path: Path, tensors: dict[str, Tensor], model: ViT, refused: Callable
) -> None:
    with refused(None, "unknown checkpoint source .*(did you mean|known are)", model):
        load_checkpoint(model, write(tmp_path, tensors), source=source)


@pytest.mark.parametrize("source", ["google", "huggingface", "pointvit"])
def test_a_file_of_another_source(
    source: str, tmp_path: Path, tensors: dict[str, Tensor], model: ViT, refused: Callable
) -> None:
    path = write(tmp_path, tensors)
    with refused(path, f"expected a {source} checkpoint, found .* of the layout of timm", model):
        load_checkpoint(model, path, source=source)
    assert load_checkpoint(model, path, source="timm").source == "timm"


def test_points_take_the_trunk_and_the_class_token(
    tmp_path: Path, tensors: dict[str, Tensor], points: ViT
) -> None:
    before = {name: tensor.clone() for name, tensor in points.state_dict().items()}
    report = load_checkpoint(points, write(tmp_path, tensors))
    assert report.coverage == 1.0
    assert set(report.loaded) == {name for name in before if name.startswith(("trunk.", "cls_token"))}
    assert report.set_aside == {
        "pos_embed": "2D positions, which points have no use for",
        "tokenizer.proj.weight": "the other modality's front end",
        "tokenizer.proj.bias": "the other modality's front end",
        "head.weight": "the file's head, trained on the other modality",
        "head.bias": "the file's head, trained on the other modality",
    }
    assert set(report.new) == {name for name in before if name.startswith(("tokenizer.", "head."))}
    for name in report.new:
        assert torch.equal(points.state_dict()[name], before[name])
    assert torch.equal(points.cls_token, tensors["cls_token"])


def test_points_refuse_a_trunk_that_is_not_complete(
    tmp_path: Path, tensors: dict[str, Tensor], points: ViT, refused: Callable
) -> None:
    path = write(tmp_path, lacks("cls_token")(tensors))
    with refused(path, "lacks 1 tensor the model needs .cls_token", points):
        load_checkpoint(points, path)


def test_a_pair_is_loaded_through_its_image_encoder(
    tmp_path: Path, tensors: dict[str, Tensor], model: ViT, points: ViT
) -> None:
    pair = Pair(model, points)
    report = load_checkpoint(pair, write(tmp_path, tensors))
    assert (report.coverage, report.new) == (1.0, [])
    assert torch.equal(pair.points.trunk.blocks[1].mlp.fc1.weight, tensors["blocks.1.mlp.fc1.weight"])
    assert pair.points.cls_token is pair.image.cls_token
    other = create_pair("auto", pretrained=tmp_path / "file.safetensors", num_classes=3)
    assert torch.equal(other.points.trunk.norm.weight, tensors["norm.weight"])


@pytest.mark.parametrize("num_classes", [0, 3])
def test_another_number_of_classes_keeps_its_own_head(
    num_classes: int, tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    model = ViT(replace(IMAGE, num_classes=num_classes))
    report = load_checkpoint(model, write(tmp_path, tensors))
    assert report.set_aside.keys() == {"head.weight", "head.bias"}
    assert report.new == (["head.bias", "head.weight"] if num_classes else [])


def test_counts_add_up_and_every_tensor_of_the_file_appears_once(
    tmp_path: Path, tensors: dict[str, Tensor], any_model: ViT | Pair
) -> None:
    path = write(tmp_path, {**tensors, "mask_token": torch.zeros(1, 192), "head.weight": torch.zeros(9, 192)})
    in_file = sum(tensor.numel() for tensor in load_file(path).values())
    report = load_checkpoint(any_model, path)
    assert not set(report.loaded) & set(report.set_aside)
    assert not set(report.loaded) & set(report.new)
    checkpoint = Checkpoint.open(path)
    target = any_model.image if isinstance(any_model, Pair) else any_model
    sizes = {name: tensor.numel() for name, tensor in {**checkpoint.tensors, **target.state_dict()}.items()}
    sizes |= {"mask_token": 192, "head.weight": 9 * 192}
    assert sum(sizes[name] for name in (*report.loaded, *report.set_aside)) == in_file
    assert set(report.loaded) | set(report.new) == set(target.state_dict())


def test_the_report_as_a_table(tmp_path: Path, tensors: dict[str, Tensor], points: ViT) -> None:
    path = write(tmp_path, {**tensors, "mask_token": torch.zeros(1, 192)})
    report = load_checkpoint(points, path)
    lines = str(report).splitlines()
    assert lines[0] == f"{path} (timm), 100.0% of the trunk"
    assert len(lines) < 10
    assert all(len(line) < 200 for line in lines[1:])
    counts: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for line in lines[2:]:
        label, count = line[:12].strip(), int(line[12:20].replace(",", ""))
        counts[label] = counts.get(label, 0) + count
        numbers[label] = numbers.get(label, 0) + int(line[20:34].replace(",", ""))
    assert counts == {
        "loaded": len(report.loaded), "set aside": len(report.set_aside), "new": len(report.new)
    }  # fmt: skip
    assert counts["loaded"] + counts["set aside"] == len(tensors) + 1
    in_file = sum(tensor.numel() for tensor in load_file(path).values())
    assert numbers["loaded"] + numbers["set aside"] == in_file
    assert numbers["loaded"] + numbers["new"] == sum(t.numel() for t in points.state_dict().values())
    assert "used in pre-training only: mask_token" in str(report)


def table(tensors: dict[str, Tensor], rows: int, class_token: bool = True) -> dict[str, Tensor]:
    tensors = {**tensors, "pos_embed": torch.randn(1, rows, 192)}
    return tensors if class_token else lacks("cls_token")(tensors)


@pytest.mark.parametrize(
    ("rows", "class_token", "cls_pos"),
    [(197, True, True), (196, True, False), (196, False, False), (2, True, True), (1, True, False)],
)
def test_rows_of_the_position_table(
    rows: int, class_token: bool, cls_pos: bool, tmp_path: Path, tensors: dict[str, Tensor]
) -> None:
    tensors = table(tensors, rows, class_token)
    model = create_model("auto", pretrained=write(tmp_path, tensors)).eval()
    side = int((rows - cls_pos) ** 0.5)
    assert model.config.tokenizer.grid == (side, side)
    assert (model.tokenizer.cls_pos is not None) == cls_pos
    assert model.config.class_token == class_token
    assert torch.equal(model.tokenizer.pos_embed, tensors["pos_embed"][:, int(cls_pos) :])
    if cls_pos:
        assert torch.equal(model.tokenizer.cls_pos, tensors["pos_embed"][:, :1])


@pytest.mark.parametrize(
    ("rows", "class_token"), [(195, True), (198, True), (197, False), (15, True), (18, True)]
)
def test_rows_of_no_square_grid(
    rows: int, class_token: bool, tmp_path: Path, tensors: dict[str, Tensor], model: ViT, refused: Callable
) -> None:
    path = write(tmp_path, table(tensors, rows, class_token))
    with refused(path, f"{rows} position rows are not a square grid", model):
        load_checkpoint(model, path)
    with refused(path, f"{rows} position rows are not a square grid"):
        create_model("auto", pretrained=path)


def test_as_many_rows_in_another_shape_are_resampled(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    """A 4x4 table for a 2x8 grid: 16 rows both, and row by row copying would shuffle the positions."""
    path = write(tmp_path, tensors)
    model = create_model("auto", pretrained=path, img_size=(16, 64))
    report = load_checkpoint(model, path)
    assert report.resampled == ["tokenizer.pos_embed"]
    expected = resample_grid(tensors["pos_embed"][:, 1:], (4, 4), (2, 8))
    assert torch.equal(model.tokenizer.pos_embed, expected)
    assert not torch.equal(model.tokenizer.pos_embed, tensors["pos_embed"][:, 1:])
    (line,) = (line for line in str(report).splitlines() if "resampled" in line)
    assert line.split() == ["resampled", "1", "3,072", "tokenizer.pos_embed"]


def test_a_grid_that_is_not_square_survives_where_the_file_states_it(
    tmp_path: Path, randomise: Callable
) -> None:
    model = randomise(ViT(IMAGE.override({"img_size": (16, 64)}))).eval()
    path = save_checkpoint(model, tmp_path / "wide.safetensors", "timm")
    loaded = create_model("auto", pretrained=path).eval()
    assert loaded.config.tokenizer.grid == (2, 8)
    assert torch.equal(loaded(images(16, 64)), model(images(16, 64)))
    square = create_model("auto", pretrained=path, img_size=32)
    assert load_checkpoint(square, path).resampled == ["tokenizer.pos_embed"]
    assert torch.equal(square.tokenizer.pos_embed, resample_grid(model.tokenizer.pos_embed, (2, 8), (4, 4)))


def test_a_table_of_another_width(
    tmp_path: Path, tensors: dict[str, Tensor], model: ViT, refused: Callable
) -> None:
    path = write(tmp_path, {**tensors, "pos_embed": torch.randn(1, 17, 100)})
    with refused(path, r"tokenizer.pos_embed has shape \(1, 16, 100\)|has shape \(1, 1, 100\)", model):
        load_checkpoint(model, path)


def test_a_model_without_numbers_is_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "m.safetensors")
    with torch.device("meta"):
        empty = ViT(IMAGE)
    with pytest.raises(ValueError, match=r"m.safetensors: the model is on the meta device"):
        load_checkpoint(empty, tmp_path / "m.safetensors")


def test_less_than_the_whole_trunk_only_where_it_is_asked_for(
    tmp_path: Path, tensors: dict[str, Tensor], model: ViT, refused: Callable
) -> None:
    path = write(tmp_path, lacks("blocks.1.mlp.")(tensors))
    before = model.trunk.blocks[1].mlp.fc1.weight.clone()
    with refused(path, "lacks 4 tensors the model needs", model):
        load_checkpoint(model, path, min_coverage=0.95)
    with pytest.warns(UserWarning, match=r"of the trunk came from the file.*trunk.blocks.1.mlp.fc1.bias"):
        report = load_checkpoint(model, path, min_coverage=0.5)
    assert len(report.missing) == 4
    assert 0.5 < report.coverage < 0.95
    assert torch.equal(model.trunk.blocks[1].mlp.fc1.weight, before)
    assert torch.equal(model.trunk.blocks[1].norm1.bias, tensors["blocks.1.norm1.bias"])


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_that_is_none(
    share: float, tmp_path: Path, tensors: dict[str, Tensor], model: ViT, refused: Callable
) -> None:
    with refused(None, r"min_coverage must lie in \(0, 1\]", model):
        load_checkpoint(model, write(tmp_path, tensors), min_coverage=share)


def test_unexpected_tensors_are_refused_whatever_the_share(
    tmp_path: Path, tensors: dict[str, Tensor], model: ViT, refused: Callable
) -> None:
    path = write(tmp_path, {**tensors, "blocks.1.extra": torch.ones(2)})
    with refused(path, "no place for .*1.extra", model):
        load_checkpoint(model, path, min_coverage=0.1)


def test_a_point_encoder_by_auto(tmp_path: Path, tensors: dict[str, Tensor], refused: Callable) -> None:
    """The trunk of whatever 2D file, and a point tokenizer, without the name of a model."""
    path = write(tmp_path, tensors)
    model = create_model(
        "auto", pretrained=path, tokenizer="points", num_heads=3, num_groups=8, num_classes=3
    )
    assert (model.config.modality, model.config.trunk.depth, model.config.tokenizer.num_groups) == (
        "points",
        3,
        8,
    )
    assert torch.equal(model.trunk.blocks[2].attn.qkv.weight, tensors["blocks.2.attn.qkv.weight"])
    assert model(torch.rand(2, 20, 3)).shape == (2, 3)
    assert create_model(pretrained=path).config.modality == "image"
    with refused(None, "tokenizer must be 'points'"):
        create_model("auto", pretrained=path, tokenizer="voxels")
    with refused(None, "goes with create_model..auto"):
        create_model("pointvit_small", pretrained=path, tokenizer="points")


@pytest.mark.parametrize("size", [(16, 64), (32, 32), (64, 16)])
def test_the_stated_grid_is_taken_or_refused(
    size: tuple[int, int], tmp_path: Path, tensors: dict[str, Tensor], refused: Callable
) -> None:
    """A table of as many rows fits each of these; one of another number is of another image."""
    patch = tensors["patch_embed.proj.weight"].shape[-1]
    grid = (size[0] // 16, size[1] // 16)
    rows = torch.ones(1, 1 + grid[0] * grid[1], tensors["cls_token"].shape[-1])
    checkpoint = Checkpoint.open(write(tmp_path, tensors | {"pos_embed": rows}))
    stated = {**checkpoint.settings, "img_size": (grid[0] * patch, grid[1] * patch)}
    assert replace(checkpoint, settings=stated).position_layout() == (1, grid)
    stated["img_size"] = (8 * patch, 8 * patch)
    with refused(
        checkpoint.path, f"8 x 8 patches, its position table has {rows.shape[1]} rows, expected 64 to 65"
    ):
        replace(checkpoint, settings=stated).position_layout()
