"""Mesh files of text, and STL -> `Geometry`: OFF, OBJ and STL, also without faces.

They are parsed here, because Open3D does not fail on what it cannot read: it returns an empty mesh for OBJ
polygons and the OFF header `OFF490 518 0`, and what stood in memory behind a broken row; a damaged PLY can
end the process. Every `ValueError` names the file and, in text, the line.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pointvit.data.geometry import Array, Geometry, fan
from pointvit.data.tables import Line, blocks_of, parse_rows, take_rows, text_lines

STL_HEADER = 84
STL_TRIANGLE = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read_off(path: Path) -> Geometry:
    """Text OFF, COFF, NOFF and CNOFF; the counts may stand on the keyword's line, even without a space."""
    lines = text_lines(path)
    number, first = next(lines, (1, ""))
    header = re.fullmatch(r"(?:ST)?(C)?(N)?OFF(?!\s*BINARY)(.*)", first)
    if header is None:
        raise ValueError(
            f"{path}, line {number}: expected OFF, COFF or NOFF of a text file, found {first[:60]!r}."
        )
    line = (number, header[3].strip()) if header[3].strip() else next(lines, None)
    if line is None:
        raise ValueError(
            f"{path}: the file ends behind {first!r}; expected the numbers of vertices and faces."
        )
    num_vertices, num_faces = (int(count) for count in parse_rows(path, [line], range(2), np.int64)[0])
    if min(num_vertices, num_faces) < 0:
        raise ValueError(
            f"{path}, line {line[0]}: expected counts of vertices and faces, found {line[1][:60]!r}."
        )
    kinds = ["points", *(["normals"] if header[2] else []), *(["colors"] if header[1] else [])]
    table = parse_rows(path, take_rows(path, lines, num_vertices), range(3 * len(kinds)))
    parts = dict(zip(kinds, np.split(table, len(kinds), axis=1), strict=True))
    return Geometry(triangles=polygons(path, take_rows(path, lines, num_faces), num_vertices), **parts)


def read_obj(path: Path) -> Geometry:
    """Wavefront OBJ: `v x y z [r g b]`, and `f` with any number of corners, also negative ones.

    A file without faces is a point file, with the normals of its `vn` where every vertex has one.
    """
    vertices = _keyword_lines(path, "v")
    first = next(vertices, (0, ""))
    width = 6 if len(first[1].split()) >= 6 else 3
    table = parse_rows(path, chain([first] if first[0] else [], vertices), range(width))
    geometry = Geometry(
        points=table[:, :3],
        triangles=polygons(path, _obj_faces(path), len(table), first_vertex=1),
        colors=table[:, 3:] if width == 6 else None,
    )
    if geometry.triangles is None:
        normals = parse_rows(path, _keyword_lines(path, "vn"), range(3))
        geometry.normals = normals if len(normals) == len(table) else None
    return geometry


def read_stl(path: Path) -> Geometry:
    """STL, binary or text; every triangle has corners of its own, as in the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(STL_HEADER)
        count = int.from_bytes(head[80:84], "little")
        promised = STL_HEADER + count * STL_TRIANGLE.itemsize
        if len(head) == STL_HEADER and size == promised:
            corners = np.fromfile(file, STL_TRIANGLE, count)["corners"].reshape(-1, 3).astype(np.float64)
            return Geometry(corners, _in_threes(corners))
    if head.lstrip()[:5].lower() == b"solid":
        return _stl_text(path)
    raise ValueError(
        f"{path}: expected STL, a text that begins with 'solid' or, for {count} triangles, {promised} bytes; "
        f"the file has {size}."
    )


def polygons(
    path: Path, lines: Iterable[Line], num_vertices: int, start: int = 0, first_vertex: int = 0
) -> NDArray[np.int64] | None:
    """Lines `n i1 .. in [colour]` from column `start` on -> (F, 3) triangles, without points and edges.

    Vertices are counted from `first_vertex` in the lines, from 0 in the triangles.
    """
    fans = []
    for block in blocks_of(lines):
        sizes = parse_rows(path, block, [start], np.int64)[:, 0]
        for size in np.unique(sizes[sizes >= 3]):
            chosen = [block[row] for row in np.flatnonzero(sizes == size)]
            if size > max(len(text) for _, text in chosen):
                number, text = chosen[0]
                raise ValueError(
                    f"{path}, line {number}: expected a face of {size} corners, found {text[:60]!r}."
                )
            corners = parse_rows(path, chosen, range(start + 1, start + 1 + size), np.int64) - first_vertex
            outside = ((corners < 0) | (corners >= num_vertices)).any(axis=1)
            if outside.any():
                raise ValueError(
                    f"{path}, line {chosen[int(outside.argmax())][0]}: a face names a vertex outside the "
                    f"{num_vertices} that the file has."
                )
            fans.append(fan(corners))
    return np.concatenate(fans) if fans else None


def _keyword_lines(path: Path, keyword: str) -> Iterator[Line]:
    """The lines that begin with the word, without it."""
    for number, line in text_lines(path):
        word, *rest = line.split(maxsplit=1)
        if word == keyword:
            yield number, "".join(rest)


def _obj_faces(path: Path) -> Iterator[Line]:
    """Each face as in OFF, the number of corners first; vertices are counted from 1."""
    num_vertices = 0
    for number, line in text_lines(path):
        keyword, *words = line.split()
        if keyword == "v":
            num_vertices += 1
        elif keyword == "f" and len(words) >= 3:
            if "/" in line:
                words = [word.partition("/")[0] for word in words]
            if "-" in line:
                words = [_from_the_start(word, num_vertices) for word in words]
            yield number, f"{len(words)} {' '.join(words)}"


def _from_the_start(vertex: str, num_vertices: int) -> str:
    """-1 is the last vertex so far. What is no number is left to be found later, with its line."""
    return str(num_vertices + 1 + int(vertex)) if re.fullmatch(r"-[0-9]{1,18}", vertex) else vertex


def _stl_text(path: Path) -> Geometry:
    count, last = 0, ""

    def vertices() -> Iterator[Line]:
        nonlocal count, last
        for number, line in text_lines(path):
            last, *rest = line.lower().split(maxsplit=1)
            count += last == "facet"
            if last == "vertex":
                yield number, "".join(rest)

    corners = parse_rows(path, vertices(), range(3))
    if last != "endsolid" or len(corners) != 3 * count:
        raise ValueError(
            f"{path}: expected three vertices in each of {count} facets and 'endsolid' at the end, found "
            f"{len(corners)} vertices; the file is cut short or damaged."
        )
    return Geometry(corners, _in_threes(corners))


def _in_threes(corners: Array) -> NDArray[np.int64] | None:
    return np.arange(len(corners)).reshape(-1, 3) if len(corners) else None
