"""Point operations with interchangeable back ends: the same indices on all of them."""

from pointvit.ops.api import ball_query, farthest_point_sample, group, knn
from pointvit.ops.choice import BACKENDS, available_backends

__all__ = ["BACKENDS", "available_backends", "ball_query", "farthest_point_sample", "group", "knn"]
