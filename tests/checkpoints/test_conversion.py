"""From one layout to another without a model: nothing is lost, changed, left unsaid or held twice."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import parity
from parity import Row
from pointvit import ViT, create_model, save, save_checkpoint
from pointvit.checkpoints import SOURCES, Checkpoint, CheckpointError
from pointvit.checkpoints.conversion import convert
from pointvit.checkpoints.files import open_weights
from pointvit.checkpoints.layouts import NPZ, WRAPPERS
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

IMAGE = ViTConfig(TrunkConfig(96, 2, 3), ImageTokenizerConfig((32, 32), (8, 8)), num_classes=5)
POINTS = replace(IMAGE, tokenizer=PointTokenizerConfig(8, 4), global_pool="cls+max", head="point_mae")
FORMS = {**dict.fromkeys(NPZ, ".npz"), **dict.fromkeys(WRAPPERS, ".pth")}
CHAINS = [
    ("timm", "google", "huggingface", "timm"),
    ("huggingface", "timm", "google", "huggingface"),
    ("google", "huggingface", "timm", "google"),
    ("pointvit", "timm", "huggingface", "pointvit"),
]


def path_for(source: str, folder: Path, stem: str) -> Path:
    return folder / (stem + FORMS.get(source, ".safetensors"))


@pytest.fixture
def image(randomise: Callable) -> ViT:
    return randomise(ViT(IMAGE)).eval()


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_round_trips_are_the_identity(
    chain: tuple[str, ...], dtype: torch.dtype, tmp_path: Path, image: ViT
) -> None:
    first = save_checkpoint(image.to(dtype), path_for(chain[0], tmp_path, "0"), chain[0])
    path, last = first, first
    for number, source in enumerate(chain[1:], start=1):
        path, last = path_for(source, tmp_path, str(number)), path
        done = convert(last, path, source)
        assert (done.source, done.target, done.set_aside) == (chain[number - 1], source, {})
        assert done.numbers == sum(tensor.numel() for tensor in image.state_dict().values())
    before, after = open_weights(first).tensors, open_weights(path).tensors
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype == dtype
        assert torch.equal(after[name], tensor), name
    assert Checkpoint.open(path).encoder_config() == Checkpoint.open(first).encoder_config()


@pytest.mark.parametrize("row", parity.sampled_rows())
def test_public_files_survive_the_way_through_our_own_layout(
    row: Row, tmp_path: Path, randomise: Callable, refused: Callable
) -> None:
    (tmp_path / "public").mkdir()
    path = row.write(randomise(row.build()).eval(), tmp_path / "public")
    ours, again = tmp_path / "ours.safetensors", path_for(row.source, tmp_path, "again")
    asked, before = dict(row.settings), Checkpoint.open(path)
    if missing := [name for name in SOURCES[row.source].new if name not in before.tensors]:
        with refused(path, f"lacks {missing[0]}.*, which later training adds"):
            convert(path, ours, "pointvit", asked=asked)
        return
    assert convert(path, ours, "pointvit", asked=asked).set_aside == before.set_aside
    after = Checkpoint.open(ours)
    assert after.encoder_config() == before.encoder_config(asked).override(asked)
    check_equal(before.tensors, after.tensors)
    if SOURCES[row.source].encode is None:
        return
    try:
        convert(ours, again, row.source)
    except CheckpointError:  # what is read here, and others would read as another model from what is written
        with refused(ours, "layout has no place for"):
            convert(ours, again, row.source)
        assert not again.exists()
    else:
        check_equal(before.tensors, Checkpoint.open(again).tensors)


def check_equal(before: parity.Tensors, after: parity.Tensors) -> None:
    fixed = {"pos_embed"}  # sines and cosines, which files need not hold
    assert before.keys() - fixed == after.keys() - fixed
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor), name


@torch.no_grad()
def test_a_converted_file_is_the_same_model(tmp_path: Path, image: ViT) -> None:
    quick = ViT(IMAGE.override({"activation": "quick_gelu", "norm_eps": 1e-3, "num_heads": 6}))
    quick.load_state_dict(image.state_dict())
    x = torch.randn(2, 3, 32, 32)
    path = save_checkpoint(quick, tmp_path / "quick.safetensors", "timm")
    convert(path, tmp_path / "hf", "huggingface")
    assert sorted(file.name for file in (tmp_path / "hf").iterdir()) == [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
    ]
    again = create_model("auto", pretrained=tmp_path / "hf").eval()
    assert torch.equal(again(x), quick.eval()(x))
    assert again.config.trunk == quick.config.trunk


def test_metadata_goes_with_the_weights(tmp_path: Path, image: ViT) -> None:
    image.meta.class_names, image.meta.image_mean = list("abcde"), (0.1, 0.2, 0.3)
    folder = save(image, tmp_path / "saved")
    convert(folder, tmp_path / "timm.safetensors", "timm")
    meta = create_model("auto", pretrained=tmp_path / "timm.safetensors").meta
    assert (meta.class_names, meta.image_mean) == (list("abcde"), (0.1, 0.2, 0.3))


def test_what_the_file_leaves_open_is_asked_for(tmp_path: Path, image: ViT, refused: Callable) -> None:
    tensors = load_file(save_checkpoint(image, tmp_path / "a.safetensors", "timm"))
    path = tmp_path / "bare.safetensors"
    save_file(tensors, path)
    with refused(path, "does not say num_heads"):
        convert(path, tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()
    convert(path, tmp_path / "out", "huggingface", asked={"num_heads": 3})
    assert create_model("auto", pretrained=tmp_path / "out").config.trunk.num_heads == 3


def test_what_is_set_aside_is_named(tmp_path: Path, image: ViT) -> None:
    tensors = load_file(save_checkpoint(image, tmp_path / "a.safetensors", "timm"))
    save_file({**tensors, "decoder_embed.weight": torch.ones(4, 96)}, tmp_path / "b.safetensors")
    done = convert(tmp_path / "b.safetensors", tmp_path / "c.npz", "google", asked={"num_heads": 3})
    assert done.set_aside.keys() == {"decoder_embed.weight"}
    assert done.sizes == {"decoder_embed.weight": 4 * 96}
    assert done.numbers == sum(tensor.numel() for tensor in tensors.values())


def test_bfloat16_becomes_float32_where_there_is_none(tmp_path: Path, image: ViT) -> None:
    path = save_checkpoint(image.bfloat16(), tmp_path / "a.safetensors", "timm")
    assert convert(path, tmp_path / "b.npz", "google").dtypes == ("bfloat16",)
    before, after = Checkpoint.open(path).tensors, Checkpoint.open(tmp_path / "b.npz").tensors
    assert all(torch.equal(after[name], tensor.float()) for name, tensor in before.items())


CHANGES = {
    "an extra tensor": ({"blocks.1.extra": torch.ones(2)}, r"holds trunk.blocks.1.extra, unlike"),
    "a tensor missing": ({"blocks.1.norm2.bias": None}, r"lacks trunk.blocks.1.norm2.bias, unlike"),
    "another shape": ({"blocks.1.mlp.fc1.weight": torch.ones(96, 384)}, r"expected .*shape \(384, 96\), got"),
    "NaN": ({"blocks.1.norm2.bias": torch.full((96,), torch.nan)}, "norm2.bias holds NaN"),
    "no place": ({"reg_token": torch.ones(1, 2, 96)}, "the google layout has no place for"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_nothing_unexplained_goes_through(case: str, tmp_path: Path, image: ViT, refused: Callable) -> None:
    change, message = CHANGES[case]
    tensors = load_file(save_checkpoint(image, tmp_path / "a.safetensors", "timm")) | change
    path = tmp_path / "changed.safetensors"
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with refused(path, message):
        convert(path, tmp_path / "out.npz", "google", asked={"num_heads": 3})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.safetensors", "changed.safetensors"]


def test_wrong_requests(tmp_path: Path, image: ViT, randomise: Callable, refused: Callable) -> None:
    path = save_checkpoint(image, tmp_path / "a.safetensors", "timm")
    points = save(randomise(ViT(POINTS)), tmp_path / "points")
    cases = [
        (path, path, "timm", "would replace the file it is made from"),
        (path, tmp_path / "b.pth", "timm", "a timm checkpoint is written as .safetensors, got '.pth'"),
        (path, tmp_path / "b.safetensors", "tim", "unknown checkpoint source 'tim'; did you mean timm"),
        (path, tmp_path / "b.pth", "point_mae", "only encoders of points have a place"),
        (points, tmp_path / "b.safetensors", "timm", "only image encoders have a place"),
        (tmp_path / "none.pth", tmp_path / "b.safetensors", "timm", "no such file or folder"),
    ]
    for file, out, target, message in cases:
        with refused(None, message):
            convert(file, out, target)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.safetensors", "points"]


def test_no_file_that_is_read_is_replaced(tmp_path: Path, image: ViT, refused: Callable) -> None:
    folder = save(image, tmp_path / "saved")
    (tmp_path / "link.safetensors").symlink_to(folder / "model.safetensors")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for file, out, target in (
        (folder, folder / "model.safetensors", "timm"),
        (folder, tmp_path / "link.safetensors", "timm"),
        (folder / "model.safetensors", folder, "pointvit"),
        (tmp_path / "link.safetensors", folder / "model.safetensors", "timm"),
    ):
        with refused(None, f"{out}: would replace the file it is made from"):
            convert(file, out, target, asked={"num_heads": 3, "norm_eps": 1e-6, "activation": "gelu"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_link_is_written_through(tmp_path: Path, image: ViT) -> None:
    path = save_checkpoint(image, tmp_path / "a.safetensors", "timm")
    (tmp_path / "b.safetensors").write_bytes(b"old")
    (tmp_path / "link.safetensors").symlink_to("b.safetensors")
    convert(path, tmp_path / "link.safetensors", "timm")
    assert (tmp_path / "link.safetensors").is_symlink()
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()


def test_what_cannot_be_written_is_named(tmp_path: Path, image: ViT, refused: Callable) -> None:
    path = save_checkpoint(image, tmp_path / "a.safetensors", "timm")
    out = path / "b.safetensors"
    with pytest.raises(OSError, match=rf"{out}: cannot be written \(.*choose another place"):
        convert(path, out, "timm")
    os.mkfifo(tmp_path / "pipe.safetensors")
    with refused(tmp_path / "pipe.safetensors", "this is a named pipe"):
        convert(path, tmp_path / "pipe.safetensors", "timm")


PROBE = """
import re, sys
from pathlib import Path
import torch
from pointvit.checkpoints import Checkpoint, conversion, inspection
task, file, *rest = sys.argv[1:]
if task == "open":
    kept = Checkpoint.open(file)
    total = sum(tensor.sum().item() for tensor in kept.tensors.values())
elif task == "convert":
    conversion.convert(file, *rest)
else:
    inspection.inspect(file)
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""
"""Linux counts `ru_maxrss` from the parent's on, so that a large test process would hide everything."""


def peak(*arguments: str) -> int:
    """Bytes of memory that a process of its own holds at most."""
    command = [sys.executable, "-c", PROBE, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


@pytest.mark.slow
def test_memory_holds_the_tensors_about_once(tmp_path: Path) -> None:
    """Beyond what the same task takes for a small file, at most 1.3 times the difference of the sizes."""
    paths = {}
    for name, width, depth in (("small", 64, 1), ("large", 640, 12)):
        config = ViTConfig(TrunkConfig(width, depth, width // 64), num_classes=0)
        paths[name] = save_checkpoint(ViT(config), tmp_path / f"{name}.safetensors", "huggingface")
    size = paths["large"].stat().st_size - paths["small"].stat().st_size
    assert size > 200e6
    steps = [("timm", ".safetensors"), ("google", ".npz"), ("huggingface", ".safetensors")]
    for target, suffix in steps:
        for task, most in (("open", 1.3 * size), ("inspect", 0.1 * size)):
            assert peak(task, str(paths["large"])) - peak(task, str(paths["small"])) <= most, (task, target)
        out = {name: tmp_path / f"{name}_{target}{suffix}" for name in paths}
        peaks = [peak("convert", str(paths[name]), str(out[name]), target) for name in ("large", "small")]
        assert peaks[0] - peaks[1] <= 1.3 * size, target
        for path in paths.values():
            path.unlink()
        paths = out
