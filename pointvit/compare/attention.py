"""What attention weights say: how far a head looks, how widely, and what a layer is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import reduce, repeat
from torch import Tensor

from pointvit.compare.moments import LayerMoments, Spread
from pointvit.compare.record import Layer
from pointvit.ops import knn


def attention_distance(weights: Tensor, positions: Tensor) -> Tensor:
    """``(B, H, T, T), (T, 2|3) | (B, T, 2|3) -> (H,)``: how far each head looks, in the positions' unit.

    The distance from a token to every token, itself included, weighted by its attention, and averaged over
    the tokens and the batch (Dosovitskiy et al. 2021, figure 7 on the right, appendix D.7). Uniform attention
    on 14x14 patches of 16 pixels gives 116.49 pixels, attention to oneself 0.

    Args:
        weights: attention among the tokens that have a place; class and register tokens are cut by the
            caller (:func:`without_prefix`). Rows count relative to their sum, which a cut makes less than 1.
        positions: pixels for patches, object radii for points (:func:`in_radii`).

    Raises:
        ValueError: for shapes that do not match.
    """
    return _distances(weights, positions).mean(dim=0)


def attention_entropy(weights: Tensor) -> Tensor:
    """``(B, H, T, T) -> (H,)``: mean entropy of each head's rows in nats, ln T if uniform, 0 if on one token.

    Rows are taken relative to their sum, as in :func:`attention_distance`.
    """
    return _entropies(weights).mean(dim=0)


def without_prefix(weights: Tensor, num_prefix: int) -> Tensor:
    """``(B, H, prefix + N, prefix + N) -> (B, H, N, N)``: attention among patches or groups.

    What they pay to class and register tokens is left out, and the rest divided by its sum: rows sum to 1.
    """
    if not 0 <= num_prefix < weights.shape[-1]:
        raise ValueError(
            f"expected fewer class and register tokens than the {weights.shape[-1]} tokens, got {num_prefix}"
        )
    return _relative(weights[..., num_prefix:, num_prefix:])


def _distances(weights: Tensor, positions: Tensor) -> Tensor:
    """``(B, H, T, T), (T|B T, 2|3) -> (B, H)``."""
    _check(weights)
    places = positions if positions.ndim == 3 else positions[None]
    batch, tokens = weights.shape[0], weights.shape[-1]
    if positions.ndim not in (2, 3) or places.shape[1] != tokens or places.shape[0] not in (1, batch):
        raise ValueError(
            f"attention weights {tuple(weights.shape)} need positions of shape ({tokens}, 2 or 3) or "
            f"({batch}, {tokens}, 2 or 3), got {tuple(positions.shape)}; cut class and register tokens first"
        )
    places = places.to(weights.device, torch.promote_types(positions.dtype, torch.float32))
    # The faster way, by matrix products, rounds the distance to oneself to more than 0.
    apart = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    looked = (weights * apart[:, None].to(weights.dtype)).sum(dim=-1)
    return (looked / _sums(weights)).mean(dim=-1)


def _entropies(weights: Tensor) -> Tensor:
    """``(B, H, T, T) -> (B, H)``."""
    _check(weights)
    return torch.special.entr(_relative(weights)).sum(dim=-1).mean(dim=-1)


def _relative(weights: Tensor) -> Tensor:
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    return weights / _sums(weights)[..., None]


def _sums(weights: Tensor) -> Tensor:
    return weights.sum(dim=-1).clamp_min(torch.finfo(weights.dtype).tiny)


def _check(weights: Tensor) -> None:
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3] or 0 in weights.shape:
        raise ValueError(f"attention weights must have shape (B, H, T, T), got {tuple(weights.shape)}")


class AttentionSummary(NamedTuple):
    """Mean and spread over objects, ``(L, H)`` each."""

    distance: Spread
    """Mean attention distance among patches or groups, in pixels or object radii."""
    entropy: Spread
    """In nats, among patches or groups."""
    to_prefix: Spread
    """Share of the patches' or groups' attention that goes to class and register tokens."""


class AttentionStatistics:
    """The attention of every head and layer over a data set, in constant memory; see :func:`record`."""

    needs_weights = True

    def __init__(self) -> None:
        self._distance, self._entropy, self._to_prefix = LayerMoments(), LayerMoments(), LayerMoments()

    def observe(self, layer: Layer) -> None:
        if layer.weights is None:
            return
        weights = without_prefix(layer.weights, layer.num_prefix)
        to_prefix = layer.weights[:, :, layer.num_prefix :, : layer.num_prefix]
        self._distance.update(layer.index, _distances(weights, layer.positions))
        self._entropy.update(layer.index, _entropies(weights))
        self._to_prefix.update(layer.index, to_prefix.sum(dim=-1).mean(dim=-1))

    def result(self) -> AttentionSummary:
        return AttentionSummary(self._distance.result(), self._entropy.result(), self._to_prefix.result())


def attention_rollout(weights: Sequence[Tensor]) -> Tensor:
    """``L x (B, H, T, T) -> (B, T, T)``: how much of every input token each output token is made of.

    Attention rollout (Abnar and Zuidema 2020, arXiv:2005.00928, eq. 1): the average over the heads and the
    identity, which stands for the residual connection, in equal parts, multiplied from the first layer to the
    last. Rows are output tokens and sum to 1.

    Args:
        weights: softmax attention of every block, the first block first, as ``model.attention_weights(x)``
            gives it. Half precision is computed in float32.

    Raises:
        ValueError: for no layer at all, or shapes that are not one and the same ``(B, H, T, T)`` up to H.
    """
    if len(weights) == 0:  # a tensor, which is no sequence of layers, has its own error below
        raise ValueError("attention rollout needs the weights of at least one layer, got none")
    first = weights[0].shape
    for layer in weights:
        if layer.ndim != 4 or layer.shape[2] != layer.shape[3] or layer[:, 0].shape != weights[0][:, 0].shape:
            raise ValueError(
                "attention rollout needs weights of shape (B, H, T, T) with the same B and T in every layer, "
                f"got {tuple(first)} and {tuple(layer.shape)}"
            )
    dtype = torch.promote_types(weights[0].dtype, torch.float32)
    rollout = torch.eye(first[-1], dtype=dtype, device=weights[0].device).expand(first[0], -1, -1)
    for layer in weights:
        mixed = reduce(layer.to(dtype), "b h out source -> b out source", "mean")
        mixed = (mixed + torch.eye(first[-1], dtype=dtype, device=mixed.device)) / 2
        # Rows of a softmax sum to 1 up to its own rounding, which half precision would carry along.
        rollout = mixed / mixed.sum(dim=-1, keepdim=True) @ rollout
    return rollout


def rollout_to_patches(rollout: Tensor, num_prefix: int, class_token: bool = True) -> Tensor:
    """``(B, T, T) -> (B, N)``: how much of each patch or group is in the class token after the last layer.

    Shares of 1; class and register tokens have the rest. Where there is no class token
    (``class_token=False``): how much is in all patches or groups, on average.
    """
    asking = rollout[:, :1] if class_token else rollout[:, num_prefix:]
    return asking[..., num_prefix:].mean(dim=1)


def patches_to_pixels(values: Tensor, size: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """``(B, N) -> (B, H, W)``: each patch's value on all of its pixels (figure 6 of the ViT paper).

    Args:
        values: one number a patch, row by row.
        size: (H, W) of the image.
        patch: (h, w) of a patch, as in ``model.config.tokenizer.patch_size``.

    Raises:
        ValueError: if they do not make N patches.
    """
    (height, width), (h, w) = size, patch
    if height % h or width % w or values.shape[-1] != (height // h) * (width // w):
        raise ValueError(
            f"{values.shape[-1]} values do not cover an image of {height}x{width} pixels in patches of "
            f"{h}x{w}"
        )
    return repeat(values, "b (rows cols) -> b (rows h) (cols w)", cols=width // w, h=h, w=w)


def groups_to_points(values: Tensor, centers: Tensor, points: Tensor) -> Tensor:
    """``(B, G), (B, G, 3), (B, P, 3+) -> (B, P)``: each point has the value of the nearest centre's group."""
    nearest = knn(points[..., :3].contiguous(), centers, 1)[..., 0]
    return values.gather(1, nearest)
