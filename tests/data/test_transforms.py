import copy

import pytest
import torch
from torch import Generator, Tensor

from pointvit.data import transforms
from pointvit.data.transforms import (
    Compose,
    NormalizeUnitSphere,
    RandomDropPoints,
    RandomJitter,
    RandomRotate,
    RandomScaleTranslate,
    Transform,
    axis_rotations,
    swap_up_axis,
)

RANDOM = [
    RandomScaleTranslate(),
    RandomScaleTranslate(low=0.5, high=1.0, shift=0.0),
    RandomRotate(),
    RandomRotate(axis="y", degrees=15),
    RandomJitter(std=0.02, clip=0.03),
    RandomDropPoints(max_ratio=0.5),
]
EVERY = [*RANDOM, NormalizeUnitSphere(), Compose([RandomRotate(), RandomJitter(), NormalizeUnitSphere()])]


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def clouds(channels: int = 3, batch: int = 4, count: int = 50) -> Tensor:
    points = torch.randn(batch, count, channels, generator=seeded(9))
    points[..., 3:6] = torch.nn.functional.normalize(points[..., 3:6], dim=2)
    return points


def test_every_transform_is_tested_here():
    kinds = {
        kind for kind in vars(transforms).values() if isinstance(kind, type) and issubclass(kind, Transform)
    }
    assert {type(transform) for transform in EVERY} == kinds - {Transform}


@pytest.mark.parametrize("transform", EVERY, ids=repr)
@pytest.mark.parametrize("channels", [3, 4, 6, 8])
def test_input_stays_and_shape_and_kind_too(transform, channels):
    points = clouds(channels)
    before = points.clone()
    out = transform(points, seeded())
    assert torch.equal(points, before)
    assert (out.shape, out.dtype) == (points.shape, points.dtype)
    assert out.isfinite().all()
    assert not torch.equal(out[..., :3], points[..., :3])
    assert transform(points.double(), seeded()).dtype == torch.float64


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_repr_reproduces_the_call(transform):
    again = eval(repr(transform), vars(transforms))
    assert again == transform
    assert torch.equal(again(clouds(), seeded()), transform(clouds(), seeded()))


@pytest.mark.parametrize("transform", RANDOM, ids=repr)
def test_randomness_is_the_generators(transform):
    points = clouds()
    assert torch.equal(transform(points, seeded(1)), transform(points, seeded(1)))
    assert not torch.equal(transform(points, seeded(1)), transform(points, seeded(2)))
    state = torch.get_rng_state()
    transform(points, seeded())
    assert torch.equal(torch.get_rng_state(), state), "a generator that is given is the only one used"
    torch.manual_seed(5)
    global_draw = transform(points)
    torch.manual_seed(5)
    assert torch.equal(transform(points), global_draw)
    same = points[:1].expand(4, -1, -1)
    different = transform(same, seeded())
    assert not torch.equal(different[0], different[1]), "each cloud has its own numbers"


@pytest.mark.parametrize("transform", EVERY, ids=repr)
def test_single_cloud_is_a_batch_of_one(transform):
    points = clouds(6, batch=1)
    single = transform(points[0], seeded())
    assert single.shape == points[0].shape
    assert torch.equal(single, transform(points, seeded())[0])


def test_compose_is_one_after_the_other():
    first, second = RandomRotate(), RandomJitter()
    generator = seeded()
    expected = second(first(clouds(), generator), generator)
    assert torch.equal(Compose([first, second])(clouds(), seeded()), expected)
    assert torch.equal(Compose([])(clouds()), clouds())


@pytest.mark.parametrize("axis", ["x", "y", "z"])
def test_rotation_keeps_its_axis_lengths_and_handedness(axis):
    points = clouds(8)
    out = RandomRotate(axis)(points, seeded())
    kept = "xyz".index(axis)
    assert torch.equal(out[..., kept], points[..., kept])
    assert torch.equal(out[..., 3 + kept], points[..., 3 + kept])
    assert torch.equal(out[..., 6:], points[..., 6:])
    torch.testing.assert_close(out[..., :3].norm(dim=2), points[..., :3].norm(dim=2))
    dots = (points[..., :3] * points[..., 3:6]).sum(dim=2)
    torch.testing.assert_close((out[..., :3] * out[..., 3:6]).sum(dim=2), dots, rtol=0, atol=1e-5)
    cross = torch.linalg.cross(points[:, 0, :3], points[:, 1, :3])
    turned = RandomRotate(axis)(torch.cat([points[..., :3], cross[:, None]], dim=1), seeded())
    torch.testing.assert_close(
        turned[:, -1], torch.linalg.cross(turned[:, 0], turned[:, 1]), rtol=0, atol=1e-5
    )


def test_rotations_are_right_handed_and_limited():
    quarter = torch.tensor([torch.pi / 2])
    x, y, z = torch.eye(3)
    for axis, source, target in (("z", x, y), ("x", y, z), ("y", z, x)):
        torch.testing.assert_close(axis_rotations(axis, quarter)[0] @ source, target, rtol=0, atol=1e-6)
    points = torch.tensor([[1.0, 0, 0]]).expand(1000, 1, 3)
    out = RandomRotate("z", degrees=30)(points, seeded())
    angle = torch.rad2deg(torch.atan2(out[..., 1], out[..., 0]))
    assert -30 <= angle.min() < -28
    assert 28 < angle.max() <= 30
    with pytest.raises(ValueError, match="axis must be x, y or z, got 'w'"):
        RandomRotate("w")


def test_scale_and_shift_stay_in_their_ranges():
    corners = torch.tensor([[0.0, 0, 0], [1, 1, 1]]).expand(2000, 2, 3)
    out = RandomScaleTranslate(low=0.5, high=2.0, shift=0.1)(corners, seeded())
    shift, scale = out[:, 0], out[:, 1] - out[:, 0]
    assert -0.1 <= shift.min() < -0.09 < 0.09 < shift.max() <= 0.1
    assert 0.5 <= scale.min() < 0.51 < 1.98 < scale.max() <= 2.0
    assert not torch.equal(scale[:, 0], scale[:, 1]), "each axis has its own factor"


def test_scaling_keeps_normals_normal():
    """The normal of a plane that is scaled axis by axis stays orthogonal to it, and of unit length."""
    normal = torch.nn.functional.normalize(torch.tensor([1.0, 2, 3]), dim=0)
    inside = torch.randn(1, 20, 3, generator=seeded())
    inside -= (inside @ normal)[..., None] * normal
    points = torch.cat([inside, normal.expand(1, 20, 3)], dim=2)
    out = RandomScaleTranslate()(points, seeded())
    edges = out[:, 1:, :3] - out[:, :1, :3]
    torch.testing.assert_close((edges * out[:, 1:, 3:]).sum(dim=2), torch.zeros(1, 19), rtol=0, atol=1e-5)
    torch.testing.assert_close(out[..., 3:].norm(dim=2), torch.ones(1, 20))


def test_jitter_is_clipped():
    points = torch.zeros(1, 10_000, 3)
    out = RandomJitter(std=0.01, clip=0.02)(points, seeded())
    assert out.abs().max() == pytest.approx(0.02)
    assert out.std() == pytest.approx(0.01, rel=0.1)


def test_dropped_points_become_the_first():
    points = clouds(6, batch=200)
    out = RandomDropPoints(max_ratio=0.5)(points, seeded())
    kept = (out == points).all(dim=2)
    assert torch.equal(out[~kept], points[:, :1].expand_as(points)[~kept])
    share = 1 - kept.float().mean(dim=1)
    assert share.max() < 0.75
    assert 0.2 < share.mean() < 0.3


def test_normalised_clouds_are_centred_with_radius_one():
    points = clouds(6) * 7 + 100
    out = NormalizeUnitSphere()(points)
    torch.testing.assert_close(out[..., :3].mean(dim=1), torch.zeros(4, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(out[..., :3].norm(dim=2).amax(dim=1), torch.ones(4))
    assert torch.equal(out[..., 3:], points[..., 3:])


@pytest.mark.parametrize(
    "points",
    [
        torch.tensor([[[0.1, 0.2, 0.3]]]),
        torch.tensor([0.1, 0.2, 0.3]).expand(2, 1000, 3),
        torch.tensor([1e6 / 3, -1e-30, 7e20]).expand(1, 777, 3),
    ],
    ids=["one point", "identical points", "far away"],
)
def test_normalising_a_single_place_gives_zeros(points):
    assert torch.equal(NormalizeUnitSphere()(points), torch.zeros_like(points))


def test_normalising_keeps_a_constant_axis_at_zero():
    points = clouds()
    points[..., 1] = 0.1
    out = NormalizeUnitSphere()(points)
    assert torch.equal(out[..., 1], torch.zeros(4, 50))
    torch.testing.assert_close(out.norm(dim=2).amax(dim=1), torch.ones(4))


@pytest.mark.parametrize("channels", [3, 4, 6, 7, 9])
def test_swapping_the_up_axis_there_and_back(channels):
    points = clouds(channels)
    before = copy.deepcopy(points)
    there = swap_up_axis(points, "y", "z")
    assert torch.equal(points, before)
    assert torch.equal(swap_up_axis(there, "z", "y"), points)
    assert torch.equal(there[..., 2], points[..., 1]), "what was up is up"
    normals = slice(3, 6)
    if channels >= 6:
        assert torch.equal(there[..., normals], swap_up_axis(points[..., normals], "y", "z"))
    rest = 6 if channels >= 6 else 3
    assert torch.equal(there[..., rest:], points[..., rest:])


def test_swapping_the_up_axis_is_a_proper_rotation():
    for source, target in (("y", "z"), ("z", "y")):
        matrix = swap_up_axis(torch.eye(3), source, target)
        assert torch.linalg.det(matrix) == 1
        assert torch.equal(matrix @ matrix.T, torch.eye(3))
    assert torch.equal(swap_up_axis(clouds(), "z", "z"), clouds())
    for pair in (("x", "z"), ("x", "x"), ("up", "y")):
        with pytest.raises(ValueError, match="the up axis must be y or z"):
            swap_up_axis(clouds(), *pair)


def test_base_class_applies_nothing():
    with pytest.raises(NotImplementedError):
        Transform()(clouds())
