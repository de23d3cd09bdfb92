"""``pointvit demo``: see :mod:`pointvit.demo`."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser

from pointvit.commands.console import console


def run(args: list[str]) -> int:
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

    run(options.output, options.epochs, options.shapes_per_class, console())
    return 0
