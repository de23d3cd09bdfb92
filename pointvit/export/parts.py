"""What becomes one file each: a module, and names and shapes of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim

from pointvit.model import ViT
from pointvit.tokenizers import ImageTokenizer, PointTokenizer, Tokens

Sizes = tuple[int, int | None]
"""Samples in a batch and points in a cloud; None for images."""
FIELDS = {"tokens": "x", "positions": "pos", "rope": "rope"}
"""Name in a file -> field of :class:`~pointvit.tokenizers.Tokens` that a trunk needs."""


@dataclass(frozen=True)
class Request:
    """The sizes that a file is to take; None for any."""

    batch_size: int | None = None
    num_points: int | None = None


@dataclass(frozen=True)
class Part:
    """One file."""

    name: str
    """Inserted before the ending of the file's name; empty for a whole model."""
    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    example: tuple[Tensor, ...]
    """Inputs to trace with; nothing of their values may be in the file."""
    free: tuple[dict[int, str], ...]
    """For every input, the names of its free dimensions."""


class Whole(nn.Module):
    """``(B, P, C) | (B, C, H, W) -> (B, K)``, and ``(B, T, D)`` with ``tokens``."""

    def __init__(self, model: ViT, tokens: bool) -> None:
        super().__init__()
        self.model, self.tokens = model, tokens

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        features = self.model.forward_features(x)
        logits = self.model.forward_head(features)
        return (logits, features) if self.tokens else (logits,)


class Front(nn.Module):
    """``(B, P, C) | (B, C, H, W) -> {name: (B|1, N, ...)}``: those of FIELDS that a tokenizer gives."""

    def __init__(self, tokenizer: ImageTokenizer | PointTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        tokens = self.tokenizer(x)
        fields = {name: getattr(tokens, field) for name, field in FIELDS.items()}
        return {name: value for name, value in fields.items() if value is not None}


class Rest(nn.Module):
    """``(B, N, D), (B|1, N, ...) -> (B, K)`` from what :class:`Front` gives; tokens as in :class:`Whole`."""

    def __init__(self, model: ViT, names: Sequence[str], tokens: bool) -> None:
        super().__init__()
        self.model, self.names, self.tokens = model, tuple(names), tokens

    def forward(self, *parts: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.names, parts, strict=True))
        x, pos, rope = (given.get(name) for name in FIELDS)
        assert x is not None
        features = self.model.forward_tokens(Tokens(x, pos, x[..., :3], rope))  # no trunk reads the centres
        logits = self.model.forward_head(features)
        return (logits, features) if self.tokens else (logits,)


def parts_of(model: ViT, request: Request, split: bool, tokens: bool) -> list[Part]:
    """The whole model as one part, or its tokenizer and the rest as two."""
    kind = "points" if model.config.modality == "points" else "images"
    free = {} if request.batch_size is not None else {0: "batch"}
    free_points = {1: "num_points"} if kind == "points" and request.num_points is None else {}
    outputs = ("logits" if model.num_classes else "features", *(("tokens",) if tokens else ()))
    x = made_inputs(model, _traced_sizes(model, request), seed=0)
    whole = Part("", Whole(model, tokens), (kind,), outputs, (x,), ({**free, **free_points},))
    if not split:
        return [whole]
    front = Front(model.tokenizer)
    with torch.no_grad():
        made = front(x)
    names, example = tuple(made), tuple(made.values())
    # An image encoder's positions are the same for all images: one row, whatever the batch.
    free_rows = tuple(free if len(value) == len(x) else {} for value in example)
    return [
        Part("tokenizer", front, (kind,), names, (x,), whole.free),
        Part("trunk", Rest(model, names, tokens), names, outputs, example, free_rows),
    ]


def made_inputs(model: ViT, sizes: Sizes, seed: int) -> Tensor:
    """``(B, P, C) | (B, C, H, W)``: random clouds or images, on the model's device."""
    batch, points = sizes
    tokenizer = model.tokenizer
    if isinstance(tokenizer, ImageTokenizer):
        shape: tuple[int, ...] = (batch, tokenizer.config.in_chans, *tokenizer.config.img_size)
    else:
        assert points is not None
        shape = (batch, points, tokenizer.config.in_chans)
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.to(next(model.parameters()).device)


def checked_sizes(model: ViT, request: Request) -> list[Sizes]:
    """Batches and clouds of several sizes, as far as they are free, that a file is checked with."""
    batches = [1, 2, 5] if request.batch_size is None else [request.batch_size] * 3
    if not isinstance(model.tokenizer, PointTokenizer):
        return [(batch, None) for batch in batches]
    groups, size = model.tokenizer.config.num_groups, model.tokenizer.config.group_size
    usual = model.meta.num_points or 1024
    points = [max(groups, size), usual + 1, size] if request.num_points is None else [request.num_points] * 3
    return list(zip(batches, points, strict=True))


def fewest_points(model: ViT) -> int:
    """The smallest cloud that an exported program takes: fewer neighbours than K are another program."""
    return model.tokenizer.config.group_size if isinstance(model.tokenizer, PointTokenizer) else 1


def dimensions(part: Part, fewest: int) -> tuple[dict[int, Dim], ...]:
    """The free dimensions as torch.export wants them; one name is one dimension in all inputs."""
    known = {"batch": Dim("batch", min=1), "num_points": Dim("num_points", min=fewest)}
    return tuple({axis: known[name] for axis, name in free.items()} for free in part.free)


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Everything in eval mode without gradients; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _traced_sizes(model: ViT, request: Request) -> Sizes:
    batch = 3 if request.batch_size is None else request.batch_size
    if not isinstance(model.tokenizer, PointTokenizer):
        return batch, None
    config = model.tokenizer.config
    return batch, request.num_points or 2 * max(config.num_groups, config.group_size) + 1
