"""Solids as triangle soups: every primitive is one float64 array (T, 3, 3) of triangles, z up.

A soup needs no classes: stretching it is `*`, joining is `np.concatenate`, and one routine samples any of
them uniformly by area. The last functions are parts that several pieces of furniture share. Faces are fine
enough for clouds of a few thousand points, not for rendering.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pointvit.data.io import sample_triangles

Triangles = NDArray[np.float64]
Rng = np.random.Generator
Axis = Literal["x", "y", "z"]

_BOX_FACES = np.array(
    [[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]], dtype=np.int64
)


def sheet(grid: ArrayLike) -> Triangles:
    """(M, N, 3) -> (2(M-1)(N-1), 3, 3): the surface through a grid of points, two triangles a cell."""
    points = np.asarray(grid, dtype=np.float64)
    a, b, c, d = points[:-1, :-1], points[1:, :-1], points[1:, 1:], points[:-1, 1:]
    return np.concatenate(
        [np.stack([a, b, c], 2).reshape(-1, 3, 3), np.stack([a, c, d], 2).reshape(-1, 3, 3)]
    )


def box(
    size: Sequence[float],
    at: Sequence[float] = (0.0, 0.0, 0.0),
    top: tuple[float, float] = (1.0, 1.0),
    lean: tuple[float, float] = (0.0, 0.0),
) -> Triangles:
    """Box of `size` (x, y, z), bottom face centred on `at`, top face scaled by `top` and moved by `lean`."""
    corners = np.array([[x, y, z] for z in (0.0, 1.0) for y in (-0.5, 0.5) for x in (-0.5, 0.5)]) * size
    corners[4:, :2] = corners[4:, :2] * top + lean
    quads = (corners + at)[_BOX_FACES]
    return np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])


def revolve(
    profile: ArrayLike, at: Sequence[float] = (0.0, 0.0, 0.0), sides: int = 24, twist: float = 0.0
) -> Triangles:
    """(N, 2) profile of (radius, height) turned about the z axis through `at`.

    Few `sides` give a prism with flat faces; `twist` turns the last ring against the first, in radians.
    """
    radius, height = np.asarray(profile, dtype=np.float64).T
    # Half a step on, so that four sides stand parallel to the axes.
    angle = np.linspace(0.0, 2.0 * np.pi, sides + 1) + np.pi / sides
    angle = angle + np.linspace(0.0, twist, len(radius))[:, None]
    rings = np.stack([radius[:, None] * np.cos(angle), radius[:, None] * np.sin(angle)], -1)
    heights = np.broadcast_to(height[:, None, None], (*angle.shape, 1))
    return sheet(np.concatenate([rings, heights], -1)) + np.asarray(at)


def cylinder(
    radius: float, height: float, at: Sequence[float] = (0.0, 0.0, 0.0), top: float = 1.0, sides: int = 20
) -> Triangles:
    """Closed cylinder standing on `at`, or a cone frustum where `top` scales the upper radius."""
    return revolve([(0, 0), (radius, 0), (radius * top, height), (0, height)], at, sides)


def ellipsoid(radii: Sequence[float], at: Sequence[float] = (0.0, 0.0, 0.0)) -> Triangles:
    """Ellipsoid with semi-axes `radii` (x, y, z) about its centre `at`."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, 11)
    return revolve(np.stack([np.cos(angle), np.sin(angle)], 1), sides=16) * radii + np.asarray(at)


def tube(path: ArrayLike, radius: float | ArrayLike, sides: int = 8) -> Triangles:
    """(N, 3) path swept by a circle of one radius, or of N radii; the ends stay open."""
    points = np.asarray(path, dtype=np.float64)
    tangent = np.gradient(points, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    # The axis least followed by the path is never parallel to it for the planar curves and helices used here.
    reference = np.eye(3)[np.abs(tangent).max(axis=0).argmin()]
    first = np.cross(tangent, reference)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    second = np.cross(tangent, first)
    angle = np.linspace(0.0, 2.0 * np.pi, sides + 1)[None, :, None]
    ring = np.cos(angle) * first[:, None] + np.sin(angle) * second[:, None]
    width = np.broadcast_to(np.asarray(radius, dtype=np.float64), len(points))
    return sheet(points[:, None] + width[:, None, None] * ring)


def prism(outline: ArrayLike, depth: float, at: Sequence[float] = (0.0, 0.0, 0.0)) -> Triangles:
    """(N, 2) outline in the xz plane, star-shaped about its mean, extruded by `depth` along y about `at`."""
    ring = np.asarray(outline, dtype=np.float64)
    ring = np.concatenate([ring, ring[:1]])
    middle = np.broadcast_to(ring[:-1].mean(axis=0), ring.shape)
    # Front centre, front rim, back rim, back centre: the two caps and the wall are one closed sheet.
    layers = [(middle, -0.5), (ring, -0.5), (ring, 0.5), (middle, 0.5)]
    grid = np.stack([np.stack([xz[:, 0], np.full(len(xz), y * depth), xz[:, 1]], 1) for xz, y in layers])
    return sheet(grid) + np.asarray(at)


def move(triangles: ArrayLike, by: Sequence[float]) -> Triangles:
    """The same triangles, or points, displaced by a vector."""
    return np.asarray(triangles, dtype=np.float64) + np.asarray(by)


def turn(
    triangles: Triangles, axis: Axis, degrees: float, about: Sequence[float] = (0.0, 0.0, 0.0)
) -> Triangles:
    """Counter-clockwise rotation about a coordinate axis through the point `about`."""
    return (triangles - about) @ rotation(axis, degrees).T + about


def rotation(axis: Axis, degrees: float) -> NDArray[np.float64]:
    """(3, 3) matrix R of a counter-clockwise turn, for column vectors: x' = R x."""
    i, j = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    matrix = np.eye(3)
    matrix[[i, i, j, j], [i, j, i, j]] = cos, -sin, sin, cos
    return matrix


def smooth_curve(knots: ArrayLike, samples: int = 6) -> NDArray[np.float64]:
    """(N, D) -> ((N-1) * samples + 1, D): Catmull-Rom curve through every knot."""
    points = np.asarray(knots, dtype=np.float64)
    padded = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    a, b, c, d = (padded[i : len(padded) - 3 + i, None] for i in range(4))
    t = np.linspace(0.0, 1.0, samples, endpoint=False)[None, :, None]
    curve = 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
    return np.concatenate([curve.reshape(-1, points.shape[1]), points[-1:]])


def sample_surface(triangles: Triangles, num_points: int, rng: Rng) -> NDArray[np.float64]:
    """(T, 3, 3) -> (num_points, 3), uniform by area over all the triangles."""
    chosen, weights = sample_triangles(triangles, num_points, rng)
    return (weights[..., None] * triangles[chosen]).sum(axis=1)


def corners(width: float, depth: float) -> list[tuple[float, float]]:
    """The four corners of a rectangle about the origin."""
    return [(x * width / 2, y * depth / 2) for x in (-1, 1) for y in (-1, 1)]


def legs(g: Rng, width: float, depth: float, height: float) -> list[Triangles]:
    """Legs from the floor up to `height`: square, round, splayed, runners, or three of them."""
    thick, splay = g.uniform(0.02, 0.06), g.uniform(1.0, 1.25)
    feet = corners(width - thick, depth - thick)
    style = g.integers(5)
    if style == 0:
        return [box((thick, thick, height), (x, y, 0), top=(1.4, 1.4)) for x, y in feet]
    if style == 1:
        return [cylinder(thick * 0.5, height, (x, y, 0), top=1.3, sides=8) for x, y in feet]
    if style == 3:
        angle = g.uniform(0, 360)
        posts = tube([(0.55 * splay * width, 0, 0), (0.3 * width, 0, height)], thick * 0.5)
        return [turn(posts, "z", angle + 120 * i) * [1, depth / width, 1] for i in range(3)]
    parts = [tube([(x * splay, y * splay, 0), (x * 0.8, y * 0.8, height)], thick * 0.5) for x, y in feet]
    if style == 4:
        parts += [box((thick, depth * splay, thick), (x * splay * width / 2, 0, 0)) for x in (-1, 1)]
    return parts


def pedestal(g: Rng, width: float, height: float) -> list[Triangles]:
    """Central post on a disc, a cone or a star of feet."""
    parts = [cylinder(g.uniform(0.02, 0.08), height, sides=12)]
    reach, feet = width * g.uniform(0.35, 0.55), int(g.integers(1, 6))
    if feet < 3:
        return [*parts, cylinder(reach, g.uniform(0.02, 0.15), top=0.3 if feet == 2 else 0.95)]
    foot = box((reach, 0.05, 0.05), (reach / 2, 0, 0))
    return parts + [turn(foot, "z", 360 * i / feet) for i in range(feet)]


def slab(g: Rng, width: float, depth: float, thick: float) -> Triangles:
    """Seat or table top standing on z = 0: rectangular, oval or tapered."""
    if g.random() < 0.4:
        return cylinder(0.5, thick) * [width, depth, 1]
    return box((width, depth, thick), top=(1, g.uniform(0.85, 1)))


def slats(count: int, width: float, depth: float, thick: float, g: Rng) -> Triangles:
    """`count` planks along x that share `depth`, with a gap between neighbours."""
    pitch, fill = depth / count, g.uniform(0.55, 0.95)
    return np.concatenate(
        [box((width, pitch * fill, thick), (0, (i + 0.5) * pitch - depth / 2, 0)) for i in range(count)]
    )


def drawers(count: int, width: float, height: float) -> Triangles:
    """Raised fronts with knobs on the plane y = 0, facing -y."""
    pitch = height / count
    fronts = [box((width * 0.88, 0.04, pitch * 0.8), (0, -0.02, (i + 0.1) * pitch)) for i in range(count)]
    knobs = [ellipsoid((0.04, 0.03, 0.025), (0, -0.06, (i + 0.5) * pitch)) for i in range(count)]
    return np.concatenate(fronts + knobs)


def handle(at: float, low: float, high: float, reach: float) -> Triangles:
    """Ear in the xz plane from height `low` to `high`, `reach` wide of x = `at`."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, 13)
    z = (low + high) / 2 + np.sin(angle) * (high - low) / 2
    return tube(np.stack([at + reach * np.cos(angle), 0 * angle, z], 1), 0.045)
