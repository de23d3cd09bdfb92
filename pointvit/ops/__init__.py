"""Point operations with interchangeable back ends: the same indices on all of them."""

from pointvit.ops.api import BACKENDS, available_backends, ball_query, farthest_point_sample, group, knn

__all__ = ["BACKENDS", "available_backends", "ball_query", "farthest_point_sample", "group", "knn"]
