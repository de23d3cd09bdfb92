"""What every reader of a file returns, and what the readers share: names of columns, triangles, limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

COLUMN_NAMES: dict[str, list[tuple[str, str, str]]] = {
    "points": [("x", "y", "z")],
    "normals": [("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")],
    "colors": [("red", "green", "blue"), ("r", "g", "b")],
}
ALWAYS_READ = 2**24
PLAUSIBLE_PER_BYTE = 8


@dataclass
class Geometry:
    """(V, 3) points; where the file has them, (F, 3) vertex indices, (V, 3) normals and (V, 3) colours.

    Colours keep the type and range of the file, 0..255, 0..65535 or 0..1; `unit_colors` brings them to 0..1.
    """

    points: Array
    triangles: NDArray[np.int64] | None = None
    normals: Array | None = None
    colors: NDArray[Any] | None = None


def named_columns(names: Sequence[str]) -> dict[str, list[int]]:
    """Lower-case column names -> the places of points, normals and colours, where all three are there."""
    return {
        kind: [names.index(name) for name in triple]
        for kind, triples in COLUMN_NAMES.items()
        for triple in triples
        if set(triple) <= set(names)
    }


def from_fields(path: Path, fields: Mapping[str, NDArray[Any]]) -> Geometry:
    """Columns (P,) by name -> `Geometry`; colours keep their type."""
    names = list(fields)
    found = {
        kind: np.stack([fields[names[place]] for place in places], axis=1)
        for kind, places in named_columns([name.lower() for name in names]).items()
    }
    if "points" not in found:
        raise ValueError(
            f"{path}: expected the properties x, y and z, found {', '.join(names)[:80] or 'none'}."
        )
    return Geometry(
        points=found["points"].astype(np.float64),
        normals=found["normals"].astype(np.float64) if "normals" in found else None,
        colors=found.get("colors"),
    )


def from_columns(table: NDArray[Any]) -> Geometry:
    """(P, C) columns without names: x, y, z, then normals if of unit length, or colours if in 0..255.

    Columns 4 to 6 and 7 to 9 are looked at, so that colours and normals are both found, in either order.
    """
    geometry = Geometry(table[:, :3].astype(np.float64))
    for start in (3, 6):
        extra = table[:, start : start + 3]
        if extra.shape[1] < 3:
            break
        finite = extra[np.isfinite(extra).all(axis=1)]
        if not len(finite):
            continue
        lengths = np.linalg.norm(finite.astype(np.float64), axis=1)
        if np.median(np.abs(lengths - 1)) < 0.05:
            if geometry.normals is None:
                geometry.normals = extra.astype(np.float64)
        elif geometry.colors is None and _like_colors(finite, whole=start > 3):
            geometry.colors = extra
    return geometry


def unit_colors(colors: NDArray[Any]) -> NDArray[np.float32]:
    """(P, 3) colours of any type -> float32 in [0, 1].

    The range is told by the type, and where that leaves it open by the largest value: bytes are 0..255,
    other integers 0..255 or, above that, 0..65535, and floating-point numbers 0..1 or, above 1, 0..255.
    """
    largest = np.nanmax(colors, initial=0)
    if colors.dtype == np.uint8 or (colors.dtype.kind in "iu" and largest <= 255):
        top = 255
    elif colors.dtype.kind in "iu":
        top = 65535
    else:
        top = 255 if largest > 1 else 1
    return (colors.astype(np.float32) / np.float32(top)).clip(0, 1)


def fan(polygons: NDArray[np.int64]) -> NDArray[np.int64]:
    """(F, n) -> (F(n-2), 3): each polygon as a fan about its first corner."""
    first = np.broadcast_to(polygons[:, :1], polygons[:, 2:].shape)
    return np.stack([first, polygons[:, 1:-1], polygons[:, 2:]], axis=-1).reshape(-1, 3)


def check_indices(path: Path, indices: NDArray[np.int64], num_vertices: int) -> None:
    """Raises ValueError where a face names a vertex that is not there."""
    if indices.size and (indices.min() < 0 or indices.max() >= num_vertices):
        raise ValueError(
            f"{path}: a face names a vertex outside the {num_vertices} that the file has; it is damaged."
        )


def check_plausible(path: Path, numbers: int, stored: int | None = None) -> None:
    """Raises ValueError where `stored` bytes, by default the whole file, claim to hold too many numbers.

    Compressed coordinates need more than a byte each; a claim of eight numbers a byte is damage, or a file
    made to fill the memory. Up to 16 million numbers (128 MB) are read from any file.
    """
    stored = path.stat().st_size if stored is None else stored
    if numbers > max(ALWAYS_READ, PLAUSIBLE_PER_BYTE * stored):
        raise ValueError(
            f"{path}: {stored:,} bytes claim to hold {numbers:,} numbers; it is damaged, or made to "
            "fill the memory."
        )


def _like_colors(values: NDArray[Any], whole: bool) -> bool:
    """Whether all are in 0..255; if `whole`, whole numbers, and not only 0 and 1."""
    if values.min() < 0 or values.max() > 255:
        return False
    return not whole or bool(values.max() > 1 and (values == np.round(values)).all())
