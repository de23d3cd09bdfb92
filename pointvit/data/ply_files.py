"""PLY -> `Geometry`: text and binary of both byte orders, with any properties.

The format: Turk, The PLY Polygon File Format, 1994. Sizes are held against the file before anything is
allocated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pointvit.data.geometry import Geometry, check_indices, fan, from_fields
from pointvit.data.mesh_files import polygons
from pointvit.data.tables import Line, parse_rows, take_rows, text_lines

TYPES = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"} | {
    "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
}  # fmt: skip
ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
LONGEST_HEADER = 2**20
CORNERS = ("vertex_indices", "vertex_index")
# Numbers (count,) by name, and of each list the rows of each length, (n, length).
Rows = tuple[dict[str, NDArray[Any]], dict[str, list[NDArray[np.int64]]]]


@dataclass
class Property:
    """One property; `sizes` is the type of a list's length, None where there is one number."""

    name: str
    numbers: np.dtype[Any]
    sizes: np.dtype[Any] | None = None


@dataclass
class Element:
    """So many rows of these properties."""

    name: str
    count: int
    properties: list[Property]

    def __str__(self) -> str:
        return f"{self.count} {self.name}"


def read_ply(path: Path) -> Geometry:
    """PLY: element `vertex`, and `face` with a list of corners; everything else is passed over."""
    with path.open("rb") as file:
        kind, elements = _header(path, file)
        names = [element.name for element in elements]
        if names.count("vertex") != 1 or names.count("face") > 1:
            raise ValueError(
                f"{path}: expected one element 'vertex' and at most one 'face', found "
                f"{', '.join(names)[:80] or 'none'}."
            )
        return _text(path, elements) if kind == "ascii" else _binary(path, file, elements)


def _header(path: Path, file: BinaryIO) -> tuple[str, list[Element]]:
    kind, elements, size = "", list[Element](), 0
    while (line := file.readline(LONGEST_HEADER)) and (size := size + len(line)) < LONGEST_HEADER:
        words = line.decode("ascii", "replace").split()
        if size == len(line) and words != ["ply"]:
            break
        match words:
            case ["end_header"] if kind:
                return kind, elements
            case ["format", found, *_] if found in ORDERS:
                kind = found
            case ["element", name, count] if kind and count.isdecimal() and len(count) < 19:
                elements.append(Element(name, int(count), []))
            case ["property", "list", sizes, numbers, name] if (
                elements and numbers in TYPES and TYPES.get(sizes, "f")[0] != "f"
            ):
                one, length = (np.dtype(ORDERS[kind] + TYPES[word]) for word in (numbers, sizes))
                elements[-1].properties.append(Property(name, one, length))
            case ["property", numbers, name] if elements and numbers in TYPES:
                elements[-1].properties.append(Property(name, np.dtype(ORDERS[kind] + TYPES[numbers])))
            case ["ply"] | ["comment" | "obj_info", *_] | []:
                pass
            case _:
                raise ValueError(f"{path}: the PLY header has a line that is none, {line[:60]!r}.")
    raise ValueError(
        f"{path}: expected a PLY header from 'ply' to 'end_header'; the file is cut short or not PLY."
    )


def _text(path: Path, elements: list[Element]) -> Geometry:
    lines = islice(dropwhile(lambda line: line[1] != "end_header", text_lines(path)), 1, None)
    geometry, triangles = Geometry(np.empty((0, 3))), None
    for element in elements:
        rows = take_rows(path, lines, element.count)
        if element.name == "vertex":
            geometry = _text_vertices(path, element, rows)
        elif element.name == "face":
            lists = [place for place, each in enumerate(element.properties) if each.sizes is not None]
            if lists and element.properties[lists[0]].name not in CORNERS:
                raise ValueError(f"{path}: expected vertex_indices as the first list of a face.")
            num_vertices = next(each.count for each in elements if each.name == "vertex")
            triangles = polygons(path, rows, num_vertices, lists[0]) if lists else None
        for _ in rows:
            pass
    geometry.triangles = triangles
    return geometry


def _text_vertices(path: Path, element: Element, rows: Iterator[Line]) -> Geometry:
    properties = element.properties
    scalars = [each.sizes is None for each in properties]
    width = scalars.index(False) if False in scalars else len(scalars)
    # Looked at before the rows, which may be many.
    from_fields(path, {each.name: np.empty(0) for each in properties[:width]})
    table = parse_rows(path, rows, range(width))
    return from_fields(
        path,
        {each.name: _as_declared(each, table[:, place]) for place, each in enumerate(properties[:width])},
    )


def _as_declared(declared: Property, column: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers where the header says so: the type tells the range of colours."""
    return column.astype(np.int64) if declared.numbers.kind in "iu" and np.isfinite(column).all() else column


def _binary(path: Path, file: BinaryIO, elements: list[Element]) -> Geometry:
    geometry, faces = Geometry(np.empty((0, 3))), list[NDArray[np.int64]]()
    missing = {"vertex", "face"} & {element.name for element in elements}
    for element in elements:
        if not missing:
            break
        missing.discard(element.name)
        fields, lists = _rows(path, file, element)
        if element.name == "vertex":
            geometry = from_fields(path, fields)
        elif element.name == "face":
            faces = next((found for name, found in lists.items() if name in CORNERS), [])
    triangles = [fan(corners) for corners in faces if corners.shape[1] >= 3]
    geometry.triangles = np.concatenate(triangles) if triangles else None
    if geometry.triangles is not None:
        check_indices(path, geometry.triangles, len(geometry.points))
    return geometry


def _rows(path: Path, file: BinaryIO, element: Element) -> Rows:
    if not element.count or not element.properties:
        return {each.name: np.empty(0, each.numbers) for each in element.properties if each.sizes is None}, {}
    start, left = file.tell(), path.stat().st_size - file.tell()
    smallest = sum(
        each.numbers.itemsize if each.sizes is None else each.sizes.itemsize for each in element.properties
    )
    if element.count * smallest > left:
        raise _cut_short(path, element)
    lengths = _lengths_of_first(path, file, element)
    file.seek(start)
    columns = list(zip(map(str, range(len(lengths))), element.properties, lengths, strict=True))
    items: list[Any] = []
    for key, each, length in columns:
        if each.sizes is None:
            items.append((key, each.numbers))
        else:
            items += [(f"{key} length", each.sizes), (key, each.numbers, (length,))]
    row = np.dtype(items)
    if element.count * row.itemsize <= left:
        table = np.fromfile(file, row, element.count)
        lists = [column for column in columns if column[1].sizes is not None]
        if all((table[f"{key} length"] == length).all() for key, _, length in lists):
            return (
                {each.name: table[key] for key, each, _ in columns if each.sizes is None},
                {each.name: [table[key].astype(np.int64)] for key, each, _ in lists},
            )
    elif all(each.sizes is None for each in element.properties):
        raise _cut_short(path, element)
    file.seek(start)
    return _rows_of_any_length(path, file, element)


def _lengths_of_first(path: Path, file: BinaryIO, element: Element) -> list[int]:
    """The length of each list of the first row; 1 for a number."""
    lengths = []
    for each in element.properties:
        length = 1
        if each.sizes is not None:
            head = file.read(each.sizes.itemsize)
            length = int(np.frombuffer(head, each.sizes)[0]) if len(head) == each.sizes.itemsize else -1
        if not 0 <= length * each.numbers.itemsize <= path.stat().st_size - file.tell():
            raise _cut_short(path, element)
        file.seek(length * each.numbers.itemsize, 1)
        lengths.append(length)
    return lengths


def _rows_of_any_length(path: Path, file: BinaryIO, element: Element) -> Rows:
    """As `_rows`, row by row: lists differ in length."""
    data, place = file.read(), 0
    fields: dict[str, list[bytes]] = {}
    lists: dict[str, dict[int, list[bytes]]] = {}
    for _ in range(element.count):
        for each in element.properties:
            if each.sizes is None:
                length, found = 1, fields.setdefault(each.name, [])
            else:
                stop = place + each.sizes.itemsize
                length = int(np.frombuffer(data[place:stop], each.sizes)[0]) if stop <= len(data) else -1
                place, found = stop, lists.setdefault(each.name, {}).setdefault(length, [])
            stop = place + length * each.numbers.itemsize
            if length < 0 or stop > len(data):
                raise _cut_short(path, element)
            found.append(data[place:stop])
            place = stop
    file.seek(place - len(data), 1)
    types = {each.name: each.numbers for each in element.properties}
    return (
        {name: np.frombuffer(b"".join(parts), types[name]) for name, parts in fields.items()},
        {
            name: [
                np.frombuffer(b"".join(rows), types[name]).reshape(len(rows), length).astype(np.int64)
                for length, rows in sorted(by_length.items())
            ]
            for name, by_length in lists.items()
        },
    )


def _cut_short(path: Path, element: Element) -> ValueError:
    return ValueError(
        f"{path}: the header promises {element}, but the file is cut short or damaged behind it."
    )
