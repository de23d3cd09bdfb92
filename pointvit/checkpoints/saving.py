"""Writing models: the self-describing form (weights and config.json), and the layouts of the sources."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

from pointvit.checkpoints.checkpoint import SOURCES
from pointvit.checkpoints.files import CheckpointError, open_weights, read_torch
from pointvit.checkpoints.native import decode as join_positions
from pointvit.config import ViTConfig, near
from pointvit.model import Metadata, Pair, ViT

FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save(model: ViT | Pair, folder: str | os.PathLike[str]) -> Path:
    """Writes ``model.safetensors`` and ``config.json``: everything that predicting and further training need.

    A pair's shared trunk is written once. The folder appears complete or not at all; an existing model in it is
    replaced, any other folder with files in it refused.

    Raises:
        FileExistsError: if ``folder`` is a file, or holds something other than a saved model.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(f.name not in (WEIGHTS, CONFIG) for f in folder.iterdir())):
        raise FileExistsError(f"{folder}: exists and is not a saved model; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        save_file(_unique_tensors(model), temporary / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps({"pointvit": FORMAT, **describe(model)}, indent=2, allow_nan=False)
        (temporary / CONFIG).write_text(text + "\n", encoding="utf-8")
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def load(folder: str | os.PathLike[str]) -> ViT | Pair:
    """The model that :func:`save` wrote, or that is in a training checkpoint (``.ckpt``), in eval mode on the CPU.

    Raises:
        FileNotFoundError: if the folder does not hold both files.
        CheckpointError: if they are damaged or do not belong together.
    """
    folder = Path(folder)
    if folder.suffix == ".ckpt" and not folder.is_dir():
        return load_training_checkpoint(folder)
    for name in (WEIGHTS, CONFIG):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: expected a saved model with {WEIGHTS} and {CONFIG}, {name} is not there")
    file = open_weights(folder)
    config = file.config or {}
    if config.get("pointvit") != FORMAT:
        raise CheckpointError(
            f"{folder / CONFIG}: expected a model saved by pointvit (format {FORMAT}); for other checkpoints use "
            "create_model('auto', pretrained=...)"
        )
    model = _build(config, folder)
    missing, unexpected = model.load_state_dict(_with_shared(model, load_file(folder / WEIGHTS)), strict=False)
    if missing or unexpected:
        raise CheckpointError(f"{folder}: weights and config.json do not belong together ({(missing + unexpected)[0]})")
    return model.eval()


def load_training_checkpoint(path: str | os.PathLike[str]) -> ViT:
    """The model in a ``.ckpt`` that training wrote, in eval mode on the CPU.

    Raises:
        CheckpointError: if the file cannot be read, or was not written by pointvit's training.
    """
    path = Path(path)
    content = read_torch(path)
    config = content.get("pointvit") if isinstance(content, dict) else None
    if not isinstance(config, dict) or config.get("kind") != "model":
        raise CheckpointError(f"{path}: expected a checkpoint of pointvit's training; it does not describe a model")
    model = _build(config, path)
    prefix = "model."
    weights = {n.removeprefix(prefix): t for n, t in content["state_dict"].items() if n.startswith(prefix)}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if missing or unexpected:
        raise CheckpointError(f"{path}: its weights do not fit the model it describes ({(missing + unexpected)[0]})")
    assert isinstance(model, ViT)
    return model.eval()


def save_checkpoint(model: ViT | Pair, path: str | os.PathLike[str], source: str = "timm") -> Path:
    """Writes an image encoder in the names of a source: ``.safetensors``, or ``.npz`` for ``google``.

    Raises:
        ValueError: for an unknown source, or a model that holds no image encoder.
    """
    if source not in SOURCES:
        raise ValueError(f"unknown checkpoint source {source!r}; {near(source, SOURCES)}")
    image = model.image if isinstance(model, Pair) else model
    if image.config.modality != "image":
        raise ValueError("only image encoders have a public layout to be written in; use pointvit.save for points")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in image.state_dict().items()}
    encoded = SOURCES[source].encode(join_positions(tensors), image.config)
    path = Path(path)
    suffix = ".npz" if source == "google" else ".safetensors"
    if path.suffix != suffix:
        raise ValueError(f"{path}: a {source} checkpoint is written as {suffix}, got {path.suffix or 'no ending'!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{suffix}")
    try:
        if suffix == ".npz":
            np.savez(temporary, **{name: tensor.numpy() for name, tensor in encoded.items()})  # type: ignore[arg-type]
        else:
            save_file(encoded, temporary, metadata={"format": "pt"})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def describe(model: ViT | Pair) -> dict[str, Any]:
    """Architecture and metadata as plain values: what ``config.json`` holds beside its format number."""
    if isinstance(model, Pair):
        return {"kind": "pair", "image": describe(model.image), "points": describe(model.points)}
    return {"kind": "model", "model": model.config.to_dict(), "meta": asdict(model.meta)}


def _build(config: dict[str, Any], folder: Path) -> ViT | Pair:
    try:
        if config["kind"] == "pair":
            return Pair(_build_vit(config["image"]), _build_vit(config["points"]))
        return _build_vit(config)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG}: does not describe a model ({error})") from error


def _build_vit(config: dict[str, Any]) -> ViT:
    model = ViT(ViTConfig.from_dict(config["model"]))
    known = {f.name for f in fields(Metadata)}
    unknown = set(config["meta"]) - known
    if unknown:
        raise ValueError(f"unknown metadata {', '.join(sorted(unknown))}")
    model.meta = Metadata(**config["meta"])
    return model


def _unique_tensors(model: ViT | Pair) -> dict[str, Tensor]:
    """The state dict without the second name of any shared tensor."""
    seen: dict[int, str] = {}
    unique = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen[id(tensor)] = name
            unique[name] = tensor.detach().cpu().contiguous()
    return unique


def _with_shared(model: ViT | Pair, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`_unique_tensors`: every name of a shared tensor gets its values."""
    first: dict[int, str] = {}
    complete = dict(tensors)
    for name, tensor in model.state_dict(keep_vars=True).items():
        original = first.setdefault(id(tensor), name)
        if original in tensors:
            complete[name] = tensors[original]
    return complete

