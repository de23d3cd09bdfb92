"""pointvit's own files as `pretrained`: folders, pairs and training checkpoints."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pointvit import Pair, ViT, create_model, load, load_checkpoint, save
from pointvit.checkpoints import Checkpoint
from pointvit.checkpoints.saving import describe
from pointvit.checkpoints.sources.source import rename_blocks, rename_prefixes
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

TRUNK = TrunkConfig(192, 12, 3, mlp_ratio=0.5, norm_eps=1e-5, activation="quick_gelu")
IMAGE = ViTConfig(TRUNK, ImageTokenizerConfig((32, 32), (16, 16)), num_classes=5)
POINTS = ViTConfig(
    TRUNK,
    PointTokenizerConfig(8, 4, in_chans=6, width=64),
    num_classes=4,
    pos_mode="every_block",
    global_pool="cls+max",
    head="point_mae",
)


@pytest.fixture
def image(randomise: Callable) -> ViT:
    return randomise(ViT(IMAGE), seed=1).eval()


@pytest.fixture
def points(randomise: Callable) -> ViT:
    model = randomise(ViT(POINTS), seed=2).eval()
    model.meta.class_names, model.meta.up_axis, model.meta.num_points = ["a", "b", "c", "d"], "y", 77
    return model


@pytest.fixture
def pair(randomise: Callable) -> Pair:
    return randomise(Pair(ViT(IMAGE), ViT(POINTS)), seed=3).eval()


@pytest.fixture
def ckpt(points: ViT, tmp_path: Path) -> Path:
    """What training writes: the module's state dict with a prefix, its optimizer, and the description."""
    content = {
        "epoch": 3,
        "global_step": 40,
        "state_dict": {f"model.{name}": tensor for name, tensor in points.state_dict().items()},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.ones(3)}}}],
        "hyper_parameters": {"model": "pointvit_tiny", "lr": 1e-3},
        "pointvit": describe(points),
    }
    torch.save(content, tmp_path / "best.ckpt")
    return tmp_path / "best.ckpt"


def clouds() -> Tensor:
    return torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(1))


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def same(one: torch.nn.Module, other: torch.nn.Module, prefix: str = "") -> bool:
    """Whether the tensors below ``prefix`` have equal names and bits."""
    ours, theirs = ({n: t for n, t in m.state_dict().items() if n.startswith(prefix)} for m in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_auto_gives_back_the_model_itself(tmp_path: Path, image: ViT, points: ViT) -> None:
    for model, x in ((image, images()), (points, clouds())):
        again = create_model("auto", pretrained=save(model, tmp_path / model.config.modality)).eval()
        assert again.config == model.config
        assert same(again, model)
        with torch.no_grad():
            assert torch.equal(again(x), model(x))


def test_auto_gives_back_the_metadata(tmp_path: Path, points: ViT) -> None:
    meta = create_model("auto", pretrained=save(points, tmp_path / "saved")).meta
    assert (meta.class_names, meta.up_axis, meta.num_points) == (["a", "b", "c", "d"], "y", 77)
    assert isinstance(meta.image_mean, tuple)


def test_fine_tuning_on_other_classes(tmp_path: Path, points: ViT) -> None:
    folder = save(points, tmp_path / "saved")
    model = create_model("pointvit_tiny", pretrained=folder, num_classes=9, drop_path_rate=0.3)
    assert model.config == replace(POINTS, num_classes=9, trunk=replace(TRUNK, drop_path_rate=0.3)), (
        "all settings but the classes and the rates are the file's"
    )
    report = load_checkpoint(model, folder)
    assert report.coverage == 1.0
    for part in ("trunk.", "tokenizer.", "cls_token"):
        assert same(model, points, part)
    heads = {name for name in points.state_dict() if name.startswith("head.")}
    assert set(report.set_aside) == set(report.new) == heads
    assert set(report.set_aside.values()) == {"the file's head, which differs from the model's"}
    assert model(clouds()).shape == (2, 9)


def test_the_same_classes_keep_the_head(tmp_path: Path, points: ViT) -> None:
    model = create_model("pointvit_tiny", pretrained=save(points, tmp_path / "saved"), num_classes=4)
    assert same(model, points)


def test_the_group_count_may_change(tmp_path: Path, points: ViT) -> None:
    model = create_model(
        "pointvit_tiny", pretrained=save(points, tmp_path / "saved"), num_classes=4, num_groups=5
    )
    assert same(model, points)
    assert model.forward_features(clouds()).shape == (2, 6, 192)


def test_a_training_checkpoint(ckpt: Path, points: ViT) -> None:
    assert same(load(ckpt), points)
    assert load(ckpt).meta == points.meta
    with torch.no_grad():
        assert torch.equal(create_model("auto", pretrained=ckpt).eval()(clouds()), points(clouds()))
    fresh = create_model("pointvit_tiny", pretrained=ckpt, num_classes=9)
    assert same(fresh, points, "trunk.")
    assert fresh.config.trunk.norm_eps == 1e-5
    report = load_checkpoint(fresh, ckpt)
    assert (report.source, report.coverage) == ("pointvit", 1.0)
    assert len(report.loaded) + len(report.set_aside) == len(points.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pointvit": None}, "expected a checkpoint of pointvit's training"),
        (
            {"pointvit": {"kind": "model", "model": {"modality": "smell"}, "meta": {}}},
            "does not describe a model",
        ),
        ({"pointvit": {"kind": "model"}}, "does not describe a model"),
        ({"state_dict": {}}, "the weights do not fit the model that is described beside them"),
    ],
)
def test_a_training_checkpoint_that_is_none(
    change: dict[str, Any], message: str, ckpt: Path, refused: Callable
) -> None:
    torch.save({**torch.load(ckpt), **change}, ckpt)
    with refused(ckpt, message):
        load(ckpt)


def test_points_train_further_from_images_and_images_from_points(
    tmp_path: Path, image: ViT, points: ViT
) -> None:
    from_image = create_model("pointvit_tiny", pretrained=save(image, tmp_path / "image"))
    assert same(from_image, image, "trunk.")
    assert from_image.config.trunk == TRUNK
    assert from_image.config.pos_mode == "once"
    from_points = create_model("vit_tiny_patch16_224", pretrained=save(points, tmp_path / "points"))
    assert same(from_points, points, "trunk.")
    report = load_checkpoint(from_points, tmp_path / "points")
    assert report.coverage == 1.0
    assert set(report.set_aside.values()) == {
        "the other modality's front end", "the file's head, trained on the other modality"
    }  # fmt: skip


def test_a_pair_is_read_through_its_image_encoder(tmp_path: Path, pair: Pair) -> None:
    folder = save(pair, tmp_path / "pair")
    image = create_model("auto", pretrained=folder).eval()
    assert image.config == IMAGE
    assert same(image, pair.image)
    model = ViT(IMAGE)
    report = load_checkpoint(model, folder)
    assert same(model, pair.image)
    own = {name for name in pair.points.state_dict() if not name.startswith(("trunk.", "cls_token"))}
    assert report.set_aside == {f"points.{name}": "the point encoder of a pair" for name in own}
    points = create_model("pointvit_tiny", pretrained=folder)
    assert same(points, pair.image, "trunk.")


def test_a_pair_takes_a_pair(tmp_path: Path, pair: Pair) -> None:
    other = Pair(ViT(IMAGE), ViT(POINTS))
    assert load_checkpoint(other, save(pair, tmp_path / "pair")).coverage == 1.0
    assert same(other.image, pair.image)


@pytest.mark.parametrize("setting", [{"norm_eps": 1e-6}, {"activation": "gelu"}, {"num_heads": 6}])
def test_other_settings_are_refused(
    setting: dict[str, Any], tmp_path: Path, pair: Pair, refused: Callable
) -> None:
    for saved, config in ((pair.image, POINTS), (pair.points, IMAGE), (pair, IMAGE), (pair.points, POINTS)):
        folder = save(saved, tmp_path / "saved")
        model = ViT(config.override(setting))
        with refused(folder, f"was trained with trunk.{next(iter(setting))}=", model):
            load_checkpoint(model, folder)


def test_where_positions_are_added_is_not_left_to_chance(
    tmp_path: Path, points: ViT, refused: Callable
) -> None:
    folder = save(points, tmp_path / "saved")
    model = ViT(replace(POINTS, pos_mode="once"))
    with refused(folder, "was trained with pos_mode='every_block', the model has 'once'", model):
        load_checkpoint(model, folder)


def test_a_config_of_another_model(tmp_path: Path, points: ViT, refused: Callable) -> None:
    folder = save(points, tmp_path / "saved")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"depth": 12', '"depth": 13'))
    with refused(folder, "its description says blocks: 13, its weights have 12"):
        create_model("auto", pretrained=folder)
    (folder / "config.json").write_text(text.replace('"depth"', '"layers"'))
    with refused(folder, "its config does not describe a model .*unknown key 'layers'"):
        create_model("auto", pretrained=folder)


def test_weights_without_their_config_are_still_the_same_layout(tmp_path: Path, points: ViT) -> None:
    path = save(points, tmp_path / "saved") / "model.safetensors"
    path = path.rename(tmp_path / "alone.safetensors")
    assert Checkpoint.open(path).source.name == "pointvit"
    model = ViT(POINTS)
    assert load_checkpoint(model, path).coverage == 1.0
    assert same(model, points)


def test_two_names_of_one_tensor_are_refused(tmp_path: Path, image: ViT, refused: Callable) -> None:
    state = image.state_dict()
    path = tmp_path / "both.safetensors"
    save_file({**state, "image.trunk.norm.bias": state["trunk.norm.bias"] + 1}, path)
    with refused(path, "image.trunk.norm.bias and trunk.norm.bias are names of the same tensor"):
        Checkpoint.open(path)


@pytest.mark.parametrize(
    "rename", [rename_prefixes, lambda t, table: rename_blocks(t, "b.{}.", "b.{}.", table)]
)
def test_renaming_loses_nothing(rename: Callable) -> None:
    tensors = {"b.0.old": torch.ones(1), "b.0.new": torch.zeros(1)}
    table = {"old": "new", "b.0.old": "b.0.new"}  # inside a block, and from the beginning
    with pytest.raises(ValueError, match="names of the same tensor, expected one"):
        rename(tensors, table)
    assert rename({"b.0.old": torch.ones(1)}, table).keys() == {"b.0.new"}


@pytest.mark.parametrize("changes", [{"depth": 10**9}, {"embed_dim": 10**9, "num_heads": 1}])
def test_a_saved_folder_is_compared_before_it_is_built(
    changes: dict[str, int], tmp_path: Path, pair: Pair, refused: Callable
) -> None:
    folder = save(pair, tmp_path / "pair")
    for part in ("image", "points"):
        text = (folder / "config.json").read_text()
        content = json.loads(text)
        content[part]["model"]["trunk"] |= changes
        (folder / "config.json").write_text(json.dumps(content))
        with refused(folder, "do not fit the model that is described beside them .*1e"):
            load(folder)
        (folder / "config.json").write_text(text)


def test_what_cannot_be_built_names_the_file(tmp_path: Path, image: ViT, refused: Callable) -> None:
    folder = save(image, tmp_path / "saved")
    with refused(folder, "no model can be built for it"):
        create_model("auto", pretrained=folder, global_pool="none of them")
