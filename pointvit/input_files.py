"""Names on a command line -> the files they stand for: folders and patterns are searched."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from pointvit.data.io import READERS


def find_files(names: Sequence[str], leave_out: Sequence[Path] = ()) -> list[str | Exception]:
    """Files, folders, patterns, or ``-`` -> files in the order of the names, sorted within each.

    A folder stands for the files under it, at any depth, whose ending is known; hidden ones and links to
    folders are passed over. A pattern (``*``, ``?``, ``[...]``, ``**``) that is no file's name stands for
    what it matches. In the place of a name that stands for nothing is an error that says so, and at the end
    of a folder's files one for each folder in it that cannot be read.

    Args:
        leave_out: files that folders and patterns do not stand for: what is written during the same run.
    """
    written = {os.path.abspath(path) for path in leave_out}
    found: list[str | Exception] = []
    for name in names:
        if name != "-" and (os.path.isdir(name) or (glob.has_magic(name) and not os.path.exists(name))):
            files = _in_folder(name) if os.path.isdir(name) else _matches(name)
            files = [f for f in files if isinstance(f, Exception) or os.path.abspath(f) not in written]
            found += files or [_nothing(name)]
        else:
            found.append(name)
    return found


def _in_folder(folder: str) -> list[str | Exception]:
    refused: list[OSError] = []
    found = sorted(
        os.path.join(parent, file)
        for parent, _, files in os.walk(folder, onerror=refused.append)
        if not _is_hidden(parent, folder)
        for file in files
        if not file.startswith(".") and Path(file).suffix.lower() in READERS
    )
    return [*found, *(_unread(error) for error in refused if not _is_hidden(error.filename, folder))]


def _is_hidden(path: str, folder: str) -> bool:
    return any(part.startswith(".") for part in Path(path).relative_to(folder).parts)


def _unread(error: OSError) -> Exception:
    return ValueError(f"{error.filename}: the folder cannot be read ({(error.strerror or '').lower()}).")


def _matches(pattern: str) -> list[str | Exception]:
    """A folder that matches stands for its files, unless the pattern goes into folders itself."""
    paths = sorted(glob.glob(pattern, recursive=True))
    if "**" in pattern:
        return [path for path in paths if not os.path.isdir(path)]
    return [file for path in paths for file in (_in_folder(path) if os.path.isdir(path) else [path])]


def _nothing(name: str) -> Exception:
    endings = ", ".join(READERS)
    if os.path.isdir(name):
        return FileNotFoundError(f"{name}: the folder holds no file ending in one of {endings}.")
    return FileNotFoundError(f"{name}: no file matches this pattern.")
