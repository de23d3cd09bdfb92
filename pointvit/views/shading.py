"""What the images of clouds and of meshes have in common: brightness of depth, and light on normals."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from einops import repeat
from torch import Tensor

from pointvit.config import near as near_names

Mode = Literal["depth", "shaded", "normal"]
MODES = ("depth", "shaded", "normal")

# Brightness of the sphere's far pole in a depth image; its near pole is 1 and the background 0.
FAR = 0.2
# Light from above the viewer's left shoulder, in the camera's frame, and what a face turned away still gets.
LIGHT = (-0.35, 0.5, 0.79)
AMBIENT = 0.3


def check_mode(mode: str) -> None:
    """Raises ValueError for a mode that does not exist."""
    if mode not in MODES:
        raise ValueError(
            f"expected mode to be one of {', '.join(MODES)}, got {mode!r}; {near_names(str(mode), MODES)}"
        )


def brightness(depth: Tensor) -> Tensor:
    """(...) -> (...): depth in sphere radii, -1 far to 1 near and clamped to that, as drawn in `FAR`..1."""
    return FAR + (1 - FAR) * (depth.clamp(-1, 1) + 1) / 2


def depth_image(near: Tensor) -> Tensor:
    """(B, V, H, W) brightness -> (B, V, 3, H, W)."""
    return repeat(near, "b v h w -> b v c h w", c=3)


def normal_image(normals: Tensor, surface: Tensor, mode: Mode) -> Tensor:
    """(B, V, 3, H, W) unit normals in the cameras' axes -> the same, zero outside `surface` (B, V, H, W)."""
    if mode == "normal":
        return (normals + 1) / 2 * surface[:, :, None]
    x, y, z = (part * weight for part, weight in zip(normals.unbind(2), _light(), strict=True))
    return depth_image((AMBIENT + (1 - AMBIENT) * (x + y + z).clamp(min=0)) * surface)


def facing(normals: Tensor, viewer: Tensor, dim: int) -> Tensor:
    """Normals of any length and sign -> of unit length, on the viewer's side; x, y and z lie along `dim`.

    Whichever side of a surface is seen is lit: clouds and meshes come with normals of either sign. A normal
    that is zero or not finite is taken as facing the viewer.
    """
    normals = F.normalize(normals.nan_to_num(), dim=dim)
    turned = torch.where((normals * viewer).sum(dim, keepdim=True) < 0, -normals, normals)
    return torch.where((normals == 0).all(dim, keepdim=True), viewer, turned)


def _light() -> list[float]:
    length = math.hypot(*LIGHT)
    return [part / length for part in LIGHT]
