"""From one source's layout to another's, tensor by tensor: no model is built, no number is changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pointvit.checkpoints.checkpoint import Checkpoint
from pointvit.checkpoints.files import CheckpointError
from pointvit.checkpoints.layouts import check_form, writable, write_checkpoint
from pointvit.checkpoints.loading import shorten
from pointvit.checkpoints.resampling import front_end
from pointvit.checkpoints.shapes import ShapesAlone
from pointvit.checkpoints.sources import native
from pointvit.checkpoints.sources.source import Tensors
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


def convert(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    target: str,
    source: str = "auto",
    asked: Mapping[str, Any] | None = None,
) -> Conversion:
    """Writes the encoder of a checkpoint in the layout of another source.

    Every tensor is written, or set aside for the reason that the file's source gives. Memory holds the
    tensors once, and those that are joined or split once more.

    Args:
        out: as for :func:`~pointvit.checkpoints.save_checkpoint`; a file that is there is replaced.
        target: the source to write, ``source`` the one to read.
        asked: settings that the file leaves open (``activation``, ``num_heads``, ``norm_eps``).

    Raises:
        ValueError: if ``target`` is not written, or its layout has no place for the encoder.
        CheckpointError: if the file cannot be read, or its tensors are not those of the encoder it describes.
    """
    path, out, to, asked = Path(path), Path(out), writable(target), dict(asked or {})
    check_form(out, to)
    if path.exists() and out.exists() and path.samefile(out):
        raise ValueError(f"{out}: would replace the file it is made from; choose another name")
    checkpoint = Checkpoint.open(path, source)
    config = checkpoint.encoder_config(asked).override(asked)
    with torch.device("meta"), ShapesAlone():
        model = model_for(checkpoint, config)
    tensors = _explained(checkpoint, model)
    try:
        write_checkpoint(out, native.decode(tensors), model, to)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from error
    return Conversion(
        str(checkpoint.path),
        checkpoint.source.name,
        out,
        to.name,
        config,
        len(checkpoint.tensors),
        sum(tensor.numel() for tensor in tensors.values()),
        tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})),
        checkpoint.set_aside,
        checkpoint.sizes,
    )


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
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{checkpoint.path}: {name} holds NaN or infinite numbers")
    return tensors
