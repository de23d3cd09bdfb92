"""Buckets forced on small clouds: the same indices as by definition, whatever the boxes leave out."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pointvit.ops import buckets, farthest_point_sample, group, knn


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "_SIZE": 4,
        "_CANDIDATES": 6,
        "_CACHED": 64,
        "_TOGETHER": 40,
        "_ONE_BY_ONE": 2,
    }.items():
        monkeypatch.setattr(buckets, name, value)


@st.composite
def clouds(draw: st.DrawFn) -> Tensor:
    """(1, P, 3): uniform, on a lattice full of ties, in far clusters, or flat; at the origin or away."""
    kind, dtype = draw(st.sampled_from("ulcf")), draw(st.sampled_from([torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    points = torch.rand(1, draw(st.integers(1, 120)), 3, generator=generator, dtype=dtype)
    if kind == "l":
        points = (points * draw(st.integers(1, 4))).round()
    elif kind == "c":
        points = 1e-3 * points + 100 * (points * 3).round()[..., [2, 0, 1]]
    elif kind == "f":
        points[..., 1] = 0.0
    return points * draw(st.sampled_from([1.0, 1e-18, 1e15])) + draw(st.sampled_from([0.0, 1e3]))


sizes = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@sizes
@given(points=clouds(), count=st.integers(1, 140), start=st.integers(0, 10**6))
def test_sampling(points: Tensor, count: int, start: int) -> None:
    first = start % points.shape[1]
    expected, found = (farthest_point_sample(points, count, None, first, b) for b in ("reference", "buckets"))
    assert torch.equal(expected, found)


@sizes
@given(points=clouds(), queries=clouds(), k=st.integers(1, 130))
def test_neighbours(points: Tensor, queries: Tensor, k: int) -> None:
    """Queries of another cloud as well, which may lie far outside the boxes."""
    for some in (queries[:, :10], points[:, ::7]):
        expected, found = (knn(some, points, k, backend=b) for b in ("reference", "buckets"))
        assert torch.equal(expected, found)


def test_most_distances_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = []
    apply = buckets._apply

    def counted(
        cut: buckets.Buckets, positions: Tensor, nearest: Tensor, farthest: Tensor, scratch: Tensor
    ) -> None:
        near = cut.box_distances(positions) < farthest[:, None]
        applied.append((int(near.sum()), near.numel()))
        apply(cut, positions, nearest, farthest, scratch)

    monkeypatch.setattr(buckets, "_apply", counted)
    monkeypatch.setattr(buckets, "_CANDIDATES", 50)
    points = torch.rand(1, 2000, 3)
    chosen = farthest_point_sample(points, 300, backend="buckets")
    assert torch.equal(chosen, farthest_point_sample(points, 300, backend="reference"))
    done, possible = (sum(column) for column in zip(*applied, strict=True))
    assert done < 0.2 * possible
    centers = group(points, chosen)
    assert torch.equal(knn(centers, points, 5, backend="buckets"), knn(centers, points, 5, backend="torch"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_coordinates_without_finite_distances_are_left_to_numpy(value: float) -> None:
    points = torch.rand(2, 50, 3)
    points[0, 7, 1] = value
    for b in (points, points.flip(0)):
        chosen = [farthest_point_sample(b, 9, backend=name) for name in ("numpy", "buckets")]
        assert torch.equal(*chosen)
        assert torch.equal(*(knn(b[:, 5:9], b, 6, backend=name) for name in ("numpy", "buckets")))
