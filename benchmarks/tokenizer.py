"""The point tokenizer beside the usual, concatenating form: python benchmarks/tokenizer.py

Both have the same weights. Seconds of the mini-PointNet alone and of the whole tokenizer (sampling and neighbours
included), forward in inference mode, then forward and backward in training; the differences of what they put out
and of their gradients. Freed memory is kept for both. Writes benchmarks/results/tokenizer.json.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import textbook
import torch
from common import interleaved_seconds, is_quick, made_clouds, relative_difference, surroundings, write
from torch import Tensor, nn

import pointvit
from pointvit.training.memory import keep_freed_memory

DTYPES = (torch.float32, torch.bfloat16)
Sides = dict[str, tuple[nn.Module, Callable[[], Tensor]]]


def parts(batch: int) -> dict[str, Sides]:
    """Part -> side -> the module and what it puts out: 64 groups of 32 out of 1,024 points, D = 384."""
    ours = pointvit.create_model("pointvit_small", head="linear")
    points, _ = made_clouds(batch, 1024)
    with torch.no_grad():
        for parameter in ours.tokenizer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        ours.train()(points)  # gives the batch norms statistics
        groups, _ = ours.tokenizer.group(points)
    theirs = textbook.load(textbook.PointEncoder(), ours)

    def tokenized() -> Tensor:
        tokens = ours.tokenizer(points)
        return tokens.x + tokens.pos

    return {
        "mini-PointNet": {
            "pointvit": (ours.tokenizer.embed, lambda: ours.tokenizer.embed(groups)),
            "textbook": (theirs.embed, lambda: theirs.embed(groups)),
        },
        "tokenizer": {
            "pointvit": (ours.tokenizer, tokenized),
            "textbook": (theirs, lambda: torch.add(*theirs.tokens(points))),
        },
    }


def differences(sides: Sides) -> dict[str, float]:
    """In float32: of the outputs in eval mode, and of all gradients in eval and in training mode."""
    for module, _ in sides.values():
        module.eval()
    with torch.inference_mode():
        found = {"output": relative_difference(*(run() for _, run in sides.values()))}
    for mode in ("eval", "training"):
        gradients = []
        for module, run in sides.values():
            module.train(mode == "training")
            out = run()
            out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)))
            grads = [p.grad.flatten() for p in module.parameters() if p.grad is not None]
            gradients.append(torch.cat(grads))
            module.zero_grad()
        found[f"gradient, {mode}"] = relative_difference(*gradients)
    return found


def timed(sides: Sides, dtype: torch.dtype, backward: bool, repeats: int) -> dict[str, object]:
    """Median milliseconds of each side, and how many times ours is faster."""

    def once(module: nn.Module, run: Callable[[], Tensor]) -> None:
        with (
            torch.inference_mode(not backward),
            torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
        ):
            out = run()
        if backward:
            module.zero_grad()
            out.float().sum().backward()

    for module, _ in sides.values():
        module.train(backward)
    seconds = interleaved_seconds({name: lambda s=side: once(*s) for name, side in sides.items()}, repeats)
    return {
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["textbook"] / seconds["pointvit"],
    }


def main() -> None:
    quick = is_quick(__doc__)
    keep_freed_memory()
    torch.manual_seed(0)
    batch, repeats = (2, 1) if quick else (32, 7)
    rows, found = [], {}
    for part, sides in parts(batch).items():
        found[part] = differences(sides)
        print(part, found[part], flush=True)
        for dtype, backward in itertools.product(DTYPES, (False, True)):
            row = {"part": part, "dtype": str(dtype).removeprefix("torch."), "backward": backward}
            rows.append({**row, **timed(sides, dtype, backward, repeats)})
            print(rows[-1], flush=True)
    sizes = {"batch": batch, "points": 1024, "groups": 64, "group_size": 32, "dim": 384}
    if not quick:
        write("tokenizer", {**surroundings(), "sizes": sizes, "differences": found, "rows": rows})


if __name__ == "__main__":
    main()
