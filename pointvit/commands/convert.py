"""``pointvit convert IN OUT --to SOURCE``"""

from __future__ import annotations

from jsonargparse import ArgumentParser
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console


def run(args: list[str]) -> int:
    from pointvit.checkpoints import SOURCES
    from pointvit.checkpoints.conversion import convert as convert_file
    from pointvit.checkpoints.loading import shorten
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
    parser.add_argument("--drop-head", action="store_true", help="leave the head out")
    options = parser.parse_args(args)
    asked = {name: options[name] for name in ("activation", "num_heads", "norm_eps")}
    asked = {name: value for name, value in asked.items() if value is not None}
    done = convert_file(options.input, options.output, options.to, options["from"], asked, options.drop_head)
    trunk = done.config.trunk
    table = Table(box=None, show_header=False)
    table.add_row("read", Text(f"{done.file} ({done.source})"))
    table.add_row("written", Text(f"{done.written} ({done.target})"))
    table.add_row("", f"{done.numbers:,} numbers in {done.tensors} tensors, {', '.join(done.dtypes)}")
    reasons: dict[str, list[str]] = {}
    for name, why in done.set_aside.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        count = sum(done.sizes[name] for name in names)
        table.add_row("set aside", Text(f"{why}: {shorten(names)}, {count:,} numbers"))
    table.add_row(
        "settings", f"heads {trunk.num_heads}, {trunk.activation}, LayerNorm eps {trunk.norm_eps:g}"
    )
    for name, (value, read) in done.unsaid.items():
        others = "others have to be told" if read is None else f"others will take {read}"
        table.add_row("not in the names", Text(f"{name} {value}; {others}"))
    console().print(table)
    return 0
