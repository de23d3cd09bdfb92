"""``pointvit doctor``: versions, devices, back ends, and a small known job."""

from __future__ import annotations

from jsonargparse import ArgumentParser
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console


def run(args: list[str]) -> int:
    parser = ArgumentParser(
        prog="pointvit doctor", description="Says what is installed and which back ends work."
    )
    parser.parse_args(args)

    from pointvit.diagnosis import environment

    table = Table(box=None, show_header=False)
    for name, state in environment():
        table.add_row(name, Text(state))
    console().print(table)
    return 0
