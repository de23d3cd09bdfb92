"""Training and testing of point classifiers, and what of a pre-trained model learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pointvit.training.initial import INITS, initialise
from pointvit.training.metrics import Scores
from pointvit.training.transfer import TRANSFER_MODES, apply_transfer, merge_transfer

if TYPE_CHECKING:
    from pointvit.training.classifier import PointClassifier

__all__ = [
    "INITS",
    "TRANSFER_MODES",
    "PointClassifier",
    "Scores",
    "apply_transfer",
    "initialise",
    "merge_transfer",
]


def __getattr__(name: str) -> Any:
    # Loading a model that has prompts comes here, and should not wait for Lightning.
    if name == "PointClassifier":
        from pointvit.training.classifier import PointClassifier

        return PointClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
