"""``pointvit inspect FILE``"""

from __future__ import annotations

import json

from jsonargparse import ArgumentParser
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console


def run(args: list[str]) -> int:
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
    console().print(table)
    return 0
