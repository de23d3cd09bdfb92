"""The commands that are not training: predict, convert, inspect, doctor, demo."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table
from rich.text import Text

PARTLY_DONE = 3
"""Exit status when some files could not be read and the others were done."""


def predict(args: list[str]) -> int:
    """``pointvit predict MODEL FILE...``"""
    parser = ArgumentParser(
        prog="pointvit predict", description="Names the class of point cloud and mesh files."
    )
    parser.add_argument("model", help="a saved model folder, or a training checkpoint (.ckpt)")
    parser.add_argument("files", nargs="+", help=".off .obj .ply .pcd .stl .xyz .txt .csv .npy .npz .h5")
    parser.add_argument("--top", type=int, default=3, help="classes to print for each file")
    parser.add_argument(
        "--up",
        default="auto",
        choices=["auto", "y", "z"],
        help="vertical axis of the files; auto: the surer of y and z",
    )
    parser.add_argument("--format", default="table", choices=["table", "json", "csv"])
    options = parser.parse_args(args)

    from pointvit.checkpoints import load
    from pointvit.inference import answers, check_request
    from pointvit.model import Pair

    model = load(options.model)
    classifier = model.points if isinstance(model, Pair) else model
    check_request(classifier, options.top, options.up)
    rows, failed = [], 0
    for file in options.files:
        try:
            answer = next(answers(classifier, [file], options.top, options.up))
        except (ValueError, OSError, ImportError) as error:
            failed += 1
            print(f"pointvit: {error}", file=sys.stderr)
        else:
            rows.append({"file": file, "up": answer.up_axis, "classes": answer.classes})
    _print_predictions(rows, options.format)
    return 0 if not failed else PARTLY_DONE if rows else 2


def _print_predictions(rows: list[dict], style: str) -> None:
    if style == "json":
        print(json.dumps(rows, indent=2))
    elif style == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(["file", "up", "rank", "class", "probability"])
        writer.writerows(
            [row["file"], row["up"], rank, name, f"{probability:.6f}"]
            for row in rows
            for rank, (name, probability) in enumerate(row["classes"], start=1)
        )
    elif rows:
        table = Table("file", "up", "class", "then", box=None)
        for row in rows:
            shown = [f"{name} {probability:.0%}" for name, probability in row["classes"]]
            cells = (row["file"], row["up"], shown[0], ", ".join(shown[1:]))
            table.add_row(*map(Text, cells))  # as text: a name may look like markup
        _console().print(table)


def convert(args: list[str]) -> int:
    """``pointvit convert IN OUT --to SOURCE``"""
    from pointvit.checkpoints import SOURCES
    from pointvit.checkpoints.conversion import convert as convert_file
    from pointvit.trunk import ACTIVATIONS

    parser = ArgumentParser(
        prog="pointvit convert",
        description="Writes a checkpoint in the names of another source. Every tensor is written, or named "
        "with the reason why it is not; numbers keep their type where the form has it.",
    )
    parser.add_argument("input", help="a checkpoint file or folder")
    parser.add_argument("output", help="what to write; without an ending, a folder with config.json")
    written = [name for name, source in SOURCES.items() if source.encode is not None]
    parser.add_argument("--to", required=True, choices=written, help="source whose layout is written")
    parser.add_argument("--from", default="auto", choices=["auto", *SOURCES], help="source of the input")
    parser.add_argument("--activation", choices=list(ACTIVATIONS), help="where the input leaves it open")
    parser.add_argument("--num-heads", type=int, help="where the input leaves it open")
    parser.add_argument("--norm-eps", type=float, help="where the input leaves it open")
    options = parser.parse_args(args)
    asked = {name: options[name] for name in ("activation", "num_heads", "norm_eps")}
    asked = {name: value for name, value in asked.items() if value is not None}
    done = convert_file(options.input, options.output, options.to, options["from"], asked)
    trunk = done.config.trunk
    table = Table(box=None, show_header=False)
    table.add_row("read", Text(f"{done.file} ({done.source})"))
    table.add_row("written", Text(f"{done.written} ({done.target})"))
    table.add_row("", f"{done.numbers:,} numbers in {done.tensors} tensors, {', '.join(done.dtypes)}")
    for name, why in done.set_aside.items():
        table.add_row("set aside", Text(f"{name}, {done.sizes[name]:,} numbers: {why}"))
    table.add_row(
        "settings", f"heads {trunk.num_heads}, {trunk.activation}, LayerNorm eps {trunk.norm_eps:g}"
    )
    _console().print(table)
    return 0


def inspect(args: list[str]) -> int:
    """``pointvit inspect FILE``"""
    parser = ArgumentParser(
        prog="pointvit inspect",
        description="Says what is in a checkpoint: architecture, sizes, hash, whether it is trained, and "
        "which models it can initialise. Only headers and positions are read into memory.",
    )
    parser.add_argument("file", help="a checkpoint file or folder")
    parser.add_argument("--format", default="table", choices=["table", "json"])
    options = parser.parse_args(args)

    from pointvit.checkpoints.inspection import inspect as inspect_file

    found = inspect_file(options.file)
    if options.format == "json":
        print(json.dumps(found.to_dict(), indent=2, allow_nan=False))
        return 0
    table = Table(box=None, show_header=False)
    for name, value in found.rows():
        table.add_row(name, Text(value))
    _console().print(table)
    return 0


def doctor(args: list[str]) -> int:
    """``pointvit doctor``: versions, devices, back ends, and a small known job."""
    parser = ArgumentParser(
        prog="pointvit doctor", description="Says what is installed and which back ends work."
    )
    parser.parse_args(args)

    from pointvit.diagnosis import environment

    table = Table(box=None, show_header=False)
    for name, state in environment():
        table.add_row(name, Text(state))
    _console().print(table)
    return 0


def demo(args: list[str]) -> int:
    """``pointvit demo``: see :mod:`pointvit.demo`."""
    parser = ArgumentParser(
        prog="pointvit demo",
        description="Pre-trains a small image ViT on rendered views, starts a point encoder from it and one "
        "from scratch, and compares them, on synthetic shapes made here.",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/demo"), help="folder for models and pictures"
    )
    parser.add_argument("--epochs", type=int, default=6, help="epochs of each training")
    parser.add_argument(
        "--shapes-per-class", type=int, default=None, help="training shapes per class; default 80"
    )
    options = parser.parse_args(args)
    for name, count in (("epochs", options.epochs), ("shapes-per-class", options.shapes_per_class)):
        if count is not None and count < 1:
            raise ValueError(f"--{name} must be at least 1, got {count}")

    from pointvit.demo import run

    run(options.output, options.epochs, options.shapes_per_class, _console())
    return 0


def _console() -> Console:
    """Wide where the output is no terminal, so that file names are not cut."""
    console = Console()
    return console if console.is_terminal else Console(width=160)
