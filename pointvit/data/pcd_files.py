"""PCD -> `Geometry`: text, binary and compressed, fields of any type.

The format: the Point Cloud Library's documentation, The PCD file format, versions 0.6 and 0.7. Sizes are
held against the file before anything is allocated.
"""

from collections.abc import Mapping
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pointvit.data.geometry import Geometry, check_plausible, from_fields
from pointvit.data.tables import parse_rows, take_rows, text_lines

TYPES = {(kind, str(size)): np.dtype(f"<{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)} | {
    ("F", "4"): np.dtype("<f4"),
    ("F", "8"): np.dtype("<f8"),
}
LONGEST_HEADER = 2**16
MOST_PER_BYTE = 88  # LZF: three bytes stand for at most 264


def read_pcd(path: Path) -> Geometry:
    """PCD: x, y, z, and where they are there normal_x, normal_y, normal_z, and rgb or rgba, or r, g and b.

    `VIEWPOINT` is passed over: coordinates are taken as they stand.
    """
    with path.open("rb") as file:
        header = _header(path, file)
        row, count = _row(path, header), _count(path, header)
        match header["DATA"]:
            case ["ascii"]:
                fields = _text(path, row, count)
            case ["binary"]:
                if count * row.itemsize > path.stat().st_size - file.tell():
                    raise _cut_short(path, count)
                table = np.fromfile(file, row, count)
                fields = {name: table[name] for name in row.names or ()}
            case ["binary_compressed"]:
                fields = _compressed(path, file, row, count)
            case kind:
                raise ValueError(
                    f"{path}: expected DATA ascii, binary or binary_compressed, found {_shown(kind)}."
                )
    return _geometry(path, fields)


def _header(path: Path, file: BinaryIO) -> dict[str, list[str]]:
    header: dict[str, list[str]] = {}
    size = 0
    while (line := file.readline(LONGEST_HEADER)) and (size := size + len(line)) < LONGEST_HEADER:
        words = line.decode("ascii", "replace").partition("#")[0].split()
        if words:
            header[words[0].upper()] = words[1:]
        if words and words[0].upper() == "DATA":
            return header
    raise ValueError(f"{path}: expected a PCD header that ends with a line DATA; the file is cut or not PCD.")


def _row(path: Path, header: Mapping[str, list[str]]) -> np.dtype[Any]:
    """The type of one point: a field by name, (count,) numbers where there are more than one."""
    names, sizes, kinds = (header.get(key, []) for key in ("FIELDS", "SIZE", "TYPE"))
    counts = header.get("COUNT", ["1"] * len(names))
    known = [TYPES[key] for key in zip(map(str.upper, kinds), sizes, strict=False) if key in TYPES]
    fitting = len(names) == len(sizes) == len(kinds) == len(known) == len(counts) > 0
    if not fitting or not all(count.isdecimal() and len(count) < 7 for count in counts):
        raise ValueError(
            f"{path}: expected a SIZE, TYPE and COUNT for each of the FIELDS, found {_shown(names)} with "
            f"{_shown(sizes)}, {_shown(kinds)} and {_shown(counts)}."
        )
    # Padding has the name `_`, more than once.
    unique = [name if names.count(name) == 1 else f"{name} {place}" for place, name in enumerate(names)]
    fields = zip(unique, known, map(int, counts), strict=True)
    return np.dtype([(name, kind, (count,)) for name, kind, count in fields])


def _count(path: Path, header: Mapping[str, list[str]]) -> int:
    match header.get("POINTS", []):
        case [count] if count.isdecimal() and len(count) < 19:
            return int(count)
        case found:
            raise ValueError(
                f"{path}: expected a line 'POINTS <number>' in the PCD header, found POINTS {_shown(found)}."
            )


def _text(path: Path, row: np.dtype[Any], count: int) -> dict[str, NDArray[Any]]:
    lines = dropwhile(lambda line: line[1].split()[0].upper() != "DATA", text_lines(path))
    widths = [row[name].shape[0] for name in row.names or ()]
    if sum(widths) > LONGEST_HEADER:
        raise ValueError(f"{path}: the PCD header claims {sum(widths)} numbers a point; it is damaged.")
    table = parse_rows(path, take_rows(path, islice(lines, 1, None), count), range(sum(widths)))
    parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
    return {name: part.astype(row[name].base) for name, part in zip(row.names or (), parts, strict=True)}


def _compressed(path: Path, file: BinaryIO, row: np.dtype[Any], count: int) -> dict[str, NDArray[Any]]:
    """LZF, one field behind the other."""
    sizes = np.frombuffer(file.read(8).ljust(8, b"\0"), "<u4")
    packed, unpacked = int(sizes[0]), int(sizes[1])
    left = path.stat().st_size - file.tell()
    if packed > left or unpacked != count * row.itemsize or unpacked > MOST_PER_BYTE * packed:
        raise _cut_short(path, count)
    check_plausible(path, unpacked // 4)
    data = _decompress(file.read(packed), unpacked)
    if data is None:
        raise _cut_short(path, count)
    fields, start = {}, 0
    for name in row.names or ():
        width = row[name].shape[0]
        values = np.frombuffer(data, row[name].base, count * width, start)
        fields[name] = values.reshape(count, width)
        start += values.nbytes
    return fields


def _decompress(data: bytes, size: int) -> bytes | None:
    """LZF (Lehmann's LibLZF) -> `size` bytes, or None where the data are not that."""
    out = bytearray()
    place, end = 0, len(data)
    # Two bytes are spared for the offset, so that no index is out of reach.
    data += b"\0\0"
    while place < end:
        control = data[place]
        place += 1
        if control < 32:
            out += data[place : place + control + 1]
            place += control + 1
            continue
        length = (control >> 5) + 2
        if length == 9:
            length += data[place]
            place += 1
        start = len(out) - ((control & 31) << 8) - data[place] - 1
        place += 1
        if start < 0 or place > end or len(out) > size:
            return None
        piece = out[start : start + length]
        # A piece may reach into what it makes itself.
        out += piece if len(piece) == length else (piece * (length // len(piece) + 1))[:length]
    return bytes(out) if place == end and len(out) == size else None


def _geometry(path: Path, fields: Mapping[str, NDArray[Any]]) -> Geometry:
    single = {name: values[:, 0] for name, values in fields.items() if values.shape[1] == 1}
    packed = next((single.pop(name) for name in ("rgb", "rgba") if name in single), None)
    geometry = from_fields(path, single)
    if packed is not None and packed.dtype.itemsize == 4:
        # Blue, green, red and alpha in the four bytes of one number, whatever its type is called.
        geometry.colors = np.ascontiguousarray(packed).view(np.uint8).reshape(-1, 4)[:, 2::-1]
    return geometry


def _shown(words: list[str]) -> str:
    return repr(" ".join(words)[:60])


def _cut_short(path: Path, count: int) -> ValueError:
    return ValueError(f"{path}: the header promises {count} points, but the file is cut short or damaged.")
