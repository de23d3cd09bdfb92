"""What this machine offers: for ``pointvit doctor``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

import torch

from pointvit.ops import available_backends
from pointvit.ops.choice import explain

PACKAGES = (
    "pointvit",
    "torch",
    "pytorch-lightning",
    "einops",
    "h5py",
    "safetensors",
    "laspy",
    "onnx",
    "onnxruntime",
    "open3d-cpu",
    "open3d",
    "easypytorch3d",
    "timm",
    "transformers",
    "huggingface_hub",
)


def environment() -> list[tuple[str, str]]:
    """``(what, state)`` rows: versions, devices, back ends with the reason why one cannot be used, speed."""
    bf16 = "fast" if fast_bf16() else "slow"
    rows = [
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        *((name, _version(name)) for name in PACKAGES),
        ("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, bf16 {bf16}"),
        ("cuda", ", ".join(_cuda_devices()) or "no device; everything runs on the CPU"),
    ]
    rows += [(f"back end {name}", reason or "works") for name, reason in available_backends().items()]
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        rows += [(f"auto on {device}, {operation}", why) for operation, why in explain(device).items()]
    return [*rows, ("speed", _speed())]


def usable_device(name: str) -> str:
    """The device of that name; ``auto`` is a GPU where there is one.

    Raises:
        ValueError: for a name that torch does not know, or a device that is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:  # torch's own for a device that is not there
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {name} cannot be used ({reason}); use cpu") from error
    return name


def fast_bf16(device: str = "cpu") -> bool:
    """Whether bfloat16 matrix products are native there."""
    if device == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="ascii", errors="replace") if cpuinfo.is_file() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cuda_devices() -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


@torch.inference_mode()
def _speed() -> str:
    """A small known job: pointvit_tiny on 16 clouds of 1,024 points."""
    from pointvit.variants import create_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = create_model("pointvit_tiny").eval().to(device)
    clouds = torch.rand(16, 1024, 3, generator=torch.Generator().manual_seed(0)).to(device)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        model(clouds).sum().item()
        times.append(time.perf_counter() - start)
    return f"pointvit_tiny: {16 / min(times[1:]):.0f} clouds of 1,024 points a second on {device}"
