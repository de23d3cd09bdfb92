"""From images in [0, 1] to what an image encoder was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pointvit.config import CLIP, IMAGENET, UNIT, near
from pointvit.model import Pair, ViT
from pointvit.tokenizers import ImageTokenizer

NORMALIZATIONS = {"imagenet": IMAGENET, "clip": CLIP, "unit": UNIT}


def normalize_images(
    images: Tensor, model_or_mean: ViT | Pair | str | Sequence[float], std: Sequence[float] | None = None
) -> Tensor:
    """(..., 3, H, W) in [0, 1] -> the same, less the mean and over the standard deviation of each channel.

    Args:
        images: as the renderers make them.
        model_or_mean: an image encoder, or a pair, for its checkpoint's own mean and deviation; `imagenet`,
            `clip` or `unit` (0.5 and 0.5); or the mean of each channel.
        std: of each channel, where the mean is given.

    Raises:
        ValueError: for images of another shape, type or range, a point encoder, or an unknown name.
    """
    if images.ndim < 3 or images.shape[-3] != 3 or not images.is_floating_point():
        raise ValueError(
            f"expected images of shape (..., 3, H, W) in floating point, got {tuple(images.shape)} "
            f"of {images.dtype}."
        )
    if images.numel() and not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError(
            f"expected images in [0, 1], got values from {images.min():g} to {images.max():g}; "
            "normalise once, and divide bytes by 255."
        )
    mean, deviation = (
        torch.tensor(each, dtype=images.dtype, device=images.device)[:, None, None]
        for each in _statistics(model_or_mean, std)
    )
    return (images - mean) / deviation


def _statistics(
    model_or_mean: ViT | Pair | str | Sequence[float], std: Sequence[float] | None
) -> tuple[Sequence[float], Sequence[float]]:
    if isinstance(model_or_mean, (ViT, Pair, str)):
        if std is not None:
            raise ValueError("std goes with a mean; a model or a name has its own.")
        return _named(model_or_mean)
    if std is None or len(model_or_mean) != 3 or len(std) != 3 or not min(std) > 0:
        raise ValueError(
            f"expected a mean and a positive std of 3 channels, got {model_or_mean!r} and {std!r}."
        )
    return model_or_mean, std


def _named(source: ViT | Pair | str) -> tuple[Sequence[float], Sequence[float]]:
    if isinstance(source, str):
        if source not in NORMALIZATIONS:
            known = ", ".join(NORMALIZATIONS)
            raise ValueError(
                f"expected a model, a mean, or one of {known}, got {source!r}; {near(source, NORMALIZATIONS)}"
            )
        return NORMALIZATIONS[source]
    model = source.image if isinstance(source, Pair) else source
    if not isinstance(model.tokenizer, ImageTokenizer):
        raise ValueError("expected an image encoder or a pair, got a point encoder, which sees no images.")
    return model.meta.image_mean, model.meta.image_std
