"""What the first layers respond to: patch-embedding filters, and channels of the mini-PointNet."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange, repeat
from torch import Tensor

from pointvit.export.parts import in_eval
from pointvit.model import ViT
from pointvit.tokenizers import ImageTokenizer, PointTokenizer


class PrincipalFilters(NamedTuple):
    images: Tensor
    """(num, h, w, 3) in [0, 1]; 0.5 is no weight."""
    explained: Tensor
    """(num,) share of the filters' variance."""


def principal_filters(model: ViT, num: int = 28) -> PrincipalFilters:
    """The first principal components of the patch-embedding filters (ViT paper, figure 7, left).

    Components of the D filters about their mean, each scaled by its largest weight, which is made positive:
    the sign of a component means nothing.

    Raises:
        ValueError: for a point encoder, a hybrid one, or one that does not take colours or grey images.
    """
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, ImageTokenizer):
        raise ValueError("a point encoder has no patch filters; see channel_responses for its mini-PointNet")
    channels = tokenizer.config.in_chans
    if tokenizer.backbone is not None or channels not in (1, 3):
        raise ValueError(
            "filters are shown as pictures where patches are embedded straight from grey or colour images, "
            f"and this encoder has {channels} channels" + (" and a stem" if tokenizer.backbone else "")
        )
    weight = tokenizer.proj.weight.detach().double().cpu()
    filters = rearrange(weight, "d c h w -> d (c h w)")
    _, singular, components = torch.linalg.svd(filters - filters.mean(dim=0), full_matrices=False)
    if not 1 <= num <= len(components):
        raise ValueError(f"num must lie in [1, {len(components)}] for these filters, got {num}")
    kept = components[:num]
    largest = kept.gather(1, kept.abs().argmax(dim=1, keepdim=True))
    images = rearrange(kept / largest, "n (c h w) -> n h w c", c=channels, h=weight.shape[2])
    shares = singular.square() / singular.square().sum()
    return PrincipalFilters(
        (repeat(images, "n h w c -> n h w (r c)", r=3 // channels) + 1).float() / 2, shares[:num]
    )


def offset_grid(radius: float, steps: int = 17) -> Tensor:
    """``-> (M, 3)``: the places of a cubic grid of ``steps`` to a side that lie within ``radius`` of 0."""
    if radius <= 0 or steps < 2:
        raise ValueError(f"a grid of offsets needs radius > 0 and steps >= 2, got {radius} and {steps}")
    axis = torch.linspace(-radius, radius, steps)
    grid = torch.cartesian_prod(axis, axis, axis)
    return grid[grid.norm(dim=1) <= radius * (1 + 1e-6)]


def channel_responses(model: ViT, offsets: Tensor) -> Tensor:
    """``(M, 3) -> (M, D)``: what each channel of a token says to one point at an offset from the centre.

    Each is the token of a group of two points, the centre itself and that one, less the token of the centre
    alone. Channels behind xyz are 0.

    Raises:
        ValueError: for an image encoder, or offsets of another shape.
    """
    tokenizer = _point_tokenizer(model)
    if offsets.ndim != 2 or offsets.shape[1] != 3 or len(offsets) < 1:
        raise ValueError(f"offsets must have shape (M, 3) with M >= 1, got {tuple(offsets.shape)}")
    like = next(tokenizer.parameters())
    groups = torch.zeros(len(offsets) + 1, 2, tokenizer.config.in_chans, device=like.device, dtype=like.dtype)
    groups[1:, 1, :3] = offsets.to(groups)
    with in_eval(tokenizer):
        tokens = _embedded(tokenizer, groups[None])[0]
    return tokens[1:] - tokens[0]


def most_varied_channels(responses: Tensor, num: int) -> Tensor:
    """``(M, D) -> (num,)``: the channels that tell offsets apart the most, by standard deviation."""
    if not 1 <= num <= responses.shape[1] or len(responses) < 2:
        raise ValueError(
            f"expected num in [1, {responses.shape[1]}] and 2 offsets or more, got {num} and {len(responses)}"
        )
    return responses.std(dim=0).topk(num).indices


def favourite_offsets(responses: Tensor, offsets: Tensor) -> Tensor:
    """``(M, D), (M, 3) -> (D, 3)``: the offset at which each channel is largest."""
    return offsets.to(responses.device)[responses.argmax(dim=0)]


class TopGroups:
    """For some channels the groups of a data set to which they say most, in constant memory."""

    def __init__(self, model: ViT, channels: Tensor, count: int = 8) -> None:
        self._tokenizer = _point_tokenizer(model)
        width = model.embed_dim
        if count < 1 or channels.ndim != 1 or not bool(((channels >= 0) & (channels < width)).all()):
            raise ValueError(
                f"top groups need count >= 1 and channels (num,) in [0, {width}), got {count} and "
                f"{channels.tolist()}"
            )
        self.channels, self.count = channels.cpu(), count
        self.seen = 0
        self.scores = torch.empty(len(channels), 0)
        """(num, count) the channel's value, largest first; fewer while fewer groups have passed."""
        self.objects = torch.empty(len(channels), 0, dtype=torch.int64)
        """(num, count) the object's number in the order of the data."""
        self.centers = torch.empty(len(channels), 0, 3)
        """(num, count, 3) where the group sits in its object."""
        config = self._tokenizer.config
        self.groups = torch.empty(len(channels), 0, config.group_size, config.in_chans)
        """(num, count, K, C) its points relative to the centre."""

    def update(self, points: Tensor, lengths: Tensor | None = None) -> None:
        """``(B, P, C)``: the next clouds."""
        like = next(self._tokenizer.parameters())
        with in_eval(self._tokenizer):
            groups, centers = self._tokenizer.group(points.to(like.device), lengths)
            tokens = _embedded(self._tokenizer, groups.to(like.dtype)).float().cpu()
        values = rearrange(tokens[..., self.channels], "b g n -> n (b g)")
        best = values.topk(min(self.count, values.shape[1]), dim=1)
        objects = self.seen + best.indices // centers.shape[1]
        flat = [
            rearrange(part.float().cpu(), "b g ... -> (b g) ...")[best.indices] for part in (centers, groups)
        ]
        self.seen += len(points)
        scores = torch.cat([self.scores, best.values], dim=1)
        order = scores.topk(min(self.count, scores.shape[1]), dim=1).indices
        self.scores = scores.gather(1, order)
        self.objects = torch.cat([self.objects, objects], dim=1).gather(1, order)
        rows = torch.arange(len(order))[:, None]
        self.centers = torch.cat([self.centers, flat[0]], dim=1)[rows, order]
        self.groups = torch.cat([self.groups, flat[1]], dim=1)[rows, order]


def _point_tokenizer(model: ViT) -> PointTokenizer:
    if not isinstance(model.tokenizer, PointTokenizer):
        raise ValueError("an image encoder has no mini-PointNet; see principal_filters for its patch filters")
    return model.tokenizer


def _embedded(tokenizer: PointTokenizer, groups: Tensor) -> Tensor:
    """``(B, G, K, C) -> (B, G, D)``."""
    return tokenizer.reduce(tokenizer.embed(groups))
