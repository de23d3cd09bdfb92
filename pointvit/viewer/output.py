"""The names that the viewer writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pointvit.checkpoints.writing import new_file

PAGES = (".html", ".htm")
PICTURES = (".png", ".gif")


def checked_name(path: str | os.PathLike[str], endings: Sequence[str]) -> Path:
    """The path, or ValueError where it has another ending."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise ValueError(f"{path}: expected a name ending in {' or '.join(endings)}")
    return path


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """As :func:`new_file`, with errors that name ``path`` instead of the temporary name."""
    try:
        with new_file(path) as temporary:
            yield temporary
    except OSError as error:
        if error.strerror is None:  # a sentence already
            raise
        raise OSError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
