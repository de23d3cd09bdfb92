"""Opening weight files without running any code of theirs."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

WRAPPERS = ("model", "state_dict", "base_model", "module", "net", "teacher")
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "base_model.", "teacher.")
WEIGHT_NAMES = ("model.safetensors", "pytorch_model.bin")
_SCALAR = np.float64(0).__reduce__()[0]
HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *{type(np.dtype(code)) for code in np.typecodes["AllInteger"] + np.typecodes["Float"] + "?"},
    *((_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""Types beside tensors that a PyTorch file may hold: options and scores that training scripts put there."""


Content = tuple[dict[str, Tensor], dict[str, Any] | None]
"""Tensors by name, and the description that pointvit put beside them, if any."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be opened, is not understood, or does not fit the model."""


@dataclass(frozen=True)
class WeightFile:
    """Tensors by the names they have in the file, with wrappers removed."""

    path: Path
    tensors: dict[str, Tensor]
    config: dict[str, Any] | None
    """The ``config.json`` beside the weights, or the description that pointvit put into the file, if any."""
    sha256: str


def open_weights(path: str | Path) -> WeightFile:
    """Reads ``.safetensors``, ``.npz``, ``.pth``/``.pt``/``.bin``/``.ckpt``, or a folder.

    A folder holds ``model.safetensors`` or ``pytorch_model.bin``, and ``config.json``. Pickles are opened
    with ``weights_only``: what is neither a tensor nor a plain container nor among ``HARMLESS`` is refused.

    Raises:
        FileNotFoundError: if there is no such file, or the folder holds no weights.
        CheckpointError: if the file is damaged, is not what its name says, or would have to run code.
    """
    file = _weight_file(Path(path))
    if file.stat().st_size == 0:
        raise CheckpointError(f"{file}: the file is empty; download or copy it again")
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        endings, got = ", ".join(READERS), file.suffix or "no ending"
        raise CheckpointError(f"{file}: expected a file ending in {endings}, got {got!r}")
    tensors, description = reader(file)
    tensors = _strip_prefixes(tensors)
    if not tensors:
        raise CheckpointError(f"{file}: holds no tensors")
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    config_file = file.parent / "config.json"
    if file.name in WEIGHT_NAMES and config_file.is_file():
        description = _read_json(config_file)
    return WeightFile(file, tensors, description, digest.hexdigest())


def _weight_file(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder; pass the path of a checkpoint")
    if not path.is_dir():
        return path
    for name in WEIGHT_NAMES:
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f"{path}: expected {' or '.join(WEIGHT_NAMES)} in this folder, found neither")


def _read_safetensors(path: Path) -> Content:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            description = (file.metadata() or {}).get("pointvit")
    except SafetensorError as error:
        what = _what_it_is(path)
        raise CheckpointError(f"{path}: {what}, not a readable safetensors file ({error})") from error
    return tensors, _parse_json(description, path) if description else None


def _read_npz(path: Path) -> Content:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: torch.from_numpy(archive[name]) for name in archive.files}, None
    except Exception as error:  # a damaged archive raises whatever its bytes happen to spell
        kind = type(error).__name__
        raise CheckpointError(
            f"{path}: {_what_it_is(path)}, not a readable .npz file of plain arrays ({kind})"
        ) from error


def _read_torch(path: Path) -> Content:
    content = read_torch(path)
    description = content.get("pointvit") if isinstance(content, Mapping) else None
    return _unwrap(content, path), description if isinstance(description, dict) else None


READERS: dict[str, Callable[[Path], Content]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt"), _read_torch),
}


def read_torch(path: Path) -> Any:
    """The content of a PyTorch file, opened with ``weights_only``; errors as in :func:`open_weights`."""
    if not path.is_file():
        what = "is a folder, expected a file" if path.is_dir() else "no such file"
        raise FileNotFoundError(f"{path}: {what}")
    if _is_torchscript(path):
        raise CheckpointError(
            f"{path}: this is a TorchScript program, and only its weights can be used; write them with "
            "torch.save(torch.jit.load(PATH).state_dict(), NEW_PATH)"
        )
    try:
        with torch.serialization.safe_globals(HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises whatever its bytes happen to spell
        if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise CheckpointError(
                f"{path}: it holds more than tensors and plain containers ({refused[1]}), which could run "
                "code, and was not opened; save its state dict alone"
            ) from error
        kind = type(error).__name__
        raise CheckpointError(f"{path}: {_what_it_is(path)}, not a readable PyTorch file ({kind})") from error


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    """The innermost mapping of tensors."""
    while isinstance(content, Mapping):
        inner = next((content[w] for w in WRAPPERS if isinstance(content.get(w), Mapping)), None)
        if inner is None:
            return {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        content = inner
    raise CheckpointError(f"{path}: expected a mapping of names to tensors, got {type(content).__name__}")


def _strip_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes wrapper prefixes that every name carries, in any nesting; DINO's head stands beside them."""
    while True:
        inside = [name for name in tensors if not name.startswith("head.")]
        prefix = next((p for p in PREFIXES if inside and all(name.startswith(p) for name in inside)), None)
        if prefix is None or any(prefix + name in tensors for name in tensors):
            return tensors
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


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
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    return _parse_json(text, path)


def _parse_json(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
