"""What the page has beyond words and tables: figures that answer, the viewer, and what views find."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from typing import Any

from pointvit.compare.multiview import Views
from pointvit.compare.objects import Objects
from pointvit.compare.panels import Drawn
from pointvit.compare.recording import Recording
from pointvit.compare.retrieval import fit_pair_map, nearest
from pointvit.compare.scenes import png
from pointvit.report import Part, figure, table
from pointvit.report.parts import escaped

QUERIES, FOUND = 8, 5
THUMBNAIL = 98
"""Pixels to a side, about."""


def asset(name: str) -> str:
    return files("pointvit.compare").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def script() -> str:
    """All of the page's JavaScript; the renderer of clouds is the viewer's."""
    renderer = files("pointvit.viewer").joinpath("splats.js").read_text(encoding="utf-8")
    return renderer + asset("readouts.js") + asset("objects.js")


def heading(text: str) -> Part:
    return Part(lambda name: f"<h3>{escaped(text)}</h3>")


def reading(drawn: Drawn) -> Part:
    """A figure that says its numbers where a pointer or the arrow keys are, and all of them as a table."""
    picture = figure(drawn.svg, drawn.alt, drawn.caption)
    numbers = table(drawn.header, drawn.rows, f"{drawn.title}: the numbers") if drawn.rows else None
    panels = _json([asdict(panel) for panel in drawn.panels])

    def markup(name: str) -> str:
        data = f' data-panels="{escaped(panels)}"' if drawn.panels else ""
        hint = "Point at the figure, or focus it and use the arrow keys." if drawn.panels else ""
        output = f'<output aria-live="polite">{hint}</output>' if drawn.panels else ""
        inner = "" if numbers is None else numbers.html(f"{name}-numbers")
        details = f"<details><summary>The numbers as a table</summary>{inner}</details>" if inner else ""
        body = f"{picture.html(name)}{output}{details}"
        return f'<h3>{escaped(drawn.title)}</h3><div class="reading" id="{drawn.name}"{data}>{body}</div>'

    return Part(markup)


def viewer(scenes: dict[str, Any]) -> Part:
    """The viewer of single objects, with its data."""
    data = f'<script type="application/json" id="objects-data">{_json(scenes)}</script>'
    return Part(lambda name: asset("objects.html") + data)


def finds(
    fit: dict[str, Recording], seen: dict[str, Recording], objects: Objects, views: Views, seed: int
) -> Part:
    """Views, and the clouds that they find first behind a fitted map; the first view of each is shown.

    Raises:
        ValueError: for fewer objects than a map needs.
    """
    image, points = (recording.layers[-1] for recording in (fit["image"], fit["points"]))
    pair_map = fit_pair_map(image, points, seed=seed)
    queries = pair_map.first(seen["image"].layers[-1][:QUERIES])
    found = nearest(queries, pair_map.second(seen["points"].layers[-1]), FOUND).tolist()
    step = views.size // max(1, round(views.size / THUMBNAIL))
    small = replace(views, size=max(2, step))
    rows = [_find(objects, small, query, places) for query, places in enumerate(found)]
    body = (
        f'<div class="finds" role="group" aria-label="Views and the clouds they find">{"".join(rows)}</div>'
    )
    return Part(lambda name: body)


def _find(objects: Objects, views: Views, query: int, places: Sequence[int]) -> str:
    label = objects.data.class_names[int(objects.data.labels[query])]
    cells = [_cell(objects, views, query, f"view: {label}", "query")]
    for rank, place in enumerate(places, start=1):
        other = objects.data.class_names[int(objects.data.labels[place])]
        if place == query:
            kind, words = "own", f"{rank}. ✓ its own cloud"
        elif other == label:
            kind, words = "same", f"{rank}. {other}, another"
        else:
            kind, words = "other", f"{rank}. {other}"
        cells.append(_cell(objects, views, place, words, kind))
    return "".join(cells)


def _cell(objects: Objects, views: Views, row: int, words: str, kind: str) -> str:
    uri = png(objects.render(row, row + 1, views)[0, 0])
    return (
        f'<figure class="{kind}"><img src="{uri}" alt="{escaped(words)}" width="{views.size}" '
        f'height="{views.size}"><figcaption>{escaped(words)}</figcaption></figure>'
    )


def _json(value: Any) -> str:
    # `<` would let a name end the script that holds the data.
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
