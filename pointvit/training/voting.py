"""Test-time voting, a score of its own beside the plain one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pointvit.data.transforms import Compose


def vote(model: nn.Module, points: Tensor, augment: Compose, votes: int, seed: int) -> Tensor:
    """``(B, P, C) -> (B, K)``: class probabilities, mean over ``votes`` augmented copies of each cloud."""
    generator = torch.Generator(points.device).manual_seed(seed)
    copies = (model(augment(points, generator)).float().softmax(dim=1) for _ in range(votes))
    return torch.stack(list(copies)).mean(dim=0)


def protocol(augment: Compose, votes: int, seed: int, batch_size: int) -> str:
    """What a voted score is the result of, in one sentence.

    Raises:
        ValueError: if there is no augmentation, since all votes would be the same.
    """
    if not augment.transforms:
        raise ValueError(f"model.votes={votes} needs copies that differ; give data.augment, or one vote")
    each = ", ".join(map(repr, augment.transforms))
    return (
        f"mean of the class probabilities over {votes} copies of each cloud, augmented by {each} "
        f"with seed {seed} in batches of {batch_size}"
    )
