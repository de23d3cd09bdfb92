"""LAS and LAZ -> `Geometry`, by laspy; the header is held against the file first."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from pointvit.data.geometry import Geometry, check_plausible

CHUNK = 1_000_000
LAST_VERSION = 4
VLR_HEADER, EVLR_HEADER = 54, 60


def read_las(path: Path) -> Geometry:
    """LAS 1.0 to 1.4 and LAZ: scaled coordinates and, where they are not all black, colours."""
    laspy = _import_laspy(path)
    count = _check_header(path)
    points, colors = np.empty((count, 3)), None
    done = 0
    with laspy.open(path, laz_backend=laspy.LazBackend.Lazrs, read_evlrs=False) as reader:
        if {"red", "green", "blue"} <= set(reader.header.point_format.dimension_names):
            colors = np.empty((count, 3), dtype=np.uint16)
        for chunk in reader.chunk_iterator(CHUNK):
            part = slice(done, done + len(chunk))
            points[part] = np.stack([chunk.x, chunk.y, chunk.z], axis=1)
            if colors is not None:
                colors[part] = np.stack([chunk.red, chunk.green, chunk.blue], axis=1)
            done += len(chunk)
    if done < count:
        raise ValueError(f"{path}: the header promises {count} points, but the file ends after {done}.")
    return Geometry(points, colors=colors if colors is not None and colors.any() else None)


def _check_header(path: Path) -> int:
    """Number of points; raises ValueError where the header's numbers do not go with the file.

    The places of the numbers: ASPRS, LAS Specification 1.4 R15, table 3.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(375)
    if head[:4] != b"LASF" or len(head) < 227 or head[24] != 1 or head[25] > LAST_VERSION:
        raise ValueError(f"{path}: expected LAS 1.0 to 1.{LAST_VERSION}, found {head[:4]!r}, {size} bytes.")
    header_size, start, num_vlrs, kind, row, count = struct.unpack_from("<HIIBHI", head, 94)
    first_extended, num_extended = 0, 0
    if head[25] >= 4:
        if len(head) < 375:
            raise ValueError(f"{path}: the file is cut short in its header.")
        first_extended, num_extended, count = struct.unpack_from("<QIQ", head, 235)
    compressed = bool(kind & 0x80)
    fits = (
        227 <= header_size <= start <= size
        and num_vlrs * VLR_HEADER <= start - header_size
        and (num_extended == 0 or first_extended + num_extended * EVLR_HEADER <= size)
        and row >= 20
        and (compressed or start + count * row <= size)
    )
    if not fits:
        raise ValueError(
            f"{path}: the header promises {count} points of {row} bytes behind byte {start}, which does not "
            f"go with its {size} bytes; the file is cut short or damaged."
        )
    if compressed:
        _check_chunk_table(path, start, row)
    check_plausible(path, count * 3)
    return int(count)


def _check_chunk_table(path: Path, start: int, row: int) -> None:
    """Raises ValueError where LAZ's table of chunks is not where the file says, or claims too many of them.

    lazrs ends the process where it gets no memory for them. A chunk begins with a point as it is. The places:
    Isenburg, LASzip: lossless compression of LiDAR data, 2013.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(start)
        table = int.from_bytes(file.read(8), "little", signed=True)
        if table == -1:
            file.seek(size - 8)
            table = int.from_bytes(file.read(8), "little", signed=True)
        file.seek(max(table, 0))
        version, chunks = (int.from_bytes(file.read(4), "little") for _ in range(2))
    if not start + 8 <= table <= size - 8 or version != 0 or chunks * row > size:
        raise ValueError(f"{path}: its table of compressed chunks is damaged, or the file is cut short.")


def _import_laspy(path: Path) -> Any:
    try:
        import laspy
        import lazrs  # noqa: F401 (laspy reads LAZ with it, and says so late)
    except ImportError as error:
        raise ImportError(
            f"Reading {path} needs laspy: pip install 'pointvit[io]' (here: {error})."
        ) from error
    return laspy
