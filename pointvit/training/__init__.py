"""Training and testing of point classifiers."""

from pointvit.training.classifier import PointClassifier
from pointvit.training.metrics import Scores

__all__ = ["PointClassifier", "Scores"]
