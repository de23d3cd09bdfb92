"""Statistics of the tokens themselves, layer by layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from pointvit.compare.moments import LayerMoments, Spread
from pointvit.compare.record import Layer


class TokenSummary(NamedTuple):
    """Patches or groups of every layer, 0 to L; spreads are over objects, ``(L + 1,)`` each."""

    norm: Spread
    """Mean length of an object's tokens."""
    max_norm: Tensor
    """(L + 1,) of the longest token of all."""
    mean: Spread
    """Mean of all channels of all of an object's tokens."""
    effective_rank: Tensor
    """(L + 1,) number of directions that the tokens of all objects fill; see :func:`effective_rank`."""
    outliers: Spread
    """Share of an object's tokens that are longer than ``outlier_factor`` times its median token."""


class TokenStatistics:
    """Token statistics over a data set, in memory that is constant: (L + 1) D^2 numbers; see :func:`record`.

    Outlier tokens are the long ones in which large ViTs keep global information (Darcet et al. 2024,
    arXiv:2309.16588). A fixed length, as there, fits one model; here it is relative to each object's median.
    """

    needs_weights = False

    def __init__(self, outlier_factor: float = 3.0) -> None:
        if outlier_factor <= 1:
            raise ValueError(f"outlier_factor must be more than 1 (median norms), got {outlier_factor}")
        self.outlier_factor = outlier_factor
        self._norm, self._mean, self._outliers = LayerMoments(), LayerMoments(), LayerMoments()
        self._longest: dict[int, float] = {}
        self._scatter: dict[int, _Scatter] = {}

    def observe(self, layer: Layer) -> None:
        tokens = layer.tokens[:, layer.num_prefix :].float()
        norms = tokens.norm(dim=-1)
        median = norms.median(dim=1, keepdim=True).values
        self._norm.update(layer.index, norms.mean(dim=1))
        self._mean.update(layer.index, tokens.mean(dim=(1, 2)))
        self._outliers.update(layer.index, (norms > self.outlier_factor * median).float().mean(dim=1))
        self._longest[layer.index] = max(self._longest.get(layer.index, 0.0), float(norms.max()))
        rows = rearrange(tokens, "b n d -> (b n) d")
        if layer.index not in self._scatter:
            self._scatter[layer.index] = _Scatter(rows.mean(dim=0))
        self._scatter[layer.index].update(rows)

    def result(self) -> TokenSummary:
        norm, layers = self._norm.result(), sorted(self._longest)
        return TokenSummary(
            norm=norm,
            max_norm=torch.tensor([self._longest[i] for i in layers], dtype=torch.float64),
            mean=self._mean.result(),
            effective_rank=torch.tensor(
                [effective_rank(self._scatter[i].covariance()) for i in layers], dtype=torch.float64
            ),
            outliers=self._outliers.result(),
        )


def effective_rank(covariance: Tensor) -> float:
    """``(D, D) -> float``: exp of the entropy of the normalised eigenvalues, between 1 and D.

    After Roy and Vetterli 2007, with the covariance's eigenvalues (variances) in place of singular values.
    NaN for tokens without any spread.
    """
    values = torch.linalg.eigvalsh(covariance.double()).clamp_min(0)
    total = values.sum()
    return float(torch.special.entr(values / total).sum().exp()) if total > 0 else torch.nan


class _Scatter:
    """Sums for a covariance (D, D), about a place near the mean, so that float32 products keep digits."""

    def __init__(self, near: Tensor) -> None:
        self._near, self._count = near.clone(), 0
        self._sum = torch.zeros(len(near), dtype=torch.float64)
        self._products = torch.zeros(len(near), len(near), dtype=torch.float64)

    def update(self, rows: Tensor) -> None:
        apart = rows - self._near
        self._count += len(rows)
        self._sum += apart.sum(dim=0).cpu().double()
        self._products += (apart.T @ apart).cpu().double()

    def covariance(self) -> Tensor:
        mean = self._sum / self._count
        return self._products / self._count - torch.outer(mean, mean)
