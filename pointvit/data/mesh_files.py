"""Mesh files -> `Geometry`: OFF, OBJ, PLY and STL, also without faces.

Open3D reads STL and binary PLY. Text is parsed here, because Open3D does not fail on what it cannot read: it
returns an empty mesh for the OFF header `OFF490 518 0` and for OBJ polygons, and uninitialised memory behind
a broken row of PLY. Every `ValueError` names the file and, in text, the line.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pointvit.data.point_files import (
    Geometry,
    Lines,
    named_columns,
    parse_rows,
    read_with_open3d,
    split_rows,
    text_lines,
)

PLY_SIZES = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "double": 8} | {
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4, "float64": 8
}  # fmt: skip


def read_off(path: Path) -> Geometry:
    """Text OFF, COFF, NOFF and CNOFF; the counts may stand on the keyword's line, even without a space."""
    lines = text_lines(path)
    number, first = lines[0] if lines else (1, "")
    header = re.fullmatch(r"(?:ST)?(C)?(N)?OFF(?!\s*BINARY)(.*)", first)
    if header is None:
        raise ValueError(
            f"{path}, line {number}: expected OFF, COFF or NOFF of a text file, found {first[:60]!r}."
        )
    counts = [(number, header[3])] if header[3].strip() else lines[1:2]
    body = lines[1:] if header[3].strip() else lines[2:]
    if not counts:
        raise ValueError(
            f"{path}: the file ends behind {first!r}; expected the numbers of vertices and faces."
        )
    num_vertices, num_faces = (int(count) for count in parse_rows(path, counts, range(2), np.int64)[0])
    if min(num_vertices, num_faces) < 0:
        raise ValueError(
            f"{path}, line {counts[0][0]}: expected counts of vertices and faces, found {counts[0][1]!r}."
        )
    vertices, faces = split_rows(path, body, [num_vertices, num_faces])
    color_start = 6 if header[2] else 3
    return Geometry(
        points=parse_rows(path, vertices, range(3)),
        triangles=_polygons(path, faces, num_vertices),
        normals=parse_rows(path, vertices, range(3, 6)) if header[2] else None,
        colors=parse_rows(path, vertices, range(color_start, color_start + 3)) if header[1] else None,
    )


def read_obj(path: Path) -> Geometry:
    """Wavefront OBJ: `v x y z [r g b]`, and `f` with any number of corners, also negative ones."""
    vertices: Lines = []
    polygons: dict[int, tuple[list[int], list[list[int]]]] = defaultdict(lambda: ([], []))
    for number, line in text_lines(path):
        kind, *words = line.split()
        if kind == "v":
            vertices.append((number, line[1:].strip()))
        elif kind == "f":
            try:
                corners = [int(word.split("/")[0]) for word in words]
            except ValueError:
                raise ValueError(
                    f"{path}, line {number}: expected vertex numbers, found {line[:60]!r}."
                ) from None
            numbers, rows = polygons[len(corners)]
            numbers.append(number)
            rows.append([corner - 1 if corner >= 0 else len(vertices) + corner for corner in corners])
    fans = [
        _fan(path, numbers, np.array(rows, dtype=np.int64), len(vertices))
        for size, (numbers, rows) in polygons.items()
        if size >= 3
    ]
    colored = bool(vertices) and len(vertices[0][1].split()) >= 6
    return Geometry(
        points=parse_rows(path, vertices, range(3)),
        triangles=np.concatenate(fans) if fans else None,
        colors=parse_rows(path, vertices, range(3, 6)) if colored else None,
    )


def read_ply(path: Path) -> Geometry:
    """PLY, ASCII or binary: element `vertex`, and `face` whose first property is the list of corners."""
    head, found, body = path.read_bytes().partition(b"end_header")
    if not head.startswith(b"ply") or not found:
        raise ValueError(
            f"{path}: expected a PLY header from 'ply' to 'end_header'; the file is cut or not PLY."
        )
    elements: list[tuple[str, int, list[list[str]]]] = []
    ascii_body = False
    for line in head.decode("ascii", "replace").splitlines():
        match line.split():
            case ["format", kind, *_]:
                ascii_body = kind == "ascii"
            case ["element", name, count] if count.isdigit():
                elements.append((name, int(count), []))
            case ["property", *words] if elements:
                elements[-1][2].append(words)
    if ascii_body:
        return _ply_text(path, elements)
    # A face has at least three corners, so this is exact for triangles and a lower bound for polygons.
    smallest = sum(count * sum(map(_ply_size, properties)) for _, count, properties in elements)
    geometry = read_with_open3d(path) if len(body.partition(b"\n")[2]) >= smallest else None
    faces = sum(count for name, count, _ in elements if name == "face")
    if geometry is None or (faces and (geometry.triangles is None or len(geometry.triangles) < faces)):
        rows = ", ".join(f"{count} {name}" for name, count, _ in elements)
        raise ValueError(
            f"{path}: the header promises {rows}, but the file is cut short or damaged behind it."
        )
    return geometry


def read_stl(path: Path) -> Geometry:
    """STL by Open3D."""
    return read_with_open3d(path)


def _ply_text(path: Path, elements: list[tuple[str, int, list[list[str]]]]) -> Geometry:
    lines = text_lines(path)
    start = next(i for i, (_, line) in enumerate(lines) if line == "end_header") + 1
    rows = split_rows(path, lines[start:], [count for _, count, _ in elements])
    geometry = Geometry(np.empty((0, 3)))
    for (name, _, properties), part in zip(elements, rows, strict=True):
        if name == "vertex":
            columns = named_columns([words[-1].lower() for words in properties])
            if "points" not in columns:
                found = ", ".join(words[-1] for words in properties)
                raise ValueError(f"{path}: expected the vertex properties x, y and z, found {found}.")
            geometry = Geometry(**{kind: parse_rows(path, part, where) for kind, where in columns.items()})
        elif name == "face":
            geometry.triangles = _polygons(path, part, len(geometry.points))
    return geometry


def _ply_size(words: Sequence[str]) -> int:
    """Smallest number of bytes of a property: `float x`, or `list uchar int vertex_indices` of a triangle."""
    if words[0] != "list":
        return PLY_SIZES.get(words[0], 1)
    return PLY_SIZES.get(words[1], 1) + (
        3 * PLY_SIZES.get(words[2], 1) if words[3].startswith("vertex_ind") else 0
    )


def _polygons(path: Path, lines: Lines, num_vertices: int) -> NDArray[np.int64] | None:
    """Lines `n i1 .. in [colour]` -> (F, 3) triangles, without points and edges (n < 3)."""
    sizes = parse_rows(path, lines, [0], np.int64)[:, 0]
    fans = []
    for size in np.unique(sizes[sizes >= 3]):
        chosen = [lines[row] for row in np.flatnonzero(sizes == size)]
        corners = parse_rows(path, chosen, range(1, size + 1), np.int64)
        fans.append(_fan(path, [number for number, _ in chosen], corners, num_vertices))
    return np.concatenate(fans) if fans else None


def _fan(
    path: Path, numbers: Sequence[int], polygons: NDArray[np.int64], num_vertices: int
) -> NDArray[np.int64]:
    """(F, n) -> (F(n-2), 3): each polygon as a fan about its first corner."""
    outside = ((polygons < 0) | (polygons >= num_vertices)).any(axis=1)
    if outside.any():
        number = numbers[int(outside.argmax())]
        raise ValueError(
            f"{path}, line {number}: a face names a vertex outside the {num_vertices} that the file has."
        )
    first = np.broadcast_to(polygons[:, :1], polygons[:, 2:].shape)
    return np.stack([first, polygons[:, 1:-1], polygons[:, 2:]], axis=-1).reshape(-1, 3)
