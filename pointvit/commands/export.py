"""``pointvit export MODEL --to onnx|torch.export``"""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console


def run(args: list[str]) -> int:
    from pointvit.export import TARGETS

    parser = ArgumentParser(
        prog="pointvit export",
        description="Writes a model, its tokenizer included, as a file that runs without this library, and "
        "compares its answers with the model's.",
    )
    parser.add_argument("model", help="a saved model folder, or a training checkpoint (.ckpt)")
    parser.add_argument("--to", default="onnx", choices=list(TARGETS))
    parser.add_argument("--output", type=Path, help="the file to write; default model.onnx or model.pt2")
    parser.add_argument("--points", default="dynamic", help="points of a cloud, or dynamic for any number")
    parser.add_argument("--batch", default="dynamic", help="clouds or images at a time, or dynamic")
    parser.add_argument("--split", action="store_true", help="two ONNX files: tokenizer, and trunk with head")
    parser.add_argument("--int8", action="store_true", help="the trunk's linear layers in eight bits (ONNX)")
    parser.add_argument("--tokens", action="store_true", help="a second output, the tokens (B, T, D)")
    parser.add_argument("--encoder", default="points", choices=["points", "image"], help="of a pair")
    options = parser.parse_args(args)
    output = options.output or Path("model").with_suffix(TARGETS[options.to].ending)
    num_points, batch_size = (_size(name, options[name]) for name in ("points", "batch"))

    from pointvit.checkpoints import load
    from pointvit.export import export
    from pointvit.model import Pair

    model = load(options.model)
    encoder = getattr(model, options.encoder) if isinstance(model, Pair) else model
    try:
        report = export(
            encoder,
            output,
            options.to,
            num_points,
            batch_size,
            split=options.split,
            int8=options.int8,
            tokens=options.tokens,
        )
    except ImportError as error:
        raise ValueError(str(error)) from error
    table = Table(box=None, show_header=False)
    for name, value in report.rows():
        table.add_row(name, Text(value))
    console().print(table)
    return 0


def _size(name: str, value: str) -> int | None:
    if value == "dynamic":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"--{name} must be dynamic or a whole number of at least 1, got {value}")
    return int(value)
