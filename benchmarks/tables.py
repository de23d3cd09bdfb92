"""Writes the tables of docs/performance.md anew from benchmarks/results/*.json: python benchmarks/tables.py

A table stands between ``<!-- table FILE/NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
MARKED = re.compile(r"<!-- table (\S+) -->\n.*?<!-- end -->", re.DOTALL)
Result = dict[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def machine(result: Result) -> str:
    where, versions = result["machine"], result["versions"]
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{where.get('gpu') or where['cpu']}, {where['threads']} threads; {names}."


def ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def tokenizer(result: Result) -> str:
    rows = (
        (r["part"], r["dtype"], "forward and backward" if r["backward"] else "forward",
         ms(r["milliseconds"]["textbook"]), ms(r["milliseconds"]["pointvit"]), f"{r['ratio']:.2f}")
        for r in result["rows"]
    )  # fmt: skip
    return table(("Part", "Type", "Pass", "Textbook, ms", "pointvit, ms", "Ratio"), rows)


def tokenizer_differences(result: Result) -> str:
    rows = (
        (part, f"{d['output']:.0e}", f"{d['gradient']:.0e}",
         *(f"{d['gradient_in_float32'][side]:.0e}" for side in ("textbook", "pointvit")))
        for part, d in result["differences"].items()
    )  # fmt: skip
    header = ("Part", "Outputs, float32", "Gradients, float64", "Textbook's rounding", "pointvit's rounding")
    return table(header, rows)


def image_encoder(result: Result) -> str:
    rows = (
        (r["size"], r["dtype"], ms(r["milliseconds"]["timm"]), ms(r["milliseconds"]["pointvit"]),
         f"{r['ratio']:.2f}", ms(r["compiled_milliseconds"]["timm"]),
         ms(r["compiled_milliseconds"]["pointvit"]), f"{r['compiled_ratio']:.2f}")
        for r in result["rows"]
    )  # fmt: skip
    return table(
        ("ViT", "Type", "timm, ms", "pointvit, ms", "Ratio",
         "timm compiled, ms", "pointvit compiled, ms", "Ratio compiled"),
        rows,
    )  # fmt: skip


def products(result: Result) -> str:
    rows = (
        (r["size"], r["dtype"], ms(r["milliseconds"]["products"]),
         ms(r["milliseconds"]["own products"]), ms(r["milliseconds"]["pointvit"]),
         f"{r['share_of_products']:.0%}", f"{r['share_of_own_products']:.0%}")
        for r in result["rows"]
    )  # fmt: skip
    return table(
        ("ViT", "Type", "Products, torch's linear, ms", "Products, pointvit's linear, ms", "Encoder, ms",
         "Share of torch's rate", "Share of pointvit's rate"),
        rows,
    )  # fmt: skip


def step(result: Result) -> str:
    arms, ratios = result["step"]["arms"], result["step"]["ratios"]
    rows = (
        (name, f"{arm['seconds']:.2f}", f"{ratios[name]['time']:.2f}", f"{arm['peak_mb']:,.0f}",
         f"{ratios[name]['memory']:.2f}")
        for name, arm in arms.items()
    )  # fmt: skip
    return table(("Step", "Seconds", "Times as fast", "Peak, MB", "Memory, ratio"), rows)


def losses(result: Result) -> str:
    s, count = result["step"], result["sizes"]["steps"]
    return (
        f"Over {count} steps the losses of pointvit and textbook differ by at most "
        f"{s['loss_difference']:.3f}, those of the textbook with itself, each batch in another order, by "
        f"{s['loss_noise']:.3f}."
    )


def data(result: Result) -> str:
    d = result["data"]
    rows = [
        ("data module, augmented, clouds/s", f"{d['clouds_per_second']:,.0f}"),
        ("training step, clouds/s", f"{d['step_clouds_per_second']:.0f}"),
        ("ratio", f"{d['ratio']:,.0f}"),
        ("seconds from `pointvit fit` to the end of the first step", f"{d['seconds_to_first_step']:.1f}"),
    ]
    return table((d["data"], ""), rows)


def attention(result: Result) -> str:
    rows = (
        (r["dtype"], f"{r['batch']} × {r['tokens']}", ms(r["milliseconds"]["fused"]),
         ms(r["milliseconds"]["plain"]), f"{r['ratio']:.2f}")
        for r in result["attention"]
    )  # fmt: skip
    return table(("Type", "Batch × tokens", "Fused, ms", "Plain, ms", "Fused / plain"), rows)


def compiled(result: Result) -> str:
    rows = (
        (f"`{r['model']}`", "training step" if r["training"] else "inference", r["dtype"], r["graph_breaks"],
         r["recompilations"], f"{r['difference']:.0e}", f"{r['seconds_to_compile']:.0f}",
         ms(r["milliseconds"]["eager"]), ms(r["milliseconds"]["compiled"]), f"{r['ratio']:.2f}")
        for r in result["rows"]
    )  # fmt: skip
    return table(
        ("Model", "Pass", "Type", "Graph breaks", "Recompilations", "Difference", "Compiling, s", "Eager, ms",
         "Compiled, ms", "Ratio"),
        rows,
    )  # fmt: skip


def point_ops(result: Result) -> str:
    rows = (
        (r["operation"], f"{r['batch']} × {r['points']:,} → {r['groups']}", r["backend"],
         ms(r["milliseconds"]["pointvit"]), *(_peer(r, name) for name in ("pytorch3d", "naive")))
        for r in result["beside_peers"]
    )  # fmt: skip
    header = ("Operation", "Batch × points → groups", "Back end", "pointvit, ms", "PyTorch3D, ms (ratio)")
    return table((*header, "Usual loop, ms (ratio)"), rows)


def _peer(row: Result, name: str) -> str:
    if name not in row["ratio"]:
        return "–"
    return f"{ms(row['milliseconds'][name])} ({row['ratio'][name]:.2f})"


def growing(result: Result) -> str:
    g = result["growing"]
    rows = ((f"{r['points']:,}", f"{r['seconds']:.3f}", f"{r['peak_mb']:.0f}") for r in g["sizes"])
    after = f"Time grows with the points to the power of {g['exponent']:.2f}."
    return table(("Points", "Seconds", "Peak, MB"), rows) + f"\n\n{after}"


def of_part(
    part: str, header: Sequence[str], line: Callable[[Result], Sequence[object]]
) -> Callable[[Result], str]:
    """A table of one part of gpu.json, and its note if the part is not whole."""

    def made(result: Result) -> str:
        if part not in result:
            return "Not measured yet."
        text = table(header, map(line, result[part]["rows"]))
        return text + (f"\n\nNot all: {result[part]['note']}." if "note" in result[part] else "")

    return made


def _milliseconds(row: Result) -> str:
    return ", ".join(f"{name} {ms(value)}" for name, value in row["milliseconds"].items())


def _epoch(row: Result) -> Sequence[object]:
    peak = "–" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"
    start = f"{row['seconds_to_third_step']:.1f}"
    return row["precision"], f"{row['clouds']:,}", f"{row['seconds']:.1f}", start, peak


EPOCH = ("Precision", "Clouds", "Seconds", "First three steps, s", "Peak, MB")
TABLES: dict[str, Callable[[Result], str]] = {
    "tokenizer/machine": machine,
    "tokenizer/times": tokenizer,
    "tokenizer/differences": tokenizer_differences,
    "image_encoder/machine": machine,
    "image_encoder/times": image_encoder,
    "image_encoder/products": products,
    "training/machine": machine,
    "training/step": step,
    "training/losses": losses,
    "training/data": data,
    "training/attention": attention,
    "compiled/machine": machine,
    "compiled/times": compiled,
    "point_ops/machine": machine,
    "point_ops/times": point_ops,
    "point_ops/growing": growing,
    "gpu/machine": machine,
    "gpu/parity": of_part(
        "parity",
        ("Operation", "Cloud", "Back end", "Same indices"),
        lambda r: (r["operation"], r["cloud"], r["backend"], f"{r['same']:.1%}"),
    ),
    "gpu/operators": of_part(
        "operators",
        ("Operation", "Batch × points → groups", "Milliseconds", "Taken", "Ratio"),
        lambda r: (
            r["operation"],
            f"{r['batch']} × {r['points']:,} → {r['groups']}",
            _milliseconds(r),
            r["backend"],
            f"{r['ratio']:.2f} ({r['peer']})",
        ),
    ),
    "gpu/encoders": of_part(
        "encoders",
        ("Model", "Precision", "Batch", "pointvit, tokens/s", "Peer, tokens/s", "Ratio"),
        lambda r: (
            f"`{r['model']}`",
            r["precision"],
            r["batch"],
            f"{r['tokens_per_second']['pointvit']:,.0f}",
            f"{r['tokens_per_second'][r['peer']]:,.0f} ({r['peer']})",
            f"{r['ratio']:.2f}",
        ),
    ),
    "gpu/epochs": of_part("epochs", EPOCH, _epoch),
    "gpu/compiled_epochs": of_part("compiled_epochs", EPOCH, _epoch),
    "gpu_full/machine": machine,
    "gpu_full/full": of_part(
        "full",
        ("Epochs", "Seconds", "OA", "mAcc"),
        lambda r: (
            r["epochs"],
            f"{r['seconds']:.0f}",
            f"{r['overall_accuracy']:.1%}",
            f"{r['mean_class_accuracy']:.1%}",
        ),
    ),
}


def rendered(page: str) -> str:
    """The page with every marked table made anew."""

    def anew(found: re.Match[str]) -> str:
        name = found[1]
        file = HERE / "results" / f"{name.split('/')[0]}.json"
        text = "Not measured yet."
        if file.exists():
            text = TABLES[name](json.loads(file.read_text(encoding="utf-8")))
        return f"<!-- table {name} -->\n{text}\n<!-- end -->"

    return MARKED.sub(anew, page)


def main() -> None:
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
