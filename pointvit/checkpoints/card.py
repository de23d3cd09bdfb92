"""The model card: ``README.md`` beside a saved model, all of it from its ``config.json``."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from pointvit.checkpoints.hub import Repository
from pointvit.checkpoints.saving import CARD, CONFIG

FOLDER = "path/to/this/folder"
SHOWN = 100
"""Class names in a card; the others are in config.json."""
INPUTS = {
    "image": "images `(B, {channels}, {height}, {width})`",
    "points": "point clouds `(B, P, {channels})`",
}
TAGS = {"image": ["image"], "points": ["point-cloud"]}
TITLES = {
    "image": "Image encoder",
    "points": "Point-cloud encoder",
    "pair": "Image and point-cloud encoder on one trunk",
}
EXAMPLES = {
    # (modality, whether it has classes): the last line
    ("image", True): "logits = model(images)  # (B, {channels}, {height}, {width}), normalised as below",
    ("image", False): "features = model(images)  # (B, {channels}, {height}, {width}), normalised as below",
    ("points", True): 'print(model.predict("object.ply"))',
    ("points", False): "features = model(clouds)  # (B, P, {channels}), normalised as below",
    ("pair", True): "logits = model.points(clouds)  # (B, P, {channels}), normalised as below",
    ("pair", False): "features = model.points(clouds)  # (B, P, {channels}), normalised as below",
}
PIPELINES = {("image", True): "image-classification", ("image", False): "image-feature-extraction"}
"""The Hub's names of tasks; it has none for point clouds."""


def write(folder: Path, previous: Path, name: str = FOLDER) -> None:
    """Writes the card of the model saved in ``folder``, to be loaded as ``name``.

    A card in ``previous`` that someone has edited is kept: it is copied instead.
    """
    if is_edited(previous):
        shutil.copyfile(previous / CARD, folder / CARD)
        return
    description = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    (folder / CARD).write_text(text(description, name), encoding="utf-8")


def is_edited(folder: Path) -> bool:
    """Whether the folder has a card that is not what :func:`write` makes of the ``config.json`` in it."""
    try:
        present = (folder / CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    name = re.search(r'pointvit\.load\("(.+)"\)', present)
    try:
        description = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return name is None or present != text(description, name[1])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True


def text(description: Mapping[str, Any], name: str) -> str:
    """The card of a model that is described as in ``config.json``."""
    parts = _encoders(description)
    kind = "pair" if len(parts) == 2 else parts[0]["model"]["modality"]
    classifies = parts[-1]["model"]["num_classes"] > 0
    sources = [Repository.named(part["meta"]["source"].get("file", "")) for part in parts]
    data = ModelCardData(
        library_name="pointvit",
        base_model=sorted({source.name for source in sources if source is not None}) or None,
        pipeline_tag=PIPELINES.get((kind, classifies)),
        tags=["vision-transformer", *(tag for part in parts for tag in TAGS[part["model"]["modality"]])],
    )
    example = EXAMPLES[kind, classifies].format(**_sizes(parts[-1]["model"]))
    lines = [
        f"---\n{data.to_yaml()}\n---\n",
        f"# {TITLES[kind]}\n",
        "A Vision Transformer saved by `pointvit`; `config.json` has its complete description.\n",
        f'```python\nimport pointvit\n\nmodel = pointvit.load("{name}")\n{example}\n```',
    ]
    for part in parts:
        heading = [f"\n## {TITLES[part['model']['modality']]}"] if len(parts) > 1 else []
        rows = [f"| {label} | {_cell(value)} |" for label, value in _facts(part).items()]
        lines += [*heading, "\n| | |\n|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _encoders(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if description["kind"] == "pair":
        return [description["image"], description["points"]]
    return [description]


def _sizes(model: Mapping[str, Any]) -> dict[str, int]:
    tokenizer = model["tokenizer"]
    height, width = tokenizer.get("img_size", (0, 0))
    return {"channels": tokenizer["in_chans"], "height": height, "width": width}


def _facts(part: Mapping[str, Any]) -> dict[str, str]:
    """What the card says of one encoder, by label."""
    model, meta = part["model"], part["meta"]
    trunk, modality, classes = model["trunk"], model["modality"], model["num_classes"]
    return {
        "Input": INPUTS[modality].format(**_sizes(model)),
        "Output": f"logits of {classes} classes" if classes else "features",
        "Trunk": f"width {trunk['embed_dim']}, {trunk['depth']} blocks, {trunk['num_heads']} heads",
        "Arithmetic": f"LayerNorm eps {trunk['norm_eps']:g}, {trunk['activation']}",
        "Tokenizer": ", ".join(f"{name} {value}" for name, value in model["tokenizer"].items()),
        "Pool and head": f"{model['global_pool']}, {model['head'] if classes else 'none'}",
        **_frame(modality, meta),
        "Classes": _classes(meta["class_names"]),
        "Trained from": _source(meta["source"]),
    }


def _frame(modality: str, meta: Mapping[str, Any]) -> dict[str, str]:
    if modality == "image":
        mean, std = (", ".join(f"{n:g}" for n in meta[name]) for name in ("image_mean", "image_std"))
        return {"Normalisation": f"mean {mean}, standard deviation {std}, of colours from 0 to 1"}
    points = meta["num_points"]
    return {
        "Normalisation": meta["normalization"],
        "Up axis": meta["up_axis"],
        "Points per cloud": "not recorded" if points is None else str(points),
    }


def _classes(names: list[str] | None) -> str:
    if names is None:
        return "not named"
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _source(source: Mapping[str, str]) -> str:
    said = "no checkpoint is recorded"
    if "file" in source:
        said = f"`{source['file']}` ({source['format']}, SHA-256 `{source['sha256']}`)"
    return f"{said}; aligned to `{source['aligned_to']}`" if "aligned_to" in source else said


def _cell(value: str) -> str:
    """On one line, without the character that ends a cell."""
    return " ".join(value.split()).replace("|", "\\|")
