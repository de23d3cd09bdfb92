"""``pointvit predict MODEL FILE|FOLDER|PATTERN...``"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console

if TYPE_CHECKING:
    from pointvit.inference import Answer
    from pointvit.model import ViT

PARTLY_DONE = 3
"""Exit status when some files could not be read and the others were done."""
LONG = 20
"""Files from which on a bar shows how far it is."""


@dataclass(frozen=True)
class Named:
    """The answer for one file, under the name it was found by."""

    file: str
    answer: Answer

    @property
    def classes(self) -> list[tuple[str, float]]:
        """Rounded to what does not depend on the size of a batch."""
        return [(name, round(probability, 6)) for name, probability in self.answer.classes]


def run(args: list[str]) -> int:
    from pointvit.data.io import READERS
    from pointvit.inference import BATCH_SIZE, UP_AXES

    parser = ArgumentParser(
        prog="pointvit predict", description="Names the class of point cloud and mesh files."
    )
    parser.add_argument("model", help="a saved model folder, or a training checkpoint (.ckpt)")
    parser.add_argument(
        "files",
        nargs="+",
        help=f"files ({' '.join(READERS)}), folders with such files at any depth, patterns such as "
        "'scans/**/*.ply', or - for standard input",
    )
    parser.add_argument("--top", type=int, default=5, help="classes to print for each file")
    parser.add_argument(
        "--up",
        default="auto",
        choices=list(UP_AXES),
        help="vertical axis of the files; auto: the surer of y and z",
    )
    parser.add_argument("--format", default="table", choices=["table", "json", "csv"])
    parser.add_argument(
        "--input-format",
        choices=[ending[1:] for ending in READERS],
        help="of standard input, and of files with an unknown ending",
    )
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="clouds at a time")
    parser.add_argument("--embeddings", help="file (.npz) for what the model's head is applied to")
    parser.add_argument("--output", help="file to write instead of printing")
    options = parser.parse_args(args)

    from pointvit.checkpoints import load
    from pointvit.checkpoints.writing import new_file
    from pointvit.inference import check_request
    from pointvit.input_files import find_files
    from pointvit.model import Pair
    from pointvit.viewer.output import checked_name

    outputs = [Path(name) for name in (options.output, options.embeddings) if name is not None]
    if options.embeddings is not None:
        checked_name(options.embeddings, [".npz"])
    for path in outputs:
        if path.is_dir():  # said before the work is done, not after
            raise ValueError(f"{path}: is a folder, expected the name of a file")
    if options.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {options.batch_size}")
    model = load(options.model)
    classifier = model.points if isinstance(model, Pair) else model
    check_request(classifier, options.top, options.up)
    files = find_files(options.files, leave_out=outputs)
    rows = []
    for file, outcome in _outcomes(
        classifier, files, options.top, options.up, options.batch_size, options.input_format
    ):
        if isinstance(outcome, Exception):
            print(f"pointvit: {outcome}", file=sys.stderr)
        else:
            rows.append(Named(file, outcome))
    with ExitStack() as stack:
        if options.output is not None and rows:
            path = stack.enter_context(new_file(Path(options.output)))
            path.write_text(_shown(rows, options.format), encoding="utf-8", errors="backslashreplace")
        if options.embeddings is not None and rows:
            _save_embeddings(stack.enter_context(new_file(Path(options.embeddings))), classifier, rows)
    if options.output is None:
        _print(rows, options.format)
    return 0 if len(rows) == len(files) else PARTLY_DONE if rows else 2


def _outcomes(
    model: ViT,
    files: Sequence[str | Exception],
    top: int,
    up: str,
    batch_size: int,
    format: str | None,
) -> Iterator[tuple[str, Answer | Exception]]:
    """``(file, outcome)`` in order, with a bar on a terminal where it takes a while."""
    from pointvit.inference import outcomes

    terminal = Console(stderr=True)
    columns = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = len(files) < LONG or not terminal.is_terminal
    with Progress(*columns, console=terminal, transient=True, disable=quiet) as bar:
        task = bar.add_task("predicting", total=len(files))
        paths = [file for file in files if isinstance(file, str)]
        found = outcomes(model, paths, top, up, batch_size, format)
        for file in files:
            yield ("", file) if isinstance(file, Exception) else (file, next(found))
            bar.advance(task)


def _print(rows: list[Named], style: str) -> None:
    if style != "table":
        print(_shown(rows, style), end="")
    elif rows:
        console().print(_table(rows))


def _shown(rows: list[Named], style: str) -> str:
    if style == "json":
        found = [{"file": row.file, "up": row.answer.up_axis, "classes": row.classes} for row in rows]
        return json.dumps(found, indent=2) + "\n"
    text = io.StringIO(newline="")
    if style == "table":
        Console(file=text, width=160).print(_table(rows))
        return text.getvalue()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "up", "rank", "class", "probability"])
    writer.writerows(
        [row.file, row.answer.up_axis, rank, name, f"{probability:.6f}"]
        for row in rows
        for rank, (name, probability) in enumerate(row.classes, start=1)
    )
    return text.getvalue()


def _table(rows: list[Named]) -> Table:
    table = Table("file", "up", "class", "then", box=None)
    for row in rows:
        shown = [f"{name} {probability:.0%}" for name, probability in row.classes]
        cells = (row.file, row.answer.up_axis, shown[0], ", ".join(shown[1:]))
        table.add_row(*map(Text, cells))  # as text: a name may look like markup
    return table


def _save_embeddings(path: Path, model: ViT, rows: list[Named]) -> None:
    import numpy as np
    import torch

    names = model.meta.class_names or [f"class {i}" for i in range(model.num_classes)]
    np.savez(
        path,
        names=np.array([row.file for row in rows]),
        up=np.array([row.answer.up_axis for row in rows]),
        classes=np.array(names),
        embeddings=torch.stack([row.answer.embedding for row in rows]).numpy(),
        probabilities=torch.stack([row.answer.probabilities for row in rows]).numpy(),
    )
