"""A cloud without the points that mislead, and files to keep it in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pointvit.data.io import PointCloud
from pointvit.input_doctor import duplicate_points, isolated_points


def cleaned(cloud: PointCloud) -> PointCloud:
    """Without duplicates and outliers; what is left keeps its order, place, unit and axes."""
    kept = ~duplicate_points(cloud.points)
    kept[kept] = ~isolated_points(cloud.points[kept])
    normals, colors = (None if part is None else part[kept] for part in (cloud.normals, cloud.colors))
    return replace(cloud, points=cloud.points[kept], normals=normals, colors=colors, num_dropped=0)


def write_cloud(path: Path, cloud: PointCloud) -> None:
    """Writes a ``.ply`` (with normals and colours), ``.xyz`` or ``.npy`` (with normals) file.

    Coordinates are the file's own, ``points + offset``, in float64 where float32 would blur them.
    """
    WRITERS[path.suffix.lower()](path, cloud)


def _columns(cloud: PointCloud) -> NDArray[np.floating]:
    """``(P, 3)``, or ``(P, 6)`` with normals."""
    points = cloud.points + cloud.offset if cloud.offset.any() else cloud.points
    return points if cloud.normals is None else np.concatenate([points, cloud.normals], axis=1)


def _write_ply(path: Path, cloud: PointCloud) -> None:
    columns = _columns(cloud)
    kind, names = f"<f{columns.itemsize}", ("x", "y", "z", "nx", "ny", "nz")[: columns.shape[1]]
    fields = [(name, kind) for name in names]
    if cloud.colors is not None:
        fields += [(name, "u1") for name in ("red", "green", "blue")]
    rows = np.empty(len(columns), dtype=fields)
    for i, name in enumerate(names):
        rows[name] = columns[:, i]
    if cloud.colors is not None:
        for i, name in enumerate(("red", "green", "blue")):
            rows[name] = np.rint(cloud.colors[:, i] * 255)
    types = {"<f4": "float", "<f8": "double", "u1": "uchar"}
    properties = "\n".join(f"property {types[kind]} {name}" for name, kind in fields)
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(rows)}\n{properties}\nend_header\n"
    path.write_bytes(header.encode("ascii") + rows.tobytes())


def _write_xyz(path: Path, cloud: PointCloud) -> None:
    columns = _columns(cloud)
    np.savetxt(path, columns, fmt="%.9g" if columns.dtype == np.float32 else "%.17g")


def _write_npy(path: Path, cloud: PointCloud) -> None:
    np.save(path, _columns(cloud))


WRITERS: dict[str, Callable[[Path, PointCloud], None]] = {
    ".ply": _write_ply,
    ".xyz": _write_xyz,
    ".npy": _write_npy,
}
