"""Loading a checkpoint into a model, strictly, with a report of every tensor."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pointvit.checkpoints.checkpoint import Checkpoint, resampled_positions
from pointvit.checkpoints.files import CheckpointError
from pointvit.tokenizers import ImageTokenizerConfig

if TYPE_CHECKING:
    from pointvit.model import Pair, ViT

logger = logging.getLogger(__name__)

FRONT_END = ("tokenizer.",)
HEAD = ("pool.", "fc_norm.", "pre_logits.", "head.")
TRUNK_SETTINGS = ("num_heads", "norm_eps", "activation", "qkv_bias", "norm_pre")


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor of a file and every parameter of the model."""

    source: str
    file: str
    loaded: list[str] = field(default_factory=list)
    """Parameters of the model that came from the file."""
    resampled: list[str] = field(default_factory=list)
    """Those among them that were resampled to another grid."""
    set_aside: dict[str, str] = field(default_factory=dict)
    """Tensors of the file that the model has no place for -> why."""
    new: list[str] = field(default_factory=list)
    """Parameters of the front end and head that start from their initialisation."""
    missing: list[str] = field(default_factory=list)
    """Parameters that the file should have held."""
    unexpected: list[str] = field(default_factory=list)
    """Tensors of the file that are not understood."""
    coverage: float = 0.0
    """Share of the trunk's numbers (class and register tokens included) that came from the file."""

    def __str__(self) -> str:
        rows = [
            ("loaded", len(self.loaded), ""),
            ("resampled", len(self.resampled), ", ".join(self.resampled)),
            *(
                ("set aside", len(names), f"{why}: {_shorten(names)}")
                for why, names in self._by_reason().items()
            ),
            ("new", len(self.new), _shorten(self.new)),
            ("missing", len(self.missing), _shorten(self.missing)),
            ("unexpected", len(self.unexpected), _shorten(self.unexpected)),
        ]
        lines = [f"{self.file} ({self.source}), {self.coverage:.1%} of the trunk"]
        lines += [f"  {label:<10} {count:>4}  {detail}".rstrip() for label, count, detail in rows if count]
        return "\n".join(lines)

    def _by_reason(self) -> dict[str, list[str]]:
        grouped: dict[str, list[str]] = {}
        for name, why in self.set_aside.items():
            grouped.setdefault(why, []).append(name)
        return grouped


def load_checkpoint(model: ViT | Pair, path: str | os.PathLike[str], source: str = "auto") -> LoadReport:
    """Loads a checkpoint into a model that exists already; if anything is wrong, the model is untouched.

    A pair is loaded through its image encoder, which holds the shared trunk.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: unless every tensor of the file is loaded or set aside for a named reason, and
            everything the trunk needs came from the file.
    """
    from pointvit.model import Pair

    target = model.image if isinstance(model, Pair) else model
    checkpoint = Checkpoint.open(path, source)
    _check_arithmetic(target, checkpoint)
    return load_into(target, checkpoint)


def load_into(model: ViT, checkpoint: Checkpoint) -> LoadReport:
    """As :func:`load_checkpoint`, for an opened checkpoint whose settings the model has."""
    wanted = model.state_dict()
    if any(tensor.is_meta for tensor in wanted.values()):
        raise CheckpointError(
            f"{checkpoint.path}: the model is on the meta device, which holds no numbers; "
            "build it on another, or call model.to_empty(device=...)"
        )
    offered, resampled = _offered(model, checkpoint)
    report = LoadReport(
        checkpoint.source.name,
        str(checkpoint.path),
        resampled=resampled,
        set_aside=dict(checkpoint.set_aside),
    )
    same_modality = _modality(checkpoint) == model.config.modality
    fitting_head = _fitting_head(offered, wanted) if same_modality else ()
    for name, tensor in offered.items():
        reason = _set_aside_reason(name, same_modality, fitting_head)
        if reason is not None:
            report.set_aside[name] = reason
        elif name not in wanted:
            report.unexpected.append(name)
        else:
            _check_tensor(name, tensor, wanted[name], checkpoint)
            report.loaded.append(name)
    for name in wanted.keys() - set(report.loaded):
        fresh = name.startswith(HEAD) or (not same_modality and name.startswith(FRONT_END))
        (report.new if fresh else report.missing).append(name)
    report = _with_coverage(report, wanted)
    if report.missing or report.unexpected:
        raise CheckpointError(_failure(report))
    with torch.no_grad():
        for name in report.loaded:
            wanted[name].copy_(offered[name])
    model.meta.source = {
        "file": checkpoint.path.name,
        "sha256": checkpoint.sha256,
        "format": checkpoint.source.name,
    }
    logger.info("%s", report)
    return report


def _offered(model: ViT, checkpoint: Checkpoint) -> tuple[dict[str, Tensor], list[str]]:
    """The file's tensors under the model's names, positions on the model's grid; and which were resampled."""
    offered = dict(checkpoint.tensors)
    tokenizer = model.config.tokenizer
    if not isinstance(tokenizer, ImageTokenizerConfig) or "pos_embed" not in offered:
        return offered, []
    cls_pos, offered["tokenizer.pos_embed"], changed = resampled_positions(checkpoint, tokenizer.grid)
    del offered["pos_embed"]
    if cls_pos is not None:
        offered["tokenizer.cls_pos"] = cls_pos
    return offered, ["tokenizer.pos_embed"] if changed else []


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
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"{checkpoint.path}: {name} holds NaN or infinite numbers")


def _modality(checkpoint: Checkpoint) -> str:
    return "points" if "tokenizer.embed.first.0.weight" in checkpoint.tensors else "image"


def _check_arithmetic(model: ViT, checkpoint: Checkpoint) -> None:
    """Refuses a file whose settings are not the model's: it would load and compute something else."""
    theirs, ours = checkpoint.adapt(model.config), model.config
    for name in (*(f"trunk.{n}" for n in TRUNK_SETTINGS), "pos_mode"):
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
        parts.append(f"lacks {len(report.missing)} tensors the model needs ({_shorten(report.missing)})")
    if report.unexpected:
        names = _shorten(report.unexpected)
        parts.append(f"holds {len(report.unexpected)} tensors the model has no place for ({names})")
    return f"{report.file} ({report.source}): {' and '.join(parts)}; nothing was loaded"


def _shorten(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f", ... {len(names) - most} more" if len(names) > most else "")
