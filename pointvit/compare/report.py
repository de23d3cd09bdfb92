"""Comparing an image and a point encoder on one trunk, from files to a page: ``pointvit compare``."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pointvit.checkpoints.writing import check_place, new_file
from pointvit.compare import figures, pictures
from pointvit.compare.multiview import Views, check_views
from pointvit.compare.objects import Objects, Request, choose_objects, views_for
from pointvit.compare.panels import Drawn
from pointvit.compare.parts import asset, finds, heading, reading, script, viewer
from pointvit.compare.scenes import scenes
from pointvit.compare.study import Numbers, Study, Told, measure, plain
from pointvit.compare.subjects import LABELS, Subjects
from pointvit.compare.words import paragraphs
from pointvit.report import Cell, Page, Part, paragraph, table
from pointvit.report.page import versions

FILES, FIGURES = ("index.html", "results.json", "results.csv"), "figures"
"""What is written: three files, and a folder of pictures."""
SHOWN = 12
"""Objects that the page's viewer holds, of different classes as far as there are so many."""
SECTIONS = {
    # title: what stands before its figures
    "What carries over, layer by layer": "Linear CKA says how alike two layers arrange the same objects, "
    "whatever their axes and scale: 1 for the same arrangement. Two controls stand beside it. Permuted pairs "
    "are what chance gives. Random weights are what an untrained network of this shape gives, which is far "
    "from 0: similar inputs stay similar through any network. Only what exceeds both has been learned.",
    "Attention": "How far each head looks, from a patch or group to the ones it attends to.",
    "Object by object": "The same object seen twice by the same kind of trunk.",
    "Classes": "How well simple classifiers read the class from features that stay as they are.",
    "From a view to its cloud": "Whether a view's features find the same object among all clouds. A solid "
    "frame is the own cloud, a broken one another object of its class.",
    "What tuning changed": "From the image encoder's trunk to the point encoder's.",
    "Positions": "What position embeddings say of the space they stand for.",
    "First layers": "What patch embedding and mini-PointNet respond to.",
    "Tokens": "The tokens themselves, before any comparison.",
}


@dataclass(frozen=True)
class Comparison:
    """Everything that the files of a comparison are made from."""

    subjects: Subjects
    fit: Objects
    objects: Objects
    views: Views
    study: Study
    numbers: Numbers
    drawings: dict[str, list[Drawn]]
    words: list[str]
    seed: int


def prepare(subjects: Subjects, request: Request, views: Views) -> tuple[Objects, Objects, Views]:
    """The objects to fit to, those to compare, and the views of them, all checked before the long work."""
    check_views(subjects.image, views)
    fit, objects = choose_objects(request)
    return fit, objects, views_for(views, objects.data)


def compare(
    subjects: Subjects, fit: Objects, objects: Objects, views: Views, request: Request, told: Told
) -> Comparison:
    """Measures and draws everything; what does not exist for these encoders is left out, with the reason."""
    study = measure(subjects, fit, objects, views, request.seed, told)
    numbers = {**study.numbers, "kind": subjects.kind, "objects": _objects(objects, views, request)}
    drawings = _draw(subjects, objects, numbers)
    return Comparison(
        subjects, fit, objects, views, study, numbers, drawings, paragraphs(numbers), request.seed
    )


def write(
    folder: Path, found: Comparison, command: Sequence[str], settings: dict[str, Any], told: Told
) -> Path:
    """Writes the page, the figures and the numbers, each whole, and returns the page's path."""
    page = _page(found, command, settings)  # before any file, as it is the last that could fail
    drawn = [each for group in found.drawings.values() for each in group]
    for done, each in enumerate(drawn, start=1):
        with new_file(folder / FIGURES / f"{each.name}.png") as temporary:
            each.figure.savefig(temporary, dpi=150)
        with new_file(folder / FIGURES / f"{each.name}.svg") as temporary:
            temporary.write_text(each.svg, encoding="utf-8")
        told("figures", done, len(drawn))
    content = {
        "command": list(command),
        "versions": versions(),
        "settings": settings,
        "words": found.words,
        **found.numbers,
    }
    with new_file(folder / "results.json") as temporary:
        text = json.dumps(plain(content), indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
    with new_file(folder / "results.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["measure", "index", "second_index", "value"])
        writer.writerows(rows(found.numbers))
    return page.save(folder / "index.html")


def rows(numbers: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Every number with the names on the way to it, and its places in a list (of lists), from 0."""
    if isinstance(numbers, dict):
        for key, value in numbers.items():
            yield from rows(value, f"{path}/{key}" if path else key)
    elif isinstance(numbers, list):
        for i, value in enumerate(numbers):
            if isinstance(value, dict):
                names = [str(value[key]) for key in ("rows", "columns", "name") if key in value]
                yield from rows(value, f"{path}/{'-'.join(names) or i}")
            elif isinstance(value, list):
                yield from ((path, i, j, each) for j, each in enumerate(value))
            else:
                yield path, i, None, value
    elif isinstance(numbers, int | float):
        yield path, None, None, numbers


def check_folder(folder: Path) -> None:
    """Raises OSError where the results could not be written there, before hours of work."""
    check_place(folder / FIGURES)
    for name in FILES:
        if (folder / name).is_dir():
            raise IsADirectoryError(f"{folder / name}: is a folder, expected a file; choose another --output")
    drawn = folder / FIGURES
    if drawn.exists() and not drawn.is_dir():
        raise NotADirectoryError(f"{drawn}: is a file, expected a folder; choose another --output")


def _objects(objects: Objects, views: Views, request: Request) -> Numbers:
    counts = objects.data.labels.bincount()
    present = counts[counts > 0]
    return {
        "data": request.name,
        "split": {"val": "held-out part of the training split", "test": "test split"}[request.split],
        "study": len(objects),
        "classes": len(present),
        "fewest": int(present.min()),
        "most": int(present.max()),
        "views": views.num_views,
        "points": objects.data.points.shape[1],
        "up_axis": objects.data.up_axis,
        "views_of": "points" if objects.meshes is None else "meshes",
    }


def _draw(subjects: Subjects, objects: Objects, numbers: Numbers) -> dict[str, list[Drawn]]:
    """The figures of each section; numbers that are read off while drawing are added to ``numbers``."""
    matrices, curves = numbers["cka"], numbers["same_depth"]
    positions, tuned = numbers["positions"], ("image", "image_after")
    own = [each for each in matrices if (each["rows"], each["columns"]) != tuned]
    found: dict[str, list[Drawn]] = {title: [] for title in SECTIONS}
    across = [each for each in curves if (each["rows"], each["columns"]) != tuned]
    found["What carries over, layer by layer"] = [
        figures.same_depth(across),
        *(figures.heat_maps(each) for each in sorted(own, key=lambda each: each["rows"] == each["columns"])),
    ]
    found["Attention"] = [figures.by_head(numbers["attention"], what) for what in ("distance", "entropy")]
    found["Tokens"] = [figures.layer_lines(numbers["tokens"])]
    if numbers["probes"] is not None:
        found["Classes"] = [figures.probe_curves(numbers["probes"])]
    if numbers["retrieval"] is not None:
        found["From a view to its cloud"] = [pictures.recall(numbers["retrieval"])]
    if numbers["drift"] is not None:
        outputs = next(each for each in matrices if (each["rows"], each["columns"]) == tuned)
        found["What tuning changed"] = [pictures.drift(numbers["drift"]), figures.heat_maps(outputs)]
    if positions["image"] is not None:
        found["Positions"].append(pictures.positions_2d(subjects.image, positions["image"]))
    if positions["points"] is not None:
        found["Positions"].append(pictures.positions_3d(positions["points"]))
    radius = _group_radius(subjects, objects)
    attempts: dict[str, Callable[[], tuple[Drawn, Numbers]]] = {
        "filters": lambda: pictures.filters(subjects.image),
        "mini_pointnet": lambda: pictures.channels(subjects.points, radius),
    }
    for name, attempt in attempts.items():
        numbers[name] = None
        try:
            drawn, numbers[name] = attempt()
            found["First layers"].append(drawn)
        except ValueError as error:
            numbers["skipped"][name] = str(error)
    return {title: drawn for title, drawn in found.items() if drawn or title == "Object by object"}


def _group_radius(subjects: Subjects, objects: Objects) -> float:
    """The reach of a typical group, in the clouds' unit."""
    groups = subjects.group(objects.batch(0, min(len(objects), 16)), objects.data.up_axis)[1]
    return float(groups[..., :3].norm(dim=-1).amax(dim=-1).median())


def _page(found: Comparison, command: Sequence[str], settings: dict[str, Any]) -> Page:
    page = Page(
        "Image and point encoder compared", found.words[0], command, style=asset("page.css"), script=script()
    )
    page.section("In words", *map(paragraph, found.words[1:]))
    for title, drawn in found.drawings.items():
        parts: list[Part] = [paragraph(SECTIONS[title])]
        if title == "Object by object":
            parts.append(viewer(scenes(found.subjects, found.objects, _shown(found.objects), found.views)))
        parts += [reading(each) for each in drawn]
        if title == "From a view to its cloud":
            first = finds(
                dict(found.study.fit), dict(found.study.seen), found.objects, found.views, found.seed
            )
            parts += [heading("What views find first"), first]
        page.section(title, *parts)
    skipped = found.numbers["skipped"]
    if skipped:
        page.section("What is not here", *(paragraph(f"{name}: {why}") for name, why in skipped.items()))
    cells: list[list[Cell]] = [
        [name, None if value is None else str(value)] for name, value in settings.items()
    ]
    page.section("Settings", table(["setting", "value"], cells, "What was compared, and how"))
    return page


def _shown(objects: Objects) -> list[int]:
    """The first objects of as many classes as can be."""
    labels = objects.data.labels.tolist()
    first = [i for i, label in enumerate(labels) if label not in labels[:i]]
    rest = [i for i in range(len(labels)) if i not in set(first)]
    return (first + rest)[:SHOWN]


def described(subjects: Subjects, request: Request, views: Views) -> dict[str, Any]:
    """The settings of a comparison, for its files."""
    sources = {
        f"{LABELS[name]} made from": subjects.encoders[name].meta.source.get("file", "not stated")
        for name in ("image", "points")
    }
    plain_request = {key: value for key, value in asdict(request).items() if key != "meshes"}
    meshes = None if request.meshes is None else str(request.meshes)
    return {
        **sources,
        **plain_request,
        "meshes": meshes,
        **{f"views_{k}": v for k, v in asdict(views).items()},
    }
