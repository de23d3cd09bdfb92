"""Draws views.png beside itself, or where it is told: python docs/images/views.py [PATH]"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pointvit.data.io import sample_triangles
from pointvit.data.meshes import Mesh
from pointvit.data.recipes import RECIPES
from pointvit.plots import new_figure
from pointvit.views import MODES, render_mesh, render_points

SHAPES = {"chair": 6, "airplane": 1, "vase": 4}
TILE, WIDTH = 160, 10
# (azimuth, elevation): a little from the right and from above.
CAMERA = [(-60.0, 25.0)]


def made_mesh(name: str, seed: int) -> Mesh:
    triangles = np.concatenate(RECIPES[name](np.random.default_rng(seed)))
    corners = triangles.reshape(-1, 3).astype(np.float32)
    return Mesh(corners, np.arange(len(corners)).reshape(-1, 3)).in_unit_sphere()


def sampled(mesh: Mesh, count: int) -> Tensor:
    """-> (1, P, 6), with normals."""
    corners = mesh.vertices[mesh.faces].astype(np.float64)
    chosen, weights = sample_triangles(corners, count, np.random.default_rng(0))
    picked = corners[chosen]
    normals = np.cross(picked[:, 1] - picked[:, 0], picked[:, 2] - picked[:, 0])
    points = np.einsum("sc,scd->sd", weights, picked)
    return torch.from_numpy(np.hstack([points, normals]))[None].float()


def strip(mesh: Mesh) -> dict[str, list[Tensor]]:
    """What each heading stands above: three images (3, H, W)."""
    few, many = sampled(mesh, 1024), sampled(mesh, 8192)
    return {
        "cloud of 1,024 points": [render_points(few, 1, TILE, m, rig=CAMERA)[0, 0] for m in MODES],
        "8,192 points with normals": [
            render_points(many, 1, TILE, m, rig=CAMERA, normals=True)[0, 0] for m in MODES
        ],
        "mesh": [render_mesh(*mesh, 1, TILE, m, rig=CAMERA)[0] for m in MODES],
    }


def main(path: Path) -> None:
    rows = [strip(made_mesh(name, seed)) for name, seed in SHAPES.items()]
    ten = render_mesh(*made_mesh("chair", SHAPES["chair"]), size=TILE, mode="shaded", rig="ten")
    figure = new_figure(WIDTH, 5.0)
    grids = figure.subfigures(2, 1, height_ratios=(3.3, 1.25))
    for heading, part in zip(rows[0], grids[0].subfigures(1, 3, wspace=0.03), strict=True):
        part.suptitle(heading, fontsize=10)
        axes = part.subplots(len(rows), 3, gridspec_kw={"wspace": 0.03, "hspace": 0.03})
        for row, places in zip(rows, axes, strict=True):
            for place, image, mode in zip(places, row[heading], MODES, strict=True):
                place.imshow(image.permute(1, 2, 0).numpy())
                place.set_axis_off()
                if row is rows[-1]:
                    place.text(0.5, -0.05, mode, transform=place.transAxes, ha="center", va="top", fontsize=9)
    grids[1].suptitle("the rig ten: front, right, back, left, top, bottom, four upper corners", fontsize=10)
    for place, image in zip(grids[1].subplots(1, 10, gridspec_kw={"wspace": 0.03}), ten, strict=True):
        place.imshow(image.permute(1, 2, 0).numpy())
        place.set_axis_off()
    figure.savefig(path, dpi=160)
    # A palette is a third of the size.
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("views.png"))
