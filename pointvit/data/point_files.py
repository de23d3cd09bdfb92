"""Point files -> `Geometry`: tables of text, PCD, NumPy and HDF5 arrays; and what mesh files are read with.

Every `ValueError` names the file and, in text, the line.
"""

import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.float64]
Lines = list[tuple[int, str]]  # (line number from 1, text)

COLUMN_NAMES: dict[str, list[tuple[str, str, str]]] = {
    "points": [("x", "y", "z")],
    "normals": [("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")],
    "colors": [("red", "green", "blue"), ("r", "g", "b")],
}
POINT_ARRAYS = ("points", "xyz", "pos", "data", "arr_0")


@dataclass
class Geometry:
    """(V, 3) points; where the file has them, (F, 3) vertex indices, (V, 3) normals and (V, 3) colours."""

    points: Array
    triangles: NDArray[np.int64] | None = None
    normals: Array | None = None
    colors: Array | None = None


def read_table(path: Path) -> Geometry:
    """Rows of numbers between spaces, tabs, commas or semicolons, with or without a line of column names.

    Named columns are found by name (`COLUMN_NAMES`); without names the rule of `from_columns` holds.
    """
    lines = text_lines(path)
    if not lines:
        return Geometry(np.empty((0, 3)))
    delimiter = next((mark for mark in ";," if mark in lines[-1][1]), None)
    names = [word.strip().strip("\"'/").lower() for word in lines[0][1].split(delimiter)]
    columns: dict[str, list[int]] = {}
    if not any(_is_number(name) for name in names):
        columns, lines = named_columns(names), lines[1:]
    if not lines:
        return Geometry(np.empty((0, 3)))
    if "points" in columns:
        return Geometry(
            **{kind: parse_rows(path, lines, where, delimiter=delimiter) for kind, where in columns.items()}
        )
    width = len(lines[0][1].rstrip(" ,;").split(delimiter))
    return from_columns(parse_rows(path, lines, range(6 if width >= 6 else 3), delimiter=delimiter))


def read_pcd(path: Path) -> Geometry:
    """PCD by Open3D; the rows of an ASCII file are checked first."""
    if re.search(rb"^DATA\s+ascii", path.read_bytes()[:8192], re.MULTILINE):
        lines = text_lines(path)
        start = next(i for i, (_, line) in enumerate(lines) if line.startswith("DATA")) + 1
        header = {words[0]: words[1:] for words in (line.split() for _, line in lines[:start])}
        count = "".join(header.get("POINTS", []))
        if not count.isdigit():
            raise ValueError(
                f"{path}: expected a line 'POINTS <number>' in the PCD header, found POINTS {count!r}."
            )
        (rows,) = split_rows(path, lines[start:], [int(count)])
        parse_rows(path, rows, range(len(header.get("FIELDS", []))))
    return read_with_open3d(path, mesh=False)


def read_numpy(path: Path) -> Geometry:
    """One (P, 3 or more) array; of an archive, the one that fits or is named as in `POINT_ARRAYS`.

    Arrays `normals` and `colors` beside it are taken along.
    """
    with _readable(path), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        return _from_arrays(path, {"array": loaded} if isinstance(loaded, np.ndarray) else dict(loaded))


def read_hdf5(path: Path) -> Geometry:
    """An HDF5 file with one (P, 3 or more) data set at its root, chosen as in `read_numpy`."""
    with _readable(path), h5py.File(path) as file:
        return _from_arrays(
            path, {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
        )


def from_columns(table: Array) -> Geometry:
    """(P, C) columns without names: x, y, z, then normals if of unit length, or colours if in 0..255."""
    points, extra = table[:, :3], table[:, 3:6]
    if extra.shape[1] < 3:
        return Geometry(points)
    finite = extra[np.isfinite(extra).all(axis=1)]
    if len(finite) and np.median(np.abs(np.linalg.norm(finite, axis=1) - 1)) < 0.05:
        return Geometry(points, normals=extra)
    return Geometry(
        points, colors=extra if len(finite) and finite.min() >= 0 and finite.max() <= 255 else None
    )


def text_lines(path: Path) -> Lines:
    """The lines of a text file that say something, without `#` comments."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    stripped = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.split("\n"), 1))
    return [(number, line) for number, line in stripped if line]


def parse_rows(
    path: Path,
    lines: Lines,
    columns: Sequence[int],
    dtype: DTypeLike = np.float64,
    delimiter: str | None = None,
) -> NDArray[Any]:
    """Lines -> (len(lines), len(columns)); the error names the first line that lacks one of the columns."""
    texts = [text for _, text in lines]

    def parse(start: int, stop: int) -> NDArray[Any]:
        return np.loadtxt(
            texts[start:stop], dtype, comments=None, delimiter=delimiter, usecols=columns, ndmin=2
        )

    if not lines:
        return np.empty((0, len(columns)), dtype)
    try:
        return parse(0, len(texts))
    except ValueError:
        low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(low, middle)
        except ValueError:
            high = middle
        else:
            low = middle
    kind = "whole numbers" if np.issubdtype(dtype, np.integer) else "numbers"
    number, text = lines[low]
    raise ValueError(
        f"{path}, line {number}: expected at least {max(columns) + 1} {kind}, found {text[:60]!r}."
    )


def named_columns(names: Sequence[str]) -> dict[str, list[int]]:
    """Lower-case column names -> the places of points, normals and colours, where all three are there."""
    return {
        kind: [names.index(name) for name in triple]
        for kind, triples in COLUMN_NAMES.items()
        for triple in triples
        if set(triple) <= set(names)
    }


def split_rows(path: Path, lines: Lines, counts: Sequence[int]) -> Iterator[Lines]:
    """Consecutive blocks of `counts` lines."""
    if len(lines) < sum(counts):
        raise ValueError(
            f"{path}: the header promises {sum(counts)} rows, but the file ends after {len(lines)}."
        )
    stops = np.cumsum(counts)
    return (lines[stop - count : stop] for stop, count in zip(stops, counts, strict=True))


def read_with_open3d(path: Path, mesh: bool = True) -> Geometry:
    """What Open3D finds in the file, without its warnings; no points where it cannot read the file."""
    open3d = _import_open3d(path)
    with open3d.utility.VerbosityContextManager(open3d.utility.VerbosityLevel.Error):
        found = open3d.io.read_triangle_mesh(str(path)) if mesh else open3d.io.read_point_cloud(str(path))
    if mesh:
        points, normals, colors = found.vertices, found.vertex_normals, found.vertex_colors
        triangles = np.asarray(found.triangles, dtype=np.int64)
    else:
        points, normals, colors = found.points, found.normals, found.colors
        triangles = np.empty((0, 3), dtype=np.int64)
    if triangles.size and (triangles.min() < 0 or triangles.max() >= len(points)):
        raise ValueError(f"{path}: a face names a vertex outside the {len(points)} that the file has.")
    return Geometry(
        points=np.asarray(points),
        triangles=triangles if len(triangles) else None,
        normals=np.asarray(normals) if len(normals) else None,
        colors=np.asarray(colors) if len(colors) else None,
    )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        if str(path) in str(error) and isinstance(error, ValueError):
            raise
        raise ValueError(
            f"{path} is damaged, cut short or not a plain {path.suffix} file: {error}"
        ) from error


def _from_arrays(path: Path, arrays: Mapping[str, Any]) -> Geometry:
    def fits(name: str) -> bool:
        array = arrays[name]
        return array.ndim == 2 and array.shape[1] >= 3 and array.dtype.kind in "fiu"

    fitting = [name for name in arrays if fits(name)]
    chosen = [name for name in POINT_ARRAYS if name in fitting][:1] or fitting
    if len(chosen) != 1:
        held = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in arrays.items()) or "nothing"
        raise ValueError(
            f"{path}: expected one numeric array of shape (P, 3 or more) or its name 'points', found {held}."
        )
    geometry = from_columns(np.asarray(arrays[chosen[0]], dtype=np.float64))
    for name in ("normals", "colors"):
        if name in fitting and arrays[name].shape == geometry.points.shape:
            setattr(geometry, name, np.asarray(arrays[name], dtype=np.float64))
    return geometry


def _import_open3d(path: Path) -> Any:
    try:
        import open3d
    except ImportError as error:
        raise ImportError(
            f"Reading {path} needs Open3D: pip install 'pointvit[io]' (here: {error})."
        ) from error
    return open3d
