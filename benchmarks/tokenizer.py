"""The point tokenizer beside the usual, concatenating form: python benchmarks/tokenizer.py

Both have the same weights. Time of the mini-PointNet alone and of the whole tokenizer (sampling and
neighbours included), forward in inference mode, then forward and backward in training; and how far apart
outputs and gradients are. Freed memory is kept for both. Writes benchmarks/results/tokenizer.json.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import NamedTuple

import textbook
import torch
from common import interleaved_seconds, is_quick, made_clouds, relative_difference, surroundings, write
from torch import Tensor, nn

import pointvit
from pointvit.training.memory import keep_freed_memory

DTYPES = (torch.float32, torch.bfloat16)


class Side(NamedTuple):
    module: nn.Module
    call: Callable[[nn.Module, Tensor], Tensor]

    def gradients(self, x: Tensor, training: bool) -> Tensor:
        """All gradients in the precision of x, in one row, of a random weighting of the outputs."""
        module = copy.deepcopy(self.module).to(x.dtype).train(training)
        out = self.call(module, x)
        weighting = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        out.backward(weighting.to(x.dtype))
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def parts(batch: int) -> dict[str, tuple[Tensor, dict[str, Side]]]:
    """Part -> its input and both sides: 64 groups of 32 out of 1,024 points, D = 384."""
    ours = pointvit.create_model("pointvit_small", head="linear").train()
    # On this grid a^2 + b^2 - 2ab is exact, so that the textbook's neighbours are the same points.
    points = (1024 * made_clouds(batch, 1024)[0]).round() / 1024
    with torch.no_grad():
        for parameter in ours.tokenizer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        ours(points)  # gives the batch norms statistics
        groups, _ = ours.tokenizer.group(points)
    theirs = textbook.load(textbook.PointEncoder(), ours)

    def tokens(tokenizer: nn.Module, x: Tensor) -> Tensor:
        found = tokenizer(x)
        return found.x + found.pos

    return {
        "mini-PointNet": (
            groups,
            {
                "pointvit": Side(ours.tokenizer.embed, lambda embed, x: embed(x)),
                "textbook": Side(theirs.embed, lambda embed, x: embed(x)),
            },
        ),
        "tokenizer": (
            points,
            {
                "pointvit": Side(ours.tokenizer, tokens),
                "textbook": Side(theirs, lambda encoder, x: torch.add(*encoder.tokens(x))),
            },
        ),
    }


def differences(x: Tensor, sides: dict[str, Side]) -> dict[str, object]:
    """Of the outputs in eval mode and float32, and of the gradients, the larger of both modes.

    In float32, maxima that nearly tie fall out differently and send their gradient to another point. So the
    gradients are compared in float64, and each side's in float32 with its own in float64.
    """
    with torch.inference_mode():
        outputs = [side.call(side.module.eval(), x) for side in sides.values()]
    gradient, in_float32 = [], dict.fromkeys(sides, 0.0)
    for training in (False, True):
        exact = {name: side.gradients(x.double(), training) for name, side in sides.items()}
        gradient.append(relative_difference(*exact.values()))
        for name, side in sides.items():
            found = relative_difference(side.gradients(x, training), exact[name])
            in_float32[name] = max(in_float32[name], found)
    return {
        "output": relative_difference(*outputs),
        "gradient": max(gradient),
        "gradient_in_float32": in_float32,
    }


def timed(
    x: Tensor, sides: dict[str, Side], dtype: torch.dtype, backward: bool, repeats: int
) -> dict[str, object]:
    """Median milliseconds of each side, and how many times ours is faster."""

    def once(side: Side) -> None:
        with (
            torch.inference_mode(not backward),
            torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
        ):
            out = side.call(side.module, x)
        if backward:
            side.module.zero_grad()
            out.float().sum().backward()

    for side in sides.values():
        side.module.train(backward)
    seconds = interleaved_seconds({name: lambda s=side: once(s) for name, side in sides.items()}, repeats)
    return {
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["textbook"] / seconds["pointvit"],
    }


def main() -> None:
    quick = is_quick(__doc__)
    keep_freed_memory()
    torch.manual_seed(0)
    batch, repeats = (2, 1) if quick else (32, 7)
    made = parts(batch)
    found = {
        part: differences(x[:8], sides) for part, (x, sides) in made.items()
    }  # before statistics move on
    print(found, flush=True)
    rows = []
    for (part, (x, sides)), dtype, backward in itertools.product(made.items(), DTYPES, (False, True)):
        row = {"part": part, "dtype": str(dtype).removeprefix("torch."), "backward": backward}
        rows.append({**row, **timed(x, sides, dtype, backward, repeats)})
        print(rows[-1], flush=True)
    sizes = {"batch": batch, "points": 1024, "groups": 64, "group_size": 32, "dim": 384}
    if not quick:
        write("tokenizer", {**surroundings(), "sizes": sizes, "differences": found, "rows": rows})


if __name__ == "__main__":
    main()
