"""What cameras see of a mesh, by PyTorch3D's rasteriser on CUDA or the CPU; the views' only import of it."""

from __future__ import annotations

import torch
from torch import Tensor

from pointvit.ops.pytorch3d_backend import why_unavailable
from pointvit.views.cameras import CAMERA_DISTANCE, FILL, FOCAL_LENGTH, Cameras

# Its triangles leave out pixels whose middle lies on an edge: widened by so much of a pixel,
# neighbours share them instead of showing what is behind.
WIDENED = 1e-3
# Nearer to a perspective camera than this, in sphere radii, nothing is drawn.
NEAREST = 1e-2

__all__ = ["visible_faces", "why_unavailable"]


def visible_faces(vertices: Tensor, faces: Tensor, cameras: Cameras) -> tuple[Tensor, Tensor]:
    """(N, 3), (F, 3) -> (V, H, W) twice: each pixel's face, -1 where there is none, and its depth."""
    from pytorch3d.renderer.mesh.rasterize_meshes import rasterize_meshes
    from pytorch3d.structures import Meshes

    turned = cameras.turn(vertices[None])[0]
    # Distances from a camera; parallel rays may begin anywhere in front of the mesh.
    start = CAMERA_DISTANCE if cameras.perspective else turned[..., 2].max().item() + 1.0
    found, depths = [], []
    # A view at a time, with room for every face in each bin: on CUDA, faces beyond that would be left out.
    for x, y, z in (view.unbind(-1) for view in turned):
        away = start - z
        scale = FOCAL_LENGTH / away if cameras.perspective else torch.ones_like(away)
        # Its x points left.
        screen = torch.stack([-FILL * x * scale, FILL * y * scale, away], -1)
        face, distance, _, _ = rasterize_meshes(
            Meshes([screen], [faces]),
            image_size=cameras.size,
            blur_radius=(WIDENED * 2 / cameras.size) ** 2,
            faces_per_pixel=1,
            max_faces_per_bin=len(faces),
            perspective_correct=cameras.perspective,
            z_clip_value=NEAREST if bool((away < NEAREST).any()) else None,
        )
        found.append(face[0, ..., 0])
        depths.append(start - distance[0, ..., 0])
    return torch.stack(found), torch.stack(depths)
