"""The embedding of a point group: Point-BERT's mini-PointNet, rearranged for speed."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from pointvit.layers import linear


class MiniPointNet(nn.Module):
    """``(B, G, K, C) -> (B, G, D)``: a shared MLP, max over the group, a second MLP that sees both, max.

    Point-BERT's encoder. What it computes is rearranged, exactly but for rounding:

    - The second MLP's first layer acts on [global, point]. Its weight is applied in two halves,
      W [g, f] = W_g g + W_f f, so that the global half is computed once per group, not once per point.
    - f = V h + c is linear in what comes before it, so W_f f = (W_f V) h + W_f c with one, smaller matrix.
    - In eval mode the batch norms are linear as well, and become part of the layers before them.
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
            weight, bias = of_point @ feature.weight, mix.bias + of_point @ feature.bias
            first = _with_norm(expand, norm1, x) if _is_plain(norm1) else (expand.weight, expand.bias)
            mean, var = norm2.running_mean, norm2.running_var
            folded = False
            if not norm2.training and mean is not None and var is not None:
                folded = True
                scale = _scale(norm2, var)
                of_global, weight = of_global * scale[:, None], weight * scale[:, None]
                bias = (bias - mean) * scale + norm2.bias

        hidden = linear(x, *first)
        hidden = F.relu(hidden if _is_plain(norm1) else _per_channel(norm1, hidden))
        pooled = _largest(linear(hidden, feature.weight, feature.bias))
        mixed = linear(hidden, weight) + F.linear(pooled, of_global, bias)[:, None]
        mixed = F.relu(mixed if folded else _per_channel(norm2, mixed))
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


def _with_norm(layer: nn.Linear, norm: nn.BatchNorm1d, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear layer with the batch norm behind it made part of them.

    In training, mean and variance of W x + b follow from the mean and covariance of x, whose few channels
    are cheaper to look at.
    """
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None
    assert var is not None
    if norm.training:
        flat = x.flatten(0, 1).to(layer.weight.dtype)
        center = flat.mean(dim=0)
        flat = flat - center
        running, covariance = (mean, var), flat.T @ flat / len(flat)
        mean = layer.weight @ center + layer.bias
        var = ((layer.weight @ covariance) * layer.weight).sum(dim=1)
        unbiased = len(flat) / max(1, len(flat) - 1)
        with torch.no_grad():
            running[0].lerp_(mean, norm.momentum or 0.0)
            running[1].lerp_(var * unbiased, norm.momentum or 0.0)
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked += 1
    scale = _scale(norm, var)
    return layer.weight * scale[:, None], (layer.bias - mean) * scale + norm.bias


def _scale(norm: nn.BatchNorm1d, var: Tensor) -> Tensor:
    return norm.weight * (var + norm.eps).rsqrt()


def _per_channel(norm: nn.Module, x: Tensor) -> Tensor:
    """``(N, K, C) -> (N, K, C)``: a batch norm, in the memory layout that x has."""
    return norm(x.mT).mT if x.mT.is_contiguous() else norm(x.flatten(0, 1)).view_as(x)


def _largest(x: Tensor) -> Tensor:
    """``(N, K, C) -> (N, C)``: the maximum over the group."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x.amax(dim=1)
    # Backward, max copies to one place each, in x's memory layout; amax would compare everything once more.
    return (x.mT.max(dim=2) if x.mT.is_contiguous() else x.max(dim=1)).values
