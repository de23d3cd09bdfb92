"""Writing and reading models in the self-describing form: weights and config.json."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pointvit.checkpoints import hub
from pointvit.checkpoints.files import CheckpointError, open_weights, read_torch
from pointvit.checkpoints.folders import PREPROCESSOR
from pointvit.checkpoints.soundness import UNSOUND, check_described, check_tensors, reason_of
from pointvit.checkpoints.sources import native
from pointvit.checkpoints.writing import new_folder, write_safetensors
from pointvit.config import ViTConfig
from pointvit.model import Metadata, Pair, ViT

FORMAT = 1
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def save(model: ViT | Pair, folder: str | os.PathLike[str]) -> Path:
    """Writes ``model.safetensors`` and ``config.json``: everything that predicting and further training need.

    Beside them stands a model card, ``README.md``, for the Hugging Face Hub; one that was edited is kept.
    A pair's shared trunk is written once. The folder appears complete or not at all; an existing model in it
    is replaced, any other folder with files in it refused.

    Raises:
        FileExistsError: if ``folder`` is a file, or holds something other than a saved model.
    """
    from pointvit.checkpoints import card  # here, as it imports the Hub's client

    folder = Path(folder)
    with new_folder(folder, is_saved) as temporary:
        write_safetensors(temporary / WEIGHTS, _unique_tensors(model), {"format": "pt"})
        (temporary / CONFIG).write_text(described(model, indent=2) + "\n", encoding="utf-8")
        card.write(temporary, folder)
    return folder


def load(folder: str | os.PathLike[str]) -> ViT | Pair:
    """The model that :func:`save` or training (``.ckpt``) wrote, in eval mode on the CPU.

    Args:
        folder: what they wrote, or a repository of it on the Hugging Face Hub, as ``owner/name``.

    Raises:
        FileNotFoundError: if there is no such folder or repository, or it does not hold both files.
        CheckpointError: if they are damaged or do not belong together.
    """
    found = None if Path(folder).exists() else hub.find(folder, folder=True)
    folder = Path(folder) if found is None else found
    if folder.suffix == ".ckpt" and not folder.is_dir():
        return load_training_checkpoint(folder)
    if folder.is_file():
        raise CheckpointError(
            f"{folder}: expected the folder of a saved model, or a training checkpoint (.ckpt); for other "
            "checkpoints use create_model('auto', pretrained=...)"
        )
    for name in (WEIGHTS, CONFIG):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder}: expected a saved model with {WEIGHTS} and {CONFIG}, "
                f"{f'{name} is not there' if folder.is_dir() else 'there is no such folder'}"
            )
    file = open_weights(folder)
    config = file.config or {}
    if config.get("pointvit") != FORMAT:
        raise CheckpointError(
            f"{folder / CONFIG}: expected a model saved by pointvit (format {FORMAT}); for other checkpoints "
            "use create_model('auto', pretrained=...)"
        )
    model = _build(config, folder / CONFIG, file.tensors)
    _fill(model, _with_shared(model, file.tensors), folder)
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
        raise CheckpointError(
            f"{path}: expected a checkpoint of pointvit's training; it does not describe a model"
        )
    prefix, state = "model.", content.get("state_dict")
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: expected a state_dict with the model's weights, it has none")
    weights = _part(state, prefix)
    model = _build(config, path, weights)
    _fill(model, weights, path)
    assert isinstance(model, ViT)
    return model.eval()


def describe(model: ViT | Pair) -> dict[str, Any]:
    """Architecture and metadata as plain values: what ``config.json`` holds beside its format number."""
    if isinstance(model, Pair):
        return {"kind": "pair", "image": describe(model.image), "points": describe(model.points)}
    _check_names(model)
    return {"kind": "model", "model": model.config.to_dict(), "meta": asdict(model.meta)}


def _check_names(model: ViT) -> None:
    names = model.meta.class_names
    if names is not None and len(names) != model.num_classes:
        raise ValueError(f"meta.class_names has {len(names)} names, the model {model.num_classes} classes")


def _build(config: dict[str, Any], path: Path, weights: dict[str, Tensor]) -> ViT | Pair:
    """The model that is described, if the weights are of its shapes: others are not even built."""
    try:
        if config["kind"] != "pair":
            return _build_vit(config, weights)
        image, points = _part(weights, "image."), _part(weights, "points.")
        trunk = {name: tensor for name, tensor in image.items() if name.startswith("trunk.")}
        return Pair(_build_vit(config["image"], image), _build_vit(config["points"], {**trunk, **points}))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except UNSOUND as error:
        raise CheckpointError(f"{path}: does not describe a model ({reason_of(error)})") from error


def _part(weights: dict[Any, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in weights.items()
        if isinstance(name, str) and name.startswith(prefix)
    }


def _build_vit(config: dict[str, Any], weights: dict[str, Tensor]) -> ViT:
    described = native.description({"kind": "model", **config})
    assert described is not None
    own = ViTConfig.from_dict(described["model"])
    meta = Metadata(**described["meta"])
    try:
        tensors = native.decode(weights)
        check_tensors(tensors)
        check_described(own, tensors)
    except UNSOUND as error:
        reason = reason_of(error)
        raise CheckpointError(
            f"the weights do not fit the model that is described beside them ({reason})"
        ) from error
    model = ViT(own)
    model.meta = meta
    if meta.transfer:
        from pointvit.training.adapters import add_layers  # here, as few models have any

        add_layers(model.trunk, meta.transfer)
    _check_names(model)
    return model


def _fill(model: ViT | Pair, weights: dict[str, Tensor], path: Path) -> None:
    wanted = model.state_dict()
    wrong = sorted(wanted.keys() ^ weights.keys()) or [
        n for n, t in weights.items() if t.shape != wanted[n].shape
    ]
    if wrong:
        raise CheckpointError(
            f"{path}: the weights do not fit the model that is described beside them ({wrong[0]})"
        )
    model.load_state_dict(weights)


def described(model: ViT | Pair, indent: int | None = None) -> str:
    """What :func:`describe` gives, with the format's number, as JSON."""
    return json.dumps({"pointvit": FORMAT, **describe(model)}, indent=indent, allow_nan=False)


def is_saved(folder: Path) -> bool:
    """Whether pointvit wrote everything there is in a folder."""
    if {file.name for file in folder.iterdir()} - {CARD, PREPROCESSOR} != {WEIGHTS, CONFIG}:
        return False
    try:
        if "pointvit" in json.loads((folder / CONFIG).read_text(encoding="utf-8")):
            return True
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            return "pointvit" in (file.metadata() or {})
    except (OSError, ValueError, TypeError, SafetensorError):
        return False


def _unique_tensors(model: ViT | Pair) -> dict[str, Tensor]:
    """The state dict without the second name of any shared tensor."""
    seen: dict[int, str] = {}
    unique = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen[id(tensor)] = name
            unique[name] = tensor.detach()
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
