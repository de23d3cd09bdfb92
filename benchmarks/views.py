"""Views a second, of clouds and of meshes, beside PyTorch3D's rasterisers: python benchmarks/views.py

Clouds and meshes of the same shapes, ten views of 224 pixels each. The whole batch is timed alone; beside
PyTorch3D, whose rasterisers look at every point or face for every pixel on the CPU, a few clouds are drawn in
turn, as splats without hole filling on our side and as discs of the same width on theirs. Their outlines are
compared. Writes benchmarks/results/views.json.
"""

from __future__ import annotations

import numpy as np
import torch
from common import interleaved_seconds, is_quick, median_seconds, peak_mb, surroundings, write
from einops import rearrange
from torch import Tensor

from pointvit.data.meshes import Mesh
from pointvit.data.primitives import sample_surface
from pointvit.data.recipes import RECIPES
from pointvit.ops import available_backends
from pointvit.views import FILL, MODES, Cameras, raycasting, render_meshes, render_points

VIEWS, RIG, SPLAT = 10, "ten", 0.02


def made_meshes(count: int) -> list[Mesh]:
    """Shapes of all categories in turn."""
    names = list(RECIPES)
    meshes = []
    for i in range(count):
        triangles = np.concatenate(RECIPES[names[i % len(names)]](np.random.default_rng(i)))
        corners = triangles.reshape(-1, 3).astype(np.float32)
        meshes.append(Mesh(corners, np.arange(len(corners)).reshape(-1, 3)).in_unit_sphere())
    return meshes


def sampled_clouds(meshes: list[Mesh], points: int) -> Tensor:
    """-> (B, P, 3), sampled from them by area."""
    clouds = [
        sample_surface(mesh.vertices[mesh.faces], points, np.random.default_rng(i))
        for i, mesh in enumerate(meshes)
    ]
    return torch.from_numpy(np.stack(clouds)).float()


def pytorch3d_discs(clouds: Tensor, size: int) -> Tensor:
    """(B, P, 3) -> (B, V, H, W): whether a disc of a splat's width lies there, by PyTorch3D."""
    from pytorch3d.renderer.points.rasterize_points import rasterize_points
    from pytorch3d.structures import Pointclouds

    cameras = Cameras.from_rig(VIEWS, size, rig=RIG)
    pixels, depth = cameras.project(clouds)
    column, row = (2 * pixels / size - 1).unbind(-1)
    screen = torch.stack([-column, -row, 2 - depth], -1)  # its x points left, its y up
    half_side = round(SPLAT * 0.5 * size * FILL) + 0.5
    index, _, _ = rasterize_points(
        Pointclouds(list(rearrange(screen, "b v p c -> (b v) p c"))),
        image_size=size,
        radius=2 * half_side / size,
        points_per_pixel=1,
    )
    return rearrange(index[..., 0] >= 0, "(b v) h w -> b v h w", v=VIEWS)


def points_row(clouds: Tensor, size: int, mode: str, repeats: int) -> dict[str, object]:
    """One batch of clouds in one mode."""

    def draw() -> Tensor:
        return render_points(clouds, VIEWS, size, mode, rig=RIG)

    seconds = median_seconds(draw, repeats, warmup=1)
    row = {"clouds": len(clouds), "points": clouds.shape[1], "mode": mode, "seconds": seconds}
    return {**row, "views_per_second": len(clouds) * VIEWS / seconds, "peak_mb": peak_mb(draw)}


def beside_pytorch3d(clouds: Tensor, size: int, repeats: int) -> dict[str, object]:
    """The same few clouds in turn, and how far the outlines overlap."""
    functions = {
        "pointvit": lambda: render_points(clouds, VIEWS, size, rig=RIG, splat=SPLAT, gap=0.0)[:, :, 0] > 0,
        "pytorch3d": lambda: pytorch3d_discs(clouds, size),
    }
    ours, theirs = (function() for function in functions.values())
    seconds = interleaved_seconds(functions, repeats, warmup=0)
    return {
        "clouds": len(clouds),
        "points": clouds.shape[1],
        "seconds": seconds,
        "ratio": seconds["pytorch3d"] / seconds["pointvit"],
        "overlap": ((ours & theirs).sum() / (ours | theirs).sum()).item(),
    }


def meshes_row(meshes: list[Mesh], size: int, backend: str, repeats: int) -> dict[str, object]:
    """The same meshes by one back end, and how far their outlines overlap with those of dense clouds."""

    def draw() -> Tensor:
        return render_meshes(meshes, VIEWS, size, rig=RIG, backend=backend)

    drawn = draw()[:, :, 0] > 0
    cloud = render_points(sampled_clouds(meshes, 8192), VIEWS, size, rig=RIG)[:, :, 0] > 0
    overlap = (drawn & cloud).sum((2, 3)) / (drawn | cloud).sum((2, 3))
    seconds = median_seconds(draw, repeats, warmup=0)
    return {
        "backend": backend,
        "meshes": len(meshes),
        "faces": sum(len(mesh.faces) for mesh in meshes) / len(meshes),
        "seconds": seconds,
        "views_per_second": len(meshes) * VIEWS / seconds,
        "overlap_with_clouds": overlap.mean().item(),
    }


def main() -> None:
    quick = is_quick(__doc__)
    size, repeats, counts = (32, 1, (2, 1, 1)) if quick else (224, 5, (32, 2, 20))
    many, few, shapes = counts
    with_pytorch3d = available_backends()["pytorch3d"] is None
    packages = {"easypytorch3d": with_pytorch3d, "open3d-cpu": raycasting.why_unavailable() is None}
    meshes = made_meshes(max(many, shapes))
    rows, peers, drawn = [], [], []
    for points in (1024, 8192):
        clouds = sampled_clouds(meshes[:many], points)
        rows += [points_row(clouds, size, mode, repeats) for mode in MODES]
        if with_pytorch3d:
            peers.append(beside_pytorch3d(clouds[:few], size, min(repeats, 3)))
    for backend, (package, present) in zip(("pytorch3d", "open3d"), packages.items(), strict=True):
        # Few for PyTorch3D, which takes a hundred times as long on the CPU.
        some = meshes[: few if package == "easypytorch3d" else shapes]
        if present:
            drawn.append(meshes_row(some, size, backend, min(repeats, 3)))
    for row in (*rows, *peers, *drawn):
        print(row, flush=True)
    if not quick:
        found = surroundings([name for name, present in packages.items() if present])
        sizes = {"views": VIEWS, "pixels": size, "rig": RIG}
        write("views", {**found, "sizes": sizes, "points": rows, "beside_peers": peers, "meshes": drawn})


if __name__ == "__main__":
    main()
