"""Every corruption by its table: sizes as published, stronger with severity, seeded, without side effects."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from pointvit.data.corruptions import (
    BENCHMARKS,
    CLEAN,
    Corruption,
    deformations,
    dense_pool,
    made,
    public_frame,
    scans,
)
from pointvit.data.corruptions.clusters import cluster_of_each, denser, nearest
from pointvit.data.corruptions.corruption import fit_box
from pointvit.data.corruptions.draws import repeated, shuffled, with_replacement
from pointvit.data.corruptions.modelnet40_c import cutout, density, density_inc, shear, upsampling
from pointvit.data.corruptions.modelnet_c import add_global, add_local, rotate
from pointvit.data.corruptions.sweeps import outliers, rotation_any, rotation_up
from pointvit.data.transforms import NormalizeUnitSphere


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def surfaces(batch: int = 6, num_points: int = 2048) -> Tensor:
    """Points on ellipsoids of different proportions, in the unit sphere."""
    generator = seeded(7)
    directions = F.normalize(torch.randn(batch, num_points, 3, generator=generator), dim=2)
    return NormalizeUnitSphere()(directions * (0.4 + torch.rand(batch, 1, 3, generator=generator)))


CLOUDS = surfaces()


def moved(clean: Tensor, corrupted: Tensor) -> Tensor:
    return (corrupted - clean).norm(dim=2).mean()


def deformed(clean: Tensor, corrupted: Tensor) -> Tensor:
    """As `moved`, where the corruption fits what comes out into a box."""
    return moved(fit_box(clean), fit_box(corrupted))


def unlike(clean: Tensor, corrupted: Tensor) -> Tensor:
    """What is left of the corruption once a shift and a linear map of the whole cloud are taken out."""
    known = torch.cat([clean, torch.ones_like(clean[..., :1])], dim=2)
    return (corrupted - known @ torch.linalg.lstsq(known, corrupted).solution).norm(dim=2).mean()


def gained(clean: Tensor, corrupted: Tensor) -> Tensor:
    return torch.tensor(1 - clean.shape[1] / corrupted.shape[1])


def lost(clean: Tensor, corrupted: Tensor) -> Tensor:
    """Mean distance from a clean point to what is left."""
    return torch.cdist(clean, corrupted).amin(dim=2).mean()


def crowded(clean: Tensor, corrupted: Tensor) -> Tensor:
    """Mean number of points near a point."""
    return (torch.cdist(corrupted, corrupted) < 0.15).float().mean()


SAME = (1024,) * 5
TABLE = {
    "modelnet40-c": {
        "uniform": (SAME, deformed),
        "gaussian": (SAME, moved),
        "background": ((1046, 1049, 1053, 1058, 1075), gained),
        "impulse": (SAME, unlike),
        "upsampling": ((1228, 1280, 1365, 1536, 2048), gained),
        "distortion_rbf": (SAME, deformed),
        "distortion_rbf_inv": (SAME, deformed),
        "density": ((949, 874, 799, 724, 649), lost),
        "density_inc": (SAME, crowded),
        "shear": (SAME, deformed),
        "rotation": (SAME, moved),
        "cutout": ((964, 934, 874, 814, 724), lost),
        "distortion": (SAME, deformed),
        "occlusion": (SAME, lost),
        "lidar": ((768,) * 5, lost),
    },
    "modelnet-c": {
        "scale": (SAME, moved),
        "jitter": (SAME, moved),
        "rotate": (SAME, moved),
        "dropout_global": ((768, 640, 512, 384, 256), lost),
        "dropout_local": ((924, 824, 724, 624, 524), lost),
        "add_global": ((1034, 1044, 1054, 1064, 1074), gained),
        "add_local": ((1124, 1224, 1324, 1424, 1524), gained),
    },
    "sweeps": {
        "num_points": ((1024, 512, 256, 128, 64), lost),
        "rotation_up": ((1024,) * 9, moved),
        "rotation_any": ((1024,) * 9, moved),
        "outliers": ((1024,) * 7, moved),
    },
}
CASES = [
    pytest.param(corruption, *TABLE[benchmark].get(name, (None, None)), id=f"{benchmark}-{name}")
    for benchmark, known in BENCHMARKS.items()
    for name, corruption in known.corruptions.items()
]


def start(corruption: Corruption) -> Tensor:
    return CLOUDS if corruption.dense else CLOUDS[:, :1024]


def test_every_corruption_has_a_row_here_and_every_row_a_corruption():
    assert {b: set(rows) for b, rows in TABLE.items()} == {
        b: set(k.corruptions) for b, k in BENCHMARKS.items()
    }
    assert [len(known.corruptions) for known in BENCHMARKS.values()] == [15, 7, 4]
    assert all(
        len(c.levels) == 5 for b in ("modelnet40-c", "modelnet-c") for c in BENCHMARKS[b].corruptions.values()
    )


@pytest.mark.parametrize(("corruption", "sizes", "measure"), CASES)
def test_sizes_are_those_published_and_all_is_finite(corruption: Corruption, sizes, measure):
    points = start(corruption)
    for severity, size in enumerate(sizes, start=1):
        out = corruption(points, severity, seeded())
        assert out.shape == (len(points), size, 3)
        assert out.dtype == points.dtype
        assert out.isfinite().all()
    assert severity == len(corruption.levels)


@pytest.mark.parametrize(("corruption", "sizes", "measure"), CASES)
def test_a_higher_severity_is_farther_from_the_clean_cloud(corruption: Corruption, sizes, measure):
    points = start(corruption)
    # The same draws at every severity: what is left is the severity alone.
    distances = [
        float(measure(points, corruption(points, severity, seeded())))
        for severity in range(1, len(sizes) + 1)
    ]
    if corruption.ordered:
        assert distances == sorted(distances)
        assert len(set(distances)) == len(distances)
    assert distances[-1] > 0.002


@pytest.mark.parametrize(("corruption", "sizes", "measure"), CASES)
def test_seeded_and_without_a_trace_in_its_input(corruption: Corruption, sizes, measure):
    points = start(corruption)[:3]
    before = copy.deepcopy(points)
    first, again, other = (corruption(points, 3, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(points, before)
    if corruption is not BENCHMARKS["sweeps"].corruptions["num_points"]:
        assert not torch.equal(first, other)
    clouds = corruption(points[:1].expand(3, -1, -1), 3, seeded())
    if corruption is not BENCHMARKS["sweeps"].corruptions["num_points"]:
        assert not torch.equal(clouds[0], clouds[1]), "each cloud has draws of its own"


@pytest.mark.cuda
def test_the_device_changes_nothing():
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    for known in BENCHMARKS.values():
        for name, corruption in known.corruptions.items():
            points = start(corruption)
            on_cpu, on_gpu = (corruption(points.to(device), 4, seeded()).cpu() for device in ("cpu", "cuda"))
            # Where distances are equal but for rounding, another point may be chosen.
            assert (on_cpu - on_gpu).norm(dim=2).lt(1e-4).float().mean() > 0.95, name


@pytest.mark.parametrize("name", ["uniform", "dropout_local", "density_inc"])
def test_bad_input_is_refused(name):
    corruption = {**BENCHMARKS["modelnet40-c"].corruptions, **BENCHMARKS["modelnet-c"].corruptions}[name]
    for severity in (0, 6, -1):
        with pytest.raises(ValueError, match=f"severity must be 1 to 5, got {severity}"):
            corruption(CLOUDS, severity, seeded())
    for shape in [(1024, 3), (2, 1024, 6), (2, 1, 3)]:
        with pytest.raises(ValueError, match=r"points must have shape \(B, P, 3\)"):
            corruption(torch.zeros(shape), 1, seeded())


def test_made_does_not_depend_on_what_else_is_made():
    clouds = surfaces(70, 64)
    whole = made("modelnet-c", "jitter", 2, clouds, 64)
    assert torch.equal(made("modelnet-c", "jitter", 2, clouds[:64], 64), whole[:64])
    assert torch.equal(made("modelnet-c", "jitter", 2, clouds, 64), whole)
    assert not torch.equal(made("modelnet-c", "jitter", 2, clouds, 64, seed=1), whole)
    # Other sets have other draws: the noise is not the same at another strength.
    noise = [made("modelnet-c", "jitter", s, clouds, 64) - clouds for s in (1, 2)]
    assert not torch.allclose(2 * noise[0], noise[1], atol=1e-4)
    assert torch.equal(made("modelnet-c", CLEAN, 0, clouds, 32), clouds[:, :32])


def test_a_pool_is_the_same_whether_it_is_made_before_or_on_the_way():
    clouds = surfaces(5, 96)
    pool = dense_pool(clouds, 192, seed=3)
    assert pool.shape == (5, 192, 3)
    assert torch.equal(
        made("modelnet40-c", "occlusion", 1, pool, 96, 3), made("modelnet40-c", "occlusion", 1, clouds, 96, 3)
    )
    assert dense_pool(pool, 100) is pool


def test_points_between_neighbours_stay_on_a_plane():
    flat = torch.rand(2, 200, 3, generator=seeded())
    flat[..., 2] = 0.25
    more = denser(flat, 400, seeded())
    assert torch.equal(more[:, :200], flat)
    torch.testing.assert_close(more[..., 2], torch.full((2, 400), 0.25))
    spacing = torch.cdist(flat, flat).topk(5, largest=False).values[..., -1].max()
    assert torch.cdist(more[:, 200:], flat).amin(dim=2).max() < spacing
    assert len(torch.unique(more[0], dim=0)) == 400
    assert torch.equal(denser(flat, 50, seeded()), flat[:, :50])


def test_the_frame_of_the_public_files_and_back():
    points = torch.randn(2, 5, 3)
    there = public_frame(points, "z")
    assert torch.equal(there[..., 1], points[..., 2]), "what was up is up"
    assert torch.equal(public_frame(there, "z"), points)
    assert torch.equal(public_frame(points, "y"), points)
    assert torch.linalg.det(public_frame(torch.eye(3), "z")) == 1


def test_draws_stay_within_their_mask():
    mask = torch.rand(20, 50, generator=seeded()) < 0.3
    mask[0] = False
    mask[0, 49] = True
    order = shuffled(mask, seeded())
    assert torch.equal(order.sort(dim=1).values, torch.arange(50).expand(20, -1))
    for row, members in zip(order, mask, strict=True):
        assert members[row[: members.sum()]].all()
    assert mask.gather(1, with_replacement(mask, 500, seeded())).all()
    for row, members in zip(repeated(mask, 60, seeded()), mask, strict=True):
        counts = torch.bincount(row, minlength=50)
        assert counts[~members].sum() == 0
        assert counts[members].max() - counts[members].min() <= 1
    drawn = with_replacement(torch.ones(1, 4, dtype=torch.bool), 40_000, seeded())
    assert torch.bincount(drawn[0]).float().div(40_000).sub(0.25).abs().max() < 0.01


def test_parts_of_one_to_seven():
    parts = cluster_of_each(CLOUDS, 2000, 60, 7, seeded())
    counts = torch.tensor([len(row.unique()) for row in parts])
    assert (counts.min(), counts.max()) == (1, 7)
    assert 0.1 < (counts == 1).float().mean() < 0.2


def test_the_nearest_are_those_a_loop_finds():
    points = torch.randn(4, 30, 3, generator=seeded())
    among = torch.rand(4, 30, generator=seeded()) < 0.7
    sizes = torch.tensor([0, 1, 7, 30])
    found = nearest(points, points[:, 3], among, sizes)
    for row in range(4):
        distance = (points[row] - points[row, 3]).norm(dim=1)
        order = [i for i in distance.argsort().tolist() if among[row, i]]
        assert set(found[row].nonzero()[:, 0].tolist()) == set(order[: int(sizes[row])])


def removed(before: Tensor, after: Tensor) -> set[int]:
    """Indices of points of (P, 3) that are not among the others."""
    left = {tuple(point) for point in after.tolist()}
    return {i for i, point in enumerate(before.tolist()) if tuple(point) not in left}


def test_of_very_small_clouds_cutout_leaves_a_point():
    for count in (2, 8, 9, 10, 11):
        assert cutout(CLOUDS[:, :count], 10, seeded()).shape == (len(CLOUDS), 1, 3)


def test_a_hole_is_a_point_with_its_nearest():
    points = CLOUDS[:1, :1024]
    gone = removed(points[0], cutout(points, 1, seeded())[0])
    balls = torch.cdist(points[0], points[0]).topk(30, largest=False).indices.tolist()
    assert gone in [set(ball) for ball in balls]


def test_thinning_takes_three_in_four_around_a_point():
    points = CLOUDS[:1, :1024]
    gone = removed(points[0], density(points, 1, seeded())[0])
    balls = torch.cdist(points[0], points[0]).topk(100, largest=False).indices.tolist()
    assert len(gone) == 75
    assert any(gone < set(ball) for ball in balls)


def test_a_dense_part_is_kept_whole():
    points = CLOUDS[:1]
    out = {tuple(point) for point in density_inc(points, 1, seeded())[0].tolist()}
    kept = {i for i, point in enumerate(points[0].tolist()) if tuple(point) in out}
    balls = torch.cdist(points[0], points[0]).topk(100, largest=False).indices.tolist()
    assert any(set(ball) <= kept for ball in balls)


def test_turns_keep_distances():
    points = CLOUDS[:2, :100].double()
    for turn in (rotate, rotation_up, rotation_any):
        out = turn(points, 25.0, seeded())
        torch.testing.assert_close(torch.cdist(out, out), torch.cdist(points, points), rtol=0, atol=1e-6)
        assert not torch.allclose(out, points, atol=0.01)
    torch.testing.assert_close(rotation_up(points, 70.0, seeded())[..., 1], points[..., 1])
    half = rotation_up(points, 180.0, seeded())
    torch.testing.assert_close(half[..., [0, 2]], -points[..., [0, 2]], rtol=0, atol=1e-5)


def test_turns_about_any_axis_have_the_angle():
    points = F.normalize(torch.randn(200, 2, 3, generator=seeded()), dim=2)
    out = rotation_any(points, 40.0, seeded())
    both = [
        torch.stack([p[:, 0], p[:, 1], torch.linalg.cross(p[:, 0], p[:, 1])], dim=2) for p in (points, out)
    ]
    matrices = both[1] @ torch.linalg.inv(both[0].double()).float()
    cosines = (matrices.diagonal(dim1=1, dim2=2).sum(dim=1) - 1) / 2
    torch.testing.assert_close(cosines, torch.full((200,), math.cos(math.radians(40))), rtol=0, atol=1e-3)


def test_shear_leaves_up_alone(monkeypatch):
    monkeypatch.setattr("pointvit.data.corruptions.modelnet40_c.fit_box", lambda points: points)
    out = shear(CLOUDS, 0.2, seeded())
    torch.testing.assert_close(out[..., 1], CLOUDS[..., 1])
    # x' = x + d y + f z with 0.15 <= |d|, |f| < 0.25
    solved = torch.linalg.lstsq(CLOUDS, out).solution
    off = torch.stack([solved[:, 0, 2], solved[:, 1, 0], solved[:, 1, 2], solved[:, 2, 0]]).abs()
    assert off.min() >= 0.15 - 1e-4
    assert off.max() <= 0.25 + 1e-4


def test_added_points_lie_where_they_should(monkeypatch):
    points = CLOUDS[:, :1024]
    for add in (add_global, add_local):
        out = add(points, 50, seeded())
        assert torch.equal(out[:, :1024], points)
        assert out[:, 1024:].norm(dim=2).max() <= 1 + 1e-5
    far = torch.cdist(add_local(points, 500, seeded())[:, 1024:], points).amin(dim=2)
    assert far.mean() < 0.15, "they lie around points of the cloud"
    radius = add_global(points, 1024, seeded())[:, 1024:].norm(dim=2)
    assert 0.11 < (radius < 0.5).float().mean() < 0.14, "an eighth of the ball's volume"
    monkeypatch.setattr("pointvit.data.corruptions.modelnet40_c.fit_box", lambda points: points)
    gap = (upsampling(points, 4, seeded())[:, 1024:, None] - points[:, None]).abs().amax(dim=3).amin(dim=2)
    assert gap.max() <= 0.05


def test_outliers_replace_points():
    points = CLOUDS[:, :1000]
    out = outliers(points, 20, seeded())
    assert ((out != points).any(dim=2).sum(dim=1) == 200).all()


@pytest.mark.parametrize("kernel", deformations.KERNELS)
def test_radial_functions_move_the_lattice_as_told(kernel, monkeypatch):
    monkeypatch.setattr(deformations, "fit_box", lambda points: points)
    line = torch.linspace(-1, 1, 5, dtype=torch.float64)
    lattice = torch.cartesian_prod(line, line, line)[None]
    moves = deformations.radial(lattice, 0.1, seeded(), kernel) - lattice
    torch.testing.assert_close(moves.norm(dim=2), torch.full((1, 125), 0.1, dtype=torch.float64))
    assert torch.equal(deformations.radial(lattice, 0.0, seeded(), kernel), lattice)


def test_free_form_is_bernsteins_sum(monkeypatch):
    monkeypatch.setattr(deformations, "fit_box", lambda points: points)
    points = torch.rand(1, 6, 3, generator=seeded(), dtype=torch.float64) * 2 - 1
    points[0, 0] = torch.tensor([1.5, 0, 0])
    out = deformations.free_form(points, 0.3, seeded())
    draw = torch.rand((1, 125, 3), generator=seeded()).double() * 0.6 - 0.3
    lattice = draw.view(5, 5, 5, 3)
    for before, after in zip(points[0, 1:], out[0, 1:], strict=True):
        place = (before + 1) / 2
        shift = torch.zeros(3, dtype=torch.float64)
        for i in range(5):
            for j in range(5):
                for k in range(5):
                    weight = 1.0
                    for t, n in zip(place.tolist(), (i, j, k), strict=True):
                        weight *= math.comb(4, n) * t**n * (1 - t) ** (4 - n)
                    shift += weight * 2 * lattice[i, j, k]
        torch.testing.assert_close(after, before + shift, rtol=0, atol=1e-6)
    assert torch.equal(out[0, 0], points[0, 0]), "outside the cube nothing moves"


def test_boxes_are_centred_with_a_longest_side_of_two():
    out = fit_box(CLOUDS * 5 + 3)
    sides = out.amax(dim=1) - out.amin(dim=1)
    torch.testing.assert_close(sides.amax(dim=1), torch.full((6,), 2.0))
    torch.testing.assert_close(out.amax(dim=1), -out.amin(dim=1))
    assert torch.equal(fit_box(torch.ones(1, 4, 3)), torch.zeros(1, 4, 3))


def test_what_is_behind_is_hidden():
    """Two square plates, one behind the other: the front one is seen, and what it covers is not."""
    plate = torch.rand(1, 1500, 3, generator=seeded()) - 0.5
    plate[..., 2] = 0.5
    behind = plate * torch.tensor([0.8, 0.8, -1])
    beside = behind + torch.tensor([2.0, 0, 0])
    eye = torch.tensor([[0.0, 0.0, 3.0]])
    seen = scans.visible(torch.cat([plate, behind], dim=1), eye)[0]
    assert seen[:1500].all()
    assert seen[1500:].float().mean() < 0.05, "but for gaps between points"
    assert scans.visible(torch.cat([plate, beside], dim=1), eye).all()


def test_a_view_from_above_loses_what_is_below():
    ball = F.normalize(torch.randn(4, 2048, 3, generator=seeded()), dim=2)
    for severity in range(1, 6):
        out = scans.occlusion(ball, severity, seeded())
        assert out[..., 1].mean() > 0.1


def test_half_of_a_ball_is_seen():
    ball = F.normalize(torch.randn(4, 2048, 3, generator=seeded()), dim=2)
    eye = 3 * F.normalize(torch.randn(4, 3, generator=seeded()), dim=1)
    in_front = (ball @ eye[:, :, None])[..., 0] > 1  # the horizon from distance 3
    seen = scans.visible(ball, eye)
    assert (seen == in_front).float().mean() > 0.85
    assert (seen & in_front).sum() > 5 * (seen & ~in_front).sum()


def test_scan_lines_are_a_degree_apart():
    out = scans.lidar(CLOUDS, 2, seeded())
    eye = scans._viewpoint(CLOUDS, 2, torch.full((6,), math.pi / 8), 5.0, seeded())
    assert torch.allclose(eye.norm(dim=1), torch.tensor(5.0))
    ray = (out - eye[:, None]).double()
    for polar in (ray[..., 1] / ray.norm(dim=2)).acos().rad2deg():
        lines = (polar - polar.min()).div(1).round()
        torch.testing.assert_close(polar - polar.min(), lines, rtol=0, atol=2e-3)
        assert len(lines.unique()) > 5


def test_sectors_are_apart():
    azimuths = []
    for sector in range(1, 6):
        eye = scans._viewpoint(torch.zeros(500, 2, 3), sector, torch.zeros(500), 3.0, seeded(sector))
        angle = torch.atan2(eye[:, 0], eye[:, 2]).rad2deg().sub(72 * sector + 36).remainder(360)
        assert angle.min() >= 360 - 72 - 1e-3
        azimuths.append(angle)
    assert len({round(float(a.mean())) for a in azimuths}) <= 12
