"""What the attention weights of all layers say together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import reduce
from torch import Tensor


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
    if not weights:
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
