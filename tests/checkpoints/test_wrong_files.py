"""A table of files that are wrong in one way each: one sentence or a documented success, and no side effect.

Damage of bytes at random places, and what each kind of content is called, are in ``test_files.py``; tensors
that do not fit a model in ``test_loading.py``.
"""

import argparse
import functools
import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pointvit import ViT, create_model, load_checkpoint, save, save_checkpoint
from pointvit.checkpoints import archives
from pointvit.checkpoints.inspection import inspect
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

Tensors = dict[str, Tensor]
Maker = Callable[[Path, Tensors], Path]
CONFIG = ViTConfig(TrunkConfig(192, 2, 3), ImageTokenizerConfig((32, 32), (8, 8)), num_classes=5)
CANARY = "the code ran"
TOUCH = f"__import__('pathlib').Path({CANARY!r}).touch()"


# How the files are made: each function gets an empty folder and a sound set of tensors in timm's names.


def safetensors(folder: Path, tensors: Tensors, name: str = "file.safetensors") -> Path:
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / name)
    return folder / name


def saved(folder: Path, content: Any, name: str = "file.pth", **options: Any) -> Path:
    torch.save(content, folder / name, **options)
    return folder / name


def npz(folder: Path, tensors: Tensors, name: str = "file.npz") -> Path:
    np.savez(folder / name, **{n: t.numpy() for n, t in tensors.items()})
    return folder / name


def written(folder: Path, content: bytes | str, name: str = "file.safetensors") -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def changed(**changes: Callable[[Tensor], Tensor] | None) -> Maker:
    """Tensors replaced (``a__b`` stands for ``a.b``), or left out with None."""
    named = {name.replace("__", "."): change for name, change in changes.items()}

    def make(folder: Path, tensors: Tensors) -> Path:
        new = {name: named[name](t) if named.get(name) else t for name, t in tensors.items()}
        return safetensors(folder, {name: t for name, t in new.items() if named.get(name, 1) is not None})

    return make


def shapes(**of: tuple[int, ...]) -> Maker:
    """A file of another family, with these names (``__`` for a dot) and shapes."""
    tensors = {name.replace("__", "."): torch.ones(shape) for name, shape in of.items()}
    return lambda folder, _: safetensors(folder, tensors)


def cut(share: float, kind: Callable[..., Path] = safetensors) -> Maker:
    """The file up to a share of its length; above one, with as much nonsense behind its end."""

    def make(folder: Path, tensors: Tensors) -> Path:
        path = kind(folder, tensors)
        content = path.read_bytes()
        path.write_bytes((content + b"x" * len(content))[: int(share * len(content))])
        return path

    return make


def renamed(name: str, kind: Callable[..., Path]) -> Maker:
    return lambda folder, tensors: kind(folder, tensors).rename(folder / name)


class Calls:
    """A pickle of it calls a function when it is opened without care."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def calling(function: Callable, *arguments: Any, **options: Any) -> Maker:
    """Tensors beside a call; ``CANARY`` among the arguments stands for a path that must not come to be."""

    def make(folder: Path, tensors: Tensors) -> Path:
        canary = str(folder / CANARY)
        told = [a.replace(CANARY, canary) if isinstance(a, str) else [*a[:-1], canary] for a in arguments]
        return saved(folder, {"model": tensors, "extra": Calls(function, *told)}, **options)

    return make


def constructing(name: str) -> Maker:
    """A file with an object of a class that is not installed here."""

    def make(folder: Path, tensors: Tensors) -> Path:
        path = saved(folder, {"model": tensors, "args": argparse.Namespace(lr=1.0)})
        with zipfile.ZipFile(path) as archive:
            parts = {entry: archive.read(entry) for entry in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for entry, content in parts.items():
                archive.writestr(entry, content.replace(b"argparse\nNamespace", name.encode()))
        return path

    return make


def npz_of_objects(folder: Path, tensors: Tensors) -> Path:
    np.savez(folder / "file.npz", a=np.array([Calls(os.mkdir, str(folder / CANARY))], dtype=object))
    return folder / "file.npz"


def sharded(change: Callable[[Path, dict[str, Any]], None], suffix: str = "safetensors") -> Maker:
    """A folder of two shards and their index, after ``change(folder, weight_map)``."""

    def make(folder: Path, tensors: Tensors) -> Path:
        names, places = sorted(tensors), {}
        stem = {"safetensors": "model", "bin": "pytorch_model"}[suffix]
        for number, part in enumerate((names[::2], names[1::2]), start=1):
            shard = f"{stem}-{number:05}-of-00002.{suffix}"
            write = safetensors if suffix == "safetensors" else saved
            write(folder, {name: tensors[name] for name in part}, shard)
            places |= dict.fromkeys(part, shard)
        change(folder, places)
        if "" not in places:
            (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": places}))
        return folder

    return make


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def swap(folder: Path, places: dict[str, Any]) -> None:
    (folder / ONE).rename(folder / "x")
    (folder / TWO).rename(folder / ONE)
    (folder / "x").rename(folder / TWO)


def twice(folder: Path, places: dict[str, Any]) -> None:
    (folder / TWO).write_bytes((folder / ONE).read_bytes())


def one_path_twice(folder: Path, tensors: Tensors) -> Path:
    sharded(lambda folder, places: None)(folder, tensors)
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(text.replace('"cls_token"', '"norm.bias"'))
    return folder


def with_config(**config: Any) -> Maker:
    """A Hugging Face folder whose config.json is replaced or changed."""

    def make(folder: Path, tensors: Tensors) -> Path:
        model = create_model("auto", pretrained=safetensors(folder, tensors, "x.safetensors"), num_heads=3)
        (folder / "x.safetensors").unlink()
        written = save_checkpoint(model, folder / "hf", "huggingface")
        content = json.loads((written / "config.json").read_text())
        (written / "config.json").write_text(config.get("text") or json.dumps({**content, **config}))
        return written

    return make


def npy(shape: tuple[int, ...], body: bytes, descr: str = "<f4") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + body


def archive_of(entries: dict[str, bytes], name: str = "file.npz", deflated: bool = False) -> Maker:
    def make(folder: Path, tensors: Tensors) -> Path:
        method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
        with zipfile.ZipFile(folder / name, "w", method) as archive:
            for entry, content in entries.items():
                archive.writestr(entry, content)
        return folder / name

    return make


def bomb(folder: Path, tensors: Tensors) -> Path:
    """64 MiB of zeros in 64 kB, with PLENTY lowered in the test instead of a larger file."""
    return archive_of({"a.npy": npy((1 << 24,), bytes(1 << 26))}, deflated=True)(folder, tensors)


def forged(name: str) -> Maker:
    """An archive whose directory says that its one part has a tebibyte."""

    def make(folder: Path, tensors: Tensors) -> Path:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("x/data.pkl" if name.endswith("pth") else "a.npy", npy((3,), bytes(12)))
            archive.filelist[0].file_size = 1 << 40
        return folder / name

    return make


def expanded(folder: Path, tensors: Tensors) -> Path:
    """One number that says it is a matrix of a million by a million."""
    return saved(folder, {**tensors, "blocks.0.mlp.fc1.weight": torch.ones(1, 1).expand(10**6, 10**6)})


def header(text: str, body: bytes = b"") -> Maker:
    content = text.encode()
    return lambda folder, _: written(folder, struct.pack("<Q", len(content)) + content + body)


def pipe(folder: Path, tensors: Tensors) -> Path:
    os.mkfifo(folder / "file.pth")
    return folder / "file.pth"


def link(target: str) -> Maker:
    def make(folder: Path, tensors: Tensors) -> Path:
        (folder / "file.pth").symlink_to(folder / target)
        return folder / "file.pth"

    return make


def unreadable(folder: Path, tensors: Tensors) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = safetensors(folder, tensors)
    path.chmod(0)
    return path


def prefixed_twice(folder: Path, tensors: Tensors) -> Path:
    return saved(folder, {**tensors, **{f"module.{name}": t + 1 for name, t in tensors.items()}})


def many(text: str) -> bytes:
    return (text * 200_000).encode()


def in_a_circle(folder: Path, tensors: Tensors) -> Path:
    content: dict[str, Any] = {}
    content["model"] = {"state_dict": content}
    return saved(folder, content)


def nested(depth: int) -> Maker:
    def make(folder: Path, tensors: Tensors) -> Path:
        content: dict[str, Any] = dict(tensors)
        for _ in range(depth):
            content = {"model": content}
        return saved(folder, content)

    return make


def two_states(folder: Path, tensors: Tensors) -> Path:
    return saved(folder, {"model": tensors, "state_dict": {n: t + 1 for n, t in tensors.items()}})


def named(name: str) -> Maker:
    return lambda folder, tensors: safetensors(folder, {**tensors, name: torch.ones(2)})


def ours(**changes: Any) -> Maker:
    """A folder that pointvit saved, with a setting of its config.json changed."""

    def make(folder: Path, tensors: Tensors) -> Path:
        model = create_model("auto", pretrained=safetensors(folder, tensors, "x.safetensors"), num_heads=3)
        (folder / "x.safetensors").unlink()
        path = save(model, folder / "ours") / "config.json"
        content = json.loads(path.read_text())
        parts = (content["model"], content["model"]["trunk"], content["model"]["tokenizer"], content["meta"])
        for name, value in changes.items():
            next((part for part in parts if name in part), content["meta"])[name] = value
        path.write_text(json.dumps(content))
        return path.parent

    return make


def timm_config(**arguments: Any) -> Maker:
    """A folder with timm's config.json."""

    def make(folder: Path, tensors: Tensors) -> Path:
        safetensors(folder, tensors, "model.safetensors")
        content = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": arguments}
        written(folder, json.dumps(content), "config.json")
        return folder

    return make


def with_preprocessor(text: str) -> Maker:
    def make(folder: Path, tensors: Tensors) -> Path:
        path = with_config()(folder, tensors)
        (path / "preprocessor_config.json").write_text(text)
        return path

    return make


WRONG: dict[str, tuple[Maker, str]] = {
    # Wrappers.
    "wrappers in a circle": (in_a_circle, "holds no tensors"),
    "wrappers without end": (nested(40), "more than 32 wrappers"),
    "two states that differ": (two_states, "weights under both model and state_dict, which differ"),
    # Names.
    "a block of a high number": (named("blocks.999999999.x"), "up to number 999999999, but none of number 2"),
    "a block of a number without end": (named(f"blocks.{'9' * 5000}.x"), "names a tensor 'blocks.9"),
    "a name of two lines": (named("blocks.0\n.x"), r"names a tensor 'blocks.0\\n.x', expected at most 250"),
    # What pointvit's own description says, and the weights deny.
    "our own depth": (ours(depth=10**9), "description says blocks: 1e.09, its weights have 2"),
    "our own stem": (ours(stem=[10**9]), "patch_size|stages of a stem: 1, its weights have 0"),
    "our own stem of nothing": (ours(stem=[0]), "at least one block in each stage"),
    "our own stem without end": (ours(stem=[1] * 1000), "stages of a stem: 1000, its weights have 0"),
    "our own image": (ours(img_size=[8 * 10**8, 8 * 10**8]), "not a sound pointvit checkpoint"),
    "our own larger image": (ours(img_size=[64, 64]), r"makes pos_embed of shape \(1, 65, 192\)"),
    "our own patches": (ours(patch_size=[16, 16]), r"makes pos_embed|makes tokenizer.proj.weight"),
    "our own classes": (ours(num_classes=10**9), r"makes head.\w+ of shape \(1000000000,"),
    "our own lack of classes": (ours(num_classes=0), "its description has no place for head"),
    "our own registers": (ours(num_reg_tokens=10**9), "says registers: 1e.09, its weights have 0"),
    "our own channels": (ours(in_chans=10**9), r"makes tokenizer.proj.weight of shape"),
    "our own lack of channels": (ours(in_chans=0), "in_chans >= 1"),
    "our own width of the MLP": (ours(mlp_ratio=1e18), "not a sound pointvit checkpoint"),
    "our own infinite MLP": (ours(mlp_ratio=1e308), "mlp_ratio must be a finite number"),
    "our own huge width": (ours(embed_dim=10**400), "does not describe a model|numbers"),
    "our own eps": (ours(norm_eps=-1.0), r"norm_eps must lie in \(0, 1\), got -1.0"),
    "our own eps of no number": (ours(norm_eps=float("nan")), r"norm_eps must lie in \(0, 1\), got nan"),
    "our own unknown metadata": (ours(x=1), "does not describe a model .*'x'"),
    # Of another size or family.
    "another width": (changed(norm__weight=lambda t: t[:96]), r"norm.weight has shape \(96,\)"),
    "ResNet": (
        shapes(conv1__weight=(64, 3, 7, 7), layer1__0__conv1__weight=(64, 64, 1, 1)),
        "no known layout",
    ),
    "BERT": (
        shapes(
            embeddings__word_embeddings__weight=(9, 8),
            encoder__layer__0__attention__self__query__weight=(8, 8),
        ),
        "no known layout",
    ),
    "GPT-2": (shapes(wte__weight=(9, 8), h__0__attn__c_attn__weight=(8, 24)), "no known layout"),
    "Llama": (shapes(model__layers__0__self_attn__q_proj__weight=(8, 8)), "no known layout"),
    "Swin": (
        shapes(patch_embed__proj__weight=(8, 3, 4, 4), layers__0__blocks__0__attn__qkv__weight=(24, 8)),
        "no known layout",
    ),
    "DINOv3": (
        shapes(embeddings__patch_embeddings__weight=(8, 3, 4, 4), layer__0__attention__q_proj__weight=(8, 8)),
        "no known layout",
    ),
    "PointNet++": (shapes(sa1__mlp_convs__0__weight=(64, 6, 1, 1)), "no known layout"),
    "an optimiser alone": (
        lambda folder, tensors: saved(folder, {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}),
        "holds no tensors",
    ),
    "an adapter": (shapes(base__blocks__0__attn__qkv__lora_A__weight=(4, 192)), "no known layout"),
    # Cut short, or longer than they say.
    "no header": (cut(1e-5), "not a readable safetensors file"),
    "cut in the header": (cut(0.001), "not a readable safetensors file"),
    "cut at the first number": (cut(0.005), "not a readable safetensors file"),
    "cut in the middle": (cut(0.5), "not a readable safetensors file"),
    "nonsense behind the end": (cut(1.001), "not a readable safetensors file"),
    "a zip cut in its directory": (cut(0.9999, npz), "not a readable .npz file"),
    "a PyTorch file cut in its directory": (cut(0.9999, saved), "not a readable PyTorch file"),
    "a header longer than the file": (
        lambda folder, _: written(folder, struct.pack("<Q", 1 << 60) + b"{}"),
        "not a readable safetensors file",
    ),
    "a header that is no JSON": (header("{nonsense"), "not a readable safetensors file"),
    "a header of offsets that overlap": (
        header(
            '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            '"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
        "not a readable safetensors file",
    ),
    "a header of more numbers than it holds": (
        header('{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}', bytes(4)),
        "not a readable safetensors file",
    ),
    # Pickles that would act.
    "a pickle calls eval": (calling(eval, TOUCH), r"\(eval\)|\(builtins.eval\)"),
    "a pickle calls exec": (calling(exec, TOUCH), r"\(exec\)|\(builtins.exec\)"),
    "a pickle starts a program": (
        calling(subprocess.call, ["touch", CANARY]),
        r"\(commands.call\)|\(subprocess.call\)",
    ),
    "a pickle calls system": (calling(os.system, f"touch '{CANARY}'"), r"\(posix.system\)"),
    "a pickle opens a file": (calling(open, CANARY, "w"), r"\(io.open\)|\(_io.open\)|\(builtins.open\)"),
    "a pickle binds a function": (
        lambda folder, tensors: saved(folder, {"a": functools.partial(os.mkdir, str(folder / CANARY))}),
        r"\(functools.partial\)",
    ),
    "a pickle acts from options": (
        lambda folder, tensors: saved(
            folder, {"args": argparse.Namespace(x=Calls(os.mkdir, str(folder / CANARY))), **tensors}
        ),
        r"\(posix.mkdir\)",
    ),
    "a pickle acts in the old form": (
        calling(os.mkdir, CANARY, _use_new_zipfile_serialization=False),
        r"\(posix.mkdir\)",
    ),
    "a plain pickle": (
        lambda folder, _: written(folder, pickle.dumps(Calls(os.mkdir, str(folder / CANARY))), "file.pth"),
        r"\(posix.mkdir\)",
    ),
    "a plain pickle of an old protocol": (
        lambda folder, _: written(folder, pickle.dumps(Calls(os.mkdir, str(folder / CANARY)), 2), "file.bin"),
        r"\(posix.mkdir\)",
    ),
    "an .npz of objects": (npz_of_objects, "not a readable .npz file of plain arrays"),
    "a shard that acts": (
        sharded(
            lambda folder, places: (
                calling(os.mkdir, CANARY, name="pytorch_model-00001-of-00002.bin")(folder, {}) and None
            ),
            "bin",
        ),
        r"\(posix.mkdir\)",
    ),
    "EasyDict": (constructing("easydict\nEasyDict"), r"\(easydict.EasyDict\)"),
    "OmegaConf": (constructing("omegaconf.dictconfig\nDictConfig"), r"\(omegaconf.dictconfig.DictConfig\)"),
    "a whole module": (
        lambda folder, _: saved(folder, nn.Linear(2, 2)),
        r"\(torch.nn.modules.linear.Linear\)",
    ),
    # Named after another kind.
    "safetensors as .pth": (
        renamed("file.pth", safetensors),
        "this is a safetensors file, not a PyTorch file; rename it to end in",
    ),
    "safetensors as .npz": (renamed("file.npz", safetensors), "this is a safetensors file, not an .npz"),
    "PyTorch as .safetensors": (
        renamed("file.safetensors", saved),
        "this is a PyTorch file, not a safetensors file; rename .* .pth",
    ),
    "PyTorch as .npz": (renamed("file.npz", saved), "this is a PyTorch file, not an .npz archive"),
    ".npz as .safetensors": (renamed("file.safetensors", npz), "this is an .npz archive of arrays, not a"),
    ".npz as .bin": (renamed("file.bin", npz), "this is an .npz archive of arrays, not a PyTorch file"),
    "gzip": (
        lambda folder, _: written(folder, gzip.compress(b"x" * 99), "file.pth"),
        "a gzip archive, unpack",
    ),
    "HDF5": (lambda folder, _: written(folder, b"\x89HDF\r\n\x1a\n" + bytes(99), "file.bin"), "an HDF5 file"),
    "an array": (lambda folder, _: written(folder, npy((3,), bytes(12)), "file.npz"), "a single NumPy array"),
    "a language model's GGUF": (
        lambda folder, _: written(folder, b"GGUF" + bytes(99)),
        "this is a GGUF file",
    ),
    "settings as weights": (
        lambda folder, _: written(folder, '{"a": 1}' * 9, "file.safetensors"),
        "JSON text, which holds no weights",
    ),
    "a zip of other files": (archive_of({"a.txt": b"x"}, "file.pth"), "not a readable PyTorch file"),
    # Nothing in them.
    "no tensors": (header("{}" + " " * 6), "holds no tensors"),
    "an archive of nothing": (archive_of({}), "holds no tensors"),
    "an LFS pointer in a folder": (
        lambda folder, _: (
            written(
                folder,
                "version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n",
                "model.safetensors",
            ).parent
        ),
        "Git LFS pointer, fetch the real file",
    ),
    # Numbers that are none.
    "NaN throughout": (changed(**{"norm__weight": lambda t: t * torch.nan}), "norm.weight holds NaN"),
    "an infinite class token": (changed(cls_token=lambda t: t / 0), "cls_token holds NaN or infinite"),
    "NaN positions": (changed(pos_embed=lambda t: t * torch.nan), "NaN or infinite"),
    "quantised to integers": (changed(blocks__1__attn__qkv__weight=lambda t: t.to(torch.int8)), "torch.int8"),
    "quantised by PyTorch": (
        lambda folder, tensors: saved(
            folder, {**tensors, "norm.bias": torch.quantize_per_tensor(torch.ones(192), 0.1, 0, torch.qint8)}
        ),
        "norm.bias holds quantised numbers",
    ),
    "float8": (changed(norm__bias=lambda t: t.to(torch.float8_e4m3fn)), "norm.bias is torch.float8_e4m3fn"),
    "complex": (changed(norm__bias=lambda t: t + 1j), "norm.bias is torch.complex64"),
    "sparse": (
        lambda folder, tensors: saved(folder, {**tensors, "norm.bias": torch.eye(3).to_sparse()}),
        "norm.bias holds sparse numbers",
    ),
    "no numbers": (
        lambda folder, tensors: saved(folder, {**tensors, "norm.bias": torch.ones(192, device="meta")}),
        "norm.bias holds no numbers",
    ),
    # Shards.
    "a shard missing": (
        sharded(lambda folder, _: (folder / TWO).unlink()),
        f"names {TWO}, which is not there; copy all 2",
    ),
    "shards swapped": (sharded(swap), f"the shard {ONE} holds .*, which the index does not place there"),
    "a shard copied over another": (sharded(twice), f"the shard {TWO} holds .*, which the index"),
    "a tensor of the index missing": (
        sharded(lambda _, places: places.update(extra=ONE)),
        f"the shard {ONE} lacks extra, which the index",
    ),
    "a tensor placed twice": (one_path_twice, "names norm.bias more than once"),
    "a shard outside": (
        sharded(lambda _, places: places.update(cls_token="../../secret.safetensors")),
        "cls_token lies in '../../secret.safetensors', expected a file in the same folder",
    ),
    "a shard at an absolute path": (
        sharded(lambda _, places: places.update(cls_token="/etc/passwd")),
        "cls_token lies in '/etc/passwd'",
    ),
    "a shard that is a number": (
        sharded(lambda _, places: places.update(cls_token=3)),
        "cls_token lies in 3",
    ),
    "shards without an index": (
        lambda folder, tensors: sharded(lambda _, places: places.update({"": ""}))(folder, tensors) / ONE,
        "this is one of 2 shards, expected model.safetensors.index.json beside it",
    ),
    "an index of nothing": (
        lambda folder, _: written(folder, '{"metadata": {}}', "model.safetensors.index.json").parent,
        "expected a weight_map of names to shards, got NoneType",
    ),
    "an index of itself": (
        sharded(lambda _, places: places.update(dict.fromkeys(places, "model.safetensors.index.json"))),
        "expected a file ending",
    ),
    # More than they can hold.
    "a bomb": (bomb, "declares 67,108,.* bytes of numbers and has .*; it was not read"),
    "a directory that lies": (forged("file.npz"), "declares 1,099,511,627,776 bytes"),
    "a PyTorch directory that lies": (forged("file.pth"), "declares 1,099,511,627,776 bytes"),
    "an array that lies": (
        archive_of({"a.npy": npy((1 << 40,), bytes(12))}),
        r"a declares shape \(1099511627776,\) .* holds 12",
    ),
    "one number as a matrix": (expanded, "declares .* bytes of numbers and has"),
    "an entry twice": (lambda folder, _: archive_twice(folder), "a is in the archive more than once"),
    # Settings beside them.
    "settings that are no JSON": (with_config(text="{"), "config.json: not valid JSON"),
    "settings that are a list": (with_config(text="[]"), "config.json: expected a JSON object, got list"),
    "settings nested too deep": (with_config(text="[" * 100_000), "config.json: not valid JSON"),
    "settings of another depth": (
        with_config(num_hidden_layers=7),
        "config.json describes 7 blocks, the weights have 2",
    ),
    "an activation nobody knows": (with_config(hidden_act="mish"), "hidden_act='mish'"),
    "a number of 5000 digits": (
        with_config(text='{"a": 1' + "0" * 5000 + "}"),
        "config.json: not valid JSON",
    ),
    "settings of a larger grid": (
        timm_config(img_size=64),
        "config.json describes images of 64x64, the positions are of others",
    ),
    "a preprocessor that is a number": (with_preprocessor("1"), "expected a JSON object, got int"),
    "a preprocessor that is a list": (with_preprocessor("[]"), "expected a JSON object, got list"),
    "a preprocessor that is nothing": (with_preprocessor("null"), "expected a JSON object, got NoneType"),
    # Ranks and names.
    "an MLP without dimensions": (
        changed(blocks__0__mlp__fc2__weight=lambda t: t[0, 0]),
        "mlp.fc2.weight should have 2 dimensions",
    ),
    "attention of no channels": (
        changed(blocks__0__attn__qkv__weight=lambda t: t[:, :0]),
        r"attn.qkv.weight holds no numbers, its shape is \(576, 0\)",
    ),
    "a kernel of no channels": (
        changed(patch_embed__proj__weight=lambda t: t[:, :0]),
        "tokenizer.proj.weight holds no numbers",
    ),
    "positions of no tokens": (changed(pos_embed=lambda t: t[:0]), "pos_embed holds no numbers"),
    "a head of no classes": (changed(head__weight=lambda t: t[:0]), "head.weight holds no numbers"),
    "a flat position table": (changed(pos_embed=lambda t: t[0]), "pos_embed should have 3 dimensions"),
    "a flat kernel": (
        changed(patch_embed__proj__weight=lambda t: t.flatten(1)),
        "tokenizer.proj.weight should have 4 dimensions",
    ),
    "a flat class token": (
        changed(cls_token=lambda t: t[0, 0]),
        r"cls_token has shape \(192,\)|not a sound timm checkpoint",
    ),
    "positions of no grid": (changed(pos_embed=lambda t: t[:, :14]), "are not a square grid"),
    "names with and without prefix": (
        prefixed_twice,
        "holds 32 tensors the model has no place for .module.cls_token",
    ),
    # What is no file.
    "an empty folder": (lambda folder, _: folder, "in this folder, .*found nothing"),
    "a folder named like a file": (
        lambda folder, _: (folder / "file.safetensors").mkdir() or folder / "file.safetensors",
        "found nothing",
    ),
    "a named pipe": (pipe, "this is a named pipe, expected a file or a folder"),
    "a link in a circle": (link("file.pth"), "a circle of symbolic links"),
    "a link to nothing": (link("gone.pth"), "a symbolic link to what is not there"),
    "a file behind a file": (
        lambda folder, tensors: safetensors(folder, tensors) / "x.safetensors",
        "no such file or folder",
    ),
    "a file nobody may read": (unreadable, "cannot be read .permission denied"),
}


def archive_twice(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "file.npz", "w") as archive:
        archive.writestr("a.npy", npy((3,), bytes(12)))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", npy((3,), bytes(12)))
    return folder / "file.npz"


RIGHT: dict[str, Maker] = {
    "half precision": lambda folder, tensors: safetensors(folder, {n: t.half() for n, t in tensors.items()}),
    "bfloat16": lambda folder, tensors: safetensors(folder, {n: t.bfloat16() for n, t in tensors.items()}),
    "double precision": lambda folder, tensors: safetensors(
        folder, {n: t.double() for n, t in tensors.items()}
    ),
    "parameters": lambda folder, tensors: saved(folder, {n: nn.Parameter(t) for n, t in tensors.items()}),
    "wrappers and prefixes": lambda folder, tensors: saved(
        folder, {"epoch": 3, "state_dict": OrderedDict((f"module.model.{n}", t) for n, t in tensors.items())}
    ),
    "one state under two names": lambda folder, tensors: saved(
        folder, {"model": tensors, "state_dict": {n: t.clone() for n, t in tensors.items()}}
    ),
    "settings under a wrapper's name": lambda folder, tensors: saved(folder, {"model": {"lr": 1}, **tensors}),
    "shards": sharded(lambda folder, places: None),
    "shards of pickles": sharded(lambda folder, places: None, "bin"),
    "an index by name": lambda folder, tensors: (
        sharded(lambda folder, places: None)(folder, tensors) / "model.safetensors.index.json"
    ),
    "one shard by name": lambda folder, tensors: sharded(lambda folder, places: None)(folder, tensors) / TWO,
    "a deflated archive": lambda folder, tensors: archive_of(
        {f"{n}.npy": npy(tuple(t.shape), t.numpy().tobytes()) for n, t in tensors.items()}, deflated=True
    )(folder, tensors),
    "JAX's bfloat16 in an archive": lambda folder, tensors: archive_of(
        {
            f"{n}.npy": npy(tuple(t.shape), t.bfloat16().view(torch.int16).numpy().tobytes(), "|V2")
            for n, t in tensors.items()
        }
    )(folder, tensors),
    "a link to a file": lambda folder, tensors: (
        safetensors(folder, tensors, "other.safetensors"),
        link("other.safetensors")(folder, tensors).rename(folder / "file.safetensors"),
    )[1],
}


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(3)
    state = ViT(CONFIG).state_dict()
    state = {name: 0.1 * torch.randn(t.shape, generator=generator) for name, t in state.items()}
    rows = [state.pop(f"tokenizer.{name}") for name in ("cls_pos", "pos_embed")]
    names = {"tokenizer.": "patch_embed.", "trunk.": ""}
    renamed = {}
    for name, tensor in state.items():
        old = next((old for old in names if name.startswith(old)), "")
        renamed[names.get(old, "") + name.removeprefix(old)] = tensor
    return {**renamed, "pos_embed": torch.cat(rows, dim=1)}


@pytest.fixture(scope="module")
def model() -> ViT:
    return ViT(CONFIG)


def listing(folder: Path) -> dict[str, Any]:
    """Every path below a folder, with the content of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and os.access(path, os.R_OK)
        else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("case", WRONG)
def test_one_sentence_and_no_side_effect(
    case: str,
    tensors: Tensors,
    model: ViT,
    tmp_path: Path,
    refused: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, message = WRONG[case]
    path = make(tmp_path, tensors)
    before = listing(tmp_path)
    monkeypatch.setattr(archives, "PLENTY", 1 << 24)
    with refused(tmp_path, message, model):
        load_checkpoint(model, path)
    with refused(tmp_path, message):
        create_model("auto", pretrained=path, num_heads=3)
    assert listing(tmp_path) == before
    assert not list(tmp_path.rglob(CANARY))


@pytest.mark.parametrize("case", RIGHT)
def test_documented_successes(case: str, tensors: Tensors, tmp_path: Path) -> None:
    path = RIGHT[case](tmp_path, tensors)
    before = listing(tmp_path)
    model = create_model("auto", pretrained=path, num_heads=3)
    for name in ("blocks.1.attn.qkv.weight", "norm.bias"):
        ours = model.state_dict()[f"trunk.{name}"]
        assert torch.equal(ours, tensors[name]) or (
            torch.equal(ours, tensors[name].half().float())
            or torch.equal(ours, tensors[name].bfloat16().float())
        )
    assert inspect(path).numbers == sum(tensor.numel() for tensor in tensors.values())
    assert listing(tmp_path) == before


def test_the_calls_would_have_acted(tmp_path: Path, tensors: Tensors) -> None:
    """Otherwise the pickles above show nothing."""
    for number, case in enumerate(WRONG):
        if case.startswith(("a pickle calls", "a pickle starts", "a pickle acts")):
            folder = tmp_path / str(number)
            folder.mkdir()
            torch.load(WRONG[case][0](folder, tensors), weights_only=False)
            assert (folder / CANARY).exists(), case
