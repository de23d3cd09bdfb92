"""How far predicted vectors agree with given ones: losses to train with, and scores to report."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric


def cosine_loss(predicted: Tensor, given: Tensor) -> Tensor:
    """``(..., D), (..., D) -> (...)``: one minus the cosine of each pair."""
    return 1 - F.cosine_similarity(predicted.float(), given.float(), dim=-1)


def smooth_l1_loss(predicted: Tensor, given: Tensor) -> Tensor:
    """``(..., D), (..., D) -> (...)``: Huber's loss with its bend at 1, as a mean over the channels."""
    return F.smooth_l1_loss(predicted.float(), given.float(), reduction="none").mean(dim=-1)


PATCH_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": cosine_loss,
    "smooth_l1": smooth_l1_loss,
}


def contrastive_loss(predicted: Tensor, given: Tensor, temperature: float) -> Tensor:
    """``(B, D), (B, D) -> ()``: InfoNCE (van den Oord et al. 2018), both ways as CLIP has it.

    Each prediction must find its own vector among those of the batch by their cosine, and each vector its
    prediction.
    """
    # Outside autocast, which would round the cosines before the temperature enlarges them.
    with torch.autocast(predicted.device.type, enabled=False):
        cosines = F.normalize(predicted.float(), dim=1) @ F.normalize(given.float(), dim=1).mT
        own = torch.arange(len(cosines), device=cosines.device)
        logits = cosines / temperature
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.mT, own)) / 2


class PairScores(Metric):
    """Scores of predictions against the vectors they should give, over all pairs and processes.

    ``cosine`` is the mean over pairs; ``cosine_shuffled`` that over every prediction with every other one's
    vector, which knowing nothing of the object would reach as well; ``retrieval`` the share of predictions
    whose own vector is the nearest of all by cosine.
    """

    full_state_update = False
    predicted: list[Tensor]
    given: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("predicted", [], dist_reduce_fx="cat")
        self.add_state("given", [], dist_reduce_fx="cat")

    def update(self, predicted: Tensor, given: Tensor) -> None:
        """``(B, D), (B, D)``."""
        self.predicted.append(F.normalize(predicted.detach().float(), dim=1))
        self.given.append(F.normalize(given.float(), dim=1))

    def compute(self) -> dict[str, float]:
        predicted, given = (
            torch.cat(rows) if isinstance(rows, list) else rows for rows in (self.predicted, self.given)
        )
        cosines = predicted @ given.mT
        own, count = cosines.diagonal(), len(cosines)
        return {
            "cosine": float(own.mean()),
            "cosine_shuffled": float((cosines.sum() - own.sum()) / max(1, count * (count - 1))),
            "retrieval": float((own >= cosines.amax(dim=1)).float().mean()),
        }
