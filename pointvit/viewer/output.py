"""The names that the viewer writes to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

PAGES = (".html", ".htm")
PICTURES = (".png", ".gif")


def checked_name(path: str | os.PathLike[str], endings: Sequence[str]) -> Path:
    """The path, or ValueError where it has another ending."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise ValueError(f"{path}: expected a name ending in {' or '.join(endings)}")
    return path
