"""Opening weight files without running any code of theirs."""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

WRAPPERS = ("model", "state_dict", "base_model", "module", "net", "teacher")
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "base_model.", "teacher.")
WEIGHT_NAMES = ("model.safetensors", "pytorch_model.bin")


class CheckpointError(ValueError):
    """A checkpoint that cannot be opened, is not understood, or does not fit the model."""


@dataclass(frozen=True)
class WeightFile:
    """Tensors by the names they have in the file, with wrappers removed."""

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] | None
    """The ``config.json`` beside the weights, if there is one."""
    sha256: str


def open_weights(path: str | Path) -> WeightFile:
    """Reads ``.safetensors``, ``.npz``, ``.pth``/``.pt``/``.bin``/``.ckpt``, or a folder that holds such a file and
    its ``config.json``. Pickles are opened with ``weights_only``: anything but tensors and plain containers is refused.

    Raises:
        FileNotFoundError: if there is no such file, or the folder holds no weights.
        CheckpointError: if the file is damaged, is not what its name says, or would have to run code.
    """
    file = _weight_file(Path(path))
    if file.stat().st_size == 0:
        raise CheckpointError(f"{file}: the file is empty; download or copy it again")
    readers = {".safetensors": _read_safetensors, ".npz": _read_npz}
    torch_suffixes = (".pth", ".pt", ".bin", ".ckpt")
    reader = readers.get(file.suffix, _read_torch if file.suffix in torch_suffixes else None)
    if reader is None:
        raise CheckpointError(
            f"{file}: expected a file ending in {', '.join((*readers, *torch_suffixes))}, got {file.suffix or 'no ending'!r}"
        )
    config_file = file.parent / "config.json"
    config = _read_json(config_file) if Path(path).is_dir() and config_file.is_file() else None
    tensors = _strip_prefixes(reader(file))
    if not tensors:
        raise CheckpointError(f"{file}: holds no tensors")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(stream.read())
    return WeightFile(file, tensors, config, digest.hexdigest())


def _weight_file(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder; pass the path of a checkpoint")
    if not path.is_dir():
        return path
    for name in WEIGHT_NAMES:
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f"{path}: expected {' or '.join(WEIGHT_NAMES)} in this folder, found neither")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: {_what_it_is(path)}, not a readable safetensors file ({error})") from error


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: torch.from_numpy(archive[name]) for name in archive.files}
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: {_what_it_is(path)}, not a readable .npz file of plain arrays ({error})") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    return _unwrap(read_torch(path), path)


def read_torch(path: Path) -> Any:
    """The content of a PyTorch file, opened with ``weights_only``; errors as in :func:`open_weights`."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{path}: {_what_it_is(path)}; it holds more than tensors and plain containers, or is damaged, and was "
            f"not opened ({reason})"
        ) from error
    except (RuntimeError, EOFError, OSError, KeyError, ValueError) as error:
        reason = (str(error).splitlines() or ["end of file"])[0]
        raise CheckpointError(f"{path}: {_what_it_is(path)}, not a readable PyTorch file ({reason})") from error


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    """The innermost mapping of tensors."""
    while isinstance(content, Mapping):
        inner = next((content[w] for w in WRAPPERS if isinstance(content.get(w), Mapping)), None)
        if inner is None:
            return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        content = inner
    raise CheckpointError(f"{path}: expected a mapping of names to tensors, got {type(content).__name__}")


def _strip_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes wrapper prefixes that every name carries, in any nesting."""
    while True:
        prefix = next((p for p in PREFIXES if tensors and all(name.startswith(p) for name in tensors)), None)
        if prefix is None:
            return tensors
        tensors = {name[len(prefix) :]: tensor for name, tensor in tensors.items()}


def _what_it_is(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(64).lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "this is a Git LFS pointer, fetch the real file with `git lfs pull`"
    if head.startswith((b"<!doctype", b"<html")):
        return "this is a web page, the download went wrong"
    return "the file is damaged or of another kind"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
