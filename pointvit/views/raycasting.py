"""What cameras see of a mesh, by Open3D's ray casting on the CPU; the views' only import of it."""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
from torch import Tensor

from pointvit.views.cameras import Cameras

# Parallel rays begin so far in front of the nearest vertex, in sphere radii.
MARGIN = 1.0


def why_unavailable() -> str | None:
    """One line saying why Open3D cannot be used, or None if it can."""
    if importlib.util.find_spec("open3d") is None:
        return "not installed (pip install 'pointvit[io]')"
    try:
        import open3d  # noqa: F401
    except (ImportError, OSError) as error:
        return f"installed, but its import fails ({error})"
    return None


def visible_faces(vertices: Tensor, faces: Tensor, cameras: Cameras) -> tuple[Tensor, Tensor]:
    """(N, 3), (F, 3) -> (V, H, W) twice: each pixel's face, -1 where there is none, and its depth."""
    from open3d.core import Tensor as Open3DTensor
    from open3d.t.geometry import RaycastingScene

    threads = torch.get_num_threads()
    scene = RaycastingScene(nthreads=threads)
    scene.add_triangles(
        Open3DTensor(vertices.cpu().numpy()), Open3DTensor(faces.cpu().numpy().astype(np.uint32))
    )
    cameras = cameras.to("cpu")
    origins, directions = cameras.rays()
    if not cameras.perspective:
        # Within the mesh the rays would miss what lies behind their start.
        origins[2] = vertices.norm(dim=1).max().item() + MARGIN
    found, depths = [], []
    for rotation in cameras.rotations:
        # A view at a time: the rays of all of them would take 24 bytes a pixel.
        rays = torch.stack([*_to_world(origins, rotation), *_to_world(directions, rotation)], -1)
        hits = scene.cast_rays(Open3DTensor(rays.numpy()), nthreads=threads)
        distance = torch.from_numpy(hits["t_hit"].numpy())
        face = torch.from_numpy(hits["primitive_ids"].numpy().astype(np.int64))
        found.append(face.masked_fill(distance.isinf(), -1))
        depths.append(origins[2] - distance)
    return torch.stack(found).to(vertices.device), torch.stack(depths).to(vertices.device)


def _to_world(vectors: Tensor, rotation: Tensor) -> Tensor:
    """(3, H, W) in a camera's axes -> (3, H, W) in the world's."""
    return (vectors[:, None] * rotation[:, :, None, None]).sum(0)
