"""What ``auto`` takes, the operators that torch's compiler sees, and memory."""

import subprocess
import sys

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

from pointvit.ops import ball_query, farthest_point_sample, group, knn, native, numpy_backend, triton_backend
from pointvit.ops.choice import choose, explain


def test_the_table_on_the_cpu() -> None:
    assert choose("farthest_point_sample", "cpu", 1024, 64) == "numpy"
    assert choose("farthest_point_sample", "cpu", 100_000, 64) == "numpy", "few samples touch every bucket"
    assert choose("farthest_point_sample", "cpu", 100_000, 512) == "buckets"
    assert choose("knn", "cpu", 64, 16) == "torch"
    assert choose("knn", "cpu", 1024, 64) == "numpy"
    assert choose("knn", "cpu", 100_000, 512) == "buckets"
    assert choose("ball_query", "cpu", 1_000_000, 2048) == "numpy"


@pytest.mark.parametrize("reason", [None, "not installed"])
def test_on_cuda_triton_is_taken_where_it_can_be_used(
    reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_backend, "why_unavailable", lambda: reason)
    taken = "torch" if reason else "triton"
    assert choose("farthest_point_sample", "cuda", 1024, 64) == choose("knn", "cuda", 1024, 64) == taken
    assert choose("ball_query", "cuda", 1024, 64) == choose("knn", "mps", 1024, 64) == "torch"
    assert explain("cuda")["knn"].startswith(f"{taken} (")


def test_auto_asks_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    sample = numpy_backend.farthest_point_sample

    def recorded(points: Tensor, num_samples: int, lengths: Tensor, start: Tensor) -> Tensor:
        asked.append(points.shape)
        return sample(points, num_samples, lengths, start)

    monkeypatch.setattr(numpy_backend, "farthest_point_sample", recorded)
    farthest_point_sample(torch.rand(2, 30, 3), 4)
    assert asked == [(2, 30, 3)]


def test_the_explanation_names_sizes_and_reasons() -> None:
    rows = explain("cpu")
    assert list(rows) == ["farthest_point_sample", "knn", "ball_query"]
    assert "buckets from 40,000 points and 256 groups (most distances" in rows["farthest_point_sample"]


def tokens(points: Tensor, lengths: Tensor | None = None, start: Tensor | int = 0) -> Tensor:
    centers = group(points, farthest_point_sample(points, 5, lengths, start))
    return torch.cat([knn(centers, points, 3, lengths), ball_query(centers, points, 0.3, 2, lengths)], dim=2)


def test_one_compiled_graph_for_every_batch() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    for arguments in (lambda b: (), lambda b: (torch.arange(b) + 7, torch.arange(b))):
        torch.compiler.reset()
        counter.clear()
        compiled = torch.compile(tokens, fullgraph=True, dynamic=True, backend=counter)
        for batch in (2, 3, 7):
            points = torch.rand(batch, 20, 3)
            assert torch.equal(compiled(points, *arguments(batch)), tokens(points, *arguments(batch)))
        assert counter.frame_count == 1


def test_operators_keep_the_contract_of_torch() -> None:
    points, lengths = torch.rand(2, 9, 3), torch.tensor([9, 4])
    some = points[:, :3].contiguous()
    torch.library.opcheck(torch.ops.pointvit.farthest_point_sample, (points, 4, lengths, lengths - 1, "auto"))
    torch.library.opcheck(torch.ops.pointvit.knn, (some, points, 4, lengths, "auto"))
    torch.library.opcheck(torch.ops.pointvit.ball_query, (some, points, 0.3, 4, lengths, "auto"))


def test_checks_of_values_hold_in_a_compiled_graph() -> None:
    compiled = torch.compile(tokens, fullgraph=True, backend="eager")
    with pytest.raises(ValueError, match=r"lengths must lie in \[1, 20\], got \[20, 21\]"):
        compiled(torch.rand(2, 20, 3), torch.tensor([20, 21]))


def test_sampling_in_torch_can_be_exported_with_an_open_batch() -> None:
    class Sample(nn.Module):
        def forward(self, points: Tensor) -> Tensor:
            batch, size, _ = points.shape
            zeros = torch.zeros(batch, dtype=torch.int64)
            return native.farthest_point_sample(points, 6, zeros + size, zeros)

    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(Sample(), (torch.rand(2, 20, 3),), dynamic_shapes=({0: batch},))
    points = torch.rand(5, 20, 3)
    assert torch.equal(exported.module()(points), farthest_point_sample(points, 6))


MEMORY = """
import pathlib, sys, torch
from pointvit.ops import farthest_point_sample, group, knn
torch.set_num_threads(1)

def tokens(points):
    chosen = farthest_point_sample(points, 500, backend=sys.argv[1])
    knn(group(points, chosen), points, 32, backend=sys.argv[1])

def resident(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

points = torch.rand(1, 100_000, 3)
tokens(points[:, :1000])  # what is loaded and kept once
pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
before = resident("VmRSS")
tokens(points)
print((resident("VmHWM") - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")
@pytest.mark.parametrize("backend", ["numpy", "buckets"])
def test_memory_is_linear_in_the_points(backend: str) -> None:
    """A matrix of distances would hold 500 x 100,000 float32, 191 MB."""
    command = [sys.executable, "-c", MEMORY, backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 80
