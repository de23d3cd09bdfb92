"""From one source's layout to another's, tensor by tensor: no model is built, no number is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pointvit.checkpoints.architecture import NEEDED
from pointvit.checkpoints.checkpoint import Checkpoint
from pointvit.checkpoints.files import CheckpointError, open_weights
from pointvit.checkpoints.layouts import check_form, check_place, writable, write_checkpoint
from pointvit.checkpoints.loading import shorten
from pointvit.checkpoints.resampling import front_end
from pointvit.checkpoints.shapes import ShapesAlone
from pointvit.checkpoints.soundness import is_finite
from pointvit.checkpoints.sources import native
from pointvit.checkpoints.sources.source import Facts, Source, Tensors
from pointvit.config import ViTConfig
from pointvit.model import ViT
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.variants import model_for


@dataclass(frozen=True)
class Conversion:
    """What became of a file's tensors."""

    file: str
    source: str
    written: Path
    target: str
    config: ViTConfig
    """The encoder in both files."""
    tensors: int
    numbers: int
    dtypes: tuple[str, ...]
    """Types of the numbers, which are kept where the form has them."""
    set_aside: dict[str, str]
    """Tensors that were not written -> why."""
    sizes: dict[str, int]
    """How many numbers each of them holds."""
    unsaid: dict[str, tuple[Any, Any]]
    """Settings that the new layout does not tell -> the encoder's, and what readers take (None: they ask)."""


def convert(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    target: str,
    source: str = "auto",
    asked: Mapping[str, Any] | None = None,
    drop_head: bool = False,
) -> Conversion:
    """Writes the encoder of a checkpoint in the layout of another source.

    Every tensor is written, or set aside for the reason that the file's source gives. Memory holds the
    tensors once, and those that are joined or split once more.

    Args:
        out: as for :func:`~pointvit.checkpoints.save_checkpoint`; a file that is there is replaced.
        target: the source to write, ``source`` the one to read.
        asked: settings that the file leaves open (``activation``, ``num_heads``, ``norm_eps``).
        drop_head: leave the head out, for layouts that have no place for it.

    Raises:
        ValueError: if ``target`` is not written, or its layout has no place for the encoder.
        CheckpointError: if the file cannot be read, or its tensors are not those of the encoder it describes.
    """
    out, to, asked = Path(out), writable(target), dict(asked or {})
    check_form(out, to)
    file = open_weights(path)
    if out.exists() and any(out.samefile(place) for read in file.read for place in (read, *_around(read))):
        raise ValueError(f"{out}: would replace the file it is made from; choose another name")
    checkpoint = Checkpoint.from_file(file, source)
    del file
    config = checkpoint.encoder_config(asked).override(asked)
    aside, sizes = dict(checkpoint.set_aside), dict(checkpoint.sizes)
    if drop_head:
        config = config.override({"num_classes": 0})
        for name in [name for name in checkpoint.tensors if name.startswith("head.")]:
            aside[name], sizes[name] = "the head, dropped as asked", checkpoint.tensors.pop(name).numel()
    with torch.device("meta"), ShapesAlone():
        model = model_for(checkpoint, config)
    tensors = native.decode(_explained(checkpoint, model))
    try:
        check_place(to, model)
        done = Conversion(
            str(checkpoint.path),
            checkpoint.source.name,
            out,
            to.name,
            config,
            len(checkpoint.tensors),
            sum(tensor.numel() for tensor in tensors.values()),
            tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})),
            aside,
            sizes,
            _unsaid(to, tensors, config),
        )
        checkpoint.tensors.clear()  # what is written can then be freed
        write_checkpoint(out, tensors, model, to)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from error
    return done


def _around(read: Path) -> tuple[Path, ...]:
    """The folders that a file lies in, by its name and by where it really is."""
    return (*read.absolute().parents, *read.resolve().parents)


def _unsaid(to: Source, tensors: Tensors, config: ViTConfig) -> dict[str, tuple[Any, Any]]:
    """What others who see the new file's names, shapes and config.json alone will not know."""
    if to is native.SOURCE:
        return {}
    assert to.encode is not None
    written = {name: tuple(tensor.shape) for name, tensor in to.encode(tensors, config).items()}
    said = to.settings(tensors, Facts(to.describe(config) if to.describe else {}, written))
    ours = {name: getattr(config.trunk, name) for name in NEEDED}
    if isinstance(config.tokenizer, ImageTokenizerConfig):
        ours["pos_resample"] = config.tokenizer.pos_resample
    if config.trunk.swiglu:
        del ours["activation"]
    return {name: (value, said.get(name)) for name, value in ours.items() if said.get(name) != value}


def _explained(checkpoint: Checkpoint, model: ViT) -> Tensors:
    """The checkpoint's tensors under the model's names.

    Raises:
        CheckpointError: unless they are the model's, each of its shape and finite.
    """
    tensors, wanted = checkpoint.tensors, model.state_dict()
    if isinstance(model.config.tokenizer, ImageTokenizerConfig):
        tensors, _ = front_end(checkpoint, model.config.tokenizer)
    missing, unexpected = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing and all(name.startswith(checkpoint.source.new) for name in missing):
        raise CheckpointError(
            f"{checkpoint.path}: lacks {shorten(missing)}, which later training adds to such files; load it "
            "with create_model and use pointvit.save"
        )
    if missing or unexpected:
        parts = [f"lacks {shorten(missing)}"] * bool(missing)
        parts += [f"holds {shorten(unexpected)}"] * bool(unexpected)
        raise CheckpointError(
            f"{checkpoint.path} ({checkpoint.source.name}): {' and '.join(parts)}, unlike the encoder it "
            "describes; nothing was written"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(wanted[name].shape)}, got {tuple(tensor.shape)}"
            raise CheckpointError(f"{checkpoint.path}: expected {name} of shape {shapes}")
        if not is_finite(tensor):
            raise CheckpointError(f"{checkpoint.path}: {name} holds NaN or infinite numbers")
    return tensors
