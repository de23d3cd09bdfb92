"""What only a GPU can tell, in under 8 minutes on one of them: python benchmarks/gpu.py OUT

Indices of every back end of the point operations beside the reference, and their times beside PyTorch3D (or
torch); tokens a second of both encoders beside timm (or the textbook); an epoch of training ViT-S on made
clouds, as many as ModelNet40 has, in three precisions, eager and compiled, with its peak of memory. It needs
torch, triton, einops, safetensors and numpy; PyTorch3D and timm are used where they are installed. Writes
OUT/gpu.json (by default into $OUT), which belongs into benchmarks/results, and prints its tables.

--full ROOT instead trains 300 epochs on ModelNet40 in ROOT and tests, for which it also needs h5py,
pytorch-lightning and rich. --quick runs every part at tiny sizes, and without a GPU, in Triton's interpreter.
A part that fails is recorded with its error, and what there is no time for is left out: the others are still
of use.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when Triton is imported

import tables
import textbook
import torch.nn.functional as F
from common import interleaved_seconds, made_clouds, surroundings
from torch import Tensor, nn

import pointvit
from pointvit.ops import available_backends, ball_query, farthest_point_sample, group, knn
from pointvit.ops.choice import choose

Row = dict[str, Any]
HOST = ("numpy", "buckets")
PRECISIONS = {
    # name: of float32 products (torch.set_float32_matmul_precision), autocast to bfloat16
    "bf16": ("high", True),
    "tf32": ("high", False),
    "fp32": ("highest", False),
}


@dataclass(frozen=True)
class Scale:
    device: str
    clouds: tuple[tuple[int, int, int], ...] = (
        (32, 1024, 64),
        (32, 8192, 512),
        (1, 100_000, 512),
    )
    """Batch, points and groups of the operators."""
    repeats: int = 10
    batch: int = 256
    """Images or clouds that an encoder is given."""
    train_clouds: int = 9843
    train_batch: int = 32
    depth: int = 12
    epochs: int = 300
    precisions: tuple[str, ...] = tuple(PRECISIONS)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, functions: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Median seconds of each, until the device has finished."""

        def finished(function: Callable[[], object]) -> None:
            function()
            self.synchronize()

        timed = {name: lambda f=function: finished(f) for name, function in functions.items()}
        return interleaved_seconds(timed, self.repeats)


def operations(points: Tensor, centers: Tensor, groups: int, k: int) -> dict[str, Callable[[str], Tensor]]:
    return {
        "farthest_point_sample": lambda backend: farthest_point_sample(points, groups, backend=backend),
        "knn": lambda backend: knn(centers, points, k, backend=backend),
        "ball_query": lambda backend: ball_query(centers, points, 0.2, k, backend=backend),
    }


def usable(operation: str) -> list[str]:
    names = [name for name, reason in available_backends().items() if reason is None]
    return [name for name in names if not (operation == "ball_query" and name == "pytorch3d")]


def parity(scale: Scale) -> Iterator[Row]:
    """The share of queries or clouds with the reference's indices, on clouds that try the order of ties."""
    even = torch.rand(2, 300, 3, generator=torch.Generator().manual_seed(0))
    clouds = {
        "uniform": even,
        "lattice": (4 * even).round() / 4,
        "duplicates": even[:, :100].repeat(1, 3, 1),
        "far away": even + 1000.0,
    }
    for cloud, points in clouds.items():
        centers = group(points, farthest_point_sample(points, 24))
        on_host = operations(points, centers, 24, 16)
        on_device = operations(points.to(scale.device), centers.to(scale.device), 24, 16)
        for name in on_host:
            expected = on_host[name]("reference")
            for backend in usable(name):
                found = (on_host if backend in HOST else on_device)[name](backend).cpu()
                same = (found == expected).all(dim=-1).double().mean().item()
                yield {"operation": name, "cloud": cloud, "backend": backend, "same": same}


def operators(scale: Scale) -> Iterator[Row]:
    """Milliseconds of what is taken and of every back end that runs on the device."""
    for batch, size, groups in scale.clouds:
        points, _ = made_clouds(batch, size, scale.device)
        centers = group(points, farthest_point_sample(points, groups))
        for name, function in operations(points, centers, groups, 32).items():
            taken = choose(name, scale.device, size, groups)
            backends = {taken, *usable(name)} - ({*HOST, "reference"} - {taken})
            peer = "pytorch3d" if "pytorch3d" in backends else "torch"
            seconds = scale.seconds({b: lambda f=function, b=b: f(b) for b in sorted(backends)})
            yield {"operation": name, "batch": batch, "points": size, "groups": groups, "backend": taken,
                   "milliseconds": {backend: 1e3 * value for backend, value in seconds.items()},
                   "peer": peer, "ratio": seconds[peer] / seconds[taken]}  # fmt: skip


def encoders(scale: Scale) -> Iterator[Row]:
    """Tokens a second forward, beside a peer of the same size."""
    images = torch.randn(scale.batch, 3, 224, 224, device=scale.device)
    clouds, _ = made_clouds(scale.batch, 1024, scale.device)
    for size, precision in itertools.product(("small", "base"), scale.precisions):
        for name, x, tokens in ((f"vit_{size}_patch16_224", images, 197), (f"pointvit_{size}", clouds, 65)):
            ours = pointvit.create_model(name, head="linear", depth=scale.depth)
            peer, theirs = other_encoder(name, ours, scale)
            models = {"pointvit": ours, peer: theirs}
            for model in models.values():
                model.to(scale.device).eval()
            with precise(precision, scale), torch.inference_mode():
                seconds = scale.seconds({side: lambda m=model, x=x: m(x) for side, model in models.items()})
            rates = {side: len(x) * tokens / value for side, value in seconds.items()}
            yield {"model": name, "batch": len(x), "precision": precision, "peer": peer,
                   "tokens_per_second": rates, "ratio": rates["pointvit"] / rates[peer]}  # fmt: skip


def other_encoder(name: str, ours: pointvit.ViT, scale: Scale) -> tuple[str, nn.Module]:
    trunk = ours.config.trunk
    shape = {"dim": trunk.embed_dim, "heads": trunk.num_heads, "depth": scale.depth}
    if ours.config.modality == "points":
        return "textbook", textbook.load(textbook.PointEncoder(**shape), ours)
    if importlib.util.find_spec("timm") is None:
        return "textbook", textbook.load(textbook.ImageEncoder(**shape), ours)
    import timm

    return "timm", timm.create_model(name, depth=scale.depth)


def precise(precision: str, scale: Scale) -> torch.autocast:
    products, half = PRECISIONS[precision]
    torch.set_float32_matmul_precision(products)
    return torch.autocast(scale.device, torch.bfloat16, enabled=half)


def epoch(scale: Scale, precision: str, compiled: bool) -> Row:
    """One epoch of ViT-S, all on the device; the first three steps, which compile, are not counted."""
    torch.manual_seed(0)
    torch.compiler.reset()
    points, labels = made_clouds(scale.train_clouds, 1024, scale.device)
    model = pointvit.create_model("pointvit_small", head="linear", depth=scale.depth).to(scale.device).train()
    if compiled:
        model.compile(dynamic=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05, fused=True)
    order = torch.randperm(len(points), device=scale.device)
    batches = [rows for rows in order.split(scale.train_batch) if len(rows) == scale.train_batch]

    def step(rows: Tensor) -> Tensor:
        with precise(precision, scale):
            loss = F.cross_entropy(model(points[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    start = time.perf_counter()
    for rows in batches[:3]:
        step(rows)
    scale.synchronize()
    first = time.perf_counter() - start
    if scale.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    losses = torch.stack([step(rows) for rows in batches])
    scale.synchronize()
    seconds = time.perf_counter() - start
    if not math.isfinite(losses[-1].item()):
        raise FloatingPointError(f"the loss became {losses[-1].item()}")
    peak = torch.cuda.max_memory_allocated() / 2**20 if scale.device == "cuda" else None
    return {"precision": precision, "compiled": compiled, "batch": scale.train_batch,
            "clouds": len(batches) * scale.train_batch, "seconds_to_third_step": first, "seconds": seconds,
            "peak_mb": peak, "mean_loss_of_last_steps": losses[-20:].mean().item()}  # fmt: skip


def eager_epochs(scale: Scale) -> Iterator[Row]:
    for precision in scale.precisions:
        yield epoch(scale, precision, compiled=False)


def compiled_epochs(scale: Scale) -> Iterator[Row]:
    for precision in scale.precisions:
        yield epoch(scale, precision, compiled=True)


def full_training(scale: Scale, root: str) -> Iterator[Row]:
    """All epochs on ModelNet40 as `pointvit fit` trains, and the test split's scores of the last weights."""
    import pytorch_lightning as pl

    from pointvit.data.module import PointCloudDataModule
    from pointvit.training import PointClassifier, Scores

    pl.seed_everything(0)
    data = PointCloudDataModule("modelnet40", root)
    module = PointClassifier(
        "pointvit_small", settings={"depth": scale.depth}, warmup_epochs=min(10, scale.epochs / 2)
    )
    trainer = pl.Trainer(
        accelerator=scale.device, devices=1, max_epochs=scale.epochs, precision="bf16-mixed", logger=False,
        gradient_clip_val=1.0, limit_val_batches=0, enable_checkpointing=False, enable_model_summary=False,
        enable_progress_bar=False, use_distributed_sampler=False,
    )  # fmt: skip
    start = time.perf_counter()
    trainer.fit(module, data)
    seconds = time.perf_counter() - start
    model = module.model.to(scale.device).eval()
    confusion = torch.zeros(40, 40, dtype=torch.int64)
    with torch.inference_mode(), torch.autocast(scale.device, torch.bfloat16):
        test = data.dataset("test")
        for points, labels in zip(test.points.split(64), test.labels.split(64), strict=True):
            found = model(points.to(scale.device)).argmax(dim=1).cpu()
            confusion.index_put_((labels, found), torch.tensor(1), accumulate=True)
    scores = Scores.of(confusion)
    yield {"epochs": scale.epochs, "seconds": seconds, "overall_accuracy": scores.overall_accuracy,
           "mean_class_accuracy": scores.mean_class_accuracy}  # fmt: skip


def collected(rows: Iterator[Row], deadline: float) -> dict[str, Any]:
    """The rows of a part as far as they came, and why no more did."""
    part: dict[str, Any] = {"rows": []}
    try:
        while time.perf_counter() < deadline:
            row = next(rows, None)
            if row is None:
                return part
            part["rows"].append(row)
            print(json.dumps(row), flush=True)
        part["note"] = "the time was over"
    except Exception as error:  # whatever it is, the other parts are still wanted
        traceback.print_exc()
        part["note"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return part


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", default=os.environ.get("OUT"), help="folder to write into")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--full", metavar="ROOT", help="a whole training on ModelNet40 instead")
    parser.add_argument("--minutes", type=float, default=7.0, help="begin nothing new after these")
    options = parser.parse_args()
    if options.out is None:
        parser.error("name the folder to write into: gpu.py OUT, or the variable OUT")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.quick:
        parser.error("there is no CUDA device; --quick runs without one")
    scale = Scale(device)
    if options.quick:
        scale = Scale(device, ((2, 60, 6),), 1, 1, 12, 4, 1, 1, ("bf16",))
    deadline = time.perf_counter() + 60 * options.minutes
    parts = {
        "parity": parity(scale),
        "operators": operators(scale),
        "encoders": encoders(scale),
        "epochs": eager_epochs(scale),
        "compiled_epochs": compiled_epochs(scale),
    }
    if options.full:
        parts = {"full": full_training(scale, options.full)}
    result = surroundings()
    result["machine"]["gpu"] = torch.cuda.get_device_name() if device == "cuda" else None
    name = "gpu_full" if options.full else "gpu"
    file = Path(options.out) / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        print(f"== {part}", flush=True)
        result[part] = collected(rows, deadline)
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        print(tables.TABLES[f"{name}/{part}"](result), flush=True)


if __name__ == "__main__":
    main()
