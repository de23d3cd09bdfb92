"""Round trips through the self-describing form and through every source's layout, bit for bit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pointvit import Pair, ViT, create_model, create_pair, load, load_checkpoint, save, save_checkpoint
from pointvit.checkpoints import SOURCES, layouts, saving, writing
from pointvit.checkpoints.archives import DTYPES
from pointvit.checkpoints.files import open_weights
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

TRUNK = TrunkConfig(96, 2, 3)
IMAGE = ViTConfig(TRUNK, ImageTokenizerConfig((32, 32), (8, 8)), num_classes=5)
POINT_TRUNK = replace(TRUNK, norm_eps=1e-5, qkv_bias=False)
POINTS = ViTConfig(
    POINT_TRUNK,
    PointTokenizerConfig(8, 4),
    num_classes=4,
    global_pool="cls+max",
    head="point_mae",
    pos_mode="every_block",
)
HYBRID = replace(IMAGE, tokenizer=ImageTokenizerConfig((64, 64), (16, 16), stem=(1, 1)))
ROOT_ONLY = replace(IMAGE, tokenizer=ImageTokenizerConfig((64, 64), (16, 16), stem=()))

EVERYWHERE = ("pointvit", "google", "huggingface", "timm")
LAYOUTS: dict[str, tuple[ViTConfig, tuple[str, ...]]] = {
    # what is written: the configuration, and sources that have a place for it, whatever others may have
    "plain": (IMAGE, EVERYWHERE),
    "no head": (replace(IMAGE, num_classes=0), EVERYWHERE),
    "six heads": (IMAGE.override({"num_heads": 6}), EVERYWHERE),
    "other width": (IMAGE.override({"embed_dim": 40, "num_heads": 5}), EVERYWHERE),
    "torchvision's patches": (IMAGE.override({"img_size": 64, "patch_size": 16}), ("torchvision", "timm")),
    "representation": (replace(IMAGE, representation_size=24), ("pointvit", "google", "timm")),
    "hybrid": (HYBRID, ("pointvit", "google", "timm")),
    "root only": (ROOT_ONLY, ("pointvit", "google", "timm")),
    "LayerScale": (IMAGE.override({"layer_scale": 0.1}), ("pointvit", "timm")),
    "registers": (replace(IMAGE, num_reg_tokens=3), ("pointvit", "timm")),
    "DINOv2": (
        IMAGE.override({"layer_scale": 0.1, "num_reg_tokens": 3, "num_classes": 0}),
        ("pointvit", "huggingface", "timm"),
    ),
    "other arithmetic": (
        IMAGE.override({"norm_eps": 1e-3, "activation": "quick_gelu"}), ("pointvit", "huggingface", "timm")
    ),
    "no qkv bias": (IMAGE.override({"qkv_bias": False}), ("pointvit", "huggingface", "timm")),
    "oblong": (IMAGE.override({"img_size": (16, 64)}), ("pointvit", "huggingface", "timm")),
    "CLIP": (
        IMAGE.override({"norm_pre": True, "patch_bias": False, "num_classes": 0, "norm_eps": 1e-5}),
        ("pointvit", "huggingface_clip", "timm"),
    ),
    "attention pooling": (
        IMAGE.override({"global_pool": "map", "class_token": False, "cls_pos": False}), ("pointvit", "timm")
    ),
    "fc_norm": (
        IMAGE.override({"fc_norm": True, "final_norm": False, "global_pool": "mean"}), ("pointvit", "timm")
    ),
    "sine-cosine positions": (IMAGE.override({"pos_embed": "sincos_2d"}), EVERYWHERE),
    "2D positions": (IMAGE.override({"pos_embed": "learned_2d"}), ("pointvit",)),
    "positions at every block": (replace(IMAGE, pos_mode="every_block"), ("pointvit",)),
    "a deep head": (replace(IMAGE, head="point_mae"), ("pointvit",)),
    "points": (POINTS, ("pointvit", "point_mae")),
}  # fmt: skip
WRITABLE = [name for name, source in SOURCES.items() if source.encode is not None]
WRITTEN = [(name, source) for name, (_, sources) in LAYOUTS.items() for source in sources]
OTHERS = [
    (name, source)
    for name, (config, sources) in LAYOUTS.items()
    for source in WRITABLE
    if source not in sources and SOURCES[source].modality == config.modality
]
NOWHERE = ("2D positions", "positions at every block", "a deep head")
"""Image encoders that no public layout has a place for."""
FORMS = {**dict.fromkeys(layouts.NPZ, "file.npz"), **dict.fromkeys(layouts.WRAPPERS, "file.pth")}


@pytest.fixture
def build(randomise: Callable) -> Callable[..., ViT]:
    return lambda config, seed=0: randomise(ViT(config), seed).eval()


@pytest.fixture
def pair(randomise: Callable) -> Pair:
    return randomise(Pair(ViT(IMAGE), ViT(replace(POINTS, trunk=TRUNK)))).eval()


def path_for(source: str, folder: Path) -> Path:
    return folder / FORMS.get(source, "file.safetensors")


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def images(config: ViTConfig) -> Tensor:
    return torch.randn(2, 3, *config.tokenizer.img_size, generator=torch.Generator().manual_seed(1))


def example(config: ViTConfig) -> Tensor:
    return images(config) if config.modality == "image" else clouds()


def clouds() -> Tensor:
    return torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(1))


def check_round_trip(model: ViT, other: ViT, source: str, folder: Path) -> None:
    """``model`` is written, and read again into a new model and into ``other``, bit for bit."""
    path = save_checkpoint(model, path_for(source, folder), source)
    assert [file.name for file in folder.iterdir()] == [path.name]
    again = create_model("auto", pretrained=path).eval()
    assert torch.equal(again(example(model.config)), model(example(model.config)))
    report = load_checkpoint(other, path)
    assert (report.source, report.coverage, report.new) == (source, 1.0, [])
    assert set(report.set_aside.values()) <= {"used in pre-training only"}
    assert same(other, model)


@torch.no_grad()
@pytest.mark.parametrize(("layout", "source"), WRITTEN)
def test_round_trip(layout: str, source: str, tmp_path: Path, build: Callable) -> None:
    config = LAYOUTS[layout][0]
    check_round_trip(build(config), build(config, seed=1), source, tmp_path)


@torch.no_grad()
@pytest.mark.parametrize(("layout", "source"), OTHERS)
def test_other_layouts_are_refused_or_exact(
    layout: str, source: str, tmp_path: Path, build: Callable, refused: Callable
) -> None:
    config = LAYOUTS[layout][0]
    model = build(config)
    try:
        save_checkpoint(model, path_for(source, tmp_path), source)
    except ValueError:
        with refused(None, "(a|the|have a) .*(layout has no place for|place in the .* layout)", model):
            save_checkpoint(model, path_for(source, tmp_path), source)
        assert not list(tmp_path.iterdir())
    else:
        assert layout not in NOWHERE
        check_round_trip(model, build(config, seed=1), source, tmp_path)


@torch.no_grad()
def test_timm_reads_what_is_written_for_it(tmp_path: Path, build: Callable, error_of: Callable) -> None:
    model = build(IMAGE)
    theirs = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=96, num_heads=3, depth=2, num_classes=5
    ).eval()
    for source in ("timm", "google"):
        path = save_checkpoint(model, path_for(source, tmp_path), source)
        timm.models.load_checkpoint(theirs, str(path)) if source == "timm" else theirs.load_pretrained(
            str(path)
        )
        assert error_of(theirs(images(IMAGE)), model(images(IMAGE))) <= 1e-5


@torch.no_grad()
def test_transformers_reads_what_is_written_for_it(
    tmp_path: Path, build: Callable, error_of: Callable
) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": 32,
        "patch_size": 8,
    }
    for kind, settings in (("ViT", {}), ("Dinov2", {"layer_scale": 0.1})):
        model = build(IMAGE.override({**settings, "num_classes": 0}))
        folder = tmp_path / kind
        save_checkpoint(model, folder / "model.safetensors", "huggingface")
        config_class = getattr(transformers, f"{kind}Config")
        own = {"intermediate_size": 384, "layer_norm_eps": 1e-6} if kind == "ViT" else {}
        config_class(**sizes, **own).save_pretrained(folder)
        theirs = getattr(transformers, f"{kind}Model").from_pretrained(folder).eval()
        expected = theirs(images(IMAGE)).last_hidden_state
        assert error_of(model.forward_features(images(IMAGE)), expected) <= 1e-5


@torch.no_grad()
def test_the_image_encoder_of_a_pair_is_written(tmp_path: Path, pair: Pair) -> None:
    path = save_checkpoint(pair, tmp_path / "pair.safetensors", "timm")
    assert same(create_model("auto", pretrained=path), pair.image)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("file.npz", "timm", "a timm checkpoint is written as .safetensors, got '.npz'"),
        ("file.pth", "huggingface", r"written as .safetensors or as a folder \(no ending\), got '.pth'"),
        ("folder", "google", "a google checkpoint is written as .npz, got 'no ending'"),
        ("file.safetensors", "point_mae", "a point_mae checkpoint is written as .pth"),
        ("file.safetensors", "google", "a google checkpoint is written as .npz"),
        ("file", "timm", "got 'no ending'"),
        ("file.safetensors", "tim", "unknown checkpoint source 'tim'; did you mean timm?"),
    ],
)
def test_wrong_names(
    name: str, source: str, message: str, tmp_path: Path, build: Callable, refused: Callable
) -> None:
    with refused(None, message):
        save_checkpoint(build(IMAGE), tmp_path / name, source)


@pytest.mark.parametrize(
    ("config", "source", "message"),
    [
        (POINTS, "timm", "only image encoders have a place in the timm layout, this model encodes points"),
        (IMAGE, "point_mae", "only encoders of points have a place in the point_mae layout"),
    ],
)
def test_a_layout_of_the_other_modality(
    config: ViTConfig, source: str, message: str, tmp_path: Path, build: Callable, refused: Callable
) -> None:
    with refused(None, message):
        save_checkpoint(build(config), path_for(source, tmp_path), source)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", [name for name in SOURCES if name not in WRITABLE])
def test_sources_that_are_only_read(source: str, tmp_path: Path, build: Callable, refused: Callable) -> None:
    with refused(None, f"{source} checkpoints are only read"):
        save_checkpoint(build(IMAGE), tmp_path / "file.safetensors", source)


def test_a_model_without_numbers_is_not_written(tmp_path: Path, refused: Callable) -> None:
    with torch.device("meta"):
        model = ViT(IMAGE)
    with refused(None, "on the meta device, which holds no numbers to write"):
        save_checkpoint(model, tmp_path / "file.safetensors")
    assert not list(tmp_path.iterdir())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("source", EVERYWHERE)
def test_the_type_of_numbers_is_kept(
    source: str, dtype: torch.dtype, tmp_path: Path, build: Callable
) -> None:
    model = build(IMAGE).to(dtype)
    path = save_checkpoint(model, path_for(source, tmp_path), source)
    kept = torch.float32 if (source, dtype) == ("google", torch.bfloat16) else dtype
    assert {tensor.dtype for tensor in open_weights(path).tensors.values()} == {kept}
    again = create_model("auto", pretrained=path).to(dtype)
    assert dtype == torch.float64 or same(again, model)


def test_safetensors_is_written_as_its_own_package_reads_it(tmp_path: Path) -> None:
    tensors = {name: torch.arange(12).reshape(3, 4).to(dtype).T for name, dtype in DTYPES.items()}
    tensors |= {
        "empty": torch.ones(0, 3),
        "scalar": torch.tensor(2.5),
        "shared": torch.ones(2, 1).expand(2, 3),
    }
    writing.write_safetensors(tmp_path / "a.safetensors", dict(tensors), {"format": "pt", "é": '"'})
    read = load_file(tmp_path / "a.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert read[name].flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8))
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "é": '"'}


def test_a_folder_for_the_readers_of_the_source(tmp_path: Path, build: Callable) -> None:
    model = build(IMAGE)
    folder = save_checkpoint(model, tmp_path / "a" / "vit", "huggingface")
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    again = create_model("auto", pretrained=folder).eval()
    assert torch.equal(again(images(IMAGE)), model(images(IMAGE)))
    other = build(IMAGE, seed=1)
    save_checkpoint(other, folder, "huggingface")
    assert same(create_model("auto", pretrained=folder), other)
    assert [file.name for file in folder.parent.iterdir()] == ["vit"]


def test_a_folder_of_others_is_not_replaced(tmp_path: Path, build: Callable) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "vit"}')
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    for path, message in (
        (folder, "exists and is not a saved model"),
        (tmp_path / "x.safetensors", "is a folder"),
    ):
        (tmp_path / "x.safetensors").mkdir(exist_ok=True)
        with pytest.raises(FileExistsError, match=message):
            save_checkpoint(build(IMAGE), path, "huggingface")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["theirs", "x.safetensors"]


def test_point_models_are_written_as_their_own_code_reads_them(tmp_path: Path, build: Callable) -> None:
    model = build(POINTS)
    content = torch.load(save_checkpoint(model, tmp_path / "p.pth", "point_mae"), weights_only=True)
    assert torch.equal(
        content["base_model"]["blocks.blocks.1.attn.proj.weight"], model.trunk.blocks[1].attn.proj.weight
    )
    pair = Pair(build(IMAGE.override({"norm_eps": 1e-5, "qkv_bias": False})), model)
    path = save_checkpoint(pair, tmp_path / "pair.pth", "point_mae")
    assert same(create_model("auto", pretrained=path), pair.points)


@pytest.mark.parametrize("source", EVERYWHERE)
def test_an_interrupted_save_checkpoint_leaves_what_was_there(
    source: str, tmp_path: Path, build: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_for(source, tmp_path)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    save_checkpoint(build(IMAGE), path, source)
    before = path.read_bytes()
    for place in ("torch.Tensor.view", "numpy.lib.format.write_array_header_1_0"):
        monkeypatch.setattr(place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(build(IMAGE, seed=1), path, source)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


# The self-describing form.


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_saved_images(layout: str, tmp_path: Path, build: Callable) -> None:
    config = LAYOUTS[layout][0]
    model = build(config)
    again = load(save(model, tmp_path / "saved"))
    assert isinstance(again, ViT)
    assert again.config == config
    assert not again.training
    assert same(again, model)
    assert torch.equal(again(example(config)), model(example(config)))


@torch.no_grad()
def test_saved_points(tmp_path: Path, build: Callable) -> None:
    model = build(POINTS)
    again = load(save(model, tmp_path / "saved"))
    assert again.config == POINTS
    assert same(again, model)
    assert torch.equal(again(clouds()), model(clouds()))


@torch.no_grad()
def test_pairs_store_the_shared_trunk_once_and_share_it_again(tmp_path: Path, pair: Pair) -> None:
    folder = save(pair, tmp_path / "pair")
    stored = load_file(folder / "model.safetensors")
    unique = {id(tensor): tensor for tensor in pair.state_dict(keep_vars=True).values()}
    assert len(stored) == len(unique) < len(pair.state_dict())
    numbers = sum(tensor.numel() for tensor in stored.values())
    assert numbers == sum(tensor.numel() for tensor in unique.values())
    assert (folder / "model.safetensors").stat().st_size < 4 * numbers + 20_000
    again = load(folder)
    assert isinstance(again, Pair)
    assert same(again, pair)
    assert again.points.trunk is again.image.trunk
    assert again.points.cls_token is again.image.cls_token
    shared = {id(p) for p in again.image.parameters()} & {id(p) for p in again.points.parameters()}
    assert len(shared) == len(list(again.trunk.parameters())) + 1
    assert torch.equal(again.image(images(IMAGE)), pair.image(images(IMAGE)))
    assert torch.equal(again.points(clouds()), pair.points(clouds()))


@torch.no_grad()
def test_a_named_pair(tmp_path: Path, build: Callable) -> None:
    path = save_checkpoint(build(IMAGE), tmp_path / "image.safetensors")
    pair = create_pair("auto", pretrained=path, num_classes=3, num_groups=8, group_size=4).eval()
    again = load(save(pair, tmp_path / "pair"))
    assert torch.equal(again.points(clouds()), pair.points(clouds()))


def test_metadata_survives(tmp_path: Path, build: Callable, pair: Pair) -> None:
    for model, part in ((build(POINTS), lambda m: m), (pair, lambda m: m.points), (pair, lambda m: m.image)):
        meta = part(model).meta
        odd = ["été", 'a "b"', "<c>", "[d]", ""]
        meta.class_names, meta.num_points, meta.up_axis = odd[: part(model).num_classes], 4096, "y"
        meta.image_mean, meta.image_std, meta.normalization = (0.5, 0.25, 0.125), (1.0, 2.0, 3.0), "none"
        meta.source = {"file": "x.npz", "sha256": "0" * 64, "format": "google"}
        again = part(load(save(model, tmp_path / "saved"))).meta
        assert again == meta
        assert isinstance(again.image_mean, tuple)
        assert isinstance(again.image_std, tuple)
        assert isinstance(again.class_names, list)


def test_what_is_written(tmp_path: Path, build: Callable) -> None:
    folder = save(build(POINTS), tmp_path / "a" / "b" / "saved")
    assert {file.name for file in folder.iterdir()} >= {"config.json", "model.safetensors"}
    assert [file.name for file in folder.parent.iterdir()] == ["saved"]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["pointvit"], config["kind"], config["model"]["modality"]) == (1, "model", "points")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(ViT(POINTS).state_dict())


def test_a_saved_model_is_replaced(tmp_path: Path, build: Callable) -> None:
    save(build(IMAGE), tmp_path / "saved")
    model = build(POINTS)
    assert same(load(save(model, tmp_path / "saved")), model)
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]
    (tmp_path / "empty").mkdir()
    assert same(load(save(model, tmp_path / "empty")), model)


@pytest.mark.parametrize(
    "files",
    [
        {"notes.txt": "mine"},
        {"config.json": '{"model_type": "vit"}', "model.safetensors": "weights"},
        {"config.json": "{", "model.safetensors": "weights"},
        {"model.safetensors": "weights"},
        {"config.json": '{"pointvit": 1}', "model.safetensors": "weights", "notes.txt": "mine"},
    ],
)
def test_a_foreign_folder_is_not_overwritten(files: dict[str, str], tmp_path: Path, build: Callable) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(
        FileExistsError, match="foreign: exists and is not a saved model; choose another folder"
    ):
        save(build(IMAGE), folder)
    assert {file.name: file.read_text() for file in folder.iterdir()} == files
    assert [file.name for file in tmp_path.iterdir()] == ["foreign"]


def test_a_file_is_not_overwritten(tmp_path: Path, build: Callable) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="exists and is not a saved model"):
        save(build(IMAGE), tmp_path / "file")


@pytest.mark.parametrize("where", ["saving.write_safetensors", "saving.described", "writing._put_in_place"])
@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_save_leaves_what_was_there(
    where: str, existing: bool, tmp_path: Path, build: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, first = tmp_path / "saved", build(IMAGE)
    if existing:
        save(first, folder)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"pointvit.checkpoints.{where}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(build(IMAGE, seed=1), folder)
    assert [file.name for file in tmp_path.iterdir()] == (["saved"] if existing else [])
    if existing:
        assert same(load(folder), first)


def test_a_save_that_fails_while_replacing_puts_the_old_model_back(
    tmp_path: Path, build: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(IMAGE)
    folder = save(first, tmp_path / "saved")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == folder and "previous" not in self.name:
            raise OSError("the disk is gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        save(build(IMAGE, seed=1), folder)
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]
    assert same(load(folder), first)


def edited(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_loading_refuses_what_does_not_belong_together(
    tmp_path: Path, build: Callable, refused: Callable
) -> None:
    folder = save(build(IMAGE), tmp_path / "saved")
    original = (folder / "config.json").read_text()
    model, meta = (json.loads(original)[part] for part in ("model", "meta"))
    for changes, message in [
        ({"pointvit": 2}, r"expected a model saved by pointvit \(format 1\)"),
        ({"model": {**model, "num_classes": 6}}, "the weights do not fit the model .*head"),
        ({"model": {**model, "trunk": {**model["trunk"], "depth": 3}}}, "the weights do not fit the model"),
        ({"model": {**model, "trunk": {**model["trunk"], "embed_dim": 190}}}, "multiple of num_heads"),
        ({"model": {**model, "colour": "red"}}, "does not describe a model .*unknown key 'colour'"),
        ({"meta": {**meta, "colour": "red"}}, "does not describe a model .*colour"),
        ({"model": None}, "does not describe a model"),
        ({"kind": "pair"}, "does not describe a model"),
    ]:
        edited(folder, **changes)
        with refused(folder, message):
            load(folder)
        (folder / "config.json").write_text(original)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("trunk.norm.bias")
    save_file(tensors, folder / "model.safetensors")
    with refused(folder, "the weights do not fit the model .*trunk.norm.bias"):
        load(folder)


def test_loading_refuses_other_folders(tmp_path: Path, refused: Callable) -> None:
    with refused(tmp_path, "model.safetensors is not there"):
        load(tmp_path)
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with refused(tmp_path, "config.json is not there"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with refused(tmp_path, "for other checkpoints use create_model"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with refused(tmp_path, "not valid JSON"):
        load(tmp_path)
    with refused(tmp_path / "none.ckpt", "no such file"):
        load(tmp_path / "none.ckpt")


def test_the_npz_is_plain(tmp_path: Path, build: Callable) -> None:
    path = save_checkpoint(build(IMAGE), tmp_path / "file.npz", "google")
    with np.load(path, allow_pickle=False) as archive:
        assert {archive[name].dtype for name in archive.files} == {np.dtype(np.float32)}
        assert archive["Transformer/encoderblock_1/MultiHeadDotProductAttention_1/out/kernel"].shape == (
            3,
            32,
            96,
        )
        assert archive["embedding/kernel"].shape == (8, 8, 3, 96)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kind", "zoo", "kind must be model or pair, got 'zoo'"),
        ("meta", None, "does not describe a model"),
        ("class_names", ["a"], "1 names, the model 4 classes"),
        ("class_names", 5, "class_names must be a list"),
        ("num_points", "many", "num_points must be"),
        ("up_axis", "x", "up_axis must be y or z"),
        ("normalization", "box", "normalization unit_sphere or none"),
    ],
)
def test_a_description_that_cannot_be_right(
    tmp_path: Path, build: Callable, refused: Callable, key: str, value: Any, message: str
) -> None:
    folder = save(build(POINTS), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (config if key in config else config["meta"])[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with refused(folder, message):
        load(folder)


def test_class_names_go_with_the_classes(tmp_path: Path, build: Callable) -> None:
    model = build(POINTS)
    model.meta.class_names = ["a", "b", "c", "d"]
    model.reset_classifier(4)
    assert model.meta.class_names == ["a", "b", "c", "d"]
    model.reset_classifier(7)
    assert load(save(model, tmp_path / "m")).meta.class_names is None
    model.meta.class_names = ["a"]
    with pytest.raises(ValueError, match="1 names, the model 7 classes"):
        save(model, tmp_path / "n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]


def test_a_training_checkpoint_without_weights(tmp_path: Path, build: Callable, refused: Callable) -> None:
    described = saving.describe(build(POINTS))
    for name, content in (
        ("expected a state_dict", {"pointvit": described, "state_dict": [1]}),
        ("odd.ckpt: does not describe a model", {"pointvit": {**described, "meta": None}, "state_dict": {}}),
    ):
        torch.save(content, tmp_path / "odd.ckpt")
        with refused(tmp_path / "odd.ckpt", name):
            load(tmp_path / "odd.ckpt")
