"""Token calibration: point tokens get the scale of the image tokens that a trunk was trained on."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from pointvit.checkpoints import Checkpoint
from pointvit.checkpoints.architecture import NEEDED
from pointvit.checkpoints.resampling import front_end
from pointvit.model import ViT
from pointvit.positions import FourierPositions, PointPositions
from pointvit.tokenizers import ImageTokenizer, PointTokenizer
from pointvit.variants import model_for
from pointvit.views import render_points

CLOUDS, VIEWS, SIZE = 32, 4, 224
"""Training clouds that are looked at, views of each, and pixels of a view at most."""


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation (D,) of tokens, per channel."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, tokens: Tensor) -> Moments:
        """``(N, D) ->`` theirs."""
        return cls(tokens.mean(dim=0), tokens.std(dim=0, correction=0))

    def __str__(self) -> str:
        return f"{float(self.mean.square().mean().sqrt()):.3g} and {float(self.std.mean()):.3g}"


@dataclass(frozen=True)
class Calibration:
    """What a calibration saw: tokens of images, and of points before it; positions if they took part."""

    image: Moments
    points: Moments
    image_positions: Moments | None = None
    point_positions: Moments | None = None

    def __str__(self) -> str:
        rows = [
            f"point tokens calibrated: mean (rms over channels) and deviation {self.points} -> {self.image}"
        ]
        if self.image_positions is not None:
            rows.append(f"positions calibrated: {self.point_positions} -> {self.image_positions}")
        return "; ".join(rows)


def image_encoder(path: str | os.PathLike[str], settings: Mapping[str, Any] | None = None) -> ViT:
    """The image encoder of a checkpoint with its front end's weights alone; the rest of it is random.

    Args:
        settings: of the model that was made from it; those that the file leaves open are taken.

    Raises:
        ValueError: if the checkpoint is not of an image encoder of three channels.
    """
    checkpoint = Checkpoint.open(path)
    if checkpoint.modality != "image":
        raise ValueError(
            f"{path}: token calibration needs an image checkpoint; this is a point encoder, whose tokens its "
            "trunk knows already"
        )
    stated = {name: value for name, value in (settings or {}).items() if name in NEEDED}
    config = checkpoint.encoder_config(stated).override({**stated, "num_classes": 0})
    model = model_for(checkpoint, config)
    if not isinstance(model.tokenizer, ImageTokenizer) or model.tokenizer.config.in_chans != 3:
        raise ValueError(f"{path}: token calibration needs an encoder of images with three channels")
    tensors, _ = front_end(checkpoint, model.tokenizer.config)
    own = model.tokenizer.state_dict()
    model.tokenizer.load_state_dict({name: tensors[f"tokenizer.{name}"] for name in own})
    return model.eval()


@torch.no_grad()
def calibrate_tokens(
    model: ViT, image: ViT, clouds: Tensor, positions: bool = False, up_axis: str = "z"
) -> Calibration:
    """Scales and shifts a point encoder's tokens to the mean and deviation, per channel, of image tokens.

    In place and without new parameters: the mini-PointNet's last layer (or ``reduce`` behind it) takes in
    factor and shift; as the factors are positive, its maximum over a group does not mind. Image tokens are
    those of the patches of shaded views that show something of an object. The mini-PointNet's batch norms use
    the statistics of ``clouds``, as they will in training, and keep their own.

    Args:
        model: an encoder of points, changed.
        image: an encoder of images with the trunk's first weights; only its tokenizer is used.
        clouds: (B, P, C) in the frame of training.
        positions: whether positions get the moments of the image encoder's own, too. Not measured to help;
            ``pos_embed=projected`` has them already.
        up_axis: of the clouds, for the views.

    Raises:
        ValueError: for encoders of another kind or width, or positions where there are none of that kind.
    """
    if not (isinstance(model.tokenizer, PointTokenizer) and isinstance(image.tokenizer, ImageTokenizer)):
        raise ValueError("calibrate_tokens takes an encoder of points, then an encoder of images")
    if model.embed_dim != image.embed_dim:
        raise ValueError(f"expected encoders of one width, got {model.embed_dim} and {image.embed_dim}")
    theirs, table = _image_tokens(image, image.tokenizer, clouds, up_axis)
    ours, at_centers = _point_tokens(model.tokenizer, clouds)
    target, before = Moments.of(theirs), Moments.of(ours)
    if not positions:
        _fold(_last(model.tokenizer), before, target)
        return Calibration(target, before)
    layer = model.tokenizer.pos_embed
    if table is None or not isinstance(layer, FourierPositions | PointPositions):
        raise ValueError("positions=True needs an image encoder with positions, and pos_embed mlp or fourier")
    of_table, of_centers = Moments.of(table), Moments.of(at_centers)
    _fold(_last(model.tokenizer), before, target)
    _fold(layer if isinstance(layer, FourierPositions) else _linear_of(layer[-1]), of_centers, of_table)
    return Calibration(target, before, of_table, of_centers)


def _image_tokens(
    image: ViT, tokenizer: ImageTokenizer, clouds: Tensor, up_axis: str
) -> tuple[Tensor, Tensor | None]:
    """``(B, P, C) -> (N, D), (h*w, D)``: tokens of patches with something on them, and positions."""
    step = math.lcm(*tokenizer.config.patch_size)
    views = render_points(clouds, VIEWS, step * max(1, SIZE // step), "shaded", up_axis=up_axis)  # type: ignore[arg-type]
    pixels = rearrange(views, "b v c h w -> (b v) c h w")
    mean, std = (
        torch.tensor(value, device=pixels.device)[:, None, None]
        for value in (image.meta.image_mean, image.meta.image_std)
    )
    like = tokenizer.proj.weight
    tokens = tokenizer(((pixels - mean) / std).to(like.device, like.dtype))
    shows = F.max_pool2d(pixels.amax(dim=1, keepdim=True), tokenizer.config.patch_size)
    table = None if tokens.pos is None else tokens.pos[0].float()
    return tokens.x.float()[rearrange(shows, "n 1 h w -> n (h w)").to(like.device) > 0], table


def _point_tokens(tokenizer: PointTokenizer, clouds: Tensor) -> tuple[Tensor, Tensor]:
    """``(B, P, C) -> (N, D), (N, D)``: tokens and positions as in training, without patch dropout."""
    tokenizer = copy.deepcopy(tokenizer).eval()
    like = next(tokenizer.parameters())
    neighborhoods, centers = tokenizer.group(clouds.to(like.device))
    tokenizer.embed.train()
    tokens = tokenizer.reduce(tokenizer.embed(neighborhoods.to(like.dtype)))
    return tokens.flatten(0, 1).float(), tokenizer.pos_embed(centers.to(like.dtype)).flatten(0, 1).float()


def _last(tokenizer: PointTokenizer) -> nn.Linear:
    """The layer that the tokens come out of."""
    reduced = isinstance(tokenizer.reduce, nn.Linear)
    return _linear_of(tokenizer.reduce if reduced else tokenizer.embed.second[-1])


def _linear_of(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def _fold(layer: nn.Linear, before: Moments, target: Moments) -> None:
    """Makes ``layer`` put out ``target`` where it put out ``before``."""
    factor = target.std / before.std.clamp(min=1e-6)
    layer.weight.mul_(factor[:, None])
    layer.bias.copy_((layer.bias - before.mean) * factor + target.mean)
