import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pointvit.views import (
    FAR,
    MODES,
    meshes,
    rasterizing,
    raycasting,
    render_mesh,
    render_meshes,
    render_points,
)
from view_reference import CUBE, LETTER_L, SOLIDS, SPHERE, cloud, mesh, overlap, reference, turned

SIZE = 96
BACKENDS = [
    pytest.param(
        name,
        device,
        marks=[
            pytest.mark.skipif(module.why_unavailable() is not None, reason=f"{name} cannot be used"),
            *([pytest.mark.cuda, NO_CUDA] if device == "cuda" else []),
        ],
        id=f"{name}-{device}",
    )
    for NO_CUDA in [pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    for device in ("cpu", "cuda")
    for name, module in (("open3d", raycasting), ("pytorch3d", rasterizing))
]
# On the CPU PyTorch3D looks at every face for every pixel.
FAST_BACKENDS = [param for param in BACKENDS if param.id != "pytorch3d-cpu"]
on_every_backend = pytest.mark.parametrize(("backend", "device"), BACKENDS)


def six_views(solid, backend, device, up_axis="z", **settings) -> torch.Tensor:
    """-> (6, 3, H, W) on the CPU: the first views of `ten`."""
    vertices, faces = mesh(solid)
    vertices = turned(vertices, up_axis).to(device)
    images = render_mesh(vertices, faces, 10, SIZE, up_axis=up_axis, rig="ten", backend=backend, **settings)
    assert images.device == vertices.device
    assert images.shape == (10, 3, SIZE, SIZE)
    return images[:6].cpu()


@on_every_backend
@pytest.mark.parametrize("up_axis", ["x", "y", "z"])
@pytest.mark.parametrize("perspective", [False, True])
@pytest.mark.parametrize("name", ["cube", "letter_l"])
def test_solids_look_as_they_do_through_cameras_written_by_hand(name, perspective, up_axis, backend, device):
    image = six_views(SOLIDS[name], backend, device, up_axis, perspective=perspective)[:, 0]
    expected = reference(SOLIDS[name], SIZE, perspective)
    assert overlap(image, expected).min() > 0.99
    wrong = ((image - expected).abs() > 1e-4).float().mean(dim=(1, 2))
    # A line of pixels along an edge may fall to either side of it.
    assert wrong.max() < 0.005


@pytest.mark.parametrize(("backend", "device"), FAST_BACKENDS)
@pytest.mark.parametrize("perspective", [False, True])
def test_a_sphere_has_its_outline_depth_and_normals(perspective, backend, device):
    depth = six_views(SPHERE, backend, device, perspective=perspective)[:, 0]
    expected = reference(SPHERE, SIZE, perspective)
    assert overlap(depth, expected).min() > 0.98
    both = (depth > 0) & (expected > 0)
    assert (depth - expected)[both].abs().quantile(0.99) < 0.02
    normals = six_views(SPHERE, backend, device, perspective=perspective, mode="normal") * 2 - 1
    z = (expected[0] - FAR) / (1 - FAR) * 2 - 1
    x = F.normalize(normals, dim=1)
    # From every side the middle faces the viewer, the right half right, and the upper half up.
    half = SIZE // 2
    torch.testing.assert_close(x[:, 2, half, half], torch.ones(6), atol=5e-3, rtol=0)
    assert (x[:, 0, half, half + 20] > 0.5).all()
    assert (x[:, 1, half - 20, half] > 0.5).all()
    torch.testing.assert_close(x[:, 2][:, both[0]].mean(), (z[both[0]] / SPHERE).mean(), atol=0.05, rtol=0.1)


@pytest.mark.parametrize(("backend", "device"), FAST_BACKENDS)
@pytest.mark.parametrize("perspective", [False, True])
@pytest.mark.parametrize("name", SOLIDS)
def test_a_well_sampled_cloud_has_the_outline_of_its_mesh(name, perspective, backend, device):
    vertices, faces = mesh(SOLIDS[name])
    settings = {"rig": "ten", "perspective": perspective, "size": 128}
    drawn = render_mesh(vertices.to(device), faces, backend=backend, **settings)[None]
    points = render_points(cloud(SOLIDS[name])[None].to(device), **settings)
    assert overlap(drawn[:, :, 0], points[:, :, 0]).min() >= 0.9
    shaded = [
        render_mesh(vertices.to(device), faces, backend=backend, mode="shaded", **settings)[None],
        render_points(cloud(SOLIDS[name])[None].to(device), mode="shaded", normals=True, **settings),
    ]
    both = (shaded[0] > 0) & (shaded[1] > 0)
    assert (shaded[0] - shaded[1])[both].abs().median() < 0.02


@on_every_backend
def test_depth_of_a_plane_is_the_clouds(backend, device):
    vertices = torch.tensor([[-0.5, 0.3, -0.5], [0.5, 0.3, -0.5], [0.5, 0.3, 0.5], [-0.5, 0.3, 0.5]])
    image = render_mesh(
        vertices.to(device), [[0, 1, 2], [0, 2, 3]], size=SIZE, rig=[(-90, 0)], backend=backend
    )
    seen = image[image > 0]
    torch.testing.assert_close(seen, torch.full_like(seen, FAR + (1 - FAR) * 0.35))
    assert len(seen) == pytest.approx(3 * (0.45 * SIZE) ** 2, rel=0.05)


@on_every_backend
@pytest.mark.parametrize("mode", MODES)
def test_runs_windings_and_kinds_of_array_make_no_difference(mode, backend, device):
    vertices, faces = mesh(LETTER_L)
    settings = {"size": 48, "mode": mode, "rig": "dodecahedron", "backend": backend}
    first = render_mesh(vertices.to(device), faces, **settings)
    assert first.shape == (20, 3, 48, 48)
    assert first.dtype == torch.float32
    assert first.min() == 0
    assert first.max() <= 1
    assert torch.equal(first, render_mesh(vertices.to(device), faces, **settings))
    inside_out = render_mesh(vertices.to(device), faces.flip(1), **settings)
    torch.testing.assert_close(first, inside_out, atol=1e-4, rtol=0)
    arrays = vertices.double().numpy(), faces.numpy().astype(np.int32)
    several = render_meshes([mesh(CUBE), arrays], **settings)
    torch.testing.assert_close(first.cpu(), several[1], atol=1e-4, rtol=0)
    assert torch.equal(several[0], render_mesh(*mesh(CUBE), **settings))


@pytest.mark.skipif(
    bool(raycasting.why_unavailable() or rasterizing.why_unavailable()), reason="needs Open3D and PyTorch3D"
)
@pytest.mark.parametrize("perspective", [False, True])
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_both_back_ends_draw_the_same(scale, perspective):
    """Also a mesh that reaches beyond the sphere, and around a perspective camera."""
    vertices, faces = mesh(LETTER_L)
    settings = {"size": 64, "mode": "normal", "perspective": perspective}
    ours, theirs = (
        render_mesh(scale * vertices, faces, backend=backend, **settings)
        for backend in ("open3d", "pytorch3d")
    )
    assert ((ours - theirs).abs() > 1e-3).float().mean() < 5e-3
    assert (ours > 0).float().mean() > 0.05


def test_auto_takes_what_suits_the_device(monkeypatch):
    unavailable = {"open3d": None, "pytorch3d": None}
    for name, module in (("open3d", raycasting), ("pytorch3d", rasterizing)):
        monkeypatch.setattr(module, "why_unavailable", lambda name=name: unavailable[name])
    assert meshes._backend("auto", "cpu") is raycasting
    assert meshes._backend("auto", "cuda") is rasterizing
    unavailable["open3d"] = "not installed"
    assert meshes._backend("auto", "cpu") is rasterizing
    with pytest.raises(ValueError, match="'open3d' for meshes cannot be used: not installed"):
        meshes._backend("open3d", "cpu")


def test_without_either_back_end_one_sentence_says_what_to_install(monkeypatch):
    for name in ("open3d", "pytorch3d"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="need Open3D or PyTorch3D, and neither") as caught:
        render_mesh(*mesh(CUBE), size=16)
    for fix in ("pip install 'pointvit[io]'", "pip install 'pointvit[pytorch3d]'"):
        assert fix in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"faces": torch.tensor([[0, 1, 8]])},
            r"mesh 0: expected faces of vertices 0..7, got indices from 0 to 8",
        ),
        ({"faces": torch.tensor([[0, 1, -1]])}, "from -1 to 1"),
        ({"faces": torch.zeros(0, 3, dtype=torch.long)}, "mesh 0 is empty: it has 8 vertices and 0 faces"),
        ({"faces": torch.zeros(1, 3)}, "whole numbers"),
        ({"faces": torch.zeros(1, 4, dtype=torch.long)}, r"triangles \(F, 3\)"),
        ({"vertices": torch.zeros(0, 3)}, "empty"),
        ({"vertices": torch.zeros(8, 2)}, r"vertices of shape \(N, 3\)"),
        ({"vertices": torch.full((8, 3), torch.nan)}, "8 of 8 vertices are NaN or infinite"),
        ({"num_views": 3, "rig": "ten"}, "10 cameras"),
        ({"size": 0}, "size"),
        ({"mode": "shade"}, "did you mean shaded"),
        ({"rig": "circel"}, "did you mean circle"),
        ({"up_axis": "w"}, "up_axis"),
        ({"backend": "open3"}, "did you mean open3d"),
    ],
)
def test_bad_meshes_and_settings_are_named(settings, message):
    vertices, faces = mesh(CUBE)
    with pytest.raises(ValueError, match=message):
        render_mesh(**{"vertices": vertices, "faces": faces, "size": 16, **settings})


def test_no_mesh_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one mesh"):
        render_meshes([])
