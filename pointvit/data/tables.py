"""Text -> numbers: lines, rows of numbers, and tables of points.

Files are read line by line, so that memory goes by the numbers in them. Every `ValueError` names the file and
the line.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pointvit.data.geometry import Geometry, from_columns, named_columns

Line = tuple[int, str]  # (line number from 1, text)

BLOCK = 65_536
LONGEST_LINE = 2**20
DECIMAL_COMMA = re.compile(r"[+-]?\d[\d.]*,\d+")
PTS_NAMES = ("x", "y", "z", "intensity", "red", "green", "blue")


def read_table(path: Path) -> Geometry:
    """Rows of numbers between spaces, tabs, commas or semicolons, with or without a line of column names.

    Named columns are found by name (`COLUMN_NAMES`), also where the line of names is a comment; without names
    the rule of `from_columns` holds. A first line with one whole number is the number of rows, as in PTS.
    """
    return _read_table(path, unnamed={})


def read_pts(path: Path) -> Geometry:
    """As `read_table`; seven columns without names are x, y, z, intensity, red, green, blue."""
    return _read_table(path, unnamed={len(PTS_NAMES): PTS_NAMES})


def text_lines(path: Path, comments: bool = False) -> Iterator[Line]:
    """The lines of a text file that say something, without `#` comments unless asked for."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
            if "\0" in line or len(line) == LONGEST_LINE:
                found = "bytes that are none" if "\0" in line else f"one of over {LONGEST_LINE:,} signs"
                raise ValueError(
                    f"{path}, line {number}: expected lines of plain text (UTF-8), found {found}."
                )
            text = line.strip() if comments else line.partition("#")[0].strip()
            if text:
                yield number, text


def parse_rows(
    path: Path,
    lines: Iterable[Line],
    columns: Sequence[int],
    dtype: DTypeLike = np.float64,
    delimiter: str | None = None,
) -> NDArray[Any]:
    """Lines -> (number of lines, len(columns)); the error names the first line that lacks a column."""
    blocks = [_parse_block(path, block, columns, dtype, delimiter) for block in blocks_of(lines)]
    return np.concatenate(blocks) if blocks else np.empty((0, len(columns)), dtype)


def blocks_of(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """The lines in lists of at most `BLOCK`."""
    lines = iter(lines)
    while block := list(islice(lines, BLOCK)):
        yield block


def take_rows(path: Path, lines: Iterator[Line], count: int) -> Iterator[Line]:
    """The next `count` lines; raises ValueError where the file has fewer."""
    found = 0
    for line in islice(lines, count):
        found += 1
        yield line
    if found < count:
        raise ValueError(f"{path}: the header promises {count} rows, but the file ends after {found}.")


def _read_table(path: Path, unnamed: dict[int, Sequence[str]]) -> Geometry:
    lines = text_lines(path)
    head = list(islice(lines, 3))
    promised = int(head.pop(0)[1]) if len(head) > 1 and re.fullmatch(r"[0-9]{1,18}", head[0][1]) else None
    if not head:
        return Geometry(np.empty((0, 3)))
    delimiter = _delimiter(head[-1][1])
    names = [_name(cell) for cell in head[0][1].split(delimiter)]
    if any(_is_number(name) for name in names):
        names = _commented_names(path, delimiter) or list(unnamed.get(_width(head[0][1], delimiter), []))
    else:
        head = head[1:]
    rows = chain(head, lines) if promised is None else _exactly(path, chain(head, lines), promised)
    if not head:
        return Geometry(np.empty((0, 3)))
    _refuse_decimal_commas(path, *head[0])
    columns = named_columns(names)
    if "points" not in columns:
        width = _width(head[0][1], delimiter)
        width = next(kept for kept in (9, 6, 3) if width >= kept or kept == 3)
        return from_columns(parse_rows(path, rows, range(width), delimiter=delimiter))
    wanted = list(chain.from_iterable(columns.values()))
    table = parse_rows(path, rows, wanted, delimiter=delimiter)
    parts = np.split(table, len(columns), axis=1)
    return Geometry(**dict(zip(columns, parts, strict=True)))


def _exactly(path: Path, lines: Iterator[Line], count: int) -> Iterator[Line]:
    yield from take_rows(path, lines, count)
    for number, _ in lines:
        raise ValueError(
            f"{path}: the first line promises {count} rows, but the file goes on at line {number}."
        )


def _delimiter(line: str) -> str | None:
    """The mark between the cells of a row; None where it is any white space."""
    if DECIMAL_COMMA.fullmatch(line.split()[0].rstrip(";")):
        return None
    tabbed = line.split("\t")
    if len(tabbed) > 1 and all(cell and not re.search(r"\s", cell.strip()) for cell in tabbed):
        return "\t"
    return next((mark for mark in ";," if mark in line), None)


def _refuse_decimal_commas(path: Path, number: int, line: str) -> None:
    cells = [cell for cell in re.split(r"[\s;]+", line) if cell]
    if len(cells) >= 3 and all(DECIMAL_COMMA.fullmatch(cell) for cell in cells[:3]):
        raise ValueError(
            f"{path}, line {number}: {line[:60]!r} has decimal commas; write decimal points, for "
            "example with 'tr , . < OLD > NEW' where no other commas are."
        )


def _commented_names(path: Path, delimiter: str | None) -> list[str]:
    """Names in a first line such as `# x y z` or `//X,Y,Z`, if they name points."""
    _, first = next(text_lines(path, comments=True))
    if not first.startswith(("#", "//")):
        return []
    names = [_name(cell) for cell in first.lstrip("#/").strip().split(delimiter)]
    return names if "points" in named_columns(names) else []


def _name(cell: str) -> str:
    return cell.strip().strip("\"'/").lower()


def _width(line: str, delimiter: str | None) -> int:
    return len(line.rstrip(" \t,;").split(delimiter))


def _is_number(word: str) -> bool:
    try:
        float(word.replace(",", "."))
    except ValueError:
        return False
    return True


def _parse_block(
    path: Path, lines: list[Line], columns: Sequence[int], dtype: DTypeLike, delimiter: str | None
) -> NDArray[Any]:
    texts = [text for _, text in lines]

    def parse(start: int, stop: int) -> NDArray[Any]:
        return np.loadtxt(
            texts[start:stop], dtype, comments=None, delimiter=delimiter, usecols=columns, ndmin=2
        )

    try:
        return parse(0, len(texts))
    except (ValueError, OverflowError):
        low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(low, middle)
        except (ValueError, OverflowError):
            high = middle
        else:
            low = middle
    kind = "whole numbers" if np.issubdtype(dtype, np.integer) else "numbers"
    number, text = lines[low]
    raise ValueError(
        f"{path}, line {number}: expected at least {max(columns) + 1} {kind}, found {text[:60]!r}."
    )
