"""Rigs of cameras about the unit sphere, and the one projection that everything here uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from pointvit.config import near
from pointvit.views.shading import brightness

UpAxis = Literal["x", "y", "z"]
Angles = Sequence[tuple[float, float]]
Rig = Literal["circle", "ten", "dodecahedron"] | Angles

# The unit sphere's radius, as a fraction of half the image: a margin of one tenth stays black.
FILL = 0.9
# Perspective cameras stand at this distance from the centre, in sphere radii.
CAMERA_DISTANCE = 3.0
# The focal length at which the sphere's outline is as large as with parallel rays.
FOCAL_LENGTH = math.sqrt(CAMERA_DISTANCE**2 - 1)
CIRCLE_VIEWS = 10

# Proper rotations, never a swap of two axes, which would mirror the cloud.
_TO_Z_UP = {
    "x": ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)),
    "y": ((1.0, 0.0, 0.0), (0.0, 0.0, -1.0), (0.0, 1.0, 0.0)),
    "z": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}
_CORNER = math.degrees(math.atan(math.sqrt(0.5)))
_GOLDEN = (1 + math.sqrt(5)) / 2
# A dodecahedron's vertices are a cube's corners and three golden rectangles: half the angle between the two
# vertices at a rectangle's short side.
_SHORT = math.degrees(math.atan(_GOLDEN**-2))
# (azimuth, elevation) in degrees.
_RIGS: dict[str, tuple[tuple[float, float], ...]] = {
    # Front, right, back, left, top, bottom, then the four upper corners of a cube.
    "ten": (
        *((azimuth, 0.0) for azimuth in (-90.0, 0.0, 90.0, 180.0)),
        (-90.0, 90.0),
        (-90.0, -90.0),
        *((azimuth, _CORNER) for azimuth in (-45.0, 45.0, 135.0, -135.0)),
    ),
    # Front and back, left and right, above and below, then the cube's corners, the upper ones first.
    "dodecahedron": (
        *((azimuth, elevation) for azimuth in (-90.0, 90.0) for elevation in (_SHORT, -_SHORT)),
        *((azimuth, 0.0) for azimuth in (-_SHORT, _SHORT, 180 - _SHORT, _SHORT - 180)),
        *((azimuth, elevation) for elevation in (90 - _SHORT, _SHORT - 90) for azimuth in (0.0, 180.0)),
        *((azimuth, sign * _CORNER) for sign in (1, -1) for azimuth in (-45.0, 45.0, 135.0, -135.0)),
    ),
}
RIGS = ("circle", *_RIGS)


def camera_rotations(num_views: int | None = None, rig: Rig = "circle", up_axis: UpAxis = "z") -> Tensor:
    """-> (V, 3, 3) float32: world to camera, `camera = R @ world`, rows right, up and towards the viewer.

    The front camera of a z-up cloud looks along +y, so that +x is on its right.

    Args:
        num_views: cameras; by default as many as the rig has, and 10 on a circle, the only rig that can have
            any number.
        rig: `circle`, azimuths in equal steps from the front, counter-clockwise seen from above, elevation 30
            degrees (12 of them are MVCNN's views, Su et al. 2015); `ten`, the front, right, back, left, top
            and bottom faces of a cube, then its four upper corners; `dodecahedron`, its 20 vertices, the
            first a little above the front; or (azimuth, elevation) of each camera in degrees, where the front
            is (-90, 0), the right side (0, 0) and the top (-90, 90).

    Raises:
        ValueError: for an unknown rig or axis, or a number of views that the rig does not have.
    """
    if up_axis not in _TO_Z_UP:
        raise ValueError(f"expected up_axis 'x', 'y' or 'z', got {up_axis!r}.")
    azimuth, elevation = torch.tensor(_angles(num_views, rig), dtype=torch.float64).deg2rad().unbind(1)
    sin_a, cos_a, sin_e, cos_e = azimuth.sin(), azimuth.cos(), elevation.sin(), elevation.cos()
    right = torch.stack([-sin_a, cos_a, torch.zeros_like(sin_a)], 1)
    up = torch.stack([-sin_e * cos_a, -sin_e * sin_a, cos_e], 1)
    viewer = torch.stack([cos_e * cos_a, cos_e * sin_a, sin_e], 1)
    to_z_up = torch.tensor(_TO_Z_UP[up_axis], dtype=torch.float64)
    return (torch.stack([right, up, viewer], 1) @ to_z_up).float()


@dataclass(frozen=True, eq=False)
class Cameras:
    """V cameras about the unit sphere, which fills nine tenths of a square image.

    `render_points` and `render_meshes` called with the same settings look through these cameras, so that a
    point's place in their images, and in anything computed from them, can be looked up here.

    Attributes:
        rotations: (V, 3, 3), as of `camera_rotations`.
        size: H = W of the images, in pixels.
        perspective: whether the cameras stand three radii from the centre instead of seeing parallel rays.
    """

    rotations: Tensor
    size: int = 224
    perspective: bool = False

    def __post_init__(self) -> None:
        r = self.rotations.detach().cpu()
        if r.ndim != 3 or r.shape[1:] != (3, 3) or not len(r) or not r.is_floating_point():
            raise ValueError(f"expected rotations of shape (V, 3, 3), got {tuple(r.shape)} of {r.dtype}.")
        r = r.double()  # which autocast leaves alone
        proper = torch.allclose(r @ r.mT, torch.eye(3).to(r), atol=1e-3) and bool(
            (torch.linalg.det(r) > 0).all()
        )
        if not proper:
            raise ValueError(
                "expected rotations; a matrix that stretches or mirrors would draw another object."
            )
        if not hasattr(self.size, "__index__") or self.size < 2:
            raise ValueError(f"expected an image size of at least 2 pixels, got {self.size!r}.")

    @classmethod
    def from_rig(
        cls,
        num_views: int | None = None,
        size: int = 224,
        up_axis: UpAxis = "z",
        rig: Rig = "circle",
        perspective: bool = False,
    ) -> Cameras:
        """The cameras that `render_points` has with these settings; see `camera_rotations`."""
        return cls(camera_rotations(num_views, rig, up_axis), size, perspective)

    def __len__(self) -> int:
        return len(self.rotations)

    def to(self, device: torch.device | str) -> Cameras:
        """The same cameras on a device."""
        return replace(self, rotations=self.rotations.to(device))

    def project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, 3+) -> pixels (B, V, N, 2) and depth (B, V, N), float32, on the points' device.

        Pixels are (column, row) with the origin at the image's upper left corner: a point lights the pixel
        [floor(row), floor(column)], lies in the patch (floor(row / patch), floor(column / patch)), and
        `2 * pixels / size - 1` is its place for `torch.nn.functional.grid_sample` with align_corners=False.
        They may lie outside the image, and are NaN for points that are not finite or stand behind a
        perspective camera.

        Depth is the coordinate along the camera's axis, in sphere radii: 1 is nearest to the viewer, -1
        farthest.
        """
        if points.ndim != 3 or points.shape[2] < 3:
            raise ValueError(f"expected points of shape (B, N, 3), got {tuple(points.shape)}.")
        x, y, z = self.turn(points[..., :3]).unbind(-1)
        if self.perspective:
            scale = FOCAL_LENGTH / (CAMERA_DISTANCE - z)
            scale = torch.where(z < CAMERA_DISTANCE, scale, torch.nan)
            x, y = x * scale, y * scale
        column, row = (1 + FILL * x) * (self.size / 2), (1 - FILL * y) * (self.size / 2)
        broken = ~(column.isfinite() & row.isfinite() & z.isfinite())
        return torch.stack([column, row], -1).masked_fill(broken[..., None], torch.nan), z

    def visible(self, points: Tensor, images: Tensor, tolerance: float = 0.05) -> Tensor:
        """(B, N, 3+), (B, V, 3, H, W) -> (B, V, N) bool: whether nothing nearer hides a point from a camera.

        Args:
            points: finite or not; what is not, or lies outside the image, is not visible.
            images: what the same cameras see with mode `depth`, of the cloud or the mesh.
            tolerance: a point counts as visible up to this far behind the surface, in sphere radii. Splats
                and filled holes bring the surface forward, the more so where it is seen edge-on.
        """
        shape = (len(points), len(self), 3, self.size, self.size)
        if images.shape != shape:
            raise ValueError(f"expected depth images of shape {shape}, got {tuple(images.shape)}.")
        pixels, depth = self.project(points)
        # Comparisons with NaN are false.
        inside = ((pixels >= 0) & (pixels < self.size)).all(-1)
        column, row = torch.where(inside[..., None], pixels, 0.0).long().unbind(-1)
        surface = rearrange(images[:, :, 0], "b v h w -> b v (h w)").gather(2, row * self.size + column)
        return inside & (brightness(depth + tolerance) >= surface)

    def turn(self, vectors: Tensor) -> Tensor:
        """(B, N, 3) -> (B, V, N, 3) float32: from the world's axes to each camera's."""
        # Products and sums in float32: matmul may round to TF32 or bfloat16, and move points by whole pixels.
        x, y, z = (rearrange(part, "b n -> b 1 n 1") for part in vectors.float().unbind(-1))
        a, b, c = (
            rearrange(part, "v rows -> v 1 rows") for part in self.rotations.to(vectors.device).unbind(-1)
        )
        return x * a + y * b + z * c

    def rays(self) -> tuple[Tensor, Tensor]:
        """-> origins and directions (3, H, W) through the pixels' middles, in a camera's axes.

        A direction's third number is -1, so that a hit at t lies at the origin's depth less t. Parallel rays
        begin at depth 0.
        """
        middle = ((torch.arange(self.size, device=self.rotations.device) + 0.5) / (self.size / 2) - 1) / FILL
        y, x = torch.meshgrid(-middle, middle, indexing="ij")
        zero, one = torch.zeros_like(x), torch.ones_like(x)
        if not self.perspective:
            return torch.stack([x, y, zero]), torch.stack([zero, zero, -one])
        return torch.stack([zero, zero, CAMERA_DISTANCE * one]), torch.stack(
            [x / FOCAL_LENGTH, y / FOCAL_LENGTH, -one]
        )

    def towards_viewer(self) -> Tensor:
        """-> (3, H, W): the unit vector from each pixel to the viewer, in a camera's axes."""
        return F.normalize(-self.rays()[1], dim=0)


def _angles(num_views: int | None, rig: Rig) -> Angles:
    """(azimuth, elevation) of each camera, in degrees."""
    if num_views is not None and num_views < 1:
        raise ValueError(f"expected num_views of at least 1, got {num_views}.")
    if not isinstance(rig, str):
        angles, name = _checked(rig), "the given rig"
    elif rig == "circle":
        count = CIRCLE_VIEWS if num_views is None else num_views
        return [(-90.0 + 360.0 * view / count, 30.0) for view in range(count)]
    elif rig in _RIGS:
        angles, name = _RIGS[rig], f"the rig {rig!r}"
    else:
        raise ValueError(f"expected rig to be one of {', '.join(RIGS)}, got {rig!r}; {near(rig, RIGS)}")
    if num_views not in (None, len(angles)):
        raise ValueError(
            f"{name} has {len(angles)} cameras, got num_views={num_views}; "
            "use rig='circle' for other numbers."
        )
    return angles


def _checked(rig: Angles) -> Angles:
    wanted = "expected a rig as a list of (azimuth, elevation) in degrees, one pair a camera"
    try:
        angles = [(float(azimuth), float(elevation)) for azimuth, elevation in rig]
    except (TypeError, ValueError):
        raise ValueError(f"{wanted}, got {rig!r}.") from None
    if not angles or not all(math.isfinite(number) for pair in angles for number in pair):
        raise ValueError(f"{wanted}, finite and at least one, got {rig!r}.")
    if any(abs(elevation) > 90 for _, elevation in angles):
        raise ValueError(f"expected elevations within -90..90 degrees, got {rig!r}.")
    return angles
