"""Loading a checkpoint into a model, strictly, with a report of every tensor."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pointvit.checkpoints.checkpoint import Checkpoint
from pointvit.checkpoints.files import CheckpointError
from pointvit.checkpoints.hub import origin
from pointvit.checkpoints.resampling import PREFIX, TABLE, front_end, projected
from pointvit.checkpoints.soundness import is_finite
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig

if TYPE_CHECKING:
    from pointvit.model import Pair, ViT

logger = logging.getLogger(__name__)

FRONT_END = ("tokenizer.",)
HEAD = ("pool.", "fc_norm.", "pre_logits.", "head.")
TRUNK_SETTINGS = (
    "num_heads",
    "norm_eps",
    "activation",
    "qkv_bias",
    "norm_pre",
    "swiglu",
    "attn_norm",
    "mlp_norm",
)


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor of a file and every parameter of the model."""

    source: str
    file: str
    loaded: list[str] = field(default_factory=list)
    """Parameters of the model that came from the file."""
    resampled: list[str] = field(default_factory=list)
    """Those among them that were resampled: positions to another grid, patch kernels to another size."""
    projected: list[str] = field(default_factory=list)
    """Those among them that are 2D positions, which a point encoder samples (``pos_embed=projected``)."""
    set_aside: dict[str, str] = field(default_factory=dict)
    """Tensors of the file that the model has no place for -> why."""
    new: list[str] = field(default_factory=list)
    """Parameters that such a file need not hold, and that start from their initialisation."""
    missing: list[str] = field(default_factory=list)
    """Parameters that the file should have held."""
    unexpected: list[str] = field(default_factory=list)
    """Tensors of the file that are not understood."""
    coverage: float = 0.0
    """Share of the trunk's numbers (class and register tokens included) that came from the file."""
    sizes: dict[str, int] = field(default_factory=dict)
    """How many numbers stand behind each name above."""

    def num_parameters(self, names: Iterable[str]) -> int:
        """How many numbers the tensors ``names`` hold: ``report.num_parameters(report.loaded)``."""
        return sum(self.sizes[name] for name in names)

    def __str__(self) -> str:
        rows = [
            ("loaded", self.loaded, ""),
            ("resampled", self.resampled, ", ".join(self.resampled)),
            ("projected", self.projected, f"2D positions, for centres: {', '.join(self.projected)}"),
            *(("set aside", names, f"{why}: {shorten(names)}") for why, names in self._by_reason().items()),
            ("new", self.new, shorten(self.new)),
            ("missing", self.missing, shorten(self.missing)),
            ("unexpected", self.unexpected, shorten(self.unexpected)),
        ]
        lines = [f"{self.file} ({self.source}), {_percent(self.coverage)} of the trunk"]
        lines += [f"  {'':<10} {'tensors':>7} {'numbers':>13}"]
        lines += [
            f"  {label:<10} {len(names):>7,} {self.num_parameters(names):>13,}  {detail}".rstrip()
            for label, names, detail in rows
            if names
        ]
        return "\n".join(lines)

    def _by_reason(self) -> dict[str, list[str]]:
        grouped: dict[str, list[str]] = {}
        for name, why in self.set_aside.items():
            grouped.setdefault(why, []).append(name)
        return grouped


def load_checkpoint(
    model: ViT | Pair, path: str | os.PathLike[str], source: str = "auto", min_coverage: float = 1.0
) -> LoadReport:
    """Loads a checkpoint into a model that exists already; if anything is wrong, the model is untouched.

    A pair is loaded through its image encoder, which holds the shared trunk.

    Args:
        path: a file, a folder, or the name of a repository on the Hugging Face Hub.
        source: the layout, one of ``pointvit.checkpoints.SOURCES``; ``auto`` tells it from the names.
        min_coverage: share of the trunk's numbers that must come from the file. Below 1, what is missing
            keeps its values and a warning names it.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: unless every tensor of the file is loaded or set aside for a named reason, and
            everything the trunk needs (or ``min_coverage`` of it) came from the file.
    """
    from pointvit.model import Pair

    if not 0.0 < min_coverage <= 1.0:
        raise ValueError(f"min_coverage must lie in (0, 1], got {min_coverage}")
    target = model.image if isinstance(model, Pair) else model
    checkpoint = Checkpoint.open(path, source)
    _check_arithmetic(target, checkpoint)
    return load_into(target, checkpoint, min_coverage)


def load_into(model: ViT, checkpoint: Checkpoint, min_coverage: float = 1.0) -> LoadReport:
    """As :func:`load_checkpoint`, for an opened checkpoint whose settings the model has."""
    wanted = model.state_dict()
    if any(tensor.is_meta for tensor in wanted.values()):
        raise CheckpointError(
            f"{checkpoint.path}: the model is on the meta device, which holds no numbers; "
            "build it on another, or call model.to_empty(device=...)"
        )
    same_modality = checkpoint.modality == model.config.modality
    tokenizer = model.config.tokenizer
    offered: dict[str, Tensor] = checkpoint.tensors
    resampled: list[str] = []
    if same_modality and isinstance(tokenizer, ImageTokenizerConfig):
        offered, resampled = front_end(checkpoint, tokenizer)
    positions: list[str] = []
    of_images = checkpoint.modality == "image"
    if of_images and isinstance(tokenizer, PointTokenizerConfig) and tokenizer.pos_embed == "projected":
        offered, resampled = projected(checkpoint, tokenizer.pos_grid)
        positions = [name for name in (TABLE, *PREFIX) if name in offered and name in wanted]
    report = LoadReport(
        checkpoint.source.name,
        str(checkpoint.path),
        resampled=resampled,
        projected=positions,
        set_aside=dict(checkpoint.set_aside),
        sizes={name: t.numel() for name, t in (*offered.items(), *wanted.items())} | checkpoint.sizes,
    )
    fitting_head = _fitting_head(offered, wanted) if same_modality else ()
    for name, tensor in offered.items():
        reason = None if name in positions else _set_aside_reason(name, same_modality, fitting_head)
        if reason is not None:
            report.set_aside[name] = reason
        elif name not in wanted:
            report.unexpected.append(name)
        else:
            _check_tensor(name, tensor, wanted[name], checkpoint)
            report.loaded.append(name)
    for name in wanted.keys() - set(report.loaded):
        fresh = name.startswith(HEAD + checkpoint.source.new)
        fresh = fresh or (not same_modality and name.startswith(FRONT_END))
        (report.new if fresh else report.missing).append(name)
    report = _with_coverage(report, wanted)
    if report.unexpected or (report.missing and not min_coverage <= report.coverage < 1.0):
        raise CheckpointError(_failure(report))
    if report.missing:
        warnings.warn(
            f"{report.file}: {_percent(report.coverage)} of the trunk came from the file; not in it, and "
            f"left as they were: {', '.join(report.missing)}",
            stacklevel=3,
        )
    with torch.no_grad():
        for name in report.loaded:
            wanted[name].copy_(offered[name])
    if same_modality:
        model.resample_positions_as(checkpoint.settings.get("pos_resample"))
    model.meta.source = {
        "file": origin(checkpoint.path),
        "sha256": checkpoint.sha256,
        "format": checkpoint.source.name,
    }
    logger.info("%s", report)
    return report


def _fitting_head(offered: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[str, ...]:
    """The parts of the head, from the pool on, that file and model have alike.

    What stands behind a part that differs was trained on other features: it would load cleanly and mean
    nothing.
    """
    for i, part in enumerate(HEAD):
        ours, theirs = ({n: t.shape for n, t in of.items() if n.startswith(part)} for of in (wanted, offered))
        if ours != theirs:
            return HEAD[:i]
    return HEAD


def _set_aside_reason(name: str, same_modality: bool, fitting_head: tuple[str, ...]) -> str | None:
    if not same_modality and name == "pos_embed":
        return "2D positions, which points have no use for"
    if not same_modality and name.startswith(FRONT_END):
        return "the other modality's front end"
    if not same_modality and name.startswith(HEAD):
        return "the file's head, trained on the other modality"
    if name.startswith(HEAD) and not name.startswith(fitting_head):
        return "the file's head, which differs from the model's"
    return None


def _check_tensor(name: str, tensor: Tensor, ours: Tensor, checkpoint: Checkpoint) -> None:
    if tensor.shape != ours.shape:
        raise CheckpointError(
            f"{checkpoint.path}: {name} has shape {tuple(tensor.shape)}, the model's has {tuple(ours.shape)}"
        )
    if tensor.is_floating_point() != ours.is_floating_point():
        raise CheckpointError(f"{checkpoint.path}: {name} is {tensor.dtype}, the model's is {ours.dtype}")
    if not is_finite(tensor):
        raise CheckpointError(f"{checkpoint.path}: {name} holds NaN or infinite numbers")


def _check_arithmetic(model: ViT, checkpoint: Checkpoint) -> None:
    """Refuses a file whose settings are not the model's: it would load and compute something else."""
    theirs, ours = checkpoint.adapt(model.config), model.config
    rotary = ("tokenizer.rope",) if checkpoint.modality == ours.modality == "image" else ()
    for name in (*(f"trunk.{n}" for n in TRUNK_SETTINGS), "pos_mode", *rotary):
        expected, actual = attrgetter(name)(theirs), attrgetter(name)(ours)
        if expected != actual:
            raise CheckpointError(
                f"{checkpoint.path}: was trained with {name}={expected!r}, the model has {actual!r}; build "
                "the model with create_model(..., pretrained=...), which takes the file's"
            )


def _with_coverage(report: LoadReport, wanted: dict[str, Tensor]) -> LoadReport:
    trunk = {n: t.numel() for n, t in wanted.items() if not n.startswith(FRONT_END + HEAD)}
    covered = sum(trunk[n] for n in report.loaded if n in trunk)
    new, missing = sorted(report.new), sorted(report.missing)
    return replace(report, new=new, missing=missing, coverage=covered / sum(trunk.values()))


def _failure(report: LoadReport) -> str:
    parts = []
    if report.missing:
        parts.append(f"lacks {_tensors(report.missing)} the model needs ({shorten(report.missing)})")
    if report.unexpected:
        names = shorten(report.unexpected)
        parts.append(f"holds {_tensors(report.unexpected)} the model has no place for ({names})")
    return f"{report.file} ({report.source}): {' and '.join(parts)}; nothing was loaded"


def _tensors(names: list[str]) -> str:
    return "1 tensor" if len(names) == 1 else f"{len(names)} tensors"


def _percent(share: float) -> str:
    """Rounded down, so that only the whole is 100 %."""
    return f"{math.floor(1000 * share) / 10:.1f}%"


def shorten(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f", ... {len(names) - most} more" if len(names) > most else "")
