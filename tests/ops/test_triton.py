"""The Triton kernels: on CUDA where there is a device, and in Triton's interpreter, in its own process."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from pointvit.ops import available_backends, farthest_point_sample, group, knn

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
REASON = available_backends()["triton"]
usable = [pytest.mark.cuda, pytest.mark.skipif(REASON is not None, reason=f"triton: {REASON}")]
if DEVICE == "cuda":
    usable.append(pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


def on_device(function: pytest.Function) -> pytest.Function:
    for mark in usable:
        function = mark(function)
    return function


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


CLOUDS = {
    "random": (rand(2, 100, 3), None),
    "lengths": (rand(3, 90, 3), torch.tensor([90, 33, 1])),
    "lattice": ((rand(2, 70, 3) * 3).round(), torch.tensor([70, 51])),
    "duplicates": (rand(1, 8, 3).repeat(1, 4, 1), None),
    "shifted": (rand(1, 77, 3) + 1000.0, None),
    "float64": (rand(2, 60, 3, dtype=torch.float64) + 7_691_239.55, None),
    "bfloat16": (rand(2, 80, 3).bfloat16(), None),
}


@on_device
@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(("groups", "size"), [(1, 1), (9, 7)])
def test_triton_equals_torch(cloud: str, groups: int, size: int) -> None:
    points, lengths = CLOUDS[cloud]
    last = points.shape[1] - 1 if lengths is None else lengths - 1
    points, lengths = points.to(DEVICE), None if lengths is None else lengths.to(DEVICE)
    for start in (0, last.to(DEVICE) if isinstance(last, Tensor) else last):
        chosen = [farthest_point_sample(points, groups, lengths, start, b) for b in ("torch", "triton")]
        assert torch.equal(*chosen)
    centers = group(points, chosen[0])
    assert torch.equal(*(knn(centers, points, size, lengths, b) for b in ("torch", "triton")))


@on_device
def test_several_tiles_and_more_than_there_are() -> None:
    points, lengths = (rand(2, 2500, 3) * 50).round().to(DEVICE), torch.tensor([2500, 5]).to(DEVICE)
    chosen = [farthest_point_sample(points, 40, lengths, backend=b) for b in ("torch", "triton")]
    assert torch.equal(*chosen)
    few = points[:, :6]  # the interpreter sorts slowly
    assert torch.equal(*(knn(few[:, :5], few, 20, backend=b) for b in ("torch", "triton")))


@on_device
def test_bad_lengths_are_said_or_asserted_on_the_device() -> None:
    if DEVICE == "cuda":
        pytest.skip("a device assertion ends the process")
    with pytest.raises(ValueError, match="lengths must lie in"):
        knn(rand(1, 2, 3), rand(1, 5, 3), 2, torch.tensor([6]), backend="triton")


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
def test_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"{2 * len(CLOUDS) + 2} passed, 2 skipped" in done.stdout


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes tensors on the CPU")
def test_tensors_on_the_cpu_are_refused_in_one_sentence() -> None:
    expected = "cannot be used" if REASON else "runs on CUDA, the points are on cpu"
    with pytest.raises(ValueError, match=expected):
        farthest_point_sample(rand(1, 5, 3), 2, backend="triton")
