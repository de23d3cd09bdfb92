"""Farthest point sampling and neighbours beside PyTorch3D and the usual loop: python benchmarks/point_ops.py

Each size is measured in turn with its peers in one process, and their indices are compared. Then one growing
cloud of 10,000 to a million points is grouped, each size in a process of its own (Linux): the peak above what
the process held before, and the exponent of time over points. Writes benchmarks/results/point_ops.json.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable

import textbook
import torch
from common import interleaved_seconds, median_seconds, peak_mb, surroundings, write
from torch import Tensor

from pointvit.ops import available_backends, farthest_point_sample, group, knn
from pointvit.ops.choice import choose

SIZES = ((32, 1024, 64), (32, 8192, 512), (1, 100_000, 512))
NEIGHBOURS = 32
GROWING = (10_000, 30_000, 100_000, 300_000, 1_000_000)
GROWING_GROUPS = 2048


def naive_neighbours(queries: Tensor, points: Tensor, k: int) -> Tensor:
    """All distances by differences, then a partial sort."""
    distances = ((queries[:, :, None] - points[:, None]) ** 2).sum(-1)
    return distances.topk(k, dim=2, largest=False).indices


def compared(functions: dict[str, Callable[[], Tensor]], sets: bool) -> dict[str, object]:
    """Median milliseconds, how many times ours are faster, and the share of rows with equal indices."""
    found = {name: function() for name, function in functions.items()}
    if sets:
        found = {name: index.sort(dim=-1).values for name, index in found.items()}
    seconds = interleaved_seconds(functions, repeats=9)
    peers = [name for name in functions if name != "pointvit"]
    return {
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": {name: seconds[name] / seconds["pointvit"] for name in peers},
        "same_rows": {
            name: (found[name] == found["pointvit"]).all(dim=-1).double().mean().item() for name in peers
        },
    }


def beside_peers() -> list[dict[str, object]]:
    rows = []
    with_pytorch3d = available_backends()["pytorch3d"] is None
    for batch, size, groups in SIZES:
        points = torch.rand(batch, size, 3, generator=torch.Generator().manual_seed(0))
        centers = group(points, farthest_point_sample(points, groups))
        sampling = {
            "pointvit": lambda p=points, g=groups: farthest_point_sample(p, g),
            "naive": lambda p=points, g=groups: textbook.farthest_point_sample(p, g),
        }
        searching = {"pointvit": lambda c=centers, p=points: knn(c, p, NEIGHBOURS)}
        if batch * groups * size <= 1 << 22:  # it holds three times as many numbers
            searching["naive"] = lambda c=centers, p=points: naive_neighbours(c, p, NEIGHBOURS)
        if with_pytorch3d:
            from pytorch3d.ops import knn_points, sample_farthest_points

            sampling["pytorch3d"] = lambda p=points, g=groups: sample_farthest_points(p, K=g)[1]
            searching["pytorch3d"] = lambda c=centers, p=points: knn_points(c, p, K=NEIGHBOURS).idx
        shape = {"batch": batch, "points": size, "groups": groups}
        for operation, functions in (("farthest_point_sample", sampling), ("knn", searching)):
            backend = choose(operation, "cpu", size, groups)
            row = {"operation": operation, **shape, "backend": backend}
            rows.append({**row, **compared(functions, sets=operation == "knn")})
            print(described(rows[-1]), flush=True)
    return rows


def described(row: dict) -> str:
    times = ", ".join(f"{name} {ms:.1f} ms" for name, ms in row["milliseconds"].items())
    ratios = ", ".join(f"{name} / pointvit {ratio:.2f}" for name, ratio in row["ratio"].items())
    same = ", ".join(f"{name} {100 * share:.2f} %" for name, share in row["same_rows"].items())
    size = f"{row['batch']} x {row['points']:,} -> {row['groups']}"
    return f"{row['operation']:22} {size:22} {row['backend']:8} {times}; {ratios}; same rows: {same}"


def tokenized(size: int) -> dict[str, float]:
    """Seconds, and MB above the start at the peak, for the groups of one cloud: 2,048 of 32 points."""
    points = torch.rand(1, size, 3, generator=torch.Generator().manual_seed(0))

    def tokens(points: Tensor) -> None:
        knn(group(points, farthest_point_sample(points, GROWING_GROUPS)), points, NEIGHBOURS)

    tokens(points[:, :100])  # loads what is loaded once
    peak = peak_mb(lambda: tokens(points))
    return {"points": size, "seconds": median_seconds(lambda: tokens(points), 5, 0), "peak_mb": peak}


def growing() -> dict[str, object]:
    """One row per size, and the slope of a line through log time over log points."""
    rows = []
    for size in GROWING:
        done = subprocess.run(
            [sys.executable, __file__, str(size)], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout))
        print("{points:>10,} points: {seconds:.3f} s, {peak_mb:.0f} MB".format(**rows[-1]), flush=True)
    x = torch.tensor([math.log(row["points"]) for row in rows], dtype=torch.float64)
    y = torch.tensor([math.log(row["seconds"]) for row in rows], dtype=torch.float64)
    x, y = x - x.mean(), y - y.mean()
    exponent = ((x * y).sum() / (x * x).sum()).item()
    print(f"time grows with points to the power of {exponent:.2f}")
    return {"groups": GROWING_GROUPS, "neighbours": NEIGHBOURS, "sizes": rows, "exponent": exponent}


def main() -> None:
    if len(sys.argv) == 2:
        print(json.dumps(tokenized(int(sys.argv[1]))))
        return
    packages = [
        name
        for name, present in (("numpy", True), ("easypytorch3d", not available_backends()["pytorch3d"]))
        if present
    ]
    write("point_ops", {**surroundings(packages), "beside_peers": beside_peers(), "growing": growing()})


if __name__ == "__main__":
    main()
