"""Whether an object's features in one modality find the same object among many in the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pointvit.compare.samples import Array, Standard, as_labels, as_samples

KS = (1, 5, 10)
TIE = 1e-9
"""Cosines that differ by less than this are equal: their order would be one of rounding."""
SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""What is added to the variances of standardised channels; a map of pairs chooses from these."""
HELD_OUT = 0.2
"""Share of the pairs on which that is chosen."""
_ROWS = 1024


def retrieval_recall(
    queries: Array, gallery: Array, ks: Sequence[int] = KS, labels: Array | None = None
) -> dict[str, float]:
    """``(N, D), (N, D) -> {"recall@1": ..., "chance@1": ..., ...}``; row i is the same object in both.

    The share of queries that have their own object among the k gallery objects of the largest cosine.
    ``chance@k`` is what a random order reaches, k / N. Of equal cosines the own object's comes last, so that
    features which tell nothing apart find nothing.

    Args:
        ks: how many objects are looked at; none may be larger than N.
        labels: (N,) classes. With them, a query is right if *any* object of its class is among the k, its own
            one included, and chance is that of drawing k without replacement.

    Raises:
        ValueError: for NaN, different objects or widths, or k outside 1..N.
    """
    queries, gallery = _pairs(queries, gallery, "queries", "gallery")
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"a cosine needs features of one width, got {queries.shape[1]} for the queries and "
            f"{gallery.shape[1]} for the gallery; fit_pair_map brings both into one space"
        )
    count = len(queries)
    for k in ks:
        _check_k(k, count)
    classes = torch.arange(count) if labels is None else as_labels(labels, count, "labels")
    ranks = torch.cat(list(_ranks(queries, gallery, classes)))
    members = classes.bincount()[classes].tolist()
    result = {f"recall@{k}": (ranks < k).double().mean().item() for k in ks}
    result |= {f"chance@{k}": math.fsum(_chance(count, n, k) for n in members) / count for k in ks}
    return result


def nearest(queries: Array, gallery: Array, k: int = 5) -> Tensor:
    """``(M, D), (N, D), k -> (M, k)`` int64: rows of the gallery by falling cosine, the lower of equal ones.

    Raises:
        ValueError: for NaN, different widths, or k outside 1..N.
    """
    queries, gallery = as_samples(queries, "queries"), as_samples(gallery, "gallery")
    _check_k(k, len(gallery))
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"a cosine needs features of one width, got {queries.shape[1]} and {gallery.shape[1]}"
        )
    found = [
        # Rounded, as the cosines of equal objects differ in their last digits.
        (cosine / TIE).round().sort(dim=1, descending=True, stable=True).indices[:, :k]
        for _, cosine in _cosines(queries, gallery)
    ]
    return torch.cat(found)


@dataclass(frozen=True)
class PairMap:
    """Linear maps of two kinds of features into one space, where the two of a pair lie close together."""

    first_scale: Standard
    second_scale: Standard
    first_weight: Tensor
    """(D1, R)"""
    second_weight: Tensor
    """(D2, R)"""
    shrinkage: float

    def first(self, x: Array) -> Tensor:
        """``(N, D1) -> (N, R)`` float64."""
        return self.first_scale(as_samples(x, "features")) @ self.first_weight

    def second(self, x: Array) -> Tensor:
        """``(N, D2) -> (N, R)`` float64."""
        return self.second_scale(as_samples(x, "features")) @ self.second_weight


def fit_pair_map(first: Array, second: Array, shrinkage: float | None = None, seed: int = 0) -> PairMap:
    """``(N, D1), (N, D2) ->`` regularised canonical correlation analysis of N pairs.

    Both sides are standardised and whitened with ``shrinkage`` added to their variances (Vinod 1976, J.
    Econometrics 4, 147); the singular vectors of what is left of their covariance are the common space, each
    direction weighted by its correlation. The two widths may differ.

    Args:
        first, second: features of the same objects, apart from those that will be searched.
        shrinkage: None for the best of :data:`SHRINKAGES` by mean reciprocal rank on a seeded fifth of them.

    Raises:
        ValueError: for NaN, different objects, or fewer than 10 pairs.
    """
    a, b = _pairs(first, second, "the first features", "the second features", fewest=10)
    if shrinkage is not None and not 0 < shrinkage < math.inf:
        raise ValueError(f"shrinkage must be a positive number, got {shrinkage}")
    if shrinkage is None:
        order = torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))
        held, fit = order.tensor_split([max(2, round(HELD_OUT * len(a)))])
        scores = []
        for candidate in SHRINKAGES:
            pair_map = _pair_map(a[fit], b[fit], candidate)
            objects = torch.arange(len(held))
            ranks = torch.cat(list(_ranks(pair_map.first(a[held]), pair_map.second(b[held]), objects)))
            scores.append((1 / (1 + ranks.double())).mean().item())
        shrinkage = SHRINKAGES[scores.index(max(scores))]
    return _pair_map(a, b, shrinkage)


def cross_modal_retrieval(
    queries: Array,
    gallery: Array,
    fit_queries: Array,
    fit_gallery: Array,
    ks: Sequence[int] = KS,
    labels: Array | None = None,
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """From one modality to the other: ``{"cosine": ..., "mapped": ..., "permuted": ...}`` of recalls.

    Features of two front ends share their width and not their meaning. So there are the recall by their plain
    ``cosine`` (left out where the widths differ), by the cosine behind linear maps that were fitted to other
    pairs (``mapped``), and as a control the same with those pairs ``permuted`` before fitting, so that
    nothing true can be learned from them.

    Args:
        queries, gallery: (N, D1), (N, D2) of the objects that are searched, such as the test split's.
        fit_queries, fit_gallery: (M, D1), (M, D2) of other objects, such as the training split's.
        ks, labels: as :func:`retrieval_recall`.
        seed: of the permutation, and of what :func:`fit_pair_map` holds out.

    Raises:
        ValueError: as :func:`retrieval_recall` and :func:`fit_pair_map`.
    """
    fit_a, fit_b = _pairs(fit_queries, fit_gallery, "fit_queries", "fit_gallery", fewest=10)
    a, b = _pairs(queries, gallery, "queries", "gallery")
    for name, x, fitted in (("queries", a, fit_a), ("gallery", b, fit_b)):
        if x.shape[1] != fitted.shape[1]:
            raise ValueError(
                f"{name} and fit_{name} must come from the same layer of the same encoder, and have widths "
                f"{x.shape[1]} and {fitted.shape[1]}"
            )
    shuffled = torch.randperm(len(fit_b), generator=torch.Generator().manual_seed(seed))
    true, false = fit_pair_map(fit_a, fit_b, seed=seed), fit_pair_map(fit_a, fit_b[shuffled], seed=seed)
    compared = {"cosine": (a, b)} if a.shape[1] == b.shape[1] else {}
    compared["mapped"] = true.first(a), true.second(b)
    compared["permuted"] = false.first(a), false.second(b)
    return {name: retrieval_recall(*sides, ks, labels) for name, sides in compared.items()}


def _pair_map(a: Tensor, b: Tensor, shrinkage: float) -> PairMap:
    scales = Standard.of(a), Standard.of(b)
    a, b = scales[0](a), scales[1](b)
    whiten_a, whiten_b = _whitening(a, shrinkage), _whitening(b, shrinkage)
    left, correlation, right = torch.linalg.svd(whiten_a @ (a.T @ b / len(a)) @ whiten_b, full_matrices=False)
    return PairMap(*scales, whiten_a @ left * correlation, whiten_b @ right.T * correlation, shrinkage)


def _whitening(x: Tensor, shrinkage: float) -> Tensor:
    """``(N, D) -> (D, D)``: the inverse root of the covariance plus ``shrinkage``."""
    variance, direction = torch.linalg.eigh(x.T @ x / len(x))
    return direction * (variance.clamp(min=0) + shrinkage).rsqrt() @ direction.T


def _pairs(a: Array, b: Array, first: str, second: str, fewest: int = 1) -> tuple[Tensor, Tensor]:
    x, y = as_samples(a, first, fewest), as_samples(b, second, fewest)
    if len(x) != len(y):
        raise ValueError(
            f"{first} and {second} must be the same objects in the same order, got {len(x)} and {len(y)} rows"
        )
    return x, y


def _check_k(k: int, count: int) -> None:
    if not 1 <= k <= count:
        raise ValueError(f"k must lie between 1 and the number of objects, {count}, got {k}")


def _cosines(queries: Tensor, gallery: Tensor) -> Iterator[tuple[int, Tensor]]:
    """``(M, D), (N, D) ->`` first row and cosines (rows, N), some rows at a time."""
    gallery = F.normalize(gallery, dim=1)
    for start in range(0, len(queries), _ROWS):
        yield start, F.normalize(queries[start : start + _ROWS], dim=1) @ gallery.T


def _ranks(queries: Tensor, gallery: Tensor, classes: Tensor) -> Iterator[Tensor]:
    """``(N, D), (N, D), (N,) -> (N,)`` in parts: objects of other classes as close as the best of its own."""
    for start, cosine in _cosines(queries, gallery):
        own = classes[start : start + len(cosine), None] == classes
        best = cosine.masked_fill(~own, -torch.inf).amax(dim=1, keepdim=True)
        yield ((cosine >= best - TIE) & ~own).sum(dim=1)


def _chance(count: int, members: int, k: int) -> float:
    """That one of ``members`` is among k of ``count`` drawn without replacement."""
    return 1 - math.comb(count - members, k) / math.comb(count, k)
