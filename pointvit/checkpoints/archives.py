"""Reading the three kinds of weight files without running any code of theirs."""

from __future__ import annotations

import argparse
import collections
import math
import pathlib
import pickletools
import re
import types
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pointvit.checkpoints.folders import parse_json
from pointvit.checkpoints.kinds import (
    NPZ,
    PYTORCH,
    SAFETENSORS,
    TORCHSCRIPT,
    CheckpointError,
    kind_of,
    what_it_is,
)

WRAPPERS = ("model", "state_dict", "base_model", "module", "net", "teacher")
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool,
}  # fmt: skip
"""What safetensors calls the types of numbers."""
PLENTY, ABSURD = 1 << 30, 100
"""A file that says it holds more bytes than PLENTY, and ABSURD times its own, is not read."""
MAX_WRAPPERS = 32
"""Mappings around tensors that are looked into."""
SMALL = 1 << 13
"""Numbers of a tensor, such as a token or a bias, that is read even where headers are enough."""
_SCALAR = np.float64(0).__reduce__()[0]
_ARRAY = np.zeros(1).__reduce__()[0]
HARMLESS: list[Any] = [
    argparse.Namespace,
    types.SimpleNamespace,
    (lambda *_: {}, "collections.defaultdict"),  # PyTorch fills plain dictionaries only
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"},
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((_ARRAY, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((dict, f"{module}.dict") for module in ("builtins", "__builtin__")),
    *((list, f"{module}.list") for module in ("builtins", "__builtin__")),
    # Paths without the methods that touch a disk, and of either system on both.
    *((pathlib.PurePosixPath, f"pathlib.{module}PosixPath") for module in ("", "_local.")),
    *((pathlib.PureWindowsPath, f"pathlib.{module}WindowsPath") for module in ("", "_local.")),
]
"""Types beside tensors that a PyTorch file may hold: options and scores that training scripts put there."""

Content = tuple[dict[str, Tensor], dict[str, Any] | None]
"""Tensors by name, and the description that pointvit put beside them, if any."""


def read_safetensors(path: Path, headers_only: bool = False) -> Content:
    """The tensors as views of the mapped file: their pages are read when they are used."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors: dict[str, Tensor] = {}
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                left = headers_only and _is_left(name, part.get_shape())
                tensors[name] = _from_header(part) if left else file.get_tensor(name)
            description = (file.metadata() or {}).get("pointvit")
    except (SafetensorError, KeyError) as error:
        what, reason = what_it_is(path, SAFETENSORS), " ".join(str(error).split())
        raise CheckpointError(f"{path}: {what}, not a readable safetensors file ({reason})") from error
    return tensors, parse_json(description, path) if description else None


def read_npz(path: Path, headers_only: bool = False) -> Content:
    """The arrays of the archive, once their headers agree with what the archive holds of them."""
    try:
        with zipfile.ZipFile(path) as archive:
            refuse_absurd(path, (entry.file_size for entry in archive.infolist()))
            _refuse_twice(path, [name.removesuffix(".npy") for name in archive.namelist()])
            return {
                entry.filename.removesuffix(".npy"): _read_array(path, archive, entry, headers_only)
                for entry in archive.infolist()
            }, None
    except CheckpointError:
        raise
    except Exception as error:  # a damaged archive raises whatever its bytes happen to spell
        kind = type(error).__name__
        raise CheckpointError(
            f"{path}: {what_it_is(path, NPZ)}, not a readable .npz file of plain arrays ({kind})"
        ) from error


def read_pytorch(path: Path, headers_only: bool = False) -> Content:
    """The innermost mapping of tensors in the file; the form before zip archives is always read whole."""
    content = read_torch(path, headers_only)
    description = content.get("pointvit") if isinstance(content, Mapping) else None
    tensors = _unwrap(content, path)
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "no" if tensor.is_meta else "quantised" if tensor.is_quantized else "sparse"
            raise CheckpointError(f"{path}: {name} holds {kind} numbers, expected a plain tensor of them")
    if headers_only:
        tensors = {n: t.to("meta") if _is_left(n, t.shape) else t.clone() for n, t in tensors.items()}
    return tensors, description if isinstance(description, dict) else None


def read_torch(path: Path, mapped: bool = False) -> Any:
    """The content of a PyTorch file, opened with ``weights_only``.

    Args:
        mapped: leave the numbers of tensors in the file until they are used, where its form allows that.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it is damaged, or would have to run code.
    """
    if not path.is_file():
        what = "is a folder, expected a file" if path.is_dir() else "no such file"
        raise FileNotFoundError(f"{path}: {what}")
    if kind_of(path) == TORCHSCRIPT:
        raise CheckpointError(
            f"{path}: this is a TorchScript program, and only its weights can be used; write them with "
            "torch.save(torch.jit.load(PATH).state_dict(), NEW_PATH)"
        )
    mapped = _check_zip(path) and mapped
    try:
        with torch.serialization.safe_globals(HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on kinds of tensors that are refused once they are there
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to spell
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        wanted = _constructed(path) if refused is None else refused[1]
        if wanted is not None:
            raise CheckpointError(
                f"{path}: it holds more than tensors and plain containers ({wanted}), which could run "
                "code, and was not opened; save its state dict alone"
            ) from error
        kind = type(error).__name__
        what = what_it_is(path, PYTORCH)
        raise CheckpointError(f"{path}: {what}, not a readable PyTorch file ({kind})") from error


READERS: dict[str, Callable[[Path, bool], Content]] = {
    ".safetensors": read_safetensors,
    ".npz": read_npz,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt"), read_pytorch),
}
KINDS = {".safetensors": SAFETENSORS, ".npz": NPZ, **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt"), PYTORCH)}


def refuse_absurd(path: Path, sizes: Iterable[int]) -> None:
    """Raises CheckpointError if what a file declares could never have been put into it."""
    declared, held = sum(sizes), path.stat().st_size
    if declared > max(PLENTY, ABSURD * held):
        raise CheckpointError(
            f"{path}: it declares {declared:,} bytes of numbers and has {held:,}, which no trained weights "
            "do; it was not read"
        )


def _is_left(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor's numbers stay in the file where headers are enough: not positions, nothing small."""
    return "pos" not in name.lower() and math.prod(shape) > SMALL


def _from_header(part: Any) -> Tensor:
    return torch.empty(part.get_shape(), dtype=DTYPES[part.get_dtype()], device="meta")


def _refuse_twice(path: Path, names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name, count in collections.Counter(names).items() if count > 1)
        raise CheckpointError(f"{path}: {twice} is in the archive more than once")


def _read_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, headers_only: bool) -> Tensor:
    name = entry.filename.removesuffix(".npy")
    with archive.open(entry) as stream:
        shape, dtype = _npy_header(stream)
        held, declared = entry.file_size - stream.tell(), math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    if held != declared:
        raise CheckpointError(
            f"{path}: {name} declares shape {shape} of {dtype}, {declared:,} bytes, and holds {held:,}"
        )
    like = _as_tensor(np.empty(0, dtype))
    if headers_only and _is_left(name, shape):
        return torch.empty(shape, dtype=like.dtype, device="meta")
    with archive.open(entry) as stream:
        return _as_tensor(np.lib.format.read_array(stream, allow_pickle=False))


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = readers[version](stream)
    return shape, dtype


def _as_tensor(array: np.ndarray) -> Tensor:
    if array.dtype == np.dtype("V2"):  # how NumPy writes JAX's bfloat16, which it does not know
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _check_zip(path: Path) -> bool:
    """Whether the file is a zip archive whose parts lie in it as they are, so that they can be mapped."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except Exception:  # damaged in a way that reading it says better
        return False
    refuse_absurd(path, (entry.file_size for entry in entries))
    return all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)


def _constructed(path: Path) -> str | None:
    """What a pickle that ``torch.save`` did not write would construct, read off its opcodes; None if nothing.

    Newer pickles name a type in two strings before the opcode that uses them.
    """
    strings: list[str] = []
    if kind_of(path) != PYTORCH or zipfile.is_zipfile(path):
        return None
    try:
        with path.open("rb") as stream:
            for opcode, argument, _ in pickletools.genops(stream):
                name = None
                if opcode.name in ("GLOBAL", "INST"):
                    name = str(argument).replace(" ", ".")
                elif opcode.name == "STACK_GLOBAL":
                    name = ".".join(strings)
                elif isinstance(argument, str):
                    strings = [*strings[-1:], argument]
                if name is not None and not name.startswith(("collections.", "torch._utils.")):
                    return name
    except Exception:  # a pickle that ends too early
        return None
    return None


def _unwrap(content: Any, path: Path, seen: dict[int, Any] | None = None) -> dict[str, Tensor]:
    """The innermost mapping of tensors; a mapping that was ``seen`` (by its identity) counts once."""
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: expected a mapping of names to tensors, got {type(content).__name__}")
    seen = {} if seen is None else seen
    if len(seen) > MAX_WRAPPERS:
        raise CheckpointError(f"{path}: holds more than {MAX_WRAPPERS} wrappers, expected a state dict")
    seen[id(content)] = content
    found: dict[str, dict[str, Tensor]] = {}
    for name in WRAPPERS:
        inner = content.get(name)
        if isinstance(inner, Mapping) and id(inner) not in seen and (tensors := _unwrap(inner, path, seen)):
            found[name] = tensors
    if not found:
        return {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    first = next(iter(found.values()))
    for name, other in found.items():
        if other.keys() != first.keys() or not all(torch.equal(first[n], other[n]) for n in first):
            raise CheckpointError(
                f"{path}: holds weights under both {next(iter(found))} and {name}, which differ; save those "
                "that are meant alone"
            )
    return first
