"""Two decisions about training on the CPU, measured side by side: python benchmarks/cpu_training.py

- attention by two matrix products beside PyTorch's fused kernel, forward and backward;
- a training step of pointvit_small with and without keeping freed memory (pointvit/training/memory.py), each
  in a process of its own, since the setting lasts as long as the process.

Writes benchmarks/results/cpu_training.json, from which docs/performance.md has its tables.
"""

from __future__ import annotations

import json
import subprocess
import sys

import torch
import torch.nn.functional as F
from common import median_seconds, surroundings, write

from pointvit import create_model
from pointvit.training.memory import keep_freed_memory
from pointvit.trunk import Attention, TrunkConfig

SEQUENCES = ((65, 32), (129, 32), (197, 16), (257, 16), (513, 8))


def attention(dtype: torch.dtype) -> list[dict[str, object]]:
    """One row per sequence length, ViT-S heads: seconds of forward and backward, fused and plain."""
    layer = Attention(TrunkConfig(embed_dim=384, num_heads=6))
    rows: list[dict[str, object]] = []
    for tokens, batch in SEQUENCES:
        q, k, v = (torch.randn(batch, 6, tokens, 64, dtype=dtype, requires_grad=True) for _ in range(3))

        def fused(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> None:
            F.scaled_dot_product_attention(q, k, v).sum().backward()

        def plain(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> None:
            (layer._attend(q, k) @ v).sum().backward()

        seconds = {"fused": median_seconds(fused, 9), "plain": median_seconds(plain, 9)}
        rows.append({"dtype": str(dtype).removeprefix("torch."), "tokens": tokens, "batch": batch, **seconds,
                     "ratio": seconds["fused"] / seconds["plain"]})  # fmt: skip
    return rows


def training_step(keep: bool) -> float:
    """Median seconds of a step of pointvit_small: 32 clouds of 1,024 points, bf16 autocast, AdamW."""
    if keep:
        keep_freed_memory()
    torch.manual_seed(0)
    model = create_model("pointvit_small").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    clouds, labels = torch.rand(32, 1024, 3), torch.randint(40, (32,))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(clouds), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return median_seconds(step, 5)


def main() -> None:
    if len(sys.argv) == 2:
        print(training_step(sys.argv[1] == "keep"))
        return
    keep_freed_memory()
    command = [sys.executable, __file__]
    steps = {
        name: float(subprocess.run([*command, name], capture_output=True, text=True, check=True).stdout)
        for name in ("default", "keep")
    }
    result = {
        **surroundings(),
        "attention": attention(torch.float32) + attention(torch.bfloat16),
        "training_step": {**steps, "ratio": steps["default"] / steps["keep"]},
    }
    write("cpu_training", result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
