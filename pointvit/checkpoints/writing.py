"""Writing weight files tensor by tensor, and putting files and folders in place once they are complete."""

from __future__ import annotations

import contextlib
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
from pointvit.checkpoints.kinds import refuse_other_files

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``, which takes its place if the block ends without an error.

    Where ``path`` is a symbolic link, the file it names is replaced, and the link stays.

    Raises:
        FileExistsError: if ``path`` is a folder.
        CheckpointError: if it is a device or a pipe.
        OSError: if it cannot be written.
    """
    if path.is_dir():
        raise FileExistsError(f"{path}: is a folder, expected the name of a file")
    with _named(path):
        if path.exists():
            refuse_other_files(path)
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.stem}-{os.getpid()}{target.suffix}")
        try:
            yield temporary
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextmanager
def new_folder(folder: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """A temporary folder, which takes the place of ``folder`` if the block ends without an error.

    Where ``folder`` is a symbolic link, the folder it names is replaced, and the link stays.

    Raises:
        FileExistsError: if ``folder`` is a file, or holds files and is not one that ``is_ours`` knows.
        OSError: if it cannot be written.
    """
    refuse_other_folder(folder, is_ours)
    with _named(folder):
        target = Path(os.path.realpath(folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            yield temporary
            temporary.chmod(0o755)
            _put_in_place(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def refuse_other_folder(folder: Path, is_ours: Callable[[Path], bool]) -> None:
    """Raises FileExistsError where :func:`new_folder` would: for a caller whose work takes long."""
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or is_ours(folder))):
        raise FileExistsError(f"{folder}: exists and is not a saved model; choose another folder")


def check_place(path: Path) -> None:
    """Raises OSError where nothing could be written under that name, as far as can be told beforehand."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(f"{path}: {folder} is a file, expected a folder to write to")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: the folder {folder} may not be written to; choose another one")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the disk name what was asked for, not the temporary file."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # a sentence of our own
            raise
        raise OSError(
            f"{path}: cannot be written ({error.strerror.lower()}); nothing was changed, choose another "
            "place or make room"
        ) from error


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The format itself (length, JSON header, numbers), so that a view is made contiguous on its own.

    The package's ``save_file`` wants all tensors contiguous at once, which would be a second copy of them.
    Each leaves ``tensors`` once it is written, which frees its memory where nothing else holds it.
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
            stream.write(_plain(tensors.pop(name)).reshape(-1).view(torch.uint8).numpy().data)


def write_npz(path: Path, tensors: dict[str, Tensor]) -> None:
    """As ``np.savez``, one array at a time. NumPy has no bfloat16: those numbers become float32, exactly.

    Each leaves ``tensors`` once it is written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in list(tensors):
            array = _array(tensors.pop(name))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                # `write_array` would hold a second copy as bytes.
                header = np.lib.format.header_data_from_array_1_0(array)
                np.lib.format.write_array_header_1_0(stream, header)
                stream.write(array.reshape(-1).view(np.uint8).data)


def _array(tensor: Tensor) -> np.ndarray:
    return _plain(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


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
