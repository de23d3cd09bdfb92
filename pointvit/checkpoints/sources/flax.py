"""Flax's layers in files, and ours: what all of Google's checkpoints have in common.

Kernels are (in, out), convolutions HWIO, attention kernels (D, heads, d) and, on the way out, (heads, d, D).
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from pointvit.checkpoints.sources.source import Tensors

QKV = ("query", "key", "value")


def from_flax(name: str, tensor: Tensor) -> Tensor:
    """What stands in the file under ``name``, as we have it; attention is left to :func:`join_heads`."""
    if name.endswith("kernel") and tensor.ndim == 4:
        return rearrange(tensor, "h w i o -> o i h w")
    if name.endswith("kernel") and tensor.ndim == 2:
        return tensor.T
    if name.startswith(("gn_", "block")) and tensor.ndim > 1:
        return tensor.flatten()  # group norms of the stem are stored as (1, 1, 1, C)
    return tensor


def to_flax(tensor: Tensor) -> Tensor:
    """``(out, in) -> (in, out)``, ``(O, I, H, W) -> (H, W, I, O)``; tokens and vectors stay as they are."""
    if tensor.ndim == 4:
        return rearrange(tensor, "o i h w -> h w i o")
    return tensor.T if tensor.ndim == 2 else tensor


def join_heads(tensors: Tensors, prefix: str, layers: dict[str, tuple[str, ...]]) -> Tensors:
    """Takes the attention at ``prefix`` out of ``tensors``: linear layers, each of the parts named there.

    What is incomplete stays under its names, which loading reports.

    Raises:
        ValueError: if a kernel is not one of several heads.
    """
    parts = [part for names in layers.values() for part in names]
    if not all(f"{prefix}{part}/{kind}" in tensors for part in parts for kind in ("kernel", "bias")):
        return {}
    for part in parts:
        shape = tuple(tensors[f"{prefix}{part}/kernel"].shape)
        if len(shape) != 3:
            raise ValueError(f"{prefix}{part}/kernel should have 3 dimensions, its shape is {shape}")
    joined = {}
    for layer, names in layers.items():
        pattern = "h e d -> d (h e)" if names == ("out",) else "d h e -> (h e) d"
        kernels = [rearrange(tensors.pop(f"{prefix}{part}/kernel"), pattern) for part in names]
        biases = [tensors.pop(f"{prefix}{part}/bias").flatten() for part in names]
        joined[f"{layer}.weight"], joined[f"{layer}.bias"] = _cat(kernels), _cat(biases)
    return joined


def split_heads(name: str, tensor: Tensor, parts: tuple[str, ...], heads: int) -> Tensors:
    """The inverse of :func:`join_heads` for one weight or bias: ``query/kernel`` and its kin."""
    if name.endswith(".bias"):
        biases = tensor.chunk(len(parts))
        split = biases if parts == ("out",) else [rearrange(b, "(h e) -> h e", h=heads) for b in biases]
        return {f"{part}/bias": bias for part, bias in zip(parts, split, strict=True)}
    pattern = "d (h e) -> h e d" if parts == ("out",) else "(h e) d -> d h e"
    chunks = tensor.chunk(len(parts))
    return {f"{p}/kernel": rearrange(c, pattern, h=heads) for p, c in zip(parts, chunks, strict=True)}


def _cat(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
