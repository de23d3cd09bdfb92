"""The embedding of a point group: Point-BERT's mini-PointNet, rearranged for speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from pointvit import lean
from pointvit.layers import linear


class MiniPointNet(nn.Module):
    """``(B, G, K, C) -> (B, G, D)``: a shared MLP, max over the group, a second MLP that sees both, max.

    Point-BERT's encoder. What it computes is rearranged, exactly but for rounding:

    - The second MLP's first layer acts on [global, point]. Its weight is applied in two halves,
      W [g, f] = W_g g + W_f f, so that the global half is computed once per group, not once per point.
    - f = V h + c is linear in what comes before it, so W_f f = (W_f V) h + W_f c with one, smaller matrix.
    - In eval mode the batch norms are linear as well, and become part of the layers before them. In training
      their statistics follow from the mean and covariance of what enters those layers, which has fewer
      channels: normalising costs no pass over the points and keeps nothing for the backward pass.
    """

    def __init__(self, in_chans: int, embed_dim: int, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(in_chans, width // 2),
            nn.BatchNorm1d(width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, width),
        )
        self.second = nn.Sequential(
            nn.Linear(2 * width, 2 * width),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, embed_dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, groups, size = x.shape[:3]  # all given below, since an empty batch leaves none to infer
        points = rearrange(x, "b g k c -> (b g) k c")
        whole = self.training or torch.is_grad_enabled() or torch.compiler.is_compiling() or batch == 0
        # Where nothing is kept for a backward pass: pieces whose intermediate results stay in the cache.
        pieces = (points,) if whole or x.is_cuda else points.split(max(1, _POINTS_AT_A_TIME // size))
        tokens = torch.cat([self._embed(piece) for piece in pieces])
        return rearrange(tokens, "(b g) d -> b g d", b=batch, g=groups)

    def _embed(self, x: Tensor) -> Tensor:
        """``(N, K, C) -> (N, D)`` for N groups."""
        (expand, norm1, feature), (mix, norm2, out) = _parts(self.first), _parts(self.second)
        of_global, of_point = mix.weight.split(feature.out_features, dim=1)
        with torch.autocast(x.device.type, enabled=False):
            first = _normalized(expand, norm1, x) if _is_plain(norm1) else (expand.weight, expand.bias)
        hidden = linear(x, *first)
        hidden = F.relu(hidden if _is_plain(norm1) else _per_channel(norm1, hidden))
        is_lean = lean.applies(x) and x.shape[1] <= lean.LARGEST_GROUP and _is_plain(norm2)
        if is_lean:
            pooled = lean.largest_of_linear(hidden, feature.weight, feature.bias)
        else:
            pooled = _largest(linear(hidden, feature.weight, feature.bias))
        with torch.autocast(x.device.type, enabled=False):
            weight, bias = of_point @ feature.weight, mix.bias + of_point @ feature.bias
            per_group = F.linear(pooled.to(weight.dtype), of_global, bias)
            if _is_plain(norm2):
                scale, shift = _affine(norm2, lambda: _mixed_moments(hidden, weight, per_group))
                weight, per_group = weight * scale[:, None], per_group * scale + shift
        if is_lean:
            return lean.largest_of_mlp(hidden, weight, per_group, out.weight, out.bias)
        mixed = linear(hidden, weight)
        mixed = mixed + per_group[:, None].to(mixed.dtype)
        mixed = F.relu(mixed if _is_plain(norm2) else _per_channel(norm2, mixed))
        return _largest(linear(mixed, out.weight, out.bias))


_POINTS_AT_A_TIME = 4096


def _parts(mlp: nn.Sequential) -> tuple[nn.Linear, nn.BatchNorm1d, nn.Linear]:
    enter, norm, _, leave = mlp
    assert isinstance(enter, nn.Linear)
    assert isinstance(leave, nn.Linear)
    return enter, cast(nn.BatchNorm1d, norm), leave


def _is_plain(norm: nn.BatchNorm1d) -> bool:
    """Whether a batch norm's statistics are those of this batch or the stored ones, as by default."""
    return type(norm) is nn.BatchNorm1d and norm.running_var is not None and norm.momentum is not None


def _normalized(layer: nn.Linear, norm: nn.BatchNorm1d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer of ``x`` (N, K, C), with the batch norm behind it made part of them."""

    def moments() -> tuple[Tensor, Tensor, int]:
        means, covariance = _moments(x.to(layer.weight.dtype))
        mean = layer.weight @ means.mean(dim=0) + layer.bias
        return mean, ((layer.weight @ covariance) * layer.weight).sum(dim=1), x.shape[0] * x.shape[1]

    scale, shift = _affine(norm, moments)
    return layer.weight * scale[:, None], layer.bias * scale + shift


def _mixed_moments(hidden: Tensor, weight: Tensor, per_group: Tensor) -> tuple[Tensor, Tensor, int]:
    """Mean and variance (C,) of ``hidden`` (N, K, c) W^T + ``per_group`` (N, 1, C), and of how many."""
    # The sums of products leave the range of float16.
    means, covariance = _moments(hidden.to(weight.dtype) if hidden.dtype == torch.float16 else hidden)
    groups, center = per_group - per_group.mean(dim=0), means.mean(dim=0)
    # Two summands: the variance of the one, of the other, and twice what they have in common.
    between = ((means - center).T @ groups / len(groups)).T
    var = ((weight @ covariance + 2 * between) * weight).sum(dim=1) + groups.square().mean(dim=0)
    return weight @ center + per_group.mean(dim=0), var, hidden.shape[0] * hidden.shape[1]


def _affine(norm: nn.BatchNorm1d, moments: Callable[[], tuple[Tensor, Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Factor and summand (C,) of a batch norm: by ``moments`` in training, and its stored ones in eval."""
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None
    assert var is not None
    if norm.training:
        running = mean, var
        mean, var, count = moments()
        with torch.no_grad():
            running[0].lerp_(mean, norm.momentum or 0.0)
            running[1].lerp_(var * count / max(1, count - 1), norm.momentum or 0.0)
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked += 1
    scale = norm.weight * (var + norm.eps).rsqrt()
    return scale, norm.bias - mean * scale


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """``(N, K, C) -> (N, C), (C, C)``: the mean of each group, and the covariance of all points.

    In float32 at least; the products are in the precision of ``x``.
    """
    # torch.compile takes apart what it can see, and warns of what it cannot.
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return _moments_of(x)
    return cast("tuple[Tensor, Tensor]", _Moments.apply(x))


def _moments_of(x: Tensor) -> tuple[Tensor, Tensor]:
    precise = torch.promote_types(x.dtype, torch.float32)
    means = x.mean(dim=1, dtype=precise)
    mean = means.mean(dim=0)
    near = mean.to(x.dtype)
    rest = mean - near.to(precise)
    points = rearrange(x - near, "n k c -> (n k) c")
    # Half precision rounds a sum of products where it ends: many short sums are more exact than a long one.
    parts = points.tensor_split(32) if x.dtype != precise else (points,)
    products = torch.stack([(part.T @ part).to(precise) for part in parts]).sum(dim=0)
    return means, products / len(points) - torch.outer(rest, rest)


class _Moments(Function):
    """Keeps ``x`` alone for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        means, covariance = _moments_of(x)
        ctx.save_for_backward(x, means.mean(dim=0))
        return means, covariance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_means: Tensor, of_covariance: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        symmetric = (of_covariance + of_covariance.T) / (x.shape[0] * x.shape[1])
        per_group = of_means / x.shape[1] - mean @ symmetric
        return linear(x, symmetric.to(x.dtype)).add_(per_group[:, None].to(x.dtype))


def _per_channel(norm: nn.Module, x: Tensor) -> Tensor:
    """``(N, K, C) -> (N, K, C)``: a batch norm, in the memory layout that x has."""
    return norm(x.mT).mT if x.mT.is_contiguous() else norm(x.flatten(0, 1)).view_as(x)


def _largest(x: Tensor) -> Tensor:
    """``(N, K, C) -> (N, C)``: the maximum over the group."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x.amax(dim=1)
    if torch.compiler.is_compiling() or x.is_cuda or x.shape[1] > lean.LARGEST_GROUP:
        # Backward, max copies to one place each; amax would compare everything once more.
        return x.max(dim=1).values
    return lean.largest(x)
