"""What an encoder does with a batch, layer by layer, shown to measurements that keep sums and no tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, overload

import torch
from torch import Tensor

from pointvit.export.parts import in_eval
from pointvit.model import Pair, ViT

STATES = ("mean", "cls")


@dataclass(frozen=True)
class Layer:
    """One layer's view of one batch."""

    index: int
    """0 for the tokens that the first block meets, then the number of the block, up to L."""
    tokens: Tensor
    """(B, prefix + N, D), before the final norm."""
    weights: Tensor | None
    """(B, H, prefix + N, prefix + N) softmax attention of the block; None for layer 0 or if nobody asked."""
    positions: Tensor
    """(B|1, N, 2|3) places of the patches in pixels, or of the groups in object radii."""
    num_prefix: int
    """Class and register tokens, which stand first."""


class Observer(Protocol):
    """A measurement: it looks at one layer of one batch after the other and keeps what does not grow."""

    needs_weights: bool

    def observe(self, layer: Layer) -> None: ...


def record(
    encoder: ViT, x: Tensor, *observers: Observer, state: str = "mean", lengths: Tensor | None = None
) -> list[Tensor]:
    """``(B, C, H, W) | (B, P, C) -> [(B, D)] * (L + 1)``: one vector an object and layer, from one pass.

    Layer 0 is what the first block meets, layer i the output of block i before the final norm. Every layer is
    shown to the observers and then forgotten, so memory does not grow with the depth (but for the vectors).
    Attention weights are made only where an observer needs them. The encoder runs in eval mode without
    gradients, and is left in the mode it was in.

    Args:
        encoder: an image or point encoder; of a pair, ``pair.image`` and ``pair.points`` one after the other
            on the same objects.
        x: a batch, on any device.
        observers: measurements, such as :class:`pointvit.compare.AttentionStatistics`.
        state: what stands for an object: the ``mean`` of its patches or groups, or the class token (``cls``),
            which in layer 0 is the same for all objects.
        lengths: (B,) points of padded clouds.

    Raises:
        ValueError: for an unknown state, ``cls`` without a class token, or tokens that are not finite.
    """
    if state not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, got {state!r}")
    if state == "cls" and not encoder.config.class_token:
        raise ValueError("state='cls' needs a class token, and this encoder has none; use state='mean'")
    x = x.to(next(encoder.parameters()).device)
    features = []
    with in_eval(encoder):
        tokens = encoder.tokenizer(x, lengths)
        is_image = encoder.config.modality == "image"
        positions = tokens.centers if is_image else in_radii(tokens.centers, x, lengths)
        needs_weights = any(observer.needs_weights for observer in observers)
        for index, (out, weights) in enumerate(encoder.forward_layers(tokens, needs_weights)):
            layer = Layer(index, out, weights, positions, encoder.num_prefix_tokens)
            features.append(_state(layer, state))
            for observer in observers:
                observer.observe(layer)
    return features


def _state(layer: Layer, state: str) -> Tensor:
    patches = layer.tokens[:, layer.num_prefix :].mean(dim=1)
    if not bool(patches.isfinite().all()):
        raise ValueError(
            f"the tokens of layer {layer.index} are not finite: the weights or the input are beyond what the "
            "encoder's precision holds, or not numbers themselves"
        )
    return layer.tokens[:, 0].clone() if state == "cls" else patches


def in_radii(centers: Tensor, points: Tensor, lengths: Tensor | None = None) -> Tensor:
    """``(B, G, 3), (B, P, 3+) -> (B, G, 3)``: relative to the mean of each cloud, its farthest point at 1.

    In this unit clouds of any scale compare. A cloud whose points are all in one place gives zeros.
    """
    xyz = points[..., :3]
    valid = torch.ones(xyz.shape[:2], dtype=torch.bool, device=xyz.device)
    if lengths is not None:
        valid = torch.arange(xyz.shape[1], device=xyz.device) < lengths.to(xyz.device)[:, None]
    valid = valid[..., None]
    # Relative to the first point, the mean of equal coordinates has no rounding.
    apart = torch.where(valid, xyz - xyz[:, :1], 0.0)
    mean = apart.sum(dim=1, keepdim=True) / valid.sum(dim=1, keepdim=True)
    radius = torch.where(valid, apart - mean, 0.0).norm(dim=-1).amax(dim=1)[:, None, None]
    relative = centers - xyz[:, :1] - mean
    return torch.where(radius > 0, relative / radius.clamp_min(torch.finfo(radius.dtype).tiny), 0.0)


@overload
def with_random_weights(model: ViT, seed: int = 0) -> ViT: ...
@overload
def with_random_weights(model: Pair, seed: int = 0) -> Pair: ...
def with_random_weights(model: ViT | Pair, seed: int = 0) -> ViT | Pair:
    """A new model of the same architecture as it is before any training: the control of a comparison.

    A pair's two encoders share their new trunk. The global random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(model, Pair):
            fresh: ViT | Pair = Pair(_untrained(model.image), _untrained(model.points))
        else:
            fresh = _untrained(model)
    like = next(model.parameters())
    return fresh.to(like.device, like.dtype).train(model.training)


def _untrained(model: ViT) -> ViT:
    fresh = ViT(model.config)
    fresh.meta = replace(model.meta, source={}, transfer={})
    return fresh
