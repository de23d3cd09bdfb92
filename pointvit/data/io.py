"""Files to points: pick the reader, drop bad rows, sample, centre, cast to float32."""

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pointvit.data import gltf_files, las_files, mesh_files, pcd_files, ply_files, point_files, tables
from pointvit.data.geometry import Array, Geometry, unit_colors

READERS: dict[str, Callable[[Path], Geometry]] = {
    ".off": mesh_files.read_off,
    ".obj": mesh_files.read_obj,
    ".ply": ply_files.read_ply,
    ".stl": mesh_files.read_stl,
    ".glb": gltf_files.read_gltf,
    ".gltf": gltf_files.read_gltf,
    ".pcd": pcd_files.read_pcd,
    ".las": las_files.read_las,
    ".laz": las_files.read_las,
    ".xyz": tables.read_table,
    ".pts": tables.read_pts,
    ".txt": tables.read_table,
    ".csv": tables.read_table,
    ".npy": point_files.read_npy,
    ".npz": point_files.read_npz,
    ".h5": point_files.read_hdf5,
    ".hdf5": point_files.read_hdf5,
}
Result = TypeVar("Result")
MESH_SAMPLES = 10_000
LARGEST_INPUT = 2**31


@dataclass
class PointCloud:
    """Points of one file; `points + offset` are its coordinates.

    Attributes:
        points: (P, 3) float32, in the file's unit and axes.
        normals: (P, 3) float32; of a mesh, the unit normals of the triangles sampled.
        colors: (P, 3) float32 in [0, 1].
        offset: (3,) float64, zero unless the cloud lies too far out for float32 (see `read_points`).
        num_dropped: rows (of a mesh: vertices) left out because of NaN or infinite values.
    """

    points: NDArray[np.float32]
    normals: NDArray[np.float32] | None = None
    colors: NDArray[np.float32] | None = None
    offset: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    num_dropped: int = 0


def read_points(
    path: str | Path, num_samples: int | None = None, seed: int = 0, format: str | None = None
) -> PointCloud:
    """File -> points (P, 3) float32, with normals and colours where the file has them.

    A mesh is sampled uniformly by area: `num_samples` points, 10,000 by default. A point file, or a mesh
    file without faces, gives all its points in the file's order, or a random `num_samples` of them without
    replacement; where it has fewer, all. One seed gives the same points again; no global random state is
    touched.

    Coordinates are read in float64. Where the step of float32 at the largest of them exceeds 1/100,000 of
    the cloud's extent (survey coordinates), the mean is subtracted before the cast and kept as `offset`.
    Unit and axes stay those of the file.

    Args:
        path: the file, or the text "-" for standard input (`Path("-")` is a file of that name).
        format: an extension such as "xyz", for standard input and for files whose name does not end in
            their kind.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a folder, a pipe, an unknown extension, a damaged file, no finite point, or a mesh
            without area.
        ImportError: the format needs laspy (LAS, LAZ), which is not installed.
    """
    if num_samples is not None and num_samples < 1:
        raise ValueError(
            f"num_samples: expected at least 1, or None for all points of {path}, got {num_samples}."
        )

    def convert(path: Path, geometry: Geometry) -> PointCloud:
        return _to_cloud(path, geometry, num_samples, seed)

    if path != "-":
        return read_as(convert, Path(path), format)
    if format is None:
        raise ValueError('Standard input has no extension; give its format, such as format="xyz".')
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "input"
        _save_standard_input(copy)
        return read_as(convert, copy, format, "Standard input")


def read_as(
    convert: Callable[[Path, Geometry], Result],
    path: Path,
    format: str | None = None,
    shown: str | None = None,
) -> Result:
    """What `convert` makes of a file's geometry; whatever goes wrong is one sentence that names the file.

    Args:
        shown: stands for the path in messages.
    """
    shown = printable(str(path)) if shown is None else shown
    ending = path.suffix.lower() if format is None else f".{format.lower().removeprefix('.')}"
    try:
        _check_file(path, ending)
        # Numbers that no type holds are dropped with their rows, or named, in `convert`.
        with np.errstate(over="ignore", invalid="ignore"):
            return convert(path, READERS[ending](path))
    except (FileNotFoundError, ImportError) as error:
        raise type(error)(printable(str(error).replace(str(path), shown))) from None
    except BaseException as error:
        # Libraries raise what they like on damaged files; a panic of lazrs is not even an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if isinstance(error, ValueError) and str(path) in str(error):
            raise ValueError(printable(str(error).replace(str(path), shown))) from None
        raise ValueError(printable(_sentence(path, shown, ending, error))) from error


def unit_sphere(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """(P, 3) -> (P, 3): mean at the origin, farthest point at radius 1; a single place gives zeros."""
    centered = points - points.mean(axis=0, dtype=np.float64)
    radius = np.linalg.norm(centered, axis=1).max()
    return np.asarray(centered / radius if radius > 0 else centered, dtype=np.float32)


def sample_triangles(
    triangles: Array, num_samples: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Array]:
    """(T, 3, 3) corners -> indices (S,) of triangles drawn by area, and (S, 3) weights of their corners.

    The weights make points uniform inside a triangle (Osada et al., Shape Distributions, 2002). Raises
    ValueError where the triangles have no area.
    """
    a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
    area = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1))
    if not area[-1] > 0:
        raise ValueError(f"expected triangles with a positive total area, got {len(triangles)} without any.")
    # A draw within rounding of 1 may fall behind the last triangle.
    chosen = np.searchsorted(area, rng.random(num_samples) * area[-1], side="right").clip(max=len(area) - 1)
    root, along = np.sqrt(rng.random(num_samples)), rng.random(num_samples)
    return chosen, np.stack([1 - root, root * (1 - along), root * along], axis=1)


def _to_cloud(path: Path, geometry: Geometry, num_samples: int | None, seed: int) -> PointCloud:
    geometry, num_dropped = drop_non_finite(path, geometry)
    if geometry.colors is not None:
        geometry.colors = unit_colors(geometry.colors)
    rng = np.random.default_rng(seed)
    if geometry.triangles is None:
        geometry = _choose(geometry, num_samples, rng)
    else:
        geometry = _sample_surface(path, geometry, num_samples or MESH_SAMPLES, rng)
    offset = far_offset(geometry.points)
    return PointCloud(
        points=(geometry.points - offset).astype(np.float32),
        normals=None if geometry.normals is None else geometry.normals.astype(np.float32),
        colors=None if geometry.colors is None else geometry.colors.astype(np.float32),
        offset=offset,
        num_dropped=num_dropped,
    )


def _sentence(path: Path, shown: str, ending: str, error: BaseException) -> str:
    """One sentence that names the file, of an error that does not."""
    if isinstance(error, MemoryError):
        return f"{shown} asks for more memory than there is; it is damaged, or too large for this machine."
    # An invalid argument is the place in the file that a damaged one points to.
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        return f"{shown}: cannot be read ({os.strerror(error.errno).lower()})."
    reason = " ".join(str(error).replace(str(path), shown).split())[:200].rstrip(".")
    reason = reason if reason and isinstance(error, ValueError) else f"{type(error).__name__}: {reason}"
    return f"{shown} cannot be read, is damaged, cut short or not a plain {ending} file ({reason})."


def printable(text: str) -> str:
    """The text, with signs that a terminal would act on, or cannot show, written out."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def _check_file(path: Path, ending: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file.") from None
    if stat.S_ISDIR(mode):
        raise ValueError(
            f"{path} is a folder; expected one file (PointCloudFolder reads a folder of class folders)."
        )
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{path} is a pipe or a device; expected a file, or the path '-' and a format for standard input."
        )
    if ending not in READERS:
        raise ValueError(f"{path}: unknown extension {ending!r}; expected one of {', '.join(READERS)}.")


def _save_standard_input(copy: Path) -> None:
    with copy.open("wb") as file:
        while block := sys.stdin.buffer.read(2**20):
            file.write(block)
            if file.tell() > LARGEST_INPUT:
                raise ValueError(
                    f"Standard input has more than {LARGEST_INPUT:,} bytes; write it to a file first."
                )


def drop_non_finite(path: Path, geometry: Geometry) -> tuple[Geometry, int]:
    """Without the rows, or the triangles at the vertices, that float32 cannot hold."""
    if len(geometry.points) == 0:
        raise ValueError(f"{path} holds no points: it is empty, cut short, or of another kind.")
    columns = [geometry.points]
    if geometry.triangles is None:
        columns += [column for column in (geometry.normals, geometry.colors) if column is not None]
    good = np.ones(len(geometry.points), dtype=np.bool_)
    for column in columns:
        good &= np.isfinite(column.astype(np.float32)).all(axis=1)
    if good.all():
        return geometry, 0
    if not good.any():
        raise ValueError(f"{path}: all {len(good)} points are NaN or infinite.")
    if geometry.triangles is None:
        return _take(geometry, good), int((~good).sum())
    kept = geometry.triangles[good[geometry.triangles].all(axis=1)]
    return Geometry(geometry.points, kept, geometry.normals, geometry.colors), int((~good).sum())


def _take(geometry: Geometry, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Geometry:
    return Geometry(
        points=geometry.points[rows],
        normals=None if geometry.normals is None else geometry.normals[rows],
        colors=None if geometry.colors is None else geometry.colors[rows],
    )


def _choose(geometry: Geometry, num_samples: int | None, rng: np.random.Generator) -> Geometry:
    if num_samples is None or num_samples >= len(geometry.points):
        return geometry
    return _take(geometry, rng.choice(len(geometry.points), num_samples, replace=False))


def _sample_surface(path: Path, geometry: Geometry, num_samples: int, rng: np.random.Generator) -> Geometry:
    assert geometry.triangles is not None
    corners = geometry.points[geometry.triangles]
    if not len(corners):
        raise ValueError(f"{path}: no triangle has three finite corners.")
    try:
        chosen, weights = sample_triangles(corners, num_samples, rng)
    except ValueError as error:
        raise ValueError(f"{path} cannot be sampled by area: {error}") from None
    picked = corners[chosen]
    normals = np.cross(picked[:, 1] - picked[:, 0], picked[:, 2] - picked[:, 0])
    colors = None if geometry.colors is None else geometry.colors[geometry.triangles[chosen]]
    return Geometry(
        points=np.einsum("sc,scd->sd", weights, picked),
        normals=normals / np.linalg.norm(normals, axis=1, keepdims=True),
        colors=None if colors is None else np.einsum("sc,scd->sd", weights, colors),
    )


def far_offset(points: Array) -> NDArray[np.float64]:
    """The mean where float32 would blur the cloud by more than 1/100,000 of its extent, else zero."""
    extent = np.ptp(points, axis=0).max()
    step = np.spacing(np.float32(np.abs(points).max()))
    # A single place has no extent to blur.
    return points.mean(axis=0) if 0 < extent < 1e5 * step else np.zeros(3)
