"""Layers that keep less for their backward pass than autograd would, in mixed precision on the CPU.

A training step holds what every layer saves until the backward pass comes back to it: with bfloat16 autocast
that is more memory than everything else together. Here a LayerNorm keeps its result instead of its input, an
MLP the input of its activation alone, and the embedding of point groups which of their points were largest.
The numbers are autograd's up to the rounding of half precision.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def applies(x: Tensor) -> bool:
    """Whether ``x`` is on its way through a training step that these layers are for."""
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.device.type == "cpu"):
        return False
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


class LayerNorm(nn.LayerNorm):
    """``(*, D) -> (*, D)``: torch's layer; in a lean step the result is in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32 and applies(x):
            return cast(Tensor, _LayerNorm.apply(x, self.weight, self.bias, self.eps))
        return super().forward(x)


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        normal, _, inverse_std = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
        ctx.save_for_backward(normal.bfloat16(), inverse_std, weight, bias)
        return torch.addcmul(bias, normal, weight).bfloat16()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        normal, inverse_std, weight, bias = ctx.saved_tensors
        # As if what is normal already had come in, with a mean of 0 and a deviation of 1.
        mean, one = torch.zeros_like(inverse_std), torch.ones_like(inverse_std)
        of_normal, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            gradient.float(), normal.float(), normal.shape[-1:], mean, one, weight, bias, [True, True, True]
        )
        return of_normal * inverse_std, of_weight, of_bias, None


def gelu_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """``(*, in) -> (*, out)``: a linear layer of GELU(x)."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return cast(Tensor, _GeluLinear.apply(x, layer.weight.to(x.dtype), bias))


class _GeluLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return F.linear(F.gelu(x), weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        of_weight = flat.mT @ F.gelu(x).flatten(0, -2)
        of_x = torch.ops.aten.gelu_backward(gradient @ weight, x)
        return of_x, of_weight, flat.sum(dim=0) if ctx.has_bias else None


def largest_of_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``(N, K, in) -> (N, out)``: the maximum over the group of a linear layer of every point."""
    return cast(Tensor, _Largest.apply(x, None, None, weight, bias))


def largest_of_mlp(x: Tensor, enter: Tensor, per_group: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``(N, K, in) -> (N, out)``: the same of ReLU(x enter^T + per_group), with ``per_group`` (N, hidden)."""
    return cast(Tensor, _Largest.apply(x, enter, per_group, weight, bias))


_POINTS_AT_A_TIME = 4096
LARGEST_GROUP = 256  # up to here bfloat16 holds every whole number


class _Largest(Function):
    """Piece by piece, so that what is as wide as all points stays in the cache and is never held: kept is
    which point of its group was the largest, and the rest is computed again. Of equal points it is the first.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, enter: Tensor | None, per_group: Tensor | None, weight: Tensor, bias: Tensor
    ) -> Tensor:
        x, enter, per_group, weight, bias = _in_half(x, enter, per_group, weight, bias)
        pieces = [
            _first_largest(F.linear(_entered(x, enter, per_group, rows), weight, bias)) for rows in _pieces(x)
        ]
        values, places = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        ctx.save_for_backward(x, enter, per_group, weight, places)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, enter, per_group, weight, place = ctx.saved_tensors
        order = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)[:, None]
        of_x, of_weight = torch.empty_like(x), torch.zeros_like(weight, dtype=torch.float32)
        of_enter = of_group = None
        if enter is not None:
            of_enter, of_group = torch.zeros_like(enter, dtype=torch.float32), torch.empty_like(per_group)
        for rows in _pieces(x):
            entered = _entered(x, enter, per_group, rows)
            chosen = torch.eq(place[rows, None].to(x.dtype), order, out=x.new_empty(0))
            chosen = chosen.mul_(gradient[rows, None])
            of_weight += _products(chosen, entered)
            if enter is None or of_enter is None or of_group is None:
                torch.matmul(chosen, weight, out=of_x[rows])
                continue
            of_entered = torch.ops.aten.threshold_backward(chosen @ weight, entered, 0)
            of_enter += _products(of_entered, x[rows])
            of_group[rows] = of_entered.sum(dim=1)
            torch.matmul(of_entered, enter, out=of_x[rows])
        return of_x, of_enter, of_group, of_weight, gradient.float().sum(dim=0)


def largest(x: Tensor) -> Tensor:
    """``(N, K, C) -> (N, C)``: the maximum over the group of at most 256, in any precision and memory layout.

    torch's own looks at one number after the other; here whole vector registers are compared.
    """
    return cast(Tensor, _LargestAlone.apply(x)) if x.numel() else x.amax(dim=1)


class _LargestAlone(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        pieces = [_first_largest(x[rows]) for rows in _pieces(x)]
        values, places = (torch.cat(parts) for parts in zip(*pieces, strict=True))
        ctx.save_for_backward(places)
        ctx.like = x.shape, x.stride()
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (place,) = ctx.saved_tensors
        every = torch.empty_strided(*ctx.like, dtype=gradient.dtype, device=gradient.device).zero_()
        return every.scatter_(1, place.long()[:, None], gradient[:, None])


def _first_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """``(N, K, C) -> (N, C), (N, C) uint8``: the maximum over the group, and where it first stands."""
    size = x.shape[1]
    from_end = torch.arange(size, 0, -1, device=x.device, dtype=x.dtype)[:, None]
    values = x.amax(dim=1)
    is_largest = torch.eq(x, values[:, None], out=torch.empty_like(x))
    place = size - is_largest.mul_(from_end).amax(dim=1)
    return values, place.clamp_(max=size - 1).to(torch.uint8)  # not a number is equal to nothing


def _in_half(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(tensor if tensor is None else tensor.bfloat16() for tensor in tensors)


def _pieces(x: Tensor) -> list[slice]:
    step = max(1, _POINTS_AT_A_TIME // x.shape[1])
    return [slice(start, start + step) for start in range(0, len(x), step)]


def _entered(x: Tensor, enter: Tensor | None, per_group: Tensor | None, rows: slice) -> Tensor:
    if enter is None or per_group is None:
        return x[rows]
    return F.relu_(F.linear(x[rows], enter).add_(per_group[rows, None]))


def _products(out: Tensor, x: Tensor) -> Tensor:
    """``(N, K, out), (N, K, in) -> (out, in)``: the gradient of a linear layer's weight."""
    return out.flatten(0, 1).mT @ x.flatten(0, 1)
