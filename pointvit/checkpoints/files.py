"""Opening weight files without running any code of theirs."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pointvit.checkpoints import hub
from pointvit.checkpoints.archives import KINDS, READERS, Content, read_torch, refuse_absurd
from pointvit.checkpoints.folders import Parts, parts_of
from pointvit.checkpoints.kinds import CheckpointError, kind_of, refuse_odd_names, refuse_other_files

__all__ = ["CheckpointError", "WeightFile", "locate", "open_weights", "read_torch"]

PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "base_model.", "teacher.")


@dataclass(frozen=True)
class WeightFile:
    """Tensors by the names they have in the file, with wrappers removed."""

    path: Path
    """The file, or the index of its shards."""
    tensors: dict[str, Tensor]
    config: dict[str, Any] | None
    """The ``config.json`` beside the weights, or the description that pointvit put into the file, if any."""
    sha256: str
    """Of the file; of shards, one after the other in the order of their names."""
    size: int = 0
    """Bytes on the disk."""
    read: tuple[Path, ...] = ()
    """Every file that it came from: weights, index and settings."""


def open_weights(path: str | os.PathLike[str], headers_only: bool = False) -> WeightFile:
    """Reads ``.safetensors``, ``.npz``, ``.pth``/``.pt``/``.bin``/``.ckpt``, or a folder.

    A folder holds ``model.safetensors`` or ``pytorch_model.bin`` with ``config.json``, or OpenCLIP's files of
    the same kind, whole or in shards. Pickles are opened with ``weights_only``: what is neither a tensor nor
    a plain container nor among ``archives.HARMLESS`` is refused. Nothing is held twice: tensors of a
    ``.safetensors`` file are views of it.

    Args:
        headers_only: leave the numbers in the file. Tensors are on the meta device, with their shape and
            type, but for positions and small ones, which are read.

    Raises:
        FileNotFoundError: if there is no such file, or the folder holds no weights.
        CheckpointError: if the file is damaged, is not what its name says, or would have to run code.
    """
    path = locate(path)
    try:
        parts = parts_of(path)
        tensors, description = _read(parts, headers_only)
        tensors = _strip_prefixes(tensors)
        if not tensors:
            raise CheckpointError(f"{parts.path}: holds no tensors")
        return WeightFile(
            parts.path,
            tensors,
            description if parts.config is None else parts.config,
            _sha256(parts.files),
            sum(file.stat().st_size for file in parts.files),
            (parts.path, *parts.files, *parts.beside),
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from error


def locate(path: str | os.PathLike[str]) -> Path:
    """The file or folder that ``path`` names, on disk or else on the Hugging Face Hub.

    Raises:
        FileNotFoundError: if there is none.
        CheckpointError: if it cannot be reached, or is neither a file nor a folder.
    """
    given, path = path, Path(path)
    try:
        refuse_other_files(path)
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_symlink() and (found := hub.find(given)) is not None:
            return found
        kind = "a symbolic link to what is not there" if path.is_symlink() else "no such file or folder"
        raise FileNotFoundError(f"{path}: {kind}; pass the path of a checkpoint") from None
    except OSError as error:
        circle = error.errno == errno.ELOOP
        reason = "a circle of symbolic links" if circle else (error.strerror or str(error)).lower()
        raise CheckpointError(f"{path}: cannot be opened ({reason})") from error
    return path


def _read(parts: Parts, headers_only: bool) -> Content:
    if parts.listed is None:
        return _read_file(parts.path, headers_only)
    tensors: dict[str, Tensor] = {}
    for file in parts.files:
        shard, _ = _read_file(file, headers_only)
        for names, said in (
            (shard.keys() - parts.listed[file.name], "holds {}, which the index does not place there"),
            (parts.listed[file.name] - shard.keys(), "lacks {}, which the index places there"),
        ):
            if names:
                raise CheckpointError(f"{parts.path}: the shard {file.name} {said.format(min(names))}")
        tensors |= shard
    return tensors, None


def _read_file(file: Path, headers_only: bool) -> Content:
    refuse_other_files(file)
    if file.stat().st_size == 0:
        raise CheckpointError(f"{file}: the file is empty; download or copy it again")
    ending = file.suffix.lower()
    if ending not in READERS:
        endings, got = ", ".join(READERS), file.suffix or "no ending"
        raise CheckpointError(f"{file}: expected a file ending in {endings}, got {got!r}")
    kind = kind_of(file)
    if kind != KINDS[ending] and kind in KINDS.values():
        right = next(name for name, of in KINDS.items() if of == kind)
        raise CheckpointError(f"{file}: this is {kind}, not {KINDS[ending]}; rename it to end in {right}")
    content = READERS[ending](file, headers_only)
    refuse_odd_names(file, content[0])
    refuse_absurd(file, (tensor.numel() * tensor.element_size() for tensor in content[0].values()))
    for name, tensor in content[0].items():
        if str(tensor.dtype).startswith(("torch.float8", "torch.complex")):
            raise CheckpointError(f"{file}: {name} is {tensor.dtype}, expected plain real numbers")
    return content


def _sha256(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _strip_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Removes wrapper prefixes that every name carries, in any nesting; DINO's head stands beside them."""
    while True:
        inside = [name for name in tensors if not name.startswith("head.")]
        prefix = next((p for p in PREFIXES if inside and all(name.startswith(p) for name in inside)), None)
        if prefix is None or any(prefix + name in tensors for name in tensors):
            return tensors
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
