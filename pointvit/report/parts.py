"""What a page of results is made of: paragraphs, tables, figures. What is given is text, never markup."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure

Cell = str | int | float | None
_NUMBER = re.compile(r"[-+−±]?\.?\d")


@dataclass(frozen=True)
class Part:
    """A piece of a page; ``html(name)`` is its markup, in which every id begins with ``name``."""

    html: Callable[[str], str]


def escaped(text: str) -> str:
    """Text as HTML; what is no text in a file name becomes a question mark."""
    return html.escape(text.encode("utf-8", "replace").decode())


def paragraph(text: str) -> Part:
    """A paragraph."""
    return Part(lambda name: f"<p>{escaped(text)}</p>")


def code(text: str) -> Part:
    """A command or a file, in a fixed width, as it is."""
    return Part(lambda name: f'<pre tabindex="0"><code>{escaped(text)}</code></pre>')


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str) -> Part:
    """A table whose first column names the rows.

    Args:
        header: names of the columns.
        rows: cells as text or numbers; numbers are shown with four digits, None as a dash. Columns that hold
            nothing but numbers, such as ``81.2 ± 0.4``, are aligned to the right.
        caption: shown above it, and read out with it.

    Raises:
        ValueError: for a row of another length than the header.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(header)} columns: {list(row)}")
    shown = [[_shown(cell) for cell in row] for row in rows]
    kinds = [' class="number"' if _are_numbers(column) else "" for column in zip(*shown, strict=True)]
    kinds += [""] * (len(header) - len(kinds))
    head = "".join(
        f'<th scope="col"{kind}>{escaped(cell)}</th>' for cell, kind in zip(header, kinds, strict=True)
    )
    body = "\n".join(f"<tr>{_row(row, kinds)}</tr>" for row in shown)

    def markup(name: str) -> str:
        return (
            f'<div class="wide" role="group" tabindex="0" aria-labelledby="{name}"><table>'
            f'<caption id="{name}">{escaped(caption)}</caption>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
        )

    return Part(markup)


def figure(drawn: Figure | str, alt: str, caption: str) -> Part:
    """A Matplotlib figure as inline SVG.

    Args:
        drawn: made by :func:`pointvit.plots.new_figure`, or its SVG as :func:`svg` gives it.
        alt: what it shows, for those who do not see it.
        caption: shown below it.
    """
    source = drawn if isinstance(drawn, str) else svg(drawn)

    def markup(name: str) -> str:
        picture = _inline(source, name, alt)
        words = escaped(caption)
        label = f'role="group" tabindex="0" aria-labelledby="{name}-caption"'
        return (
            f'<figure><div class="wide" {label}>{picture}</div>'
            f'<figcaption id="{name}-caption">{words}</figcaption></figure>'
        )

    return Part(markup)


def svg(drawn: Figure) -> str:
    """A figure as an SVG file, in which text stays text; the same figure gives the same file."""
    text = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pointvit", "font.family": "sans-serif"}):
        drawn.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}"


def _are_numbers(column: Sequence[str]) -> bool:
    return any(cell != "–" for cell in column) and all(cell == "–" or _NUMBER.match(cell) for cell in column)


def _row(cells: Sequence[str], kinds: Sequence[str]) -> str:
    first = f'<th scope="row"{kinds[0]}>{escaped(cells[0])}</th>'
    return first + "".join(
        f"<td{kind}>{escaped(cell)}</td>" for cell, kind in zip(cells[1:], kinds[1:], strict=True)
    )


def _inline(source: str, name: str, alt: str) -> str:
    """Matplotlib's SVG file as an element of a page: ids of its own, a title, no size, no metadata."""
    root = ElementTree.fromstring(source)
    for parent in list(root.iter()):
        for child in [child for child in parent if _local(child.tag) in ("metadata", "style")]:
            parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        given = {_local(key): value for key, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update({key: _named(key, value, name) for key, value in given.items()})
    width = root.attrib.pop("width")
    root.attrib.pop("height")
    root.attrib.update({"role": "img", "aria-labelledby": f"{name}-title", "style": f"max-width: {width}"})
    title = ElementTree.Element("title", {"id": f"{name}-title"})
    title.text = alt
    root.insert(0, title)
    return ElementTree.tostring(root, encoding="unicode")


def _local(key: str) -> str:
    return key.rpartition("}")[2]


def _named(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return value.replace("url(#", f"url(#{name}-")
