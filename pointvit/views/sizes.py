"""How large views may be."""

from __future__ import annotations

import math

from pointvit.tokenizers import ImageTokenizerConfig

MOST_PATCHES = 2500
"""For twelve heads, attention between so many takes 0.3 GB an image and layer in float32."""


def check_view_size(name: str, size: int, tokenizer: ImageTokenizerConfig) -> None:
    """Raises ValueError unless an encoder with these patches takes square images of this size.

    Args:
        name: of the setting, for the message.
        size: pixels to a side.
        tokenizer: of the encoder; as many patches as it was made for are never too many.
    """
    height, width = tokenizer.patch_size
    if size < 1 or size % height or size % width:
        raise ValueError(
            f"{name} must be a multiple of the encoder's patches, {height} x {width} pixels, got {size}"
        )
    made_for = math.prod(
        side // patch for side, patch in zip(tokenizer.img_size, (height, width), strict=True)
    )
    most = max(MOST_PATCHES, made_for)
    patches = (size // height) * (size // width)
    if patches > most:
        side, step = math.isqrt(most * height * width), math.lcm(height, width)
        raise ValueError(
            f"{name} must be at most {side - side % step} for patches of {height} x {width} pixels, got "
            f"{size}, as attention takes memory by the square of the {patches:,} patches"
        )
