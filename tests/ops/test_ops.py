"""Farthest point sampling and neighbour searches: exact indices, on every back end."""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pointvit.ops import (
    BACKENDS,
    available_backends,
    ball_query,
    farthest_point_sample,
    group,
    knn,
    native,
    numpy_backend,
)

OURS = ["reference", "torch", "numpy", "buckets"]
PYTORCH3D = available_backends()["pytorch3d"]
needs_pytorch3d = pytest.mark.skipif(PYTORCH3D is not None, reason=f"pytorch3d: {PYTORCH3D}")
SIZES = [(1, 1), (16, 8), (130, 150)]  # groups and neighbours, the last more than any cloud has points


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same(results: Iterable[Tensor]) -> bool:
    first, *others = results
    return all(torch.equal(first, other) for other in others)


def clustered(batch: int = 2) -> Tensor:
    return (10 * rand(batch, 8, 1, 3, seed=1) + 1e-3 * rand(batch, 8, 12, 3, seed=2)).flatten(1, 2)


def lattice(side: int = 4) -> Tensor:
    """(1, side³, 3): integer points without duplicates, full of equal distances, in random order."""
    points = torch.cartesian_prod(*[torch.arange(float(side))] * 3)
    return points[torch.randperm(len(points), generator=torch.Generator().manual_seed(3))][None]


def padded(behind: float) -> tuple[Tensor, Tensor]:
    points, lengths = rand(4, 100, 3), torch.tensor([100, 37, 5, 1])
    for row, length in zip(points, lengths.tolist(), strict=True):
        row[length:] = behind
    return points, lengths


CLOUDS: dict[str, tuple[Tensor, Tensor | None]] = {
    "random": (rand(3, 100, 3), None),
    "clustered": (clustered(), None),
    "lattice": (lattice(), None),
    "duplicates": (rand(2, 25, 3).repeat(1, 4, 1), None),
    "all equal": (torch.full((2, 9, 3), 0.3), None),
    "one point": (rand(2, 1, 3), None),
    "on a line": (torch.linspace(-1, 1, 50)[None, :, None] * torch.tensor([1.0, 0.0, 0.0]), None),
    "padded with NaN": padded(torch.nan),
    "padded with infinity": padded(torch.inf),
    "padded with 1e6": padded(1e6),
    "padded with zeros": padded(0.0),
    "float64": (rand(2, 60, 3, dtype=torch.float64), None),
    "survey": (7_691_239.55 + 10 * rand(2, 60, 3, dtype=torch.float64), None),
    "half": (rand(2, 80, 3).half(), None),
    "bfloat16": (rand(2, 80, 3).bfloat16(), None),
}


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(("groups", "size"), SIZES)
def test_back_ends_agree(cloud: str, groups: int, size: int) -> None:
    points, lengths = CLOUDS[cloud]
    last = None if lengths is None else lengths - 1
    for start in (0, last if last is not None else points.shape[1] - 1):
        chosen = [farthest_point_sample(points, groups, lengths, start, backend) for backend in OURS]
        assert same(chosen)
        assert chosen[0].dtype == torch.int64
        assert chosen[0].shape == (len(points), groups)
    centers = group(points, chosen[0])
    assert same(knn(centers, points, size, lengths, backend) for backend in OURS)
    for radius in (1e-3, 0.2, 1.0, 3.0, torch.inf):
        assert same(ball_query(centers, points, radius, size, lengths, backend) for backend in OURS)


def naive_distance(a: list[int], b: list[int]) -> Fraction:
    return sum((Fraction(x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction(0))


def naive_samples(points: list[list[int]], count: int) -> list[int]:
    chosen = [0]
    while len(chosen) < count:
        left = [i for i in range(len(points)) if i not in chosen]
        chosen.append(
            max(left, key=lambda i: (min(naive_distance(points[i], points[j]) for j in chosen), -i))
        )
    return chosen


@pytest.mark.parametrize("backend", OURS)
def test_by_definition_in_exact_arithmetic(backend: str) -> None:
    """On integers with many equal distances, against the definitions with ties by the lowest index."""
    points = lattice(3)
    cloud = points[0].int().tolist()
    assert farthest_point_sample(points, 27, backend=backend)[0].tolist() == naive_samples(cloud, 27)

    queries = points[:, [3, 20, 11]]
    neighbours = knn(queries, points, 27, backend=backend)[0].tolist()
    inside = ball_query(queries, points, 1.0, 5, backend=backend)[0].tolist()
    for query, found, ball in zip(queries[0].int().tolist(), neighbours, inside, strict=True):
        assert found == sorted(range(27), key=lambda i: (naive_distance(query, cloud[i]), i))
        within = [i for i in range(27) if naive_distance(query, cloud[i]) <= 1]  # the boundary is inside
        assert ball == (within * 5)[:5]


@pytest.mark.parametrize("backend", OURS)
def test_worked_example(backend: str) -> None:
    points = torch.tensor([[[0.0, 0, 0], [1, 0, 0], [4, 0, 0], [4, 0, 0], [-2, 0, 0]]])
    assert farthest_point_sample(points, 7, backend=backend).tolist() == [[0, 2, 4, 1, 3, 0, 2]]
    assert farthest_point_sample(points, 3, start=4, backend=backend).tolist() == [[4, 2, 1]]
    query = torch.tensor([[[3.0, 0, 0]]])
    assert knn(query, points, 7, backend=backend).tolist() == [[[2, 3, 1, 0, 4, 2, 3]]]
    assert ball_query(query, points, 2.0, 4, backend=backend).tolist() == [[[1, 2, 3, 1]]]
    assert ball_query(query, points, 0.5, 2, backend=backend).tolist() == [[[2, 2]]], (
        "none inside: the nearest"
    )


@needs_pytorch3d
@pytest.mark.parametrize(
    "cloud", ["random", "clustered", "lattice", "on a line", "padded with 1e6", "one point"]
)
@pytest.mark.parametrize(("groups", "size"), SIZES)
def test_torch_equals_pytorch3d(cloud: str, groups: int, size: int) -> None:
    points, lengths = CLOUDS[cloud]
    chosen = [farthest_point_sample(points, groups, lengths, backend=b) for b in ("torch", "pytorch3d")]
    assert torch.equal(*chosen)
    centers = group(points, chosen[0])
    assert torch.equal(*(knn(centers, points, size, lengths, backend=b) for b in ("torch", "pytorch3d")))


@needs_pytorch3d
def test_what_pytorch3d_cannot_do_is_said() -> None:
    points = rand(1, 5, 3)
    with pytest.raises(ValueError, match="starts farthest point sampling at index 0"):
        farthest_point_sample(points, 2, start=1, backend="pytorch3d")
    with pytest.raises(ValueError, match="finds neighbours in float32 on the CPU, got float64"):
        knn(points, points.double(), 2, backend="pytorch3d")
    with pytest.raises(ValueError, match="ball_query has no pytorch3d back end"):
        ball_query(points, points, 1.0, 2, backend="pytorch3d")


def test_a_missing_backend_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKENDS["pytorch3d"], "why_unavailable", lambda: "not installed")
    with pytest.raises(ValueError, match="back end 'pytorch3d' cannot be used: not installed"):
        knn(rand(1, 5, 3), rand(1, 5, 3), 2, backend="pytorch3d")


@pytest.mark.parametrize("behind", [torch.nan, torch.inf, 1e6, 0.0])
@pytest.mark.parametrize("backend", OURS)
def test_a_padded_row_equals_its_single_run(behind: float, backend: str) -> None:
    points, lengths = padded(behind)
    chosen = farthest_point_sample(points, 12, lengths, backend=backend)
    centers = group(points, chosen)
    neighbours = knn(centers, points, 12, lengths, backend=backend)
    inside = ball_query(centers, points, 0.3, 12, lengths, backend=backend)
    for row, n in enumerate(lengths.tolist()):
        single, center = points[row : row + 1, :n], centers[row : row + 1]
        assert torch.equal(chosen[row : row + 1], farthest_point_sample(single, 12, backend=backend))
        assert torch.equal(neighbours[row : row + 1], knn(center, single, 12, backend=backend))
        assert torch.equal(inside[row : row + 1], ball_query(center, single, 0.3, 12, backend=backend))


@pytest.mark.parametrize("cloud", CLOUDS)
def test_samples_and_neighbours_are_unique_while_there_are_any(cloud: str) -> None:
    points, lengths = CLOUDS[cloud]
    counts = [points.shape[1]] * len(points) if lengths is None else lengths.tolist()
    chosen = farthest_point_sample(points, 130, lengths)
    neighbours = knn(points[:, :1], points, 130, lengths)[:, 0]
    for row, n in enumerate(counts):
        for index in (chosen[row], neighbours[row]):
            assert sorted(index[:n].tolist()) == list(range(n))
            assert index.tolist() == [index[i % n] for i in range(130)], "then the sequence repeats"


@pytest.mark.parametrize("cloud", ["random", "clustered", "duplicates"])
def test_a_shifted_cloud_has_the_indices_of_the_centred_one(cloud: str) -> None:
    """1e3 away, where a²+b²-2ab in float32 picks other points; on a grid of 2^-10 the shift is exact."""
    points = (CLOUDS[cloud][0] * 1024).round() / 1024
    shifted = points + 1000.0
    assert torch.equal(shifted - 1000.0, points)
    chosen = farthest_point_sample(points, 20)
    centers, far = group(points, chosen), group(shifted, chosen)
    assert torch.equal(farthest_point_sample(shifted, 20), chosen)
    neighbours = knn(centers, points, 8)
    assert torch.equal(knn(far, shifted, 8), neighbours)
    assert torch.equal(ball_query(far, shifted, 0.25, 8), ball_query(centers, points, 0.25, 8))

    expanded = far.square().sum(-1)[..., None] + shifted.square().sum(-1)[:, None] - 2 * far @ shifted.mT
    assert not torch.equal(expanded.argsort(dim=2, stable=True)[..., :8], neighbours), (
        "this test could not fail"
    )


def test_survey_coordinates_keep_their_neighbours_in_float64() -> None:
    points = rand(2, 200, 3, dtype=torch.float64)
    survey = points + 7_691_239.55
    chosen = farthest_point_sample(points, 20)
    assert torch.equal(farthest_point_sample(survey, 20), chosen)
    assert torch.equal(knn(group(survey, chosen), survey, 8), knn(group(points, chosen), points, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_decides_no_index(dtype: torch.dtype) -> None:
    points = (100 * rand(2, 300, 3)).to(dtype)
    exact = points.float()
    chosen = farthest_point_sample(points, 30)
    assert torch.equal(chosen, farthest_point_sample(exact, 30))
    assert torch.equal(knn(group(points, chosen), points, 8), knn(group(exact, chosen), exact, 8))


@pytest.mark.parametrize("chunk", [1, 70, 1000, 4000])
@pytest.mark.parametrize("cloud", ["random", "lattice", "padded with NaN"])
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_chunks_change_nothing(cloud: str, chunk: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    points, lengths = CLOUDS[cloud]
    queries = points.nan_to_num()[:, :30]
    whole = knn(queries, points, 9, lengths), ball_query(queries, points, 0.3, 9, lengths)
    monkeypatch.setattr(native, "_CHUNK", chunk)
    monkeypatch.setattr(numpy_backend, "_CACHED", chunk)
    monkeypatch.setattr(numpy_backend, "_BLOCK", 1 + chunk // 70)
    assert torch.equal(knn(queries, points, 9, lengths, backend), whole[0])
    assert torch.equal(ball_query(queries, points, 0.3, 9, lengths, backend), whole[1])


@pytest.mark.parametrize(("least", "parts"), [(0, 5), (1 << 23, 1)])
def test_threads_change_nothing(least: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points, lengths = CLOUDS["padded with NaN"]
    queries = points.nan_to_num()[:, :30]
    whole = knn(queries, points, 9, lengths, "reference")
    used, in_threads = [], numpy_backend.in_threads

    def recorded(work: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        used.append(len(pieces))
        return in_threads(work, pieces)

    monkeypatch.setattr(numpy_backend, "in_threads", recorded)
    monkeypatch.setattr(numpy_backend, "_SEARCH_WORTH_A_THREAD", least)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert torch.equal(knn(queries, points, 9, lengths, "numpy"), whole)
    assert used == [parts]


def test_no_more_distances_at_a_time_than_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    distances = native._masked_distances

    def recorded(queries: Tensor, points: Tensor, lengths: Tensor) -> Tensor:
        result = distances(queries, points, lengths)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(native, "_masked_distances", recorded)
    monkeypatch.setattr(native, "_CHUNK", 1000)
    knn(rand(3, 50, 3), rand(3, 100, 3), 5, backend="torch")
    assert max(sizes) <= 1000
    assert sum(sizes) == 3 * 50 * 100


@pytest.mark.parametrize("backend", ["auto", *OURS])
def test_start_is_the_first_sample(backend: str) -> None:
    points = rand(3, 40, 3)
    assert farthest_point_sample(points, 4, start=7, backend=backend)[:, 0].tolist() == [7, 7, 7]
    starts = torch.tensor([5, 0, 39])
    assert farthest_point_sample(points, 4, start=starts, backend=backend)[:, 0].tolist() == [5, 0, 39]


def test_inputs_are_not_changed_and_no_graph_is_built() -> None:
    points, lengths = padded(torch.nan)
    before, queries = points.clone(), rand(4, 3, 3)
    points.requires_grad_()
    farthest_point_sample(points, 5, lengths)
    assert not knn(queries, points, 3, lengths).requires_grad
    ball_query(queries, points, 0.1, 3, lengths)
    assert torch.equal(points.nan_to_num(-7.0), before.nan_to_num(-7.0))


def test_group_takes_rows_of_any_shape() -> None:
    values = rand(2, 10, 5)
    index = torch.tensor([[[1, 2], [3, 3]], [[0, 9], [4, 5]]])
    gathered = group(values, index)
    assert gathered.shape == (2, 2, 2, 5)
    assert torch.equal(gathered[1, 0, 1], values[1, 9])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": rand(5, 3)}, r"points must have shape \(B, P, 3\) with P >= 1, got \(5, 3\)"),
        ({"points": rand(1, 5, 4)}, r"got \(1, 5, 4\)"),
        ({"points": rand(1, 0, 3)}, r"with P >= 1, got \(1, 0, 3\)"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"num_samples": 2.5}, "num_samples must be a whole number, got 2.5"),
        ({"lengths": torch.tensor([0, 5])}, r"lengths must lie in \[1, 5\], got \[0, 5\]"),
        ({"lengths": torch.tensor([5, 6])}, r"lengths must lie in \[1, 5\], got \[5, 6\]"),
        ({"lengths": torch.tensor([5])}, r"lengths must have shape \(2,\), got \(1,\)"),
        ({"lengths": torch.tensor([3.7, 5.0])}, "lengths must be integers, got torch.float32"),
        ({"lengths": torch.tensor([True, True])}, "lengths must be integers, got torch.bool"),
        ({"start": 5}, r"start must index a point of each cloud \(lengths \[5, 5\]\), got \[5, 5\]"),
        ({"start": -1}, "start must index a point"),
        (
            {"start": torch.tensor([0, 3]), "lengths": torch.tensor([5, 3])},
            r"lengths \[5, 3\]\), got \[0, 3\]",
        ),
        ({"start": torch.tensor([0, 1, 2])}, r"integers of shape \(2,\), got \[0, 1, 2\]"),
        ({"start": 0.5}, r"start must be an integer, .*, got \[0.5\]"),
        ({"start": True}, r"start must be an integer"),
        (
            {"backend": "cuda"},
            "backend must be auto, reference, torch, numpy, buckets, triton, pytorch3d, got 'cuda'",
        ),
    ],
)
def test_bad_arguments_of_sampling(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        farthest_point_sample(**{"points": rand(2, 5, 3), "num_samples": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": rand(1, 3)}, r"queries must have shape \(2, G, 3\), got \(1, 3\)"),
        ({"queries": rand(3, 4, 3)}, r"got \(3, 4, 3\)"),
        ({"queries": rand(2, 4, 2)}, r"got \(2, 4, 2\)"),
        ({"points": rand(2, 5, 6)}, r"points must have shape \(B, P, 3\)"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"lengths": torch.tensor([0, 1])}, r"lengths must lie in \[1, 5\]"),
        ({"backend": "open3d"}, "backend must be auto"),
    ],
)
def test_bad_arguments_of_neighbours(arguments: dict[str, object], message: str) -> None:
    arguments = {"queries": rand(2, 4, 3), "points": rand(2, 5, 3), "k": 2, **arguments}
    with pytest.raises(ValueError, match=message):
        knn(**arguments)
    with pytest.raises(ValueError, match=message):
        ball_query(radius=0.1, **arguments)


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan")])
def test_bad_radius(radius: float) -> None:
    with pytest.raises(ValueError, match="radius must be greater than 0"):
        ball_query(rand(1, 2, 3), rand(1, 5, 3), radius, 2)


@pytest.mark.parametrize("lengths", [[3, 7], np.array([3, 7]), torch.tensor([3, 7], dtype=torch.uint8)])
def test_lengths_may_be_any_whole_numbers(lengths: object) -> None:
    points, expected = rand(2, 7, 3), torch.tensor([3, 7])
    assert torch.equal(farthest_point_sample(points, 5, lengths), farthest_point_sample(points, 5, expected))
    assert torch.equal(knn(points, points, 5, lengths), knn(points, points, 5, expected))


def test_empty_batch() -> None:
    points, queries = rand(0, 9, 3), rand(0, 4, 3)
    assert farthest_point_sample(points, 5).shape == (0, 5)
    assert knn(queries, points, 3).shape == (0, 4, 3)
    assert ball_query(queries, points, 0.1, 3).shape == (0, 4, 3)


def test_shapes_are_found_without_data() -> None:
    """On the meta device, as tools that count operations do."""
    points = torch.empty(2, 9, 3, device="meta")
    assert farthest_point_sample(points, 5).shape == (2, 5)
    assert knn(points, points, 4).shape == (2, 9, 4)


def test_pytorch3d_agrees_where_only_duplicates_are_left() -> None:
    if reason := available_backends()["pytorch3d"]:
        pytest.skip(reason)
    points = rand(3, 4, 3).repeat(1, 3, 1)
    points[1] = 1.0
    points[2] = rand(1, 12, 3)
    for lengths in (None, torch.tensor([12, 5, 9])):
        ours, theirs = (
            farthest_point_sample(points, 15, lengths, backend=backend) for backend in ("torch", "pytorch3d")
        )
        assert torch.equal(ours, theirs)
