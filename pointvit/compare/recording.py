"""One pass over the objects: every encoder sees each object once, and every measurement looks on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import reduce
from torch import Tensor

from pointvit.compare.attention import AttentionStatistics, AttentionSummary, attention_distance
from pointvit.compare.moments import Moments, Spread
from pointvit.compare.multiview import Views
from pointvit.compare.objects import Objects
from pointvit.compare.positions import SimilarityByDistance, position_similarity
from pointvit.compare.record import Layer, Observer, in_radii, record
from pointvit.compare.subjects import Subjects
from pointvit.compare.tokens import TokenStatistics, TokenSummary
from pointvit.data.transforms import swap_up_axis
from pointvit.model import ViT
from pointvit.views import normalize_images

BATCH_IMAGES = 16
"""Images that go through an encoder at a time; attention weights are made of as many."""
WATCHED = ("image", "points", "image_after", "points_before")
"""Encoders whose attention is measured. Those of random weights are a control of the features."""
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Recording:
    """What is kept of one encoder: a vector for each object and layer, and sums."""

    layers: list[Tensor]
    """L + 1 times (N, D) float32 on the CPU: the mean of the patches or groups, over all views."""
    final: Tensor
    """(N, F) float32: what a head is applied to, the mean over all views."""
    attention: AttentionSummary | None = None
    tokens: TokenSummary | None = None
    uniform: Spread | None = None
    """Attention distance if every patch or group attended to all alike; over objects."""
    num_tokens: int = 0
    """Patches or groups of an object."""


class Final:
    """What a head would be applied to, from the tokens of the last layer."""

    needs_weights = False

    def __init__(self, encoder: ViT) -> None:
        self._encoder = encoder
        self.features = torch.empty(0)

    def observe(self, layer: Layer) -> None:
        if layer.index == self._encoder.config.trunk.depth:
            tokens = self._encoder.trunk.norm(layer.tokens)
            self.features = self._encoder.forward_head(tokens, pre_logits=True)


class UniformDistance:
    """The attention distance of attending to everything alike, on the very positions."""

    needs_weights = False

    def __init__(self) -> None:
        self.moments, self.num_tokens = Moments(), 0

    def observe(self, layer: Layer) -> None:
        if layer.index == 0:
            self.num_tokens = count = layer.positions.shape[1]
            weights = layer.positions.new_ones(1, 1, count, count)
            each = [attention_distance(weights, places) for places in layer.positions]
            self.moments.update(torch.stack(each))


@dataclass(frozen=True)
class _Watch:
    """The measurements of one encoder, and the features so far."""

    encoder: ViT
    final: Final
    attention: AttentionStatistics | None
    tokens: TokenStatistics | None
    uniform: UniformDistance | None
    parts: list[tuple[list[Tensor], Tensor]]

    @classmethod
    def of(cls, encoder: ViT, whole: bool) -> _Watch:
        if not whole:
            return cls(encoder, Final(encoder), None, None, None, [])
        return cls(encoder, Final(encoder), AttentionStatistics(), TokenStatistics(), UniformDistance(), [])

    def see(self, x: Tensor, objects: int) -> None:
        """``(B V, ...)``: the views, or clouds, of ``objects`` objects."""
        others = (self.attention, self.tokens, self.uniform)
        watching: list[Observer] = [self.final, *(each for each in others if each is not None)]
        layers = record(self.encoder, x, *watching)
        kept = [_over_views(each, objects) for each in (*layers, self.final.features)]
        self.parts.append((kept[:-1], kept[-1]))

    def result(self) -> Recording:
        layers = [torch.cat(parts) for parts in zip(*(layers for layers, _ in self.parts), strict=True)]
        return Recording(
            layers,
            torch.cat([final for _, final in self.parts]),
            None if self.attention is None else self.attention.result(),
            None if self.tokens is None else self.tokens.result(),
            None if self.uniform is None else self.uniform.moments.result(),
            0 if self.uniform is None else self.uniform.num_tokens,
        )


def record_objects(
    subjects: Subjects,
    objects: Objects,
    views: Views,
    whole: bool,
    progress: Progress,
    curve: SimilarityByDistance | None = None,
) -> dict[str, Recording]:
    """All encoders on all objects.

    Memory: a batch of tokens and attention weights, sums that do not grow, and (L + 1) D + F numbers for each
    object and encoder.

    Args:
        whole: attention and token statistics too, of :data:`WATCHED`; else features alone.
        progress: called with the number of objects done.
        curve: gets the similarity of the point encoder's positions, by distance.
    """
    watched = {
        name: _Watch.of(encoder, whole and name in WATCHED) for name, encoder in subjects.encoders.items()
    }
    step = max(1, BATCH_IMAGES // views.num_views)
    for start in range(0, len(objects), step):
        stop = min(start + step, len(objects))
        images = objects.render(start, stop, views).flatten(0, 1)
        seen = normalize_images(images, subjects.image)
        for name in subjects.of("image"):
            watched[name].see(seen, stop - start)
        clouds = objects.batch(start, stop)
        for name, encoder in subjects.of("points").items():
            watched[name].see(swap_up_axis(clouds, objects.data.up_axis, encoder.meta.up_axis), stop - start)
        if curve is not None:
            framed, _, centers = subjects.group(clouds, objects.data.up_axis)
            similarity = position_similarity(subjects.points, centers, centered=True)
            curve.update(similarity, in_radii(centers, framed))
        progress(stop)
    return {name: watch.result() for name, watch in watched.items()}


def _over_views(features: Tensor, objects: int) -> Tensor:
    """``(B V, D) -> (B, D)`` on the CPU, outside inference mode."""
    mean = reduce(features.float(), "(b v) d -> b d", "mean", b=objects)
    return mean.cpu().clone()
