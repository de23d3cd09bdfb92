import math

import pytest
import torch

from pointvit.views import FAR, FILL, render_points
from pointvit.views import points as point_views
from view_reference import LETTER_L, SOLIDS, SPHERE, cloud, overlap, reference, turned

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]
SIZE = 128
PIXELS_PER_UNIT = 0.5 * SIZE * FILL


def plane(
    width: float, height: float, y: float, x: float = 0.0, z: float = 0.0, count: int = 60
) -> torch.Tensor:
    """A grid of points in an xz plane, which the front camera of a z-up cloud sees face on."""
    grid = torch.cartesian_prod(torch.linspace(-0.5, 0.5, count), torch.linspace(-0.5, 0.5, count))
    return torch.stack([x + grid[:, 0] * width, torch.full((len(grid),), y), z + grid[:, 1] * height], 1)


def sphere(count: int = 20_000) -> torch.Tensor:
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return points / points.norm(dim=1, keepdim=True)


def letter_l() -> torch.Tensor:
    """An L as one reads it from the front: the bar at -x, the foot pointing to +x at the bottom."""
    return torch.cat([plane(0.2, 1.2, 0.0, x=-0.4), plane(0.8, 0.2, 0.0, z=-0.5)])


def front(points: torch.Tensor, **settings: object) -> torch.Tensor:
    """(P, 3) -> (H, W): the front view of the `ten` rig, whose camera is level."""
    return render_points(points[None], 10, SIZE, rig="ten", **settings)[0, 0, 0]


def quadrants(image: torch.Tensor) -> list[bool]:
    """Whether upper left, upper right, lower left and lower right hold more than a trace of foreground."""
    half = SIZE // 2
    parts = (image[:half, :half], image[:half, half:], image[half:, :half], image[half:, half:])
    return [bool((part > 0).float().mean() > 0.05) for part in parts]


@pytest.mark.parametrize("perspective", [False, True])
def test_an_l_is_neither_mirrored_nor_upside_down(perspective):
    views = render_points(letter_l()[None], 10, SIZE, rig="ten", perspective=perspective)[0, :, 0]
    assert quadrants(views[0]) == [True, False, True, True]
    assert quadrants(views[2]) == [False, True, True, True]


def test_up_axis_turns_the_cloud_without_mirroring_it():
    cloud = torch.cat([letter_l(), plane(0.3, 0.1, 0.4, x=0.3)])
    x, y, z = cloud.unbind(1)
    expected = render_points(cloud[None], 4, SIZE)
    for axis, other in {"y": torch.stack([x, z, -y], 1), "x": torch.stack([z, x, y], 1)}.items():
        image = render_points(other[None], 4, SIZE, up_axis=axis)
        assert ((image - expected).abs() > 1e-3).float().mean() < 2e-3


@pytest.mark.parametrize("perspective", [False, True])
@pytest.mark.parametrize("rig", ["circle", "ten"])
def test_sphere_is_a_disc_of_the_right_area_from_everywhere(rig, perspective):
    image = render_points(sphere()[None], 10, SIZE, rig=rig, splat=0.0, perspective=perspective)[0, :, 0]
    area = (image > 0).sum(dim=(1, 2))
    torch.testing.assert_close(
        area.float(), torch.full((10,), math.pi * PIXELS_PER_UNIT**2), rtol=0.03, atol=0.0
    )
    # The near pole is the brightest, in the middle; the outline lies at half depth.
    assert image[:, SIZE // 2, SIZE // 2].min() > 0.99
    assert image[image > 0].min() > FAR + 0.4 * (1 - FAR)


def test_cube_is_a_square_from_the_front_and_a_hexagon_from_a_corner():
    side = 1.0
    face = plane(side, side, 0.0)
    cube = torch.cat(
        [face.roll(k, dims=1) + torch.eye(3)[(1 + k) % 3] * s for k in range(3) for s in (-0.5, 0.5)]
    )
    image = render_points(cube[None], 10, SIZE, rig="ten", splat=0.0)[0, :, 0] > 0
    rows, columns = image[0].any(1).sum(), image[0].any(0).sum()
    assert abs(rows - side * PIXELS_PER_UNIT) <= 2
    assert abs(columns - side * PIXELS_PER_UNIT) <= 2
    assert image[0].sum() == rows * columns
    for corner in image[6:]:
        assert corner.sum() / PIXELS_PER_UNIT**2 == pytest.approx(math.sqrt(3), rel=0.06)


def test_near_hides_far_and_depth_is_linear():
    near, far = plane(0.4, 0.4, -0.5), plane(1.2, 1.2, 0.5)
    image = front(torch.cat([near, far]))
    middle, edge = image[SIZE // 2, SIZE // 2], image[SIZE // 2, SIZE // 2 + int(0.45 * PIXELS_PER_UNIT)]
    assert middle.item() == pytest.approx(FAR + (1 - FAR) * 0.75, abs=1e-5)
    assert edge.item() == pytest.approx(FAR + (1 - FAR) * 0.25, abs=1e-5)
    assert torch.equal(image, front(torch.cat([far, near])))


def test_sparse_surface_is_filled_but_a_wide_hole_and_the_outside_stay_open():
    sparse = plane(1.0, 1.0, 0.0, count=12)
    image = front(sparse, gap=0.08) > 0
    assert abs(image.sum() - PIXELS_PER_UNIT**2) < 0.15 * PIXELS_PER_UNIT**2
    assert (front(sparse, gap=0.0, splat=0.0) > 0).sum() == 144
    bars = torch.cat([plane(0.1, 1.0, 0.0, x=-0.3), plane(0.1, 1.0, 0.0, x=0.3)])
    assert front(bars)[:, SIZE // 2].sum() == 0


def test_translation_and_scale_move_and_shrink_the_picture():
    cloud = plane(0.4, 0.4, 0.0)

    def box(points: torch.Tensor) -> tuple[float, float, int]:
        rows, columns = torch.nonzero(front(points, splat=0.0), as_tuple=True)
        return rows.float().mean().item(), columns.float().mean().item(), int(columns.max() - columns.min())

    row, column, width = box(cloud)
    moved_row, moved_column, moved_width = box(cloud + torch.tensor([0.3, 0.0, 0.2]))
    assert moved_column - column == pytest.approx(0.3 * PIXELS_PER_UNIT, abs=1)
    assert moved_row - row == pytest.approx(-0.2 * PIXELS_PER_UNIT, abs=1)
    assert abs(moved_width - width) <= 1
    assert box(cloud * 2)[2] == pytest.approx(2 * width, abs=2)


def test_perspective_enlarges_what_is_near():
    near, far = plane(0.4, 0.4, -0.6), plane(0.4, 0.4, 0.6)
    parallel = [(front(p) > 0).sum() for p in (near, far)]
    central = [(front(p, perspective=True) > 0).sum() for p in (near, far)]
    assert parallel[0] == parallel[1]
    assert central[0] > 1.5 * central[1]


@pytest.mark.parametrize("mode", ["depth", "shaded", "normal"])
def test_padding_outliers_and_the_rest_of_the_batch_change_nothing(mode):
    clouds = [letter_l()[::5], sphere(500)]
    longest = max(map(len, clouds))
    padded = torch.full((2, longest, 4), torch.nan)
    for row, points in zip(padded, clouds, strict=True):
        row[: len(points), :3] = points
        row[len(points) :] = 1e6
    padded[1, -1] = torch.inf
    before = padded.clone()
    images = render_points(padded, 3, 64, mode, lengths=torch.tensor([len(c) for c in clouds]))
    assert torch.equal(padded.nan_to_num(), before.nan_to_num())
    assert images.shape == (2, 3, 3, 64, 64)
    assert images.dtype == torch.float32
    assert images.min() == 0
    assert images.max() <= 1
    for image, points in zip(images, clouds, strict=True):
        assert torch.equal(image, render_points(points[None], 3, 64, mode)[0])
        strays = torch.tensor([[9.0, 0.0, 0.0], [torch.nan] * 3, [0.0, torch.inf, 0.0], [0.0, 3.0, 9.0]])
        assert torch.equal(image, render_points(torch.cat([points, strays])[None], 3, 64, mode)[0])


def test_a_cloud_of_one_point_and_one_out_of_sight_are_fine():
    assert (front(torch.zeros(1, 3)) > 0).any()
    for mode in ("depth", "shaded", "normal"):
        assert render_points(torch.full((1, 4, 3), torch.nan), 2, 32, mode).sum() == 0


def test_normals_of_a_sphere_point_outwards_and_light_comes_from_the_upper_left():
    normals = render_points(sphere()[None], 10, SIZE, "normal", rig="ten")[0, 0] * 2 - 1
    rows, columns = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
    x, y = columns / PIXELS_PER_UNIT - 1 / FILL, 1 / FILL - rows / PIXELS_PER_UNIT
    inside = x**2 + y**2 < 0.7**2
    expected = torch.stack([x, y, (1 - x**2 - y**2).clamp(min=0).sqrt()])
    cosine = (normals * expected).sum(0)[inside]
    assert cosine.mean() > 0.99
    shaded = render_points(sphere()[None], 10, SIZE, "shaded", rig="ten")[0, 0, 0]
    low, high = SIZE // 2 - int(0.5 * PIXELS_PER_UNIT), SIZE // 2 + int(0.5 * PIXELS_PER_UNIT)
    assert shaded[low, low] > shaded[low, high] > shaded[high, high]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("up_axis", ["x", "y", "z"])
@pytest.mark.parametrize("perspective", [False, True])
@pytest.mark.parametrize("name", SOLIDS)
def test_solids_look_as_they_do_through_cameras_written_by_hand(name, perspective, up_axis, device):
    points = turned(cloud(SOLIDS[name])[:, :3], up_axis).to(device)
    images = render_points(points[None], 10, SIZE, up_axis=up_axis, rig="ten", perspective=perspective)
    expected = reference(SOLIDS[name], SIZE, perspective)
    image = images[0, :6, 0].cpu()
    assert overlap(image, expected).min() >= 0.9
    both = (image > 0) & (expected > 0)
    # Splats bring the surface forward by a pixel's worth, and much more only at edges.
    assert (image - expected)[both].abs().median() < 0.01
    assert ((image - expected)[both].abs() > 0.05).float().mean() < 0.05


@pytest.mark.parametrize("perspective", [False, True])
def test_no_view_of_the_solid_l_could_be_taken_for_its_mirror_image(perspective):
    image = render_points(cloud(LETTER_L)[None], 10, SIZE, rig="ten", perspective=perspective)[0, :6, 0]
    expected = reference(LETTER_L, SIZE, perspective)
    for other in (expected.flip(-1), expected.flip(-2), expected.roll(1, 0)):
        depths = (image - other).abs().mean(dim=(1, 2))
        assert (depths > 3 * (image - expected).abs().mean(dim=(1, 2))).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("perspective", [False, True])
@pytest.mark.parametrize("up_axis", ["y", "z"])
def test_given_normals_of_either_sign_are_drawn_on_the_viewers_side(up_axis, perspective, device):
    points = cloud(SPHERE, 12_000)
    points = torch.cat([turned(points[:, :3], up_axis), turned(points[:, 3:], up_axis)], 1)
    signs = torch.where(torch.arange(len(points)) % 2 == 0, 1.0, -1.0)[:, None]
    points[:, 3:] *= 3 * signs
    settings = {"size": SIZE, "up_axis": up_axis, "rig": "ten", "perspective": perspective}
    normals = render_points(points[None].to(device), mode="normal", normals=True, **settings)[0].cpu() * 2 - 1
    expected = sphere_normals(perspective)
    inside = reference(SPHERE, SIZE, perspective)[0] > 0
    # A pixel from the outline, the mean is over fewer and ever steeper normals.
    inside = -torch.nn.functional.max_pool2d(-inside[None].float(), 9, 1, 4)[0] > 0
    cosine = (normals * expected).sum(1)
    assert cosine[:, inside].min() > 0.99
    # The slopes alone say nearly the same.
    slopes = render_points(points[None].to(device), mode="normal", **settings)[0].cpu() * 2 - 1
    assert 0.99 < (slopes * expected).sum(1)[:, inside].mean() < cosine[:, inside].mean()


def sphere_normals(perspective: bool) -> torch.Tensor:
    """-> (3, H, W) of the sphere about the origin, from any side."""
    z = (reference(SPHERE, SIZE, perspective)[0] - FAR) / (1 - FAR) * 2 - 1
    middle = (2 * (torch.arange(SIZE) + 0.5) / SIZE - 1) / FILL
    y, x = torch.meshgrid(-middle, middle, indexing="ij")
    if perspective:
        x, y = (part * (3 - z) / math.sqrt(8) for part in (x, y))
    return torch.stack([x, y, z]) / SPHERE


def test_normals_that_are_zero_or_broken_face_the_viewer():
    points = torch.cat([plane(0.8, 0.8, 0.0), torch.zeros(3600, 3)], 1)
    points[::7, 3:] = torch.nan
    image = render_points(points[None], size=64, mode="normal", normals=True, rig="ten")[0, 0]
    torch.testing.assert_close(image[:, 32, 32], torch.tensor([0.5, 0.5, 1.0]))
    shaded = render_points(points[None], size=64, mode="shaded", normals=True, rig="ten")[0, 0]
    facing_light = point_views.normal_image(
        torch.tensor([0.0, 0, 1]).view(1, 1, 3, 1, 1), torch.ones(1, 1, 1, 1), "shaded"
    )
    torch.testing.assert_close(shaded[:, 32, 32], facing_light.flatten())


@pytest.mark.parametrize("mode", ["depth", "shaded", "normal"])
def test_cloud_by_cloud_and_all_at_once_are_the_same(mode, monkeypatch):
    clouds = torch.stack([cloud(solid, 2000) for solid in SOLIDS.values()])
    lengths = torch.tensor([2000, 1500, 700])
    one_by_one = render_points(clouds, size=48, mode=mode, lengths=lengths, normals=True)
    monkeypatch.setattr(point_views, "PIECE", {})
    at_once = render_points(clouds, size=48, mode=mode, lengths=lengths, normals=True)
    assert torch.equal(one_by_one, at_once)
    assert torch.equal(one_by_one, render_points(clouds, size=48, mode=mode, lengths=lengths, normals=True))
    assert not torch.equal(one_by_one, render_points(clouds, size=48, mode=mode, lengths=lengths, splat=0.1))


def test_splats_of_dense_clouds_are_smaller_unless_one_is_given():
    sparse, dense = plane(0.5, 0.5, 0.0, count=32), plane(0.5, 0.5, 0.0, count=100)
    widths = [(front(points) > 0).any(0).sum().item() for points in (sparse, dense)]
    # Two more pixels, one at each side.
    assert widths[0] == widths[1] + 2
    assert (front(dense, splat=0.02) > 0).any(0).sum().item() == widths[0]


def test_dense_clouds_keep_slits_open_unless_something_lies_behind():
    bars = torch.cat([plane(0.3, 1.0, 0.0, x=-0.2, count=80), plane(0.3, 1.0, 0.0, x=0.21, count=80)])
    middle = SIZE // 2
    assert front(bars)[middle, middle] == 0
    assert front(bars, gap=0.06)[middle, middle] > 0
    wall = plane(1.0, 1.0, 0.5, count=80)
    image = front(torch.cat([bars, wall]))
    assert image[middle, middle] == image[middle, middle - 10] > image[middle, middle - 26] > 0


def test_channels_that_are_not_asked_for_are_ignored():
    points = cloud(LETTER_L, 1000)[None]
    wide = torch.cat([points, torch.full((1, 1000, 2), torch.nan)], 2)
    assert torch.equal(render_points(points[..., :3], size=32), render_points(wide, size=32))
    with_normals = render_points(points, size=32, mode="normal", normals=True)
    assert torch.equal(with_normals, render_points(wide, size=32, mode="normal", normals=True))
    assert torch.equal(
        render_points(points, size=32), render_points(wide, size=32, mode="depth", normals=True)
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "photo"}, "mode"),
        ({"mode": "normals"}, "did you mean normal"),
        ({"normals": True}, r"\(B, P, 6\)"),
        ({"rig": "dome"}, "rig"),
        ({"rig": "ten", "num_views": 6}, "10 cameras"),
        ({"num_views": 0}, "num_views"),
        ({"up_axis": "w"}, "up_axis"),
        ({"size": 0}, "size"),
        ({"lengths": torch.tensor([0])}, "lengths"),
        ({"lengths": torch.tensor([9])}, "lengths"),
        ({"lengths": torch.tensor([1, 1])}, "one length a cloud"),
        ({"lengths": torch.tensor([1.5])}, "of whole numbers"),
        ({"splat": -0.1}, "expected splat from 0 to 2 sphere radii, got -0.1"),
        ({"gap": float("inf")}, "expected gap from 0 to 2 sphere radii, got inf"),
        ({"points": [[[0.0, 0.0, 0.0]]]}, "expected points as a tensor"),
        ({"points": torch.zeros(8, 3)}, "shape"),
        ({"points": torch.zeros(1, 8, 2)}, "shape"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        render_points(**{"points": torch.zeros(1, 8, 3), "size": 32, **settings})
