"""Mixing of two clouds of a batch, with soft labels: ``(B, P, C), (B,) -> (B, P, C), (B, K)``.

None changes its input; ``repr`` reproduces the call; randomness comes from the generator passed in, which
must live on the device of the points, or from torch's global one. The share of a label is the share of points
that came from its cloud, counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

KINDS = ("random", "nearest")


class Mixing:
    """``points (B, P, C), labels (B,) -> points (B, P, C), targets (B, K)``, rows of which sum to 1.

    Each cloud is mixed, with ``probability``, with another of its batch. Subclasses define ``take``.
    """

    probability: float

    def __call__(
        self, points: Tensor, labels: Tensor, num_classes: int, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        partner = torch.randperm(len(points), generator=generator, device=points.device)
        others = points[partner]
        taken, replacement = self.take(points, others, generator)
        mixed = torch.rand(len(points), 1, generator=generator, device=points.device) < self.probability
        taken = taken & mixed
        share = taken.to(points.dtype).mean(dim=1, keepdim=True)
        own = F.one_hot(labels, num_classes).to(points.dtype)
        return torch.where(taken[..., None], replacement, points), own + share * (own[partner] - own)

    def take(self, points: Tensor, others: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """``(B, P, C), (B, P, C) -> (B, P) bool, (B, P, C)``: which points go, and what comes instead."""
        raise NotImplementedError


@dataclass(frozen=True)
class PointCutMix(Mixing):
    """Some points of a cloud make way for points of another (Zhang et al. 2021, arXiv:2101.01461).

    Their share is drawn from Beta(beta, beta). ``random`` (PointCutMix-R) takes that many random points of
    either cloud, ``nearest`` (PointCutMix-K) those that are nearest to one random place, of either cloud. The
    paper first pairs the points of the two clouds by the earth mover's distance, which costs more than a
    training step; here, in ``nearest``, both clouds are cut at the same place instead.
    """

    kind: str = "nearest"
    beta: float = 1.0
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check(self.beta, self.probability)
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")

    def take(self, points: Tensor, others: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        size = points.shape[1]
        count = (size * _beta(points, self.beta, generator)).long().clamp_(1, size)
        if self.kind == "random":
            going, coming = (_uniform(points, generator) for _ in range(2))
        else:
            place = _one_of_each(points, generator)[..., :3]
            going, coming = (_distance(cloud, place) for cloud in (points, others))
        rank, order = going.argsort(dim=1).argsort(dim=1), coming.argsort(dim=1)
        return rank < count, _gather(others, order.gather(1, rank))


@dataclass(frozen=True)
class RSMix(Mixing):
    """A ball of a cloud makes way for a ball of another, moved there as it is (Lee et al., CVPR 2021).

    The radius is drawn from Beta(beta, beta), in the unit of clouds in the unit sphere; either ball is around
    a random point of its cloud. At most ``max_share`` of the points are replaced, nearest first. As many
    come in as went: a random choice of the other ball's, or all of them repeated as evenly as can be.
    """

    beta: float = 1.0
    probability: float = 0.5
    max_share: float = 0.5

    def __post_init__(self) -> None:
        _check(self.beta, self.probability)
        if not 0 < self.max_share <= 1:
            raise ValueError(f"max_share must lie in (0, 1], got {self.max_share}")

    def take(self, points: Tensor, others: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        limit = max(1, int(self.max_share * points.shape[1]))
        radius = _beta(points, self.beta, generator)
        there, here = (_one_of_each(cloud, generator) for cloud in (points, others))
        distance = _distance(points, there[..., :3])
        taken = (distance <= radius) & (distance.argsort(dim=1).argsort(dim=1) < limit)
        ball = _distance(others, here[..., :3]) <= radius
        # The ball's points first, in random order; the i-th point that goes gets the i-th of them, in turns.
        order = (_uniform(others, generator) - ball.to(others.dtype)).argsort(dim=1)
        turn = (taken.long().cumsum(dim=1) - 1).clamp_min(0) % ball.sum(dim=1, keepdim=True)
        moved = _gather(others, order.gather(1, turn))
        shift = there[..., :3] - here[..., :3]
        return taken, torch.cat([moved[..., :3] + shift, moved[..., 3:]], dim=2)


def _check(beta: float, probability: float) -> None:
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be positive, got {beta}")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must lie in [0, 1], got {probability}")


def _beta(points: Tensor, beta: float, generator: Generator | None) -> Tensor:
    """``(B, 1)`` draws of Beta(beta, beta), one a cloud."""
    concentration = points.new_full((len(points), 2), beta, dtype=torch.float32)
    # What torch.distributions.Beta calls, which takes no generator.
    return torch._sample_dirichlet(concentration, generator=generator)[:, :1].to(points.dtype)


def _one_of_each(points: Tensor, generator: Generator | None) -> Tensor:
    """``(B, P, C) -> (B, 1, C)``: a random point of each cloud."""
    size = points.shape[1]
    chosen = torch.randint(size, (len(points), 1), generator=generator, device=points.device)
    return _gather(points, chosen)


def _uniform(points: Tensor, generator: Generator | None) -> Tensor:
    """``(B, P, C) -> (B, P)`` numbers in [0, 1)."""
    return torch.rand(points.shape[:2], generator=generator, device=points.device, dtype=points.dtype)


def _distance(points: Tensor, place: Tensor) -> Tensor:
    """``(B, P, C), (B, 1, 3) -> (B, P)``."""
    return (points[..., :3] - place).norm(dim=2)


def _gather(points: Tensor, rows: Tensor) -> Tensor:
    """``(B, P, C), (B, N) -> (B, N, C)``."""
    return points.gather(1, rows[..., None].expand(-1, -1, points.shape[2]))
