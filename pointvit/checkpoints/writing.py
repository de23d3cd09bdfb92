"""Writing weight files tensor by tensor, and putting files and folders in place once they are complete."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pointvit.checkpoints.archives import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``, which takes its place if the block ends without an error.

    Raises:
        FileExistsError: if ``path`` is a folder.
    """
    if path.is_dir():
        raise FileExistsError(f"{path}: is a folder, expected the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """A temporary folder, which takes the place of ``folder`` if the block ends without an error.

    Raises:
        FileExistsError: if ``folder`` is a file, or holds files and is not one that ``is_ours`` knows.
    """
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or is_ours(folder))):
        raise FileExistsError(f"{folder}: exists and is not a saved model; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        _put_in_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The format itself (length, JSON header, numbers), so that a view is made contiguous on its own.

    The package's ``save_file`` wants all tensors contiguous at once, which would be a second copy of them.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    # Wider types first, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for name in names:
            stream.write(_plain(tensors[name]).reshape(-1).view(torch.uint8).numpy().data)


def write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """As ``np.savez``, one array at a time. NumPy has no bfloat16: those numbers become float32, exactly."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors.items():
            if tensor.dtype == torch.bfloat16:
                tensor = tensor.float()
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, _plain(tensor).numpy(), allow_pickle=False)


def write_torch(path: Path, content: Mapping[str, Mapping[str, Any]]) -> None:
    """Plain mappings as PyTorch writes them; a tensor that is a part of a larger one is copied out of it."""
    torch.save(
        {name: {n: _alone(value) for n, value in part.items()} for name, part in content.items()}, path
    )


def _alone(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = _plain(value)
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _put_in_place(new: Path, folder: Path) -> None:
    """Renames ``new`` to ``folder``; what was there goes once that has worked, or else comes back."""
    if not folder.exists():
        new.rename(folder)
        return
    previous = new.with_name(f"{new.name}-previous")
    folder.rename(previous)
    try:
        new.rename(folder)
    except BaseException:
        previous.rename(folder)
        raise
    shutil.rmtree(previous)
