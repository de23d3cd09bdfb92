"""Both encoders under torch.compile, beside themselves: python benchmarks/compiled.py

The ViT-S image and point encoder in inference mode in float32, and a training step of the latter (forward
and backward) under bfloat16 autocast. Graph breaks, recompilations for a smaller last batch, how far the
outputs are apart, seconds to compile (PyTorch's cache is off) and the time of both forms in turn. Writes
benchmarks/results/compiled.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # read when torch is imported

import torch
from common import interleaved_seconds, is_quick, made_clouds, relative_difference, surroundings, write
from torch import Tensor
from torch._dynamo.utils import counters

import pointvit
from pointvit.training.memory import keep_freed_memory

# model -> batch and what makes one
INPUTS: dict[str, tuple[int, Callable[[int], Tensor]]] = {
    "vit_small_patch16_224": (16, lambda batch: torch.randn(batch, 3, 224, 224)),
    "pointvit_small": (32, lambda batch: made_clouds(batch, 1024)[0]),
}
CASES = (("vit_small_patch16_224", False), ("pointvit_small", False), ("pointvit_small", True))


def compiled(name: str, training: bool, batch: int, depth: int, repeats: int) -> dict[str, object]:
    torch.compiler.reset()
    counters.clear()
    settings = {} if name.startswith("vit") else {"head": "linear"}  # without dropout
    model = pointvit.create_model(name, depth=depth, **settings).train(training)
    other = torch.compile(model, fullgraph=True, dynamic=True)
    x = INPUTS[name][1](batch)

    def run(forward: Callable[[Tensor], Tensor], x: Tensor = x) -> Tensor:
        if not training:
            with torch.inference_mode():
                return forward(x)
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = forward(x)
        out.float().sum().backward()
        return out.detach()

    start = time.perf_counter()
    run(other)
    seconds = time.perf_counter() - start
    graphs = counters["stats"]["unique_graphs"]
    run(other, x[: batch - 1])
    times = interleaved_seconds({"eager": lambda: run(model), "compiled": lambda: run(other)}, repeats)
    return {
        "model": name,
        "batch": batch,
        "training": training,
        "dtype": "bfloat16" if training else "float32",
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompilations": counters["stats"]["unique_graphs"] - graphs,
        "difference": relative_difference(run(other).float(), run(model).float()),
        "seconds_to_compile": seconds,
        "milliseconds": {form: 1e3 * value for form, value in times.items()},
        "ratio": times["eager"] / times["compiled"],
    }


def main() -> None:
    quick = is_quick(__doc__)
    keep_freed_memory()
    torch.manual_seed(0)
    rows = []
    for name, training in CASES[:1] if quick else CASES:
        batch, depth, repeats = (2, 1, 1) if quick else (INPUTS[name][0], 12, 7)
        rows.append(compiled(name, training, batch, depth, repeats))
        print(rows[-1], flush=True)
    if not quick:
        write("compiled", {**surroundings(), "rows": rows})


if __name__ == "__main__":
    main()
