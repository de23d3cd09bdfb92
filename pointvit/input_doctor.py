"""What is unusual about a cloud: duplicates, outliers, flatness, normals, and which axis is vertical.

Pure functions of coordinates, in numpy. They say what they find; nothing is changed here, and
:mod:`pointvit.input_words` puts it into words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointvit.data.io import PointCloud

Points = NDArray[np.floating]
Mask = NDArray[np.bool_]

DENSITY = 2
"""Clouds with fewer points than the model was trained on by more than this factor are warned of."""
NEIGHBOURS = 8
REFERENCE = 2048
"""Distances to neighbours are measured in a random subsample of this size."""
EXAMINED = 20_000
"""Points whose neighbours are looked for; of larger clouds a random share."""
FAR, SPREADS = 5.0, 6.0
"""An outlier is this many times, and this many robust deviations of the logarithm, farther off than most."""
FEWEST = 16
"""With fewer distinct points nothing is said of outliers and of the vertical axis."""
FLAT = 1e-3
MANY_DUPLICATES = 0.1
MOSTLY_OUTWARD = 0.4
"""Normals are called inward below this share: those of thin shells point away from the centre by half."""
SUSPECT = 4.0
"""Outliers are looked for in passing where the farthest point is this many times as far out as the median."""
SLAB = 0.03
"""The layer at either end of an axis that may be a support, as a share of the extent."""
SUPPORT_CLEAR, MIRROR_CLEAR, MIRROR_ALONE = 2.0, 1.5, 2.0
"""An axis is clear where its score is this many times the next one's; see :func:`likely_up`."""


@dataclass(frozen=True)
class UpAxis:
    """Which axis is likely to be the vertical one, and why."""

    axis: str
    """``x``, ``y``, ``z`` or ``unsure``."""
    reason: str


@dataclass(frozen=True)
class Findings:
    """What :func:`examine` found in one cloud; lengths are in the file's unit."""

    num_points: int
    num_dropped: int
    """Rows (of a mesh: vertices) that are NaN or infinite; they are not among the points."""
    num_duplicates: int
    """Points at the very place of an earlier one."""
    num_outliers: int
    """Of large clouds an estimate, from a random share of the points."""
    rest: float
    """Radius of the cloud without its outliers, as a share of the radius with them."""
    centre: tuple[float, float, float]
    extent: tuple[float, float, float]
    radius: float
    """Of the farthest point from the mean."""
    spacing: float
    """Median distance between a point and its nearest neighbour elsewhere; 0 for a single place."""
    singular: tuple[float, float, float]
    """Singular values of the centred cloud as shares of the largest: (1, 1, 1) is a ball, (1, 1, 0) flat."""
    up: UpAxis
    outward: float | None
    """Share of the normals that point away from the mean; None without normals."""

    @property
    def shape(self) -> str:
        """``solid``, ``flat`` (a plane), ``straight`` (a line) or ``a single place``."""
        if self.radius == 0:
            return "a single place"
        _, second, third = self.singular
        return "straight" if second < FLAT else "flat" if third < FLAT else "solid"


def examine(cloud: PointCloud, seed: int = 0) -> Findings:
    """Points (P, 3) with P >= 1, and normals where there are any -> what is to be known about them."""
    points = cloud.points.astype(np.float64)
    rng = np.random.default_rng(seed)
    duplicates = duplicate_points(points)
    looked_at = _sample(points, EXAMINED, rng)
    far = isolated_points(looked_at, seed)
    kept = looked_at[~far]
    radius = radius_of(points)
    return Findings(
        num_points=len(points),
        num_dropped=cloud.num_dropped,
        num_duplicates=int(duplicates.sum()),
        num_outliers=round(float(far.mean()) * len(points)),
        rest=radius_of(kept) / radius_of(looked_at) if far.any() else 1.0,
        centre=_triple(points.mean(axis=0) + cloud.offset),
        extent=_triple(np.ptp(points, axis=0)),
        radius=radius,
        spacing=_spacing(points[~duplicates], rng),
        singular=singular_shares(kept),
        up=likely_up(kept, seed),
        outward=None if cloud.normals is None else outward_share(points, cloud.normals),
    )


def duplicate_points(points: Points) -> Mask:
    """``(P, 3) -> (P,)``: True where an earlier point has exactly the same coordinates."""
    # Adding zero turns -0.0 into 0.0, which has other bytes.
    rows = np.ascontiguousarray(points + points.dtype.type(0))
    rows = rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]
    first = np.unique(rows, return_index=True)[1]
    repeated = np.ones(len(points), dtype=np.bool_)
    repeated[first] = False
    return repeated


def isolated_points(points: Points, seed: int = 0) -> Mask:
    """``(P, 3) -> (P,)``: True for points whose neighbours are far off, compared with those of most points.

    The distance to the eighth neighbour in a random subsample is held against its median; its logarithm has
    to lie out by six robust deviations (1.4826 times the median absolute one) too, as density varies.
    """
    distinct = points[~duplicate_points(points)].astype(np.float64)
    if len(distinct) < FEWEST:
        return np.zeros(len(points), dtype=np.bool_)
    reference = _sample(distinct, REFERENCE, np.random.default_rng(seed))
    limits = np.finfo(np.float64)
    distance = np.log(neighbour_distance(points, reference, NEIGHBOURS).clip(limits.tiny, limits.max))
    above = distance - np.median(distance)
    return above > max(np.log(FAR), SPREADS * 1.4826 * float(np.median(np.abs(above))))


def neighbour_distance(points: Points, reference: Points, k: int) -> NDArray[np.float64]:
    """``(P, 3), (R, 3) -> (P,)``: to the k-th nearest of ``reference`` other than the point's own place."""
    # About the median, which a single point at 1e9 leaves where most are.
    centre = np.median(reference, axis=0)
    points, reference = points - centre, reference - centre
    squares = np.square(reference).sum(axis=1)
    found = np.empty(len(points))
    for start in range(0, len(points), 512):
        rows = points[start : start + 512]
        both = np.square(rows).sum(axis=1)[:, None] + squares
        apart = both - 2 * rows @ reference.T
        # Rounding leaves up to this much of a point's distance to itself.
        apart[apart <= 1e-13 * both] = np.inf
        place = min(k, len(reference) - 1) - 1
        found[start : start + 512] = np.partition(apart, place, axis=1)[:, place]
    return np.sqrt(found)


def singular_shares(points: Points) -> tuple[float, float, float]:
    """``(P, 3)`` -> singular values of the centred cloud, largest first, as shares of the largest."""
    centred = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    variances = np.linalg.eigvalsh(centred.T @ centred)[::-1].clip(min=0)
    return _triple(np.sqrt(variances / variances[0])) if variances[0] > 0 else (0.0, 0.0, 0.0)


def outward_share(points: Points, normals: Points) -> float:
    """``(P, 3), (P, 3)`` -> share of the normals that point away from the mean of the points."""
    return float((np.einsum("pc,pc->p", points - points.mean(axis=0), normals) > 0).mean())


def likely_up(points: Points, seed: int = 0) -> UpAxis:
    """``(P, 3)`` -> the axis that looks vertical, by what an object stands on and how its halves differ.

    Most objects end in something flat, below or above, and look the same from left and right, but not from
    above and below. Both signs have to agree, or the second has to be strong and the first not against it;
    else the answer is ``unsure``. A cloud that lies aslant has no vertical axis among its own.
    """
    points = _sample(points[~duplicate_points(points)], 512, np.random.default_rng(seed))
    if len(points) < FEWEST:
        return UpAxis("unsure", f"fewer than {FEWEST} distinct points are too few to tell")
    layers, halves = _support(points), _asymmetry(points)
    support, mirror = _clear(layers, SUPPORT_CLEAR), _clear(halves, MIRROR_CLEAR)
    flat = f"{layers.max():.0%} of the points lie in a flat layer at one end"
    if support and support == mirror:
        return UpAxis(support, f"its two halves differ most, and {flat}")
    if support and mirror:
        return UpAxis("unsure", f"along {support}, {flat}, but the two halves of {mirror} differ most")
    if alone := _clear(halves, MIRROR_ALONE):
        return UpAxis(alone, "its two halves differ far more than those of the other axes")
    return UpAxis("unsure", "no axis has both a flat layer at one end and two halves that differ")


def _support(points: Points) -> NDArray[np.float64]:
    """``(P, 3) -> (3,)``: share of points in the fuller of the layers at both ends of each axis."""
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    height = (points - low) / np.where(extent > 0, extent, 1)
    return np.maximum((height < SLAB).mean(axis=0), (height > 1 - SLAB).mean(axis=0))


def _asymmetry(points: Points) -> NDArray[np.float64]:
    """``(P, 3) -> (3,)``: mean distance from the cloud's mirror image across each axis to the cloud."""
    centred = points - (points.min(axis=0) + points.max(axis=0)) / 2
    flips = 1 - 2 * np.eye(3)
    return np.array([neighbour_distance(centred * flip, centred, 1).mean() for flip in flips])


def _clear(scores: NDArray[np.float64], factor: float) -> str:
    """The name of the axis whose score is clearly the greatest, or nothing."""
    _, second, best = np.sort(scores)
    return "xyz"[int(scores.argmax())] if best > factor * second else ""


def _spacing(points: Points, rng: np.random.Generator) -> float:
    """Of distinct points: the median of 512 distances to the nearest of all, or of 20,000 scaled to all."""
    if len(points) < 2:
        return 0.0
    reference = _sample(points, EXAMINED, rng)
    # A surface with a share of its points has them farther apart by the root of that share.
    thinner = np.sqrt(len(reference) / len(points))
    return float(np.median(neighbour_distance(_sample(reference, 512, rng), reference, 1)) * thinner)


def _sample(points: Points, count: int, rng: np.random.Generator) -> Points:
    return points if len(points) <= count else points[rng.choice(len(points), count, replace=False)]


def radius_of(points: Points) -> float:
    """``(P, 3)`` -> the distance of the farthest point from the mean."""
    return float(np.linalg.norm(points - points.mean(axis=0, dtype=np.float64), axis=1).max())


def _triple(values: NDArray[np.float64]) -> tuple[float, float, float]:
    x, y, z = values.tolist()
    return x, y, z
