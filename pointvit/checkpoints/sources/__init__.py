"""The table of checkpoint sources."""

from __future__ import annotations

from pointvit.checkpoints.sources import (
    big_vision,
    deit,
    dinov2,
    eva,
    google,
    huggingface,
    huggingface_clip,
    native,
    openclip,
    pix4point,
    point_bert,
    point_mae,
    timm,
    torchvision,
    uni3d,
)
from pointvit.checkpoints.sources.source import Source

SOURCES: dict[str, Source] = {
    module.SOURCE.name: module.SOURCE
    for module in (
        native,
        point_bert,
        point_mae,
        pix4point,
        uni3d,
        google,
        big_vision,
        huggingface,
        huggingface_clip,
        openclip,
        torchvision,
        eva,
        dinov2,
        deit,
        timm,
    )
}
"""In the order in which they are tried: the more particular before the more general."""
