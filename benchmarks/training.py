"""Training the ViT-S point encoder on the CPU beside textbook code: python benchmarks/training.py

- A step (32 clouds of 1,024 points, bf16 autocast, AdamW) of several arms with the same weights and clouds.
  Each arm is a process of its own, because the allocator's settings and the peak of memory are a process's.
  They take turns, one step each.
- The losses of those steps. The textbook's two arms differ in the order of each batch, which changes nothing
  but the order of sums: how far they drift apart is what rounding does.
- Clouds a second out of the data module, augmented, and seconds from the start of `pointvit fit` to its first
  step. $POINTVIT_DATA/modelnet40 is read if it is there, else data of that size is made.
- Attention by two matrix products beside PyTorch's fused kernel, forward and backward.

Writes benchmarks/results/training.json. Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from common import interleaved_seconds, is_quick, made_clouds, surroundings, write
from pytorch_lightning.callbacks import Callback
from training_arm import ARMS, POINTS, STEPS

from pointvit.data.hdf5 import write_hdf5_split
from pointvit.data.module import PointCloudDataModule, step_seed
from pointvit.training.memory import keep_freed_memory
from pointvit.trunk import Attention, TrunkConfig

BATCH, WARMUP = 32, 2
SEQUENCES = ((65, 32), (129, 32), (197, 16), (257, 16), (513, 8))


def take_turns(names: list[str], batch: int, depth: int, steps: int) -> dict[str, dict[str, Any]]:
    """Every arm's losses, median seconds and peak of memory above what it held before its first step."""
    script = str(Path(__file__).with_name("training_arm.py"))
    processes = {
        name: subprocess.Popen(
            [sys.executable, script, name, str(batch), str(depth)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for name in names
    }
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(steps):
        for name, process in processes.items():
            process.stdin.write("\n")
            answers[name].append(json.loads(process.stdout.readline()))
    results = {}
    for name, process in processes.items():
        rest, _ = process.communicate()
        seconds = torch.tensor([answer["seconds"] for answer in answers[name]][min(WARMUP, steps - 1) :])
        losses = [answer["loss"] for answer in answers[name]]
        results[name] = {"seconds": seconds.median().item(), **json.loads(rest), "losses": losses}
        print(name, results[name], flush=True)
    return results


def compared(arms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    base = arms["textbook"]
    ratios = {
        name: {"time": base["seconds"] / arm["seconds"], "memory": arm["peak_mb"] / base["peak_mb"]}
        for name, arm in arms.items()
    }
    losses = {name: torch.tensor(arm["losses"], dtype=torch.float64) for name, arm in arms.items()}
    noise = (losses["textbook"] - losses["textbook, freed memory kept"]).abs().max().item()
    apart = (losses["textbook"] - losses["pointvit fit"]).abs().max().item()
    return {"arms": arms, "ratios": ratios, "loss_difference": apart, "loss_noise": noise}


@contextmanager
def modelnet(made: int) -> Iterator[tuple[str, str]]:
    """The folder of ModelNet40 and its name; or one of ``made`` clouds."""
    root = Path(os.environ.get("POINTVIT_DATA", "data")) / "modelnet40"
    if root.is_dir():
        yield str(root), "modelnet40"
        return
    with tempfile.TemporaryDirectory() as folder:
        points, labels = (t.numpy() for t in made_clouds(made, POINTS))
        names = [str(i) for i in range(40)]
        write_hdf5_split(Path(folder), "train", points, labels, [str(i) for i in range(made)], names)
        yield folder, "made data"


def loader(root: str, epochs: int) -> float:
    """Clouds a second that the data module gives, augmented as in training."""
    data = PointCloudDataModule("modelnet40", root, POINTS, BATCH)
    batches = data.train_dataloader()
    start = time.perf_counter()
    for epoch in range(epochs):
        for step, (clouds, _) in enumerate(batches):
            seed = step_seed(data.seed, epoch * len(batches) + step)
            data.augment(clouds, torch.Generator().manual_seed(seed))
    return epochs * len(batches) * BATCH / (time.perf_counter() - start)


class FirstStep(Callback):
    """Says when the first step is done."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        print("first step", flush=True)


def seconds_to_first_step(root: str, more: list[str]) -> float:
    """From starting `pointvit fit` to the end of its first step."""
    options = {
        "data.name": "modelnet40",
        "data.root": root,
        "model.model": "pointvit_small",
        "trainer.accelerator": "cpu",
        "trainer.precision": "bf16-mixed",
        "trainer.max_steps": "1",
        "trainer.limit_val_batches": "0",
        "trainer.logger": "false",
        "trainer.enable_checkpointing": "false",
        "trainer.enable_progress_bar": "false",
        "trainer.callbacks+": "training.FirstStep",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    with tempfile.TemporaryDirectory() as folder:
        flags.append(f"--trainer.default_root_dir={folder}")
        start = time.perf_counter()
        command = [sys.executable, "-m", "pointvit.cli", "fit", *flags, *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            for line in process.stdout:
                if line.startswith("first step"):
                    seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"pointvit fit ended with status {process.returncode}")
    return seconds


def attention(dtype: torch.dtype, repeats: int) -> list[dict[str, object]]:
    """One row per sequence length, ViT-S heads: milliseconds of forward and backward, fused and plain."""
    layer = Attention(TrunkConfig(embed_dim=384, num_heads=6))
    rows: list[dict[str, object]] = []
    for tokens, batch in SEQUENCES:
        q, k, v = (torch.randn(batch, 6, tokens, 64, dtype=dtype, requires_grad=True) for _ in range(3))
        seconds = interleaved_seconds(
            {
                "fused": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v).sum().backward(),
                "plain": lambda q=q, k=k, v=v: (layer._attend(q, k) @ v).sum().backward(),
            },
            repeats,
        )
        milliseconds = {name: 1e3 * value for name, value in seconds.items()}
        rows.append({"dtype": str(dtype).removeprefix("torch."), "batch": batch, "tokens": tokens,
                     "milliseconds": milliseconds, "ratio": seconds["fused"] / seconds["plain"]})  # fmt: skip
    return rows


def main() -> None:
    quick = is_quick(__doc__)
    names = list(ARMS)
    step = compared(take_turns(names[:3], 2, 1, 1) if quick else take_turns(names, BATCH, 12, STEPS))
    with modelnet(made=400 if quick else 9843) as (root, name):
        clouds = loader(root, epochs=1 if quick else 3)
        more = ["--model.settings", '{"depth": 1}', "--data.batch_size=2"] if quick else []
        start = seconds_to_first_step(root, more)
    needed = BATCH / step["arms"]["pointvit fit"]["seconds"]
    data = {"data": name, "clouds_per_second": clouds, "step_clouds_per_second": needed,
            "ratio": clouds / needed, "seconds_to_first_step": start}  # fmt: skip
    print(step["ratios"], data, flush=True)
    keep_freed_memory()
    rows = [row for dtype in (torch.float32, torch.bfloat16) for row in attention(dtype, 1 if quick else 9)]
    sizes = {"batch": BATCH, "points": POINTS, "steps": STEPS}
    if not quick:
        write("training", {**surroundings(), "sizes": sizes, "step": step, "data": data, "attention": rows})


if __name__ == "__main__":
    main()
