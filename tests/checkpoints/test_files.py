"""Weight files that are damaged, are something else, or would run code: refused in one sentence."""

import argparse
import collections
import hashlib
import json
import os
import pickle
import random
import types
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pointvit import CheckpointError, ViT, load_checkpoint
from pointvit.checkpoints import archives
from pointvit.checkpoints.files import open_weights, read_torch
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

TENSORS = {"a.weight": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5)}
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 346333192\n"
WEB_PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Not found</title></head></html>\n" * 20
SUFFIXES = [".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt"]


@pytest.fixture(scope="module")
def model() -> ViT:
    return ViT(ViTConfig(TrunkConfig(192, 1, 3), ImageTokenizerConfig((16, 16), (8, 8)), num_classes=2))


def write(path: Path, tensors: dict[str, Tensor], **options: Any) -> Path:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    else:
        torch.save(tensors, path, **options)
    return path


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".PTH"])
def test_every_ending_is_read(suffix: str, tmp_path: Path) -> None:
    read = open_weights(write(tmp_path / f"weights{suffix}", TENSORS))
    assert read.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(read.tensors[name], tensor)
    assert read.config is None


@pytest.mark.parametrize("suffix", [*SUFFIXES, ".legacy.pth"])
def test_headers_alone(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and types of all tensors, and the numbers of positions and small tensors."""
    monkeypatch.setattr(archives, "SMALL", 8)
    options = {"_use_new_zipfile_serialization": False} if suffix == ".legacy.pth" else {}
    tensors = {**TENSORS, "c": torch.ones(3, 4, dtype=torch.float16), "posembed/x": torch.rand(3, 4)}
    path = write(tmp_path / f"weights{suffix}", tensors, **options)
    whole, headers = open_weights(path), open_weights(path, headers_only=True)
    assert (headers.sha256, headers.size) == (whole.sha256, path.stat().st_size)
    assert [name for name, tensor in headers.tensors.items() if tensor.is_meta] == ["a.weight", "c"]
    for name, tensor in tensors.items():
        read = headers.tensors[name]
        assert (read.shape, read.dtype) == (tensor.shape, tensor.dtype)
        assert read.is_meta or torch.equal(read, tensor)


def test_headers_of_a_compressed_file(tmp_path: Path) -> None:
    """Its parts cannot be mapped, since they do not lie in it as they are."""
    path, tensors = tmp_path / "weights.pth", {"pos_embed": torch.arange(99.0), "a": torch.ones(99, 99)}
    torch.save(tensors, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    for headers_only in (False, True):
        read = open_weights(path, headers_only).tensors
        assert torch.equal(read["pos_embed"], tensors["pos_embed"])
        assert read["a"].is_meta == headers_only


def test_a_header_whose_length_begins_as_a_pickle_does(tmp_path: Path) -> None:
    """As 0x480 bytes do, in little-endian order."""
    path = tmp_path / "weights.safetensors"
    for version in (2, 3, 4, 5):
        wanted = version * 256 + 0x80
        save_file({"a": torch.ones(2)}, path, metadata={"x": ""})
        padding = wanted - int.from_bytes(path.read_bytes()[:8], "little")
        save_file({"a": torch.ones(2)}, path, metadata={"x": "x" * padding})
        assert path.read_bytes()[:2] == bytes((0x80, version))
        assert open_weights(path).tensors["a"].sum() == 2


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, a=np.zeros(3))
    assert open_weights(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (LFS_POINTER, "Git LFS pointer"),
        (WEB_PAGE, "a web page"),
        (b"\x00\xffnonsense" * 100, "damaged or of another kind"),
    ],
)
def test_other_content(
    suffix: str, content: bytes, message: str, tmp_path: Path, model: ViT, refused: Callable
) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with refused(path, message, model):
        load_checkpoint(model, path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".legacy.pth"])
def test_truncated(suffix: str, tmp_path: Path, model: ViT, refused: Callable) -> None:
    options = {"_use_new_zipfile_serialization": False} if suffix == ".legacy.pth" else {}
    path = write(tmp_path / f"weights{suffix}", {**TENSORS, "c": torch.randn(1000)}, **options)
    content = path.read_bytes()
    for share in (0.01, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(content[: max(1, int(share * len(content)))])
        with refused(path, "damaged or of another kind", model):
            load_checkpoint(model, path)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".legacy.pth"])
def test_damage_anywhere_is_refused_or_harmless(suffix: str, tmp_path: Path) -> None:
    """Whatever bytes are wrong, opening ends in tensors or in a CheckpointError, never in another error."""
    options = {"_use_new_zipfile_serialization": False} if suffix == ".legacy.pth" else {}
    path = write(tmp_path / f"weights{suffix}", TENSORS, **options)
    content, rng, failures = path.read_bytes(), random.Random(0), 0
    for _ in range(80):
        damaged = bytearray(content)
        for _ in range(3):
            damaged[rng.randrange(min(len(content), 900))] = rng.randrange(256)
        path.write_bytes(bytes(damaged))
        try:
            open_weights(path)
        except CheckpointError:
            failures += 1
    assert failures > 10


class Acts:
    """A pickle of it calls ``os.mkdir`` when it is opened without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("name", ["weights.pth", "best.ckpt", "pytorch_model.bin"])
def test_a_pickle_that_acts_does_not(
    name: str, legacy: bool, tmp_path: Path, model: ViT, refused: Callable
) -> None:
    path, trace = tmp_path / name, tmp_path / "the code ran"
    content = {"model": TENSORS, "extra": Acts(trace)}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    with refused(path, r"holds more than tensors and plain containers \(posix.mkdir\)", model):
        load_checkpoint(model, path)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the file would not have acted, so the test shows nothing"


def test_a_bare_pickle_that_acts_does_not(tmp_path: Path, model: ViT, refused: Callable) -> None:
    path, trace = tmp_path / "weights.pt", tmp_path / "the code ran"
    path.write_bytes(pickle.dumps(Acts(trace)))
    with refused(path, "damaged|more than tensors", model):
        load_checkpoint(model, path)
    assert not trace.exists()


def test_an_npz_of_objects_is_not_unpickled(tmp_path: Path, model: ViT, refused: Callable) -> None:
    path, trace = tmp_path / "weights.npz", tmp_path / "the code ran"
    np.savez(path, a=np.array([Acts(trace)], dtype=object), allow_pickle=True)
    with refused(path, "not a readable .npz file of plain arrays", model):
        load_checkpoint(model, path)
    assert not trace.exists()


def test_a_whole_pickled_module_is_refused(tmp_path: Path, model: ViT, refused: Callable) -> None:
    path = tmp_path / "module.pth"
    torch.save(nn.Linear(2, 2), path)
    with refused(path, r"more than tensors and plain containers \(torch.nn.modules.linear.Linear\)", model):
        load_checkpoint(model, path)


@pytest.mark.parametrize("legacy", [False, True])
def test_what_training_scripts_put_beside_weights_is_harmless(legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    optimiser = torch.optim.AdamW([nn.Parameter(torch.ones(2))])
    optimiser.param_groups[0]["params"][0].grad = torch.ones(2)
    optimiser.step()
    history = collections.defaultdict(list)
    history["loss"].append(0.5)
    extras = {
        "optimizer": optimiser.state_dict(),
        "history": history,
        "nested": collections.defaultdict(dict, a={"b": collections.OrderedDict(c=1)}),
        "best": collections.Counter(a=2),
        "output": Path("runs") / "a",
        "shape": torch.Size([2, 3]),
        "options": types.SimpleNamespace(lr=1e-3),
        "array": np.arange(6.0).reshape(2, 3),
        "args": argparse.Namespace(lr=1e-3, name="run"),
        "scores": [np.float64(1.5), np.float32(2.5), np.int64(3), np.bool_(True)],
    }
    torch.save({"model": TENSORS, **extras}, path, _use_new_zipfile_serialization=not legacy)
    assert open_weights(path).tensors.keys() == TENSORS.keys()
    read = read_torch(path)
    assert read["history"] == history
    assert read["output"] == PurePosixPath("runs/a")
    assert (read["array"] == extras["array"]).all()


def test_numpy_scalars_of_older_numpy(tmp_path: Path) -> None:
    """They name ``numpy.core``, which is ``numpy._core`` since numpy 2."""
    path = tmp_path / "weights.pth"
    torch.save({"model": TENSORS, "score": np.float64(1.5)}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert open_weights(path).tensors.keys() == TENSORS.keys()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript(tmp_path: Path, model: ViT, refused: Callable) -> None:
    path = tmp_path / "program.pt"
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)), path)
    with refused(path, "this is a TorchScript program", model):
        load_checkpoint(model, path)


@pytest.mark.parametrize("content", [torch.ones(3), [torch.ones(3)], 5])
def test_no_mapping(content: Any, tmp_path: Path, model: ViT, refused: Callable) -> None:
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    with refused(path, "expected a mapping of names to tensors", model):
        load_checkpoint(model, path)


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, {"model": {}}])
def test_no_tensors(content: Any, tmp_path: Path, model: ViT, refused: Callable) -> None:
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    with refused(path, "holds no tensors", model):
        load_checkpoint(model, path)


def test_an_array_where_an_archive_was_expected(tmp_path: Path, model: ViT, refused: Callable) -> None:
    path = tmp_path / "weights.npz"
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with refused(path, "not a readable .npz file", model):
        load_checkpoint(model, path)


@pytest.mark.parametrize("name", ["weights.h5", "weights", "weights.onnx"])
def test_other_endings(name: str, tmp_path: Path, model: ViT, refused: Callable) -> None:
    path = tmp_path / name
    path.write_bytes(b"something")
    with refused(path, "expected a file ending in .safetensors, .npz, .pth", model):
        load_checkpoint(model, path)


def test_nothing_there(tmp_path: Path, model: ViT, refused: Callable) -> None:
    with refused(tmp_path / "none.pth", "no such file or folder", model):
        load_checkpoint(model, tmp_path / "none.pth")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    with refused(tmp_path / "folder", "expected model.safetensors or pytorch_model.bin", model):
        load_checkpoint(model, tmp_path / "folder")


def test_a_folder_may_hold_a_pickle(tmp_path: Path) -> None:
    write(tmp_path / "pytorch_model.bin", TENSORS)
    (tmp_path / "config.json").write_text('{"layer_norm_eps": 1e-5}')
    read = open_weights(tmp_path)
    assert read.config == {"layer_norm_eps": 1e-5}
    assert read.tensors.keys() == TENSORS.keys()


@pytest.mark.parametrize("name", ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
def test_openclip_folders(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, TENSORS)
    (tmp_path / "open_clip_config.json").write_text('{"model_cfg": {}}')
    (tmp_path / "config.json").write_text('{"of": "another"}')
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5]}')
    expected = {"model_cfg": {}, "preprocessor": {"image_mean": [0.5]}}
    assert open_weights(tmp_path).config == open_weights(tmp_path / name).config == expected
    write(tmp_path / "model.safetensors", TENSORS)
    assert open_weights(tmp_path).config == {"of": "another", "preprocessor": {"image_mean": [0.5]}}


def test_a_preprocessor_alone(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", TENSORS)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert open_weights(tmp_path).config == {"preprocessor": {}}


@pytest.mark.parametrize(("stem", "suffix"), [("model", ".safetensors"), ("pytorch_model", ".bin")])
def test_shards(stem: str, suffix: str, tmp_path: Path) -> None:
    shards = [f"{stem}-0000{n}-of-00002{suffix}" for n in (1, 2)]
    parts = [{name: TENSORS[name]} for name in TENSORS]
    for shard, part in zip(shards, parts, strict=True):
        write(tmp_path / shard, part)
    index = tmp_path / f"{stem}{suffix}.index.json"
    index.write_text(json.dumps({"weight_map": dict(zip(TENSORS, shards, strict=True))}))
    (tmp_path / "config.json").write_text('{"a": 1}')
    content = b"".join((tmp_path / shard).read_bytes() for shard in shards)
    for path in (tmp_path, index, tmp_path / shards[1]):
        read = open_weights(path)
        assert (read.path, read.config, read.size) == (index, {"a": 1}, len(content))
        assert read.sha256 == hashlib.sha256(content).hexdigest()
        assert read.tensors.keys() == TENSORS.keys()
        assert all(torch.equal(read.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_a_shard_that_is_all_there_is(tmp_path: Path) -> None:
    path = write(tmp_path / "model-00001-of-00001.safetensors", TENSORS)
    assert open_weights(path).tensors.keys() == TENSORS.keys()


def test_a_config_that_lies_beside_a_file_of_another_name_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"layer_norm_eps": 1e-5}')
    assert open_weights(write(tmp_path / "weights.pth", TENSORS)).config is None


@pytest.mark.parametrize(
    ("names", "stripped"),
    [
        (["module.a", "module.b"], ["a", "b"]),
        (["module._orig_mod.model.a", "module._orig_mod.model.b"], ["a", "b"]),
        (["module.a", "b"], ["module.a", "b"]),
        (["backbone.a", "head.b"], ["a", "head.b"]),
        (["backbone.a", "backbone.head.b", "head.b"], ["backbone.a", "backbone.head.b", "head.b"]),
        (["head.a"], ["head.a"]),
    ],
)
def test_prefixes(names: list[str], stripped: list[str], tmp_path: Path) -> None:
    read = open_weights(write(tmp_path / "weights.pth", {name: torch.ones(1) for name in names}))
    assert list(read.tensors) == stripped
