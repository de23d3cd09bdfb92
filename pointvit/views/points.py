"""Clouds as z-buffered splats.

A grey dilation of single pixels in a z-buffer is the same picture as one square splat a point, and a grey
closing of it is hole filling that stops at the silhouette; both cost a few `torch.maximum` calls a batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from pointvit.views.cameras import CAMERA_DISTANCE, FILL, FOCAL_LENGTH, Cameras, Rig, UpAxis
from pointvit.views.shading import FAR, Mode, brightness, check_mode, depth_image, facing, normal_image

# Half the side of a splat, and of the gaps that are filled, in sphere radii, for clouds of up to so many
# points. In denser ones a splat covers as much less as there are more points, and the outline is closed over
# gaps down to half as wide: splats widen it, and closing joins what lies apart.
SPLAT, GAP, SPARSE = 0.02, 0.06, 1024
# Clouds are drawn in pieces of about so many pixels or projected points, which on the CPU stay in its cache.
PIECE = {"cpu": 2**19}
PIECE_ELSEWHERE = 2**25


@torch.no_grad()
def render_points(
    points: Tensor,
    num_views: int | None = None,
    size: int = 224,
    mode: Mode = "depth",
    lengths: Tensor | None = None,
    up_axis: UpAxis = "z",
    rig: Rig = "circle",
    perspective: bool = False,
    splat: float | None = None,
    gap: float | None = None,
    normals: bool = False,
) -> Tensor:
    """(B, P, 3+) -> (B, V, 3, H, W) float32 in [0, 1] on the device of `points`; the background is 0.

    Clouds are expected centred in the unit sphere, which fills nine tenths of the image. Points outside the
    image, or not finite, are left out; depth is clamped to the sphere's. Row 0 is the top and no view is
    mirrored. Nothing is random, and no gradient reaches the points.

    Args:
        points: clouds; channels behind the first three, or six with `normals`, are ignored.
        num_views: cameras; by default as many as the rig has, 10 for `circle`.
        mode: `depth`, bright where near; `shaded`, lit from the upper left; `normal`, (right, up, towards the
            viewer) mapped from [-1, 1] to [0, 1].
        lengths: (B,) number of leading points of each cloud that count; what stands behind them is ignored.
        rig: see `camera_rotations`.
        perspective: a camera three radii from the centre instead of parallel rays.
        splat: half the side of the square that a point covers, in sphere radii; at least its own pixel. By
            default 0.02 for clouds of up to 1,024 points, and 0.02 x 1,024 / P for denser ones.
        gap: holes up to twice this wide are filled where nearer surface surrounds them, in sphere radii. By
            default 0.06; of clouds denser than 1,024 points, those that nothing lies behind only down to
            half as wide, by the square root of P.
        normals: channels 3 to 5 are normals, of either sign, for `shaded` and `normal`. Otherwise these two
            come from the depth image's slope alone.

    Raises:
        ValueError: for a wrong shape, mode, rig, axis, splat or gap, or a length outside 1..P.
    """
    _check(points, mode, lengths, normals)
    _check_radii(splat, gap)
    cameras = Cameras.from_rig(num_views, size, up_axis, rig, perspective).to(points.device)
    images = torch.empty(len(points), len(cameras), 3, size, size, device=points.device)
    piece = PIECE.get(points.device.type, PIECE_ELSEWHERE)
    at_once = max(1, piece // (len(cameras) * max(size**2, points.shape[1])))
    points = points[..., : 6 if normals and mode != "depth" else 3].float()
    lengths = None if lengths is None else lengths.to(points.device)
    for radii, rows in _by_radii(points, lengths, splat, gap, size).items():
        for some in rows.split(at_once):
            clouds = _without_padding(points[some], None if lengths is None else lengths[some])
            images[some] = _draw(clouds, cameras, mode, radii)
    return images


def _check_radii(splat: float | None, gap: float | None) -> None:
    for name, radius in (("splat", splat), ("gap", gap)):
        if radius is not None and not 0 <= radius <= 2:
            raise ValueError(f"expected {name} from 0 to 2 sphere radii, got {radius}.")


def _check(points: Tensor, mode: str, lengths: Tensor | None, normals: bool) -> None:
    if not isinstance(points, Tensor):
        raise ValueError(f"expected points as a tensor (B, P, 3), got {type(points).__name__}.")
    if points.ndim != 3 or points.shape[1] < 1 or points.shape[2] < 3:
        raise ValueError(
            f"expected points of shape (B, P, 3) with P of at least 1, got {tuple(points.shape)}."
        )
    if normals and points.shape[2] < 6:
        raise ValueError(f"normals=True expects points of shape (B, P, 6), got {tuple(points.shape)}.")
    check_mode(mode)
    if lengths is not None:
        if lengths.shape != points.shape[:1] or lengths.is_floating_point():
            raise ValueError(
                f"expected one length a cloud, shape ({len(points)},) of whole numbers, got "
                f"{tuple(lengths.shape)} of {lengths.dtype}."
            )
        if bool((lengths < 1).any() | (lengths > points.shape[1]).any()):
            raise ValueError(f"expected lengths within 1..{points.shape[1]}, got {lengths.tolist()}.")


class _Radii(NamedTuple):
    """Half the side of a splat, of a filled gap, and of one that nothing lies behind, in pixels."""

    splat: int
    gap: int
    outline: int


def _by_radii(
    points: Tensor, lengths: Tensor | None, splat: float | None, gap: float | None, size: int
) -> dict[_Radii, Tensor]:
    """-> the indices of the clouds that are drawn with each."""
    counts = [points.shape[1]] * len(points) if lengths is None else lengths.tolist()
    found: dict[_Radii, list[int]] = {}
    for row, count in enumerate(counts):
        share = min(1.0, SPARSE / count)
        outline = GAP * max(0.5, math.sqrt(share)) if gap is None else gap
        radii = (SPLAT * share if splat is None else splat, GAP if gap is None else gap, outline)
        found.setdefault(_Radii(*(_pixels(radius, size) for radius in radii)), []).append(row)
    return {radii: torch.tensor(rows, device=points.device) for radii, rows in found.items()}


def _pixels(radius: float, size: int) -> int:
    """Sphere radii -> pixels of an image."""
    return max(0, round(radius * 0.5 * size * FILL))


def _without_padding(points: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, P, C) -> the same, with NaN behind each length."""
    if lengths is None:
        return points
    padding = torch.arange(points.shape[1], device=points.device) >= lengths[:, None]
    return points.masked_fill(padding[..., None], torch.nan)


def _draw(points: Tensor, cameras: Cameras, mode: Mode, radii: _Radii) -> Tensor:
    """(B, P, 3) or (B, P, 6) with normals -> (B, V, 3, H, W)."""
    value, place = _places(points, cameras)
    buffer = value.new_zeros(*value.shape[:2], cameras.size**2).scatter_reduce_(2, place, value, "amax")
    image = rearrange(buffer, "b v (h w) -> b v h w", w=cameras.size)
    near = _close(image, radii.splat, radii.gap)
    if radii.outline < radii.gap:
        near = near * (_close(image, radii.splat, radii.outline) > 0)
    if mode == "depth":
        return depth_image(near)
    if points.shape[2] == 3:
        return normal_image(_slopes(near, max(1, radii.gap), cameras), near > 0, mode)
    winners = _winners(value, place, buffer)
    normals = _mean_normals(points[..., 3:], winners, value, place, near, radii.splat + radii.gap, cameras)
    return normal_image(normals, near > 0, mode)


def _places(points: Tensor, cameras: Cameras) -> tuple[Tensor, Tensor]:
    """(B, P, 3+) -> (B, V, P) twice: brightness, 0 for what is not seen, and the index of the pixel."""
    pixels, depth = cameras.project(points)
    column, row = pixels.floor().unbind(-1)
    size = cameras.size
    # Comparisons with NaN are false, which drops padding and broken points as well.
    seen = (column >= 0) & (column < size) & (row >= 0) & (row < size)
    place = torch.where(seen, row * size + column, 0.0).long()
    return torch.where(seen, brightness(depth), 0.0), place


def _winners(value: Tensor, place: Tensor, buffer: Tensor) -> Tensor:
    """-> (B, V, P) bool: which point each pixel shows, the last of those that are equally near."""
    number = torch.arange(1, value.shape[2] + 1, device=value.device)
    number = torch.where((value > 0) & (value == buffer.gather(2, place)), number, 0)
    last = torch.zeros_like(buffer, dtype=torch.long).scatter_reduce_(2, place, number, "amax")
    return (number > 0) & (number == last.gather(2, place))


def _close(image: Tensor, splat: int, gap: int) -> Tensor:
    """(B, V, H, W) single pixels -> (B, V, H, W): splats, and the gaps between them filled."""
    return _erode(_dilate(image, splat + gap, grow=gap), gap)


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


def _mean_normals(
    normals: Tensor,
    winners: Tensor,
    value: Tensor,
    place: Tensor,
    near: Tensor,
    radius: int,
    cameras: Cameras,
) -> Tensor:
    """(B, P, 3) -> (B, V, 3, H, W): the mean normal of the visible points in a square of side 2 radius + 1.

    Points count as far as they face the viewer: those of edge-on sides fall on pixels of the surface between
    them. Hidden ones, which show in the gaps of what is in front of them, do not count.
    """
    viewer = cameras.towards_viewer()
    rays = rearrange(viewer, "c h w -> (h w) c")[place]
    turned = facing(cameras.turn(normals), rays, -1)
    slack = radius * (1 - FAR) / (cameras.size * FILL)
    visible = winners & (value >= near.flatten(2).gather(2, place) - slack)
    weighted = turned * ((turned * rays).sum(-1) * visible)[..., None]
    # Each pixel has one winner, so that adding is the same in any order.
    sums = torch.zeros(*near.shape[:2], 3, cameras.size**2, device=near.device)
    sums.scatter_add_(3, repeat(place, "b v p -> b v c p", c=3), rearrange(weighted, "b v p c -> b v c p"))
    sums = rearrange(sums, "b v c (h w) -> b v c h w", w=cameras.size)
    return facing(_box_sum(sums, radius), viewer, -3)


def _slopes(near: Tensor, radius: int, cameras: Cameras) -> Tensor:
    """(B, V, H, W) brightness -> (B, V, 3, H, W): unit normals in the cameras' axes."""
    surface = (near > 0).float()
    # An average over the surface alone: the splats' terraces go, and the background does not leak in. It is
    # defined `radius` pixels beyond the outline, so that the slope there needs no special case.
    smooth = _box_sum(near, radius) / _box_sum(surface, radius).clamp(min=1)
    down, right = torch.gradient(smooth, dim=(-2, -1))
    # From brightness a pixel to depth over width, both in sphere radii.
    steepness = 2 / (1 - FAR) * 0.5 * near.shape[-1] * FILL
    down, right = steepness * down, steepness * right
    towards: Tensor | float = 1.0
    if cameras.perspective:
        # What a pixel is wide grows with the distance, and moving along it moves along the ray too.
        x, y, _ = cameras.rays()[1]
        distance = CAMERA_DISTANCE + 1 - 2 * (smooth - FAR) / (1 - FAR)
        towards = distance / FOCAL_LENGTH - x * right + y * down
    inverse = torch.rsqrt(towards * towards + right * right + down * down)
    return torch.stack([-right * inverse, down * inverse, towards * inverse], 2)


def _box_sum(image: Tensor, radius: int) -> Tensor:
    """(..., H, W) -> the same: sum over a square of side 2 radius + 1, zero outside."""
    image = F.pad(image, (radius, radius, radius, radius))
    for axis in (-1, -2):
        image = _running_sum(image, 2 * radius + 1, axis)
    return image


def _running_sum(image: Tensor, window: int, axis: int) -> Tensor:
    """Sum over each `window` neighbours along an axis, from sums over powers of two; pooling takes window."""
    length = image.shape[axis] - window + 1
    total, begin, width = None, 0, 1
    while True:
        if window & width:
            part = image.narrow(axis, begin, length)
            total = part if total is None else total + part
            begin += width
        if begin == window:
            assert total is not None
            return total
        step = image.shape[axis] - width
        image = image.narrow(axis, 0, step) + image.narrow(axis, width, step)
        width *= 2
