"""What the benchmarks share: medians of interleaved runs, the machine, and how results are written."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def median_seconds(function: Callable[[], object], repeats: int, warmup: int = 2) -> float:
    return interleaved_seconds({"one": function}, repeats, warmup)["one"]


def interleaved_seconds(
    functions: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each, run in turn, so that what disturbs the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(warmup + repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if i >= warmup:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def surroundings(packages: Sequence[str] = ()) -> dict[str, object]:
    return {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
        },
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
    }


def write(name: str, result: Mapping[str, object]) -> None:
    """Writes benchmarks/results/<name>.json in one go."""
    RESULTS.mkdir(exist_ok=True)
    temporary = RESULTS / f"{name}.json.part"
    temporary.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    temporary.replace(RESULTS / f"{name}.json")
