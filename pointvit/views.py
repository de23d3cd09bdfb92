"""Images of point clouds: z-buffered splats seen from a fixed rig of cameras, without a display.

A grey dilation of single pixels in a z-buffer is the same picture as one square splat a point, and a grey
closing of it is hole filling that stops at the silhouette; both cost a few `torch.maximum` calls a batch.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

Mode = Literal["depth", "shaded", "normal"]
Rig = Literal["circle", "ten"]
UpAxis = Literal["x", "y", "z"]

MODES = ("depth", "shaded", "normal")
RIGS = ("circle", "ten")

# The unit sphere's radius, as a fraction of half the image: a margin of one tenth stays black.
FILL = 0.9
# Brightness of the sphere's far pole in a depth image; its near pole is 1 and the background 0.
FAR = 0.2
# Perspective cameras stand at this distance from the centre, in sphere radii.
CAMERA_DISTANCE = 3.0
# Light from above the viewer's left shoulder, in the camera's frame, and what a face turned away still gets.
LIGHT = (-0.35, 0.5, 0.79)
AMBIENT = 0.3

# Proper rotations, never a swap of two axes, which would mirror the cloud.
_TO_Z_UP = {
    "x": ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)),
    "y": ((1.0, 0.0, 0.0), (0.0, 0.0, -1.0), (0.0, 1.0, 0.0)),
    "z": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}
_CORNER = math.degrees(math.atan(math.sqrt(0.5)))
# (azimuth, elevation) in degrees: front, right, back, left, top, bottom, then four upper corners of a cube.
_TEN = (
    *((azimuth, 0.0) for azimuth in (-90.0, 0.0, 90.0, 180.0)),
    (-90.0, 90.0),
    (-90.0, -90.0),
    *((azimuth, _CORNER) for azimuth in (-45.0, 45.0, 135.0, -135.0)),
)


def camera_rotations(num_views: int = 10, rig: Rig = "circle", up_axis: UpAxis = "z") -> Tensor:
    """-> (V, 3, 3) float32: world to camera, `camera = R @ world`, rows right, up and towards the viewer.

    `circle`: azimuths in equal steps from the front, counter-clockwise seen from above, elevation 30 degrees.
    `ten`: the front, right, back, left, top and bottom faces, then four upper corners; needs `num_views=10`.
    The front camera of a z-up cloud looks along +y, so that +x is on its right.
    """
    if num_views < 1:
        raise ValueError(f"expected num_views of at least 1, got {num_views}.")
    if up_axis not in _TO_Z_UP:
        raise ValueError(f"expected up_axis 'x', 'y' or 'z', got {up_axis!r}.")
    if rig == "circle":
        angles = [(-90.0 + 360.0 * view / num_views, 30.0) for view in range(num_views)]
    elif rig != "ten":
        raise ValueError(f"expected rig to be one of {', '.join(RIGS)}, got {rig!r}.")
    elif num_views != len(_TEN):
        raise ValueError(
            f"the rig 'ten' has 10 cameras, got num_views={num_views}; use rig='circle' for other numbers."
        )
    else:
        angles = list(_TEN)
    azimuth, elevation = torch.tensor(angles, dtype=torch.float64).deg2rad().unbind(1)
    sin_a, cos_a, sin_e, cos_e = azimuth.sin(), azimuth.cos(), elevation.sin(), elevation.cos()
    right = torch.stack([-sin_a, cos_a, torch.zeros_like(sin_a)], 1)
    up = torch.stack([-sin_e * cos_a, -sin_e * sin_a, cos_e], 1)
    viewer = torch.stack([cos_e * cos_a, cos_e * sin_a, sin_e], 1)
    to_z_up = torch.tensor(_TO_Z_UP[up_axis], dtype=torch.float64)
    return (torch.stack([right, up, viewer], 1) @ to_z_up).float()


@torch.no_grad()
def render_points(
    points: Tensor,
    num_views: int = 10,
    size: int = 224,
    mode: Mode = "depth",
    lengths: Tensor | None = None,
    up_axis: UpAxis = "z",
    rig: Rig = "circle",
    perspective: bool = False,
    splat: float = 0.02,
    gap: float = 0.06,
) -> Tensor:
    """(B, P, 3+) -> (B, V, 3, H, W) float32 in [0, 1] on the device of `points`; the background is 0.

    Clouds are expected centred in the unit sphere, which fills nine tenths of the image. Points outside the
    image, or not finite, are left out; depth is clamped to the sphere's. Row 0 is the top and no view is
    mirrored. Nothing is random, and no gradient reaches the points.

    Args:
        points: clouds; channels behind the first three are ignored.
        mode: `depth`, bright where near; `shaded`, lit from the upper left; `normal`, (right, up, towards the
            viewer) mapped from [-1, 1] to [0, 1]. The last two come from the depth image's slope alone.
        lengths: (B,) number of leading points of each cloud that count; what stands behind them is ignored.
        rig: see `camera_rotations`.
        perspective: a camera three radii from the centre instead of parallel rays.
        splat: half the side of the square that a point covers, in sphere radii; at least its own pixel.
        gap: holes up to twice this wide are filled where nearer surface surrounds them, in sphere radii. The
            defaults suit about 1,024 points; denser clouds keep finer detail with a smaller gap.

    Raises:
        ValueError: for a wrong shape, mode, rig, axis, or a length outside 1..P.
    """
    _check(points, size, mode, lengths)
    rotations = camera_rotations(num_views, rig, up_axis).to(points.device)
    xyz = points[..., :3].float()
    if lengths is not None:
        padding = torch.arange(xyz.shape[1], device=xyz.device) >= lengths.to(xyz.device)[:, None]
        xyz = xyz.masked_fill(padding[..., None], torch.nan)
    # A product and a sum in float32: matmul may round to TF32 or bfloat16, and move points by whole pixels.
    camera = (rotations[:, None] * xyz[:, None, :, None]).sum(-1)
    pixel = 0.5 * size * FILL
    splat_px, gap_px = max(0, round(splat * pixel)), max(0, round(gap * pixel))
    near = _z_buffer(camera, size, perspective)
    near = _dilate(near, splat_px + gap_px, grow=gap_px)
    near = _erode(near, gap_px)
    if mode == "depth":
        return repeat(near, "b v h w -> b v c h w", c=3)
    normals = _normals(near, max(1, gap_px))
    if mode == "normal":
        image = (normals + 1) / 2
    else:
        light = F.normalize(torch.tensor(LIGHT, device=near.device), dim=0)
        lit = torch.einsum("bvchw,c->bvhw", normals, light).clamp(min=0)
        image = repeat(AMBIENT + (1 - AMBIENT) * lit, "b v h w -> b v c h w", c=3)
    return image * (near > 0)[:, :, None]


def _check(points: Tensor, size: int, mode: str, lengths: Tensor | None) -> None:
    if points.ndim != 3 or points.shape[1] < 1 or points.shape[2] < 3:
        raise ValueError(
            f"expected points of shape (B, P, 3) with P of at least 1, got {tuple(points.shape)}."
        )
    if size < 2:
        raise ValueError(f"expected an image size of at least 2 pixels, got {size}.")
    if mode not in MODES:
        raise ValueError(f"expected mode to be one of {', '.join(MODES)}, got {mode!r}.")
    if lengths is not None:
        if lengths.shape != points.shape[:1]:
            raise ValueError(
                f"expected one length a cloud, shape ({len(points)},), got {tuple(lengths.shape)}."
            )
        if bool((lengths < 1).any() | (lengths > points.shape[1]).any()):
            raise ValueError(f"expected lengths within 1..{points.shape[1]}, got {lengths.tolist()}.")


def _z_buffer(camera: Tensor, size: int, perspective: bool) -> Tensor:
    """(B, V, P, 3) camera coordinates -> (B, V, H, W): brightness of each pixel's nearest point, else 0."""
    x, y, z = camera.unbind(-1)
    if perspective:
        # The focal length at which the sphere's outline is as large as with parallel rays.
        scale = math.sqrt(CAMERA_DISTANCE**2 - 1) / (CAMERA_DISTANCE - z)
        scale = torch.where(z < CAMERA_DISTANCE, scale, torch.nan)
        x, y = x * scale, y * scale
    column = ((1 + FILL * x) * (size / 2)).floor()
    row = ((1 - FILL * y) * (size / 2)).floor()
    # Comparisons with NaN are false, which drops padding and broken points as well.
    seen = (column >= 0) & (column < size) & (row >= 0) & (row < size) & z.isfinite()
    brightness = torch.where(seen, FAR + (1 - FAR) * (z.clamp(-1, 1) + 1) / 2, 0.0)
    index = torch.where(seen, row * size + column, 0.0).long()
    b, v, _ = index.shape
    buffer = torch.zeros(b, v, size * size, device=camera.device)
    buffer.scatter_reduce_(2, index, brightness, "amax")
    return rearrange(buffer, "b v (h w) -> b v h w", w=size)


def _dilate(image: Tensor, radius: int, grow: int = 0) -> Tensor:
    """(..., H, W) -> (..., H + 2 grow, W + 2 grow): maximum over a square of side 2 radius + 1, 0 outside."""
    pad = radius + grow
    for axis in (-1, -2):
        padded = F.pad(image, (pad, pad, 0, 0) if axis == -1 else (0, 0, pad, pad))
        image = _running_max(padded, 2 * radius + 1, axis)
    return image


def _erode(image: Tensor, radius: int) -> Tensor:
    """(..., H, W) -> (..., H - 2 radius, W - 2 radius): the minimum over a square of side 2 radius + 1."""
    for axis in (-1, -2):
        image = -_running_max(-image, 2 * radius + 1, axis)
    return image


def _running_max(image: Tensor, window: int, axis: int) -> Tensor:
    """Maximum over each `window` neighbours along an axis, in log2(window) passes; pooling takes window."""
    width = 1
    while width < window:
        step = min(width, window - width)
        length = image.shape[axis] - step
        image = torch.maximum(image.narrow(axis, 0, length), image.narrow(axis, step, length))
        width += step
    return image


def _normals(near: Tensor, radius: int) -> Tensor:
    """(B, V, H, W) brightness -> (B, V, 3, H, W): unit normals in the camera's frame."""
    surface = (near > 0).float()
    # An average over the surface alone: the splats' terraces go, and the background does not leak in. It is
    # defined `radius` pixels beyond the outline, so that the slope there needs no special case.
    smooth = _blur(near, radius) / _blur(surface, radius).clamp(min=1e-6)
    down, right = torch.gradient(smooth, dim=(-2, -1))
    # From brightness a pixel to depth over width, both in sphere radii.
    steepness = 2 / (1 - FAR) * 0.5 * near.shape[-1] * FILL
    inverse = torch.rsqrt(1 + (steepness * right) ** 2 + (steepness * down) ** 2)
    return torch.stack([-steepness * right * inverse, steepness * down * inverse, inverse], 2)


def _blur(image: Tensor, radius: int) -> Tensor:
    """(B, V, H, W) -> the same: mean over a square of side 2 radius + 1, zero outside."""
    side = 2 * radius + 1
    rows = F.avg_pool2d(image, (1, side), 1, (0, radius))
    return F.avg_pool2d(rows, (side, 1), 1, (radius, 0))
