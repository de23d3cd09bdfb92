"""What a folder holds of a checkpoint: one file or the shards of an index, and the settings beside them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pointvit.checkpoints.kinds import CheckpointError, refuse_odd_names

CONFIGS = {
    # weights: the settings that belong to them, in the order in which they are looked for
    "model.safetensors": "config.json",
    "pytorch_model.bin": "config.json",
    "open_clip_model.safetensors": "open_clip_config.json",
    "open_clip_pytorch_model.bin": "open_clip_config.json",
}
INDEX = ".index.json"
PREPROCESSOR = "preprocessor_config.json"
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
MAX_JSON = 1 << 26
"""Bytes of a JSON file that is read; an index of public shards has a few hundred thousand."""


@dataclass(frozen=True)
class Parts:
    """The files that hold one checkpoint."""

    path: Path
    """The weights, or the index of their shards."""
    files: tuple[Path, ...]
    listed: dict[str, set[str]] | None
    """Of shards: the names of the tensors that the index places in each file."""
    config: dict[str, Any] | None
    """The settings beside the weights, with the preprocessor's under ``preprocessor``."""
    beside: tuple[Path, ...] = ()
    """The files of these settings."""


def parts_of(path: Path) -> Parts:
    """The parts of a checkpoint that a folder, a file, an index or one of its shards names.

    Raises:
        FileNotFoundError: if a folder holds no weights, or a shard is not there.
        CheckpointError: if an index or a file of settings is not what it should be.
    """
    file = _in_folder(path) if path.is_dir() else path
    if match := SHARD.fullmatch(file.name):
        index = file.with_name(match[1] + match[4] + INDEX)
        if index.is_file():
            file = index
        elif int(match[3]) > 1:
            raise FileNotFoundError(
                f"{file}: this is one of {int(match[3])} shards, expected {index.name} beside it"
            )
    name = file.name.removesuffix(INDEX)
    beside: tuple[Path, ...] = ()
    if name in CONFIGS:
        settings = (file.with_name(CONFIGS[name]), file.with_name(PREPROCESSOR))
        beside = tuple(path for path in settings if path.is_file())
    config = _settings_in(beside)
    if file.name == name:
        return Parts(file, (file,), None, config, beside)
    listed = _listed(file)
    return Parts(file, tuple(file.with_name(shard) for shard in sorted(listed)), listed, config, beside)


def read_json(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_JSON:
        raise CheckpointError(f"{path}: has more than {MAX_JSON:,} bytes, which no settings do")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    return parse_json(text, path)


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """The object that ``text``, which stands in ``path``, spells.

    Raises:
        CheckpointError: if it is no JSON, no object, or names something twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise CheckpointError(f"{path}: names {twice[0]:.100} more than once")
        return dict(pairs)

    try:
        content = json.loads(text, object_pairs_hook=once)
    except CheckpointError:
        raise
    except ValueError as error:  # also a number of more digits than Python reads
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    except RecursionError as error:
        raise CheckpointError(f"{path}: not valid JSON (nested too deep)") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def _in_folder(folder: Path) -> Path:
    for name in CONFIGS:
        for file in (folder / name, folder / (name + INDEX)):
            if file.is_file():
                return file
    names = sorted(file.name for file in folder.iterdir())
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    wanted = " or ".join(CONFIGS)
    raise FileNotFoundError(
        f"{folder}: expected {wanted} in this folder, whole or in shards, found {shown or 'nothing'}"
    )


def _settings_in(files: tuple[Path, ...]) -> dict[str, Any] | None:
    config: dict[str, Any] | None = None
    for file in files:
        said = read_json(file)
        config = {**(config or {}), **({"preprocessor": said} if file.name == PREPROCESSOR else said)}
    return config


def _listed(index: Path) -> dict[str, set[str]]:
    """Shards by name, with the names of the tensors in each; all lie beside the index."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(
            f"{index}: expected a weight_map of names to shards, got {type(places).__name__}"
        )
    refuse_odd_names(index, places)
    listed: dict[str, set[str]] = {}
    for name, shard in places.items():
        if not isinstance(shard, str) or shard != Path(shard).name or "\\" in shard or shard in ("", ".."):
            raise CheckpointError(
                f"{index}: {name} lies in {shard!r:.300}, expected a file in the same folder"
            )
        listed.setdefault(shard, set()).add(name)
    for shard in sorted(listed):
        if not index.with_name(shard).is_file():
            raise FileNotFoundError(
                f"{index}: names {shard}, which is not there; copy all {len(listed)} shards beside it"
            )
    return listed
