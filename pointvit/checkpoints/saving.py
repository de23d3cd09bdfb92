"""Writing models: the self-describing form (weights and config.json), and the layouts of the sources."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from pointvit.checkpoints import google, native
from pointvit.checkpoints.checkpoint import SOURCES
from pointvit.checkpoints.files import CheckpointError, open_weights, read_torch
from pointvit.config import ViTConfig, near
from pointvit.model import Metadata, Pair, ViT
from pointvit.tokenizers import ImageTokenizerConfig

FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save(model: ViT | Pair, folder: str | os.PathLike[str]) -> Path:
    """Writes ``model.safetensors`` and ``config.json``: everything that predicting and further training need.

    A pair's shared trunk is written once. The folder appears complete or not at all; an existing model in it
    is replaced, any other folder with files in it refused.

    Raises:
        FileExistsError: if ``folder`` is a file, or holds something other than a saved model.
    """
    folder = Path(folder)
    if folder.exists() and not _may_be_replaced(folder):
        raise FileExistsError(f"{folder}: exists and is not a saved model; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        save_file(_unique_tensors(model), temporary / WEIGHTS, metadata={"format": "pt"})
        (temporary / CONFIG).write_text(_described(model, indent=2) + "\n", encoding="utf-8")
        temporary.chmod(0o755)
        _put_in_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def load(folder: str | os.PathLike[str]) -> ViT | Pair:
    """The model that :func:`save` or training (``.ckpt``) wrote, in eval mode on the CPU.

    Raises:
        FileNotFoundError: if the folder does not hold both files.
        CheckpointError: if they are damaged or do not belong together.
    """
    folder = Path(folder)
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
    model = _build(config, folder / CONFIG)
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
    model = _build(config, path)
    prefix, state = "model.", content.get("state_dict")
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: expected a state_dict with the model's weights, it has none")
    weights = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
    _fill(model, weights, path)
    assert isinstance(model, ViT)
    return model.eval()


def save_checkpoint(model: ViT | Pair, path: str | os.PathLike[str], source: str = "timm") -> Path:
    """Writes an image encoder in the names of a source: ``.safetensors``, or ``.npz`` for ``google``.

    A ``.safetensors`` file also carries the model's description in its header, so that reading it back gives
    the same model whatever the names leave unsaid (LayerNorm eps, activation, heads, a grid not square).

    Raises:
        ValueError: for an unknown source, or a model that the source's layout has no place for.
    """
    if source not in SOURCES:
        raise ValueError(f"unknown checkpoint source {source!r}; {near(source, SOURCES)}")
    image = model.image if isinstance(model, Pair) else model
    path = Path(path)
    suffix = ".npz" if source == "google" else ".safetensors"
    if path.suffix != suffix:
        ending = path.suffix or "no ending"
        raise ValueError(f"{path}: a {source} checkpoint is written as {suffix}, got {ending!r}")
    _check_fits(image.config, source)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in image.state_dict().items()}
    encoded = SOURCES[source].encode(native.decode(tensors), image.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{suffix}")
    try:
        if suffix == ".npz":
            np.savez(temporary, **{n: t.float().numpy() for n, t in encoded.items()})  # type: ignore[arg-type]
        else:
            save_file(encoded, temporary, metadata={"format": "pt", "pointvit": _described(image)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _check_fits(config: ViTConfig, source: str) -> None:
    """Refuses a model that others would read from this layout as another one."""
    if not isinstance(config.tokenizer, ImageTokenizerConfig):
        raise ValueError(
            "only image encoders have a public layout to be written in; use pointvit.save for points"
        )
    if source == native.SOURCE.name:
        return
    trunk, grid = config.trunk, config.tokenizer.grid
    obstacles = {
        "learned 2D positions": config.tokenizer.pos_embed == "learned_2d",
        f"the head {config.head!r}": config.head != "linear",
        f"pos_mode={config.pos_mode!r}": config.pos_mode != "once",
    }
    if source == google.SOURCE.name:
        obstacles |= {
            f"norm_eps={trunk.norm_eps:g} (it is 1e-6 there)": trunk.norm_eps != 1e-6,
            f"activation={trunk.activation!r} (it is gelu there)": trunk.activation != "gelu",
            "attention without qkv bias": not trunk.qkv_bias,
            f"a {grid[0]}x{grid[1]} grid of positions": grid[0] != grid[1],
        }
    for obstacle, present in obstacles.items():
        if present:
            raise ValueError(f"the {source} layout has no place for {obstacle}; use pointvit.save")


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


def _build(config: dict[str, Any], path: Path) -> ViT | Pair:
    try:
        if config["kind"] == "pair":
            return Pair(_build_vit(config["image"]), _build_vit(config["points"]))
        return _build_vit(config)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: does not describe a model ({error})") from error


def _build_vit(config: dict[str, Any]) -> ViT:
    described = native.description({"kind": "model", **config})
    assert described is not None
    model = ViT(ViTConfig.from_dict(described["model"]))
    model.meta = Metadata(**described["meta"])
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


def _described(model: ViT | Pair, indent: int | None = None) -> str:
    return json.dumps({"pointvit": FORMAT, **describe(model)}, indent=indent, allow_nan=False)


def _may_be_replaced(folder: Path) -> bool:
    """An empty folder, or one in which :func:`save` wrote everything there is."""
    if not folder.is_dir():
        return False
    names = {file.name for file in folder.iterdir()}
    if not names <= {WEIGHTS, CONFIG}:
        return False
    try:
        return not names or "pointvit" in json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


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
