"""``pointvit doctor``: versions, devices, back ends and a small known job; or what is unusual about files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console
from pointvit.commands.predict import LONG, PARTLY_DONE

if TYPE_CHECKING:
    from pointvit.data.io import PointCloud
    from pointvit.input_doctor import Findings
    from pointvit.model import ViT

Rows = list[tuple[str, str]]


def run(args: list[str]) -> int:
    parser = ArgumentParser(
        prog="pointvit doctor",
        description="Says what is installed and which back ends work; with files, what is unusual about "
        "their clouds and what is done about it.",
    )
    parser.add_argument(
        "files", nargs="*", default=[], help="files, folders or patterns, as for pointvit predict"
    )
    parser.add_argument("--model", help="hold the files against what this model was trained on")
    parser.add_argument(
        "--fix", help="write the one file without duplicates and outliers: .ply, .xyz or .npy"
    )
    options = parser.parse_args(args)
    if not options.files:
        if options.model is not None or options.fix is not None:
            raise ValueError("--model and --fix need a file: pointvit doctor FILE")
        from pointvit.diagnosis import environment

        _print(environment())
        return 0
    return _examine_files(options.files, options.model, options.fix)


def _examine_files(names: list[str], model_name: str | None, fix: str | None) -> int:
    from pointvit.input_cleaning import WRITERS
    from pointvit.input_files import find_files
    from pointvit.viewer.output import checked_name

    output = None if fix is None else checked_name(fix, list(WRITERS))
    found = find_files(list(dict.fromkeys(names)), leave_out=[] if output is None else [output])
    files = list(dict.fromkeys(found))  # names may overlap
    if output is not None and len(files) != 1:
        raise ValueError(f"--fix writes one file, and {len(files)} are given")
    model = None if model_name is None else _point_encoder(model_name)
    if len(files) > 1:
        return _examine_many(files, model)
    [file] = files
    if isinstance(file, Exception):
        raise file
    if output is not None and output.resolve() == Path(file).resolve():
        raise ValueError(f"--fix would write over {file} itself; name another file")
    _examine_one(file, model, output)
    return 0


def _examine_one(file: str, model: ViT | None, output: Path | None) -> None:
    from pointvit.data.io import read_points
    from pointvit.input_doctor import examine
    from pointvit.input_words import about_one

    cloud = read_points(file)
    found = examine(cloud)
    rows = _finding_rows(found) + _model_rows(file, found, model)
    if output is not None:
        rows.append(("written", _fix(output, cloud)))
    print(*about_one(file, found, _wanted(model)), "", sep="\n")
    _print(rows)


def _examine_many(files: list[str | Exception], model: ViT | None) -> int:
    """Says what files have in common, with a bar on a terminal where it takes a while."""
    from pointvit.data.io import read_points
    from pointvit.input_doctor import examine
    from pointvit.input_words import about_many, about_unreadable

    terminal = Console(stderr=True)
    quiet = len(files) < LONG or not terminal.is_terminal
    found: dict[str, Findings] = {}
    errors: list[tuple[str, Exception]] = []
    for file in track(files, "examining", console=terminal, transient=True, disable=quiet):
        try:
            if isinstance(file, Exception):
                raise file
            found[file] = examine(read_points(file))
        except (ValueError, OSError, ImportError) as error:
            errors.append((file if isinstance(file, str) else "", error))
    if found:
        up_axis = None if model is None else model.meta.up_axis
        print(*about_many(found, len(errors), _wanted(model), up_axis), sep="\n", flush=True)
    for line in about_unreadable(errors):
        print(f"pointvit: {line}", file=sys.stderr)
    return 0 if not errors else PARTLY_DONE if found else 2


def _wanted(model: ViT | None) -> int | None:
    return None if model is None else model.meta.num_points


def _point_encoder(name: str) -> ViT:
    from pointvit.checkpoints import load
    from pointvit.model import Pair

    model = load(name)
    encoder = model.points if isinstance(model, Pair) else model
    if encoder.config.modality != "points":
        raise ValueError(f"{name}: expected a model of point clouds, this one encodes images")
    return encoder


def _finding_rows(found: Findings) -> Rows:
    from pointvit.input_doctor import MANY_DUPLICATES

    def numbers(values: tuple[float, ...], size: float = found.radius) -> str:
        # Of what is nothing beside the cloud's size, only rounding would be shown.
        return ", ".join(f"{value if abs(value) > 1e-6 * size else 0:.5g}" for value in values)

    normals = "none" if found.outward is None else f"{found.outward:.0%} point away from the centre"
    up = "not clear" if found.up.axis == "unsure" else f"{found.up.axis} looks vertical"
    few = 0 < found.num_duplicates <= MANY_DUPLICATES * found.num_points
    repeats = [("duplicates", f"{found.num_duplicates:,}; --fix leaves them out")] if few else []
    return [
        ("points", f"{found.num_points:,}"),
        *repeats,
        ("centre", numbers(found.centre)),
        ("extent", f"{numbers(found.extent)}; radius {found.radius:.5g}"),
        ("spacing", f"{found.spacing:.4g}, the median distance to the nearest neighbour"),
        ("shape", f"{found.shape}, singular values {numbers(found.singular, 1)}"),
        ("normals", normals),
        ("up axis", f"{up}: {found.up.reason}"),
    ]


def _model_rows(file: str, found: Findings, model: ViT | None) -> Rows:
    from pointvit.input_words import treatment

    rows = []
    if model is None:
        done = treatment(found, None, None)
    else:
        meta = model.meta
        count = "an unknown number of" if meta.num_points is None else f"{meta.num_points:,}"
        rows.append(("trained on", f"{count} points, {meta.up_axis} up"))
        if model.num_classes:
            rows.append(("the model", _surest(file, model)))
        done = treatment(found, meta.num_points, meta.up_axis, meta.normalization)
    return rows + [("predicting" if i == 0 else "", line) for i, line in enumerate(done)]


def _surest(file: str, model: ViT) -> str:
    """Which vertical axis the model is surest with, and of what."""
    from pointvit.inference import answer, load_and_note

    cloud, _ = load_and_note(model, file)  # what there is to note is said already
    sure = {up: answer(model, cloud, 1, up, file).classes[0] for up in ("y", "z")}
    return "; ".join(f"{up} up: {name} {probability:.0%}" for up, (name, probability) in sure.items())


def _fix(output: Path, cloud: PointCloud) -> str:
    from pointvit.checkpoints.writing import new_file
    from pointvit.input_cleaning import cleaned, write_cloud

    clean = cleaned(cloud)
    with new_file(output) as temporary:
        write_cloud(temporary, clean)
    return f"{output}, {len(clean.points):,} of {len(cloud.points):,} points"


def _print(rows: Rows) -> None:
    table = Table(box=None, show_header=False)
    for name, state in rows:
        table.add_row(name, Text(state))
    console().print(table)
