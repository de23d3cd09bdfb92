"""Measurements of what two encoders on one trunk do alike, and of what one looks at."""

from pointvit.compare.attention import (
    AttentionStatistics,
    attention_distance,
    attention_entropy,
    attention_rollout,
    groups_to_points,
    patches_to_pixels,
    rollout_to_patches,
    without_prefix,
)
from pointvit.compare.cka import MinibatchCKA, cka
from pointvit.compare.drift import (
    drift_by_group,
    image_encoder_on,
    output_drift,
    weight_drift,
)
from pointvit.compare.filters import (
    TopGroups,
    channel_responses,
    favourite_offsets,
    most_varied_channels,
    offset_grid,
    principal_filters,
)
from pointvit.compare.multiview import (
    MultiViewClassifier,
    Views,
    image_baseline,
    image_probe_drift,
    render_for,
    view_features,
)
from pointvit.compare.positions import (
    SimilarityByDistance,
    grid_structure,
    position_similarity,
    position_table,
    rank_correlation,
)
from pointvit.compare.probes import knn_accuracy, knn_probe, linear_probe, probe_layers
from pointvit.compare.record import Layer, Observer, in_radii, record, with_random_weights
from pointvit.compare.retrieval import cross_modal_retrieval, fit_pair_map, nearest, retrieval_recall
from pointvit.compare.tokens import TokenStatistics, effective_rank

__all__ = [
    "AttentionStatistics",
    "Layer",
    "MinibatchCKA",
    "MultiViewClassifier",
    "Observer",
    "SimilarityByDistance",
    "TokenStatistics",
    "TopGroups",
    "Views",
    "attention_distance",
    "attention_entropy",
    "attention_rollout",
    "channel_responses",
    "cka",
    "cross_modal_retrieval",
    "drift_by_group",
    "effective_rank",
    "favourite_offsets",
    "fit_pair_map",
    "grid_structure",
    "groups_to_points",
    "image_baseline",
    "image_encoder_on",
    "image_probe_drift",
    "in_radii",
    "knn_accuracy",
    "knn_probe",
    "linear_probe",
    "most_varied_channels",
    "nearest",
    "offset_grid",
    "output_drift",
    "patches_to_pixels",
    "position_similarity",
    "position_table",
    "principal_filters",
    "probe_layers",
    "rank_correlation",
    "record",
    "render_for",
    "retrieval_recall",
    "rollout_to_patches",
    "view_features",
    "weight_drift",
    "with_random_weights",
    "without_prefix",
]
