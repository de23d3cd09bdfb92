import math

import pytest
import torch

from pointvit.views import FAR, Cameras, camera_rotations, render_mesh, render_points
from view_reference import CUBE, mesh

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
RIGS = [("circle", 1), ("circle", 7), ("ten", 10), ("dodecahedron", 20), ([(10.0, -40.0), (0.0, 90.0)], 2)]


@pytest.mark.parametrize("up_axis", ["x", "y", "z"])
@pytest.mark.parametrize(("rig", "views"), RIGS)
def test_cameras_are_proper_rotations_with_distinct_directions(rig, views, up_axis):
    rotations = camera_rotations(views, rig, up_axis)
    assert rotations.shape == (views, 3, 3)
    torch.testing.assert_close(rotations @ rotations.mT, torch.eye(3).expand(views, 3, 3))
    torch.testing.assert_close(torch.linalg.det(rotations), torch.ones(views))
    between = rotations[:, 2] @ rotations[:, 2].T - 2 * torch.eye(views)
    assert between.max() < 0.9999
    # Up is up: no camera is upside down, and a level one sees the up axis vertical.
    assert (rotations[:, 1, "xyz".index(up_axis)] > -1e-6).all()


def test_circle_looks_from_thirty_degrees_above_starting_at_the_front():
    rotations = camera_rotations(4, "circle")
    torch.testing.assert_close(rotations[:, 2, 2], torch.full((4,), 0.5))
    torch.testing.assert_close(rotations[0, 0], torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(rotations[1, 0], torch.tensor([0.0, 1.0, 0.0]))


def test_dodecahedron_has_twenty_vertices_with_three_neighbours_each():
    viewers = camera_rotations(rig="dodecahedron")[:, 2].double()
    angles = (viewers @ viewers.T).clamp(-1, 1).acos().rad2deg() + 360 * torch.eye(20)
    edge = math.degrees(math.acos(math.sqrt(5) / 3))
    neighbours = (angles - edge).abs() < 1e-3
    assert (neighbours.sum(1) == 3).all()
    assert angles.min() > edge - 1e-3
    # The first looks from the front, a little from above.
    assert viewers[0, 1] < -0.9
    assert viewers[0, 2] > 0.3


def test_a_rig_of_ones_own_is_in_degrees_from_the_right_side():
    ten = camera_rotations(rig="ten")
    own = camera_rotations(rig=[(-90, 0), (0, 0), (90, 0), (180, 0), (-90, 90), (-90, -90)])
    torch.testing.assert_close(own, ten[:6])
    assert len(camera_rotations()) == 10
    assert torch.equal(camera_rotations(), camera_rotations(10, "circle", "z"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("perspective", [False, True])
def test_a_point_lights_the_pixel_that_it_projects_to(perspective, device):
    points = torch.rand(60, 1, 3, generator=torch.Generator().manual_seed(0)) * 1.1 - 0.55
    settings = {"size": 37, "rig": "dodecahedron", "up_axis": "y", "perspective": perspective}
    images = render_points(points.to(device), splat=0.0, gap=0.0, **settings)[:, :, 0]
    cameras = Cameras.from_rig(**settings)
    pixels, depth = cameras.project(points.to(device))
    assert images.device == pixels.device == depth.device
    assert pixels.shape == (60, 20, 1, 2)
    assert ((images > 0).sum((2, 3)) == 1).all()
    column, row = pixels[:, :, 0].floor().long().unbind(-1)
    lit = torch.take_along_dim(images.flatten(2), (row * 37 + column)[..., None], 2)
    torch.testing.assert_close(lit, FAR + (1 - FAR) * (depth + 1) / 2)
    # The same place for grid_sample.
    sampled = torch.nn.functional.grid_sample(
        images.flatten(0, 1)[:, None],
        2 * pixels.flatten(0, 1)[:, None] / 37 - 1,
        mode="nearest",
        align_corners=False,
    )
    assert (sampled > 0).all()


def test_what_is_broken_or_behind_a_perspective_camera_has_no_pixel():
    cloud = torch.tensor([[[0.0, -4.0, 0.0], [torch.nan, 0.0, 0.0], [0.0, torch.inf, 0.0], [0.0, 0.0, 0.0]]])
    pixels, _ = Cameras.from_rig(rig="ten", perspective=True).project(cloud)
    assert pixels[0, 0, :3].isnan().all()
    torch.testing.assert_close(pixels[0, :, 3], torch.full((10, 2), 112.0))
    parallel, depth = Cameras.from_rig(rig="ten").project(cloud)
    torch.testing.assert_close(parallel[0, 0, 0], torch.full((2,), 112.0))
    assert depth[0, 0, 0] == 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("perspective", [False, True])
@pytest.mark.parametrize("drawn_as", ["points", "mesh"])
def test_visible_is_what_nothing_nearer_hides(drawn_as, perspective, device):
    settings = {"size": 128, "rig": "ten", "perspective": perspective}
    grid = torch.cartesian_prod(torch.linspace(-0.5, 0.5, 40), torch.linspace(-0.5, 0.5, 40))
    face = torch.cat([torch.full((len(grid), 1), 0.5), grid], 1)
    sides = torch.cat([sign * face.roll(k, dims=1) for k in range(3) for sign in (1, -1)]).to(device)
    if drawn_as == "points":
        images = render_points(sides[None], splat=0.02, **settings)
    else:
        vertices, faces = mesh(CUBE)
        images = render_mesh(vertices.to(device), faces, **settings)[None]
    cameras = Cameras.from_rig(**settings)
    middles = torch.cat([0.5 * torch.eye(3), -0.5 * torch.eye(3)])
    others = torch.tensor([[0.0, -0.68, 0.0], [0.0, 0.0, 0.0], [2.0, 2.0, 0.0], [torch.nan] * 3])
    seen = cameras.visible(torch.cat([middles, others])[None].to(device), images)[0].cpu()
    # Right, back, top, left, front, bottom, then a point before the front, the middle, and two strays.
    assert seen[0].tolist() == [False, False, False, False, True, False, True, False, False, False]
    assert seen[1].tolist() == [True, *5 * [False], True, False, False, False]
    assert seen[4].tolist()[:6] == [False, False, True, False, False, False]
    # An upper corner of the cube faces three sides, here right, front and top.
    assert seen[6].tolist()[:6] == [True, False, True, False, True, False]
    behind = torch.tensor([[[0.0, -0.42, 0.0]]], device=device)
    assert not cameras.visible(behind, images)[0, 0, 0]
    assert cameras.visible(behind, images, tolerance=0.1)[0, 0, 0]


def test_cameras_move_to_a_device_and_stay_the_same():
    cameras = Cameras.from_rig(3, 32, perspective=True)
    moved = cameras.to("cpu")
    assert (len(moved), moved.size, moved.perspective) == (3, 32, True)
    assert torch.equal(moved.rotations, camera_rotations(3))
    with pytest.raises(AttributeError):
        cameras.size = 64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rig": "dodecahedon"}, "did you mean dodecahedron"),
        ({"rig": "dodecahedron", "num_views": 10}, "'dodecahedron' has 20 cameras, got num_views=10"),
        ({"rig": [(0, 0)], "num_views": 2}, "given rig has 1 cameras, got num_views=2"),
        ({"rig": []}, "at least one"),
        ({"rig": [(0, 0, 0)]}, "one pair a camera"),
        ({"rig": [(0, math.nan)]}, "finite"),
        ({"rig": [(0, 91)]}, "elevations within"),
        ({"rig": 5}, "one pair a camera"),
    ],
)
def test_bad_rigs_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        camera_rotations(**settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cameras(torch.eye(3)), r"rotations of shape \(V, 3, 3\)"),
        (lambda: Cameras(torch.diag(torch.tensor([-1.0, 1, 1]))[None]), "mirrors"),
        (lambda: Cameras(2 * torch.eye(3)[None]), "stretches"),
        (lambda: Cameras.from_rig(size=1), "size"),
        (lambda: Cameras.from_rig().project(torch.zeros(4, 3)), r"\(B, N, 3\)"),
        (
            lambda: Cameras.from_rig().visible(torch.zeros(1, 4, 3), torch.zeros(1, 9, 3, 224, 224)),
            "depth images",
        ),
    ],
)
def test_bad_cameras_and_points_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
