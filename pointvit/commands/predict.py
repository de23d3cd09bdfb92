"""``pointvit predict MODEL FILE...``"""

from __future__ import annotations

import csv
import json
import sys

from jsonargparse import ArgumentParser
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console

PARTLY_DONE = 3
"""Exit status when some files could not be read and the others were done."""


def run(args: list[str]) -> int:
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
        console().print(table)
