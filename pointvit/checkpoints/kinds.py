"""What a file really is, told by its first bytes and not by its name."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path

SAFETENSORS, NPZ, PYTORCH = "a safetensors file", "an .npz archive of arrays", "a PyTorch file"
TORCHSCRIPT = "a TorchScript program"
DAMAGED = "the file is damaged or of another kind"
BEGINNINGS = {
    b"version https://git-lfs": "this is a Git LFS pointer, fetch the real file with `git lfs pull`",
    b"<!doctype": "this is a web page, the download went wrong",
    b"<html": "this is a web page, the download went wrong",
    b"\x89hdf\r\n": "this is an HDF5 file (Keras, TensorFlow), whose layout is not known here",
    b"\x93numpy": "this is a single NumPy array (.npy)",
    b"\x1f\x8b": "this is a gzip archive, unpack it first",
    b"gguf": "this is a GGUF file of a language model",
    b"{": "this is JSON text, which holds no weights",
}
"""Beginnings of files that are no weights, in lower case and without leading blanks."""
OTHER_FILES = {
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}
ZIP = b"PK\x03\x04"
PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
MAX_HEADER = 100_000_000
"""Bytes that a safetensors header may have at most."""

MAX_NAME = 250


class CheckpointError(ValueError):
    """A checkpoint that cannot be opened, is not understood, or does not fit the model."""


def refuse_other_files(path: Path) -> None:
    """Raises CheckpointError for what is neither a regular file nor a folder: reading it could block."""
    mode = path.stat().st_mode
    for is_so, name in OTHER_FILES.items():
        if is_so(mode):
            raise CheckpointError(f"{path}: this is {name}, expected a file or a folder")


def refuse_odd_names(path: Path, names: Iterable[str]) -> None:
    """Raises CheckpointError for a name that could not be shown on a line, as no tensor of a model has."""
    for name in names:
        if len(name) > MAX_NAME or not name.isprintable():
            shown = repr(name[:40]) + ("..." if len(name) > 40 else "")
            raise CheckpointError(
                f"{path}: names a tensor {shown}, expected at most {MAX_NAME} printable characters"
            )


def kind_of(path: Path) -> str | None:
    """One of the kinds that can be read, TORCHSCRIPT, or None if the first bytes say nothing of the sort."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(9)
    length = int.from_bytes(head[:8], "little")
    if head[8:] == b"{" and length <= min(MAX_HEADER, size - 8):
        return SAFETENSORS  # asked first, as the length may begin as a pickle does
    if head.startswith(ZIP):
        return _kind_of_zip(path)
    # A pickle is what torch.save wrote before it made zip archives.
    return PYTORCH if head.startswith(PICKLES) else None


def what_it_is(path: Path, expected: str) -> str:
    """A clause for a file that cannot be read as one of the expected kind."""
    known = kind_of(path)
    if known not in (None, expected):
        return f"this is {known}"
    with path.open("rb") as stream:
        head = stream.read(64).lstrip().lower()
    return next((what for start, what in BEGINNINGS.items() if head.startswith(start)), DAMAGED)


def _kind_of_zip(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    inside = {os.path.basename(name) for name in names}
    if "data.pkl" in inside:
        return TORCHSCRIPT if "constants.pkl" in inside else PYTORCH
    return NPZ if names and all(name.endswith(".npy") for name in names) else None
