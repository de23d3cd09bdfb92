"""What the benchmarks share: medians of runs in turn, made data, the machine, and how results are written."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

RESULTS = Path(__file__).parent / "results"


def is_quick(description: str | None) -> bool:
    """Whether the command line says --quick."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs; writes nothing"
    )
    return bool(parser.parse_args().quick)


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


def peak_mb(function: Callable[[], object]) -> float:
    """How far the resident memory rises above what it is before the call, in MB (Linux)."""

    def resident(field: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak so far
    before = resident("VmRSS")
    function()
    return (resident("VmHWM") - before) / 1024


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference over the largest number."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def made_clouds(count: int, size: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """``(N, P, 3), (N,)``: clouds in the unit sphere, 40 classes that differ in the lengths of their axes."""
    generator = torch.Generator(device).manual_seed(0)
    labels = torch.randint(40, (count,), generator=generator, device=device)
    axes = 0.2 + 0.8 * torch.rand(40, 3, generator=generator, device=device)
    points = torch.randn(count, size, 3, generator=generator, device=device) * axes[labels, None]
    return points / points.norm(dim=2).amax(dim=1)[:, None, None], labels


def surroundings(packages: Sequence[str] = ()) -> dict[str, object]:
    return {
        "machine": {
            "cpu": _processor(),
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
        },
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
        },
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.machine()])[0]}, {torch.backends.cpu.get_cpu_capability()}"


def write(name: str, result: Mapping[str, object]) -> None:
    """Writes benchmarks/results/<name>.json in one go."""
    RESULTS.mkdir(exist_ok=True)
    temporary = RESULTS / f"{name}.json.part"
    temporary.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    temporary.replace(RESULTS / f"{name}.json")
