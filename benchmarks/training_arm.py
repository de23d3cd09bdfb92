"""One arm of benchmarks/training.py, in its own process: python benchmarks/training_arm.py NAME BATCH DEPTH

Every line that comes in is answered by one training step; when no more come, the peak of memory follows.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

import textbook
import torch
import torch.nn.functional as F
from common import made_clouds, peak_mb
from torch import nn

import pointvit
from pointvit.training.memory import keep_freed_memory
from pointvit.training.optim import adamw

POINTS, STEPS = 1024, 20


@dataclass(frozen=True)
class Arm:
    ours: bool = True
    keep_memory: bool = False
    grad_checkpointing: bool = False
    turned: bool = False
    """Whether each batch comes in reverse order."""


ARMS = {
    "textbook": Arm(ours=False),
    "textbook, freed memory kept": Arm(ours=False, keep_memory=True, turned=True),
    "pointvit fit": Arm(keep_memory=True),
    "pointvit, default allocator": Arm(),
    "pointvit fit, grad_checkpointing": Arm(keep_memory=True, grad_checkpointing=True),
}


def run_arm(arm: Arm, batch: int, depth: int) -> None:
    if arm.keep_memory:
        keep_freed_memory()
    torch.manual_seed(0)
    model: nn.Module = pointvit.create_model("pointvit_small", head="linear", depth=depth)
    model.trunk.grad_checkpointing = arm.grad_checkpointing
    if not arm.ours:
        model = textbook.load(textbook.PointEncoder(depth=depth), model)
    group = {"params": list(model.train().parameters()), "lr": 1e-4, "weight_decay": 0.05}
    optimizer = adamw([group]) if arm.ours else torch.optim.AdamW([group])
    batches = zip(*(t.split(batch) for t in made_clouds(batch * STEPS, POINTS)), strict=True)

    def steps() -> None:
        for _, (clouds, labels) in zip(sys.stdin, batches, strict=False):
            if arm.turned:
                clouds, labels = clouds.flip(0), labels.flip(0)
            start = time.perf_counter()
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(clouds), labels)
            loss.backward()
            optimizer.step()
            print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss.item()}), flush=True)

    print(json.dumps({"peak_mb": peak_mb(steps)}), flush=True)


if __name__ == "__main__":
    run_arm(ARMS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3]))
