"""How far tuning has moved a trunk: its weights, what it computes, and whether it still sees images."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from pointvit.compare.cka import MinibatchCKA
from pointvit.compare.record import record
from pointvit.config import ViTConfig
from pointvit.model import Pair, ViT
from pointvit.trunk import TrunkConfig
from pointvit.variants import create_model

State = ViT | Pair | str | os.PathLike[str]
RATES = ("drop_rate", "attn_drop_rate", "drop_path_rate")
"""Settings of training alone: an encoder computes the same whatever they are."""
TOKENS = ("cls_token", "reg_tokens")


class WeightDrift(NamedTuple):
    """How far one tensor, or all of a group together, has moved from a first state to a second."""

    name: str
    group: str
    """``tokens``, ``norm_pre``, ``blocks.0`` ..., ``norm``."""
    relative: float | None
    """|b - a| / |a|; None where the first is all zero."""
    cosine: float | None
    """Of the two as vectors; None where one is all zero."""
    before: float
    after: float
    difference: float
    """Euclidean norms of a, of b, and of b - a."""


class OutputDrift(NamedTuple):
    """How alike the outputs of one layer are before and after."""

    layer: int
    """0 for what the first block meets, then the number of the block."""
    cka: float
    """1: the same up to rotation and scale; NaN where a layer is the same for all objects."""
    permuted_mean: float
    permuted_std: float
    """The same with the objects of one side permuted: what chance gives, and its spread."""


def weight_drift(a: State, b: State) -> list[WeightDrift]:
    """Of every tensor of the trunk, its class and register tokens included, from ``a`` to ``b``.

    Args:
        a, b: encoders for images or points or pairs, or checkpoints of them, on one kind of trunk.

    Raises:
        ValueError: if the trunks differ in the names or shapes of their tensors; the first is named.
    """
    first, second = _trunk_state(a), _trunk_state(b)
    _check_same_shapes(first, second)
    return [_drift(name, tensor, second[name]) for name, tensor in first.items()]


def drift_by_group(rows: Sequence[WeightDrift]) -> list[WeightDrift]:
    """The rows of :func:`weight_drift` joined: one for the tokens, each block and the final norm."""
    groups: dict[str, list[WeightDrift]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [_joined(group, members) for group, members in groups.items()]


def output_drift(
    a: ViT, b: ViT, batches: Iterable[Tensor], state: str = "mean", batch_size: int = 64, seed: int = 0
) -> list[OutputDrift]:
    """``(B, C, H, W) | (B, P, C), ... -> L + 1`` rows: CKA of every layer of ``a`` with the same of ``b``.

    Both encoders see the same inputs, once, in constant memory. To ask what tuning on points has done to a
    trunk's view of images, pass the image encoder and :func:`image_encoder_on`.

    Args:
        batches: of images, or of clouds, in random order.
        state: as :func:`record`: the ``mean`` of the patches or groups, or the class token.
        batch_size, seed: of :class:`MinibatchCKA`.

    Raises:
        ValueError: for encoders of other inputs or depths, or fewer than 4 objects.
    """
    kinds = [(encoder.config.modality, encoder.config.trunk.depth) for encoder in (a, b)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            "output drift compares two states of one encoder, layer by layer, got one of "
            f"{kinds[0][0]} with {kinds[0][1]} blocks and one of {kinds[1][0]} with {kinds[1][1]}"
        )
    cka = MinibatchCKA(batch_size, seed=seed)
    for batch in batches:
        cka.update(record(a, batch, state=state), record(b, batch, state=state))
    found = cka.result()
    curves = (matrix.diagonal().tolist() for matrix in (found.cka, found.permuted_mean, found.permuted_std))
    return [OutputDrift(layer, *row) for layer, row in enumerate(zip(*curves, strict=True))]


def image_encoder_on(image: ViT, points: ViT) -> ViT:
    """The image encoder with the trunk, class and register tokens of a point encoder, in eval mode.

    Nothing is copied: tokenizer and head are those of ``image``, the trunk and tokens those of ``points``.

    Raises:
        ValueError: if the first is no image encoder, the second no point encoder, or their trunks differ in
            shape or arithmetic; the first difference is named.
    """
    for encoder, modality in ((image, "image"), (points, "points")):
        if encoder.config.modality != modality:
            raise ValueError(
                f"expected an image encoder and then a point encoder, got one of {encoder.config.modality} "
                f"in the place of the {modality} one"
            )
    _check_same_trunk(image.config, points.config)
    _check_same_shapes(_trunk_state(image), _trunk_state(points))
    encoder = ViT(image.config, trunk=points.trunk)
    encoder.cls_token, encoder.reg_tokens = points.cls_token, points.reg_tokens
    encoder.tokenizer, encoder.pool = image.tokenizer, image.pool
    encoder.fc_norm, encoder.pre_logits, encoder.head = image.fc_norm, image.pre_logits, image.head
    encoder.meta = image.meta
    return encoder.eval()


def _trunk_state(state: State) -> dict[str, Tensor]:
    """Every tensor of the trunk by its name; tokens first."""
    model = state if isinstance(state, ViT | Pair) else create_model("auto", pretrained=state)
    encoder = model.image if isinstance(model, Pair) else model
    tokens = {name: getattr(encoder, name) for name in TOKENS}
    state_dict = {**tokens, **encoder.trunk.state_dict()}
    return {name: tensor.detach() for name, tensor in state_dict.items() if tensor is not None}


def _check_same_shapes(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    shapes = [{name: tuple(tensor.shape) for name, tensor in state.items()} for state in (first, second)]
    for name in {**first, **second}:
        a, b = (found.get(name) for found in shapes)
        if a != b:
            sizes = ("absent" if shape is None else f"of shape {shape}" for shape in (a, b))
            raise ValueError(
                "the two trunks are not of one kind: {} is {} in the first and {} in the second; compare two "
                "states of the same trunk, with what a transfer mode added merged into it".format(
                    name, *sizes
                )
            )


def _check_same_trunk(image: ViTConfig, points: ViTConfig) -> None:
    """Settings that change the arithmetic and may leave all shapes as they are."""
    for setting in fields(TrunkConfig):
        a, b = (getattr(config.trunk, setting.name) for config in (image, points))
        if setting.name == "layer_scale":  # the value at the start of a training, which is over
            a, b = a is not None, b is not None
        if a != b and setting.name not in RATES:
            raise ValueError(
                f"the two trunks compute different things: {setting.name} is {a} in the image encoder and "
                f"{b} in the point encoder; compare two states of the same trunk"
            )


def _group(name: str) -> str:
    first, *rest = name.split(".")
    return "tokens" if first in TOKENS else f"{first}.{rest[0]}" if first == "blocks" else first


def _drift(name: str, first: Tensor, second: Tensor) -> WeightDrift:
    a, b = (tensor.to("cpu", torch.float64).flatten() for tensor in (first, second))
    before, after, difference = (float(v.norm()) for v in (a, b, b - a))
    cosine = float(a @ b) / (before * after) if before and after else None
    relative = difference / before if before else None
    return WeightDrift(name, _group(name), relative, cosine, before, after, difference)


def _joined(group: str, rows: Sequence[WeightDrift]) -> WeightDrift:
    before, after, difference = (
        math.hypot(*(getattr(row, norm) for row in rows)) for norm in ("before", "after", "difference")
    )
    product = math.fsum((row.cosine or 0.0) * row.before * row.after for row in rows)
    cosine = product / (before * after) if before and after else None
    return WeightDrift(
        group, group, difference / before if before else None, cosine, before, after, difference
    )
