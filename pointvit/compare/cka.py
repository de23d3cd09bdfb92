"""Centred kernel alignment: how alike two layers arrange the same objects, whatever their axes and scale.

Kornblith et al. 2019 (arXiv:1905.00414) with linear kernels: HSIC(X Xᵀ, Y Yᵀ) over the geometric mean
of HSIC(X Xᵀ, X Xᵀ) and HSIC(Y Yᵀ, Y Yᵀ). The plain HSIC, |Xᵀ Y|² for centred X and Y, is far above 0 for
unrelated features with more channels than there are objects. The unbiased one (Song et al. 2012, eq. 5) is 0
on average. It does not change when all objects move together, so that centring first is allowed. Then the
rows of the Gram matrices sum to 0, and with their diagonals a and b, the objects' squared norms, it becomes

    n (n - 3) HSIC = |Xᵀ Y|² - n / (n - 2) a·b + (Σ a) (Σ b) / ((n - 1) (n - 2))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pointvit.compare.samples import Array, as_samples

FEWEST = 4
"""Objects below which the unbiased HSIC does not exist."""
# Relative sizes below which a spread, or an HSIC, is the rounding of something that is exactly zero.
NO_SPREAD = 1e-10
NO_HSIC = 1e-12


def cka(x: Array, y: Array, unbiased: bool = True) -> float:
    """``(N, D1), (N, D2) -> float``: linear CKA of the same N objects' features in two layers; 1 if alike.

    Computed in float64 from whichever is smaller, the N x N Gram matrices or the D1 x D2 product.

    Args:
        unbiased: with the unbiased HSIC, which is about 0, at times below, where nothing is shared. False for
            the plain one of Kornblith et al., which at N=16 and D=256 gives 0.94 there.

    Returns:
        NaN where it is undefined: one of the layers is the same for all objects (or, if unbiased, for all
        but one).

    Raises:
        ValueError: for fewer than 4 objects, rows that do not match, or features that are not finite.
    """
    first, second = (_centred(as_samples(f, name, FEWEST)) for f, name in ((x, "x"), (y, "y")))
    if len(first) != len(second):
        raise ValueError(
            f"CKA compares the same objects in two layers: x has {len(first)} rows and y {len(second)}"
        )
    cross, of_first, of_second = (_hsic(a, b, unbiased) for a, b in _pairings(first, second))
    return cross / math.sqrt(of_first * of_second) if of_first > 0 and of_second > 0 else math.nan


def _pairings(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x, y), (x, x), (y, y)]


def _hsic(x: Tensor, y: Tensor, unbiased: bool) -> float:
    """``(N, D1), (N, D2) -> float`` for centred features, times a factor that is the same for all of N."""
    if x.shape[1] * y.shape[1] <= len(x) ** 2:
        shared = (x.T @ y).square().sum()
    else:
        shared = ((x @ x.T) * (y @ y.T)).sum()
    if not unbiased:
        return float(shared)
    lengths = (f.square().sum(dim=1)[None] for f in (x, y))
    return float(_without_bias(shared[None, None], *lengths))


def _without_bias(shared: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``(L1, L2), (L1, N), (L2, N) -> (L1, L2)``: n (n - 3) HSIC, see above; rounding becomes exactly 0."""
    n = a.shape[1]
    hsic = shared - n / (n - 2) * a @ b.T + torch.outer(a.sum(dim=1), b.sum(dim=1)) / ((n - 1) * (n - 2))
    return torch.where(hsic.abs() > NO_HSIC * shared, hsic, 0.0)


def _centred(x: Tensor) -> Tensor:
    """``(N, D) -> (N, D)`` of mean 0, exactly 0 where all rows are the same."""
    centred = x - x.mean(dim=0)
    return centred if centred.norm() > NO_SPREAD * x.norm() else torch.zeros_like(x)


@dataclass(frozen=True)
class CKAMatrix:
    """CKA of every layer of one encoder with every layer of another, and what chance gives."""

    cka: Tensor
    """(L1, L2); NaN for a layer that is the same for all objects, as the class token before any block."""
    permuted_mean: Tensor
    permuted_std: Tensor
    """(L1, L2) mean and spread of the same numbers where the objects of one side have been permuted."""
    objects: int
    """How many objects they rest on."""


class MinibatchCKA:
    """CKA of all pairs of layers over a data set of any size, in constant memory.

    Nguyen et al. 2021 (arXiv:2010.15327, eq. 3): the unbiased HSIC, averaged over minibatches, and the
    quotient at the end. Objects are gathered to minibatches of ``batch_size``, whatever comes at a time; the
    rest at the end counts by its size, and is left out if it is fewer than 4. Their order must be random: in
    batches of one class each, nothing is seen of the differences between classes.
    """

    def __init__(self, batch_size: int = 64, draws: int = 100, seed: int = 0) -> None:
        """``draws``: random permutations of one side in every minibatch, for the control."""
        if batch_size < FEWEST or draws < 2:
            raise ValueError(
                f"minibatch CKA needs batch_size >= {FEWEST} and draws >= 2, got {batch_size} and {draws}"
            )
        self.batch_size, self.draws, self.objects = batch_size, draws, 0
        self._seed = seed
        self._waiting: tuple[list[Tensor], list[Tensor]] | None = None
        # Sums of HSIC(X, Y) (1 + draws, L1, L2), the first one unpermuted, of (X, X) (L1,) and (Y, Y) (L2,).
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None

    def update(self, x: Sequence[Tensor], y: Sequence[Tensor]) -> None:
        """``[(B, D1)] * L1, [(B, D2)] * L2``: the same objects in all layers of two encoders, or one twice.

        Raises:
            ValueError: if the numbers of layers or objects do not match, or a feature is not finite.
        """
        first, second = (
            [as_samples(f, f"layer {i} of the {side} encoder") for i, f in enumerate(features)]
            for side, features in (("first", x), ("second", y))
        )
        if len({len(f) for f in (*first, *second)}) != 1 or not first or not second:
            raise ValueError(
                "CKA compares the same objects in all layers of two encoders, got layers of "
                f"{[len(f) for f in first]} and {[len(f) for f in second]} objects"
            )
        if self._waiting is not None:
            layers, before = (len(first), len(second)), tuple(map(len, self._waiting))
            if layers != before:
                raise ValueError(f"CKA began with {before} layers of the two encoders, and now got {layers}")
            first, second = (_joined(*sides) for sides in zip(self._waiting, (first, second), strict=True))
        size = self.batch_size
        while len(first[0]) >= size:
            self._sums = self._with([f[:size] for f in first], [f[:size] for f in second])
            self.objects += size
            first, second = [f[size:] for f in first], [f[size:] for f in second]
        # Copies, since a slice would keep all of the batch that it was cut from.
        self._waiting = [f.clone() for f in first], [f.clone() for f in second]

    def result(self) -> CKAMatrix:
        """The matrix of what has been seen so far; more may follow.

        Raises:
            ValueError: for fewer than 4 objects.
        """
        sums, objects = self._sums, self.objects
        if self._waiting is not None and len(self._waiting[0][0]) >= FEWEST:
            sums, objects = self._with(*self._waiting), objects + len(self._waiting[0][0])
        if sums is None:
            found = 0 if self._waiting is None else len(self._waiting[0][0])
            raise ValueError(f"CKA needs at least {FEWEST} objects, got {found}")
        cross, of_x, of_y = sums
        scale = torch.outer(of_x, of_y).sqrt()
        values = torch.where(scale > 0, cross / scale, torch.nan)
        return CKAMatrix(values[0], values[1:].mean(dim=0), values[1:].std(dim=0), objects)

    def _with(self, x: list[Tensor], y: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The sums and one more minibatch, whose mean HSIC counts by its number of objects."""
        n = len(x[0])
        gram_x, gram_y = (torch.stack([c @ c.T for c in map(_centred, side)]) for side in (x, y))
        generator = torch.Generator().manual_seed(self._seed + self.objects)
        orders = [torch.arange(n)] + [torch.randperm(n, generator=generator) for _ in range(self.draws)]
        cross = torch.stack([_all_hsic(gram_x, gram_y[:, o][:, :, o]) for o in orders])
        of_x, of_y = (_all_hsic(g, g).diagonal() for g in (gram_x, gram_y))
        new = cross / (n - 3), of_x / (n - 3), of_y / (n - 3)  # n HSIC
        if self._sums is None:
            return new
        return self._sums[0] + new[0], self._sums[1] + new[1], self._sums[2] + new[2]


def _joined(before: list[Tensor], after: list[Tensor]) -> list[Tensor]:
    return [torch.cat(parts) for parts in zip(before, after, strict=True)]


def _all_hsic(x: Tensor, y: Tensor) -> Tensor:
    """``(L1, N, N), (L2, N, N) -> (L1, L2)``: n (n - 3) HSIC of all pairs of centred Gram matrices."""
    shared = x.flatten(1) @ y.flatten(1).T
    return _without_bias(shared, x.diagonal(dim1=1, dim2=2), y.diagonal(dim1=1, dim2=2))
