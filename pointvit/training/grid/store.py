"""The folder of a grid: its config, and a file for each cell that is done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

from pointvit.checkpoints.writing import new_file
from pointvit.training.grid.cells import Cell, Measured, Result, size_name

_KINDS = {name: kind for name, kind in get_type_hints(Measured).items() if name != "curve"}


class Store:
    """The folder of a grid: ``grid.json`` with its config, and one file in ``cells/`` for each cell done.

    Args:
        folder: made if it is not there.
        config: everything that all cells have in common, as JSON has it.
        arms: by an arm's name, what it has of its own: a digest of the file it starts from, settings.

    Raises:
        ValueError: if the folder holds a grid of another config.
    """

    def __init__(self, folder: Path, config: dict[str, Any], arms: Mapping[str, Any]) -> None:
        self.folder, self.config, self.arms = folder, config, arms
        file = folder / "grid.json"
        if file.is_file():
            _check_same(folder, _read_json(file), config)
        else:
            _write_json(file, config)

    def key(self, cell: Cell) -> str:
        """Names a training; a search that trains the same thing has the same key."""
        parts = {name: value for name, value in asdict(cell).items() if name != "search"}
        parts |= {"config": self.config, "arm": self.arms.get(f"{cell.init}:{cell.mode}")}
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
        return f"{cell.init}-{cell.mode}-{size_name(cell.size)}-seed{cell.seed}-lr{cell.rate:g}-{digest}"

    def read(self, cell: Cell) -> Result | None:
        """What is known of a cell, or None if it is not done.

        Raises:
            ValueError: for a file that is damaged.
        """
        file = self._file(cell)
        if not file.is_file():
            return None
        data = _read_json(file)
        try:
            curve = tuple((int(epoch), float(value)) for epoch, value in data["curve"])
            known = {name: data[name] for name in _KINDS} | {"curve": curve}
        except (KeyError, TypeError, ValueError):
            known = {}
        fits = known and all(isinstance(known[name], kind) for name, kind in _KINDS.items())
        if not fits or (known["test_oa"] is None) != cell.search:
            raise ValueError(f"{file}: not the result of a cell; delete it, and the cell runs again")
        return Result(cell, Measured(**known))

    def save(self, cell: Cell, measured: Measured) -> None:
        _write_json(self._file(cell), {**asdict(cell), **asdict(measured)})

    def checkpoints(self, cell: Cell) -> Path:
        """The folder for what a training needs to be continued."""
        return self.folder / "checkpoints" / self.key(cell)

    def _file(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{self.key(cell)}{'.search' if cell.search else ''}.json"


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether no other process holds the folder; the system frees it when its holder ends or dies."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows has another way; there, give processes different shares
        yield True
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # removed by a process that has just finished the cell
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError:  # some network file systems have no locks
            yield True
        else:
            yield True
    finally:
        os.close(handle)


def _check_same(folder: Path, there: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = _flat(there), _flat(now)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise ValueError(
                f"{folder}: holds a grid of another config ({name} was {before.get(name)}, now it is "
                f"{after.get(name)}); choose another --output"
            )


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, value in data.items():
        rows |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return rows


def _read_json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not readable as JSON; delete it, and it is made again") from error
    if not isinstance(data, dict):
        raise ValueError(f"{file}: expected a JSON object, got {type(data).__name__}; delete it")
    return data


def _write_json(file: Path, data: dict[str, Any]) -> None:
    with new_file(file) as temporary:
        temporary.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
