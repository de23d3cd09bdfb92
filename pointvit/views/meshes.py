"""Meshes through the same cameras, in the same images as clouds."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal

import torch
from einops import rearrange, repeat
from numpy.typing import NDArray
from torch import Tensor

from pointvit.config import near
from pointvit.views import rasterizing, raycasting
from pointvit.views.cameras import Cameras, Rig, UpAxis
from pointvit.views.shading import Mode, brightness, check_mode, depth_image, facing, normal_image

MeshBackend = Literal["auto", "open3d", "pytorch3d"]
MeshArray = Tensor | NDArray[Any]

_BACKENDS: dict[str, ModuleType] = {"open3d": raycasting, "pytorch3d": rasterizing}
# What `auto` tries, in this order. PyTorch3D's rasteriser looks at every face for every pixel on the CPU.
_ORDER = {"cuda": ("pytorch3d", "open3d")}
_ORDER_ELSEWHERE = ("open3d", "pytorch3d")


def render_mesh(
    vertices: MeshArray,
    faces: MeshArray,
    num_views: int | None = None,
    size: int = 224,
    mode: Mode = "depth",
    up_axis: UpAxis = "z",
    rig: Rig = "circle",
    perspective: bool = False,
    backend: MeshBackend = "auto",
) -> Tensor:
    """(N, 3), (F, 3) -> (V, 3, H, W): one mesh, as `render_meshes`."""
    return render_meshes([(vertices, faces)], num_views, size, mode, up_axis, rig, perspective, backend)[0]


@torch.no_grad()
def render_meshes(
    meshes: Sequence[tuple[MeshArray, MeshArray]],
    num_views: int | None = None,
    size: int = 224,
    mode: Mode = "depth",
    up_axis: UpAxis = "z",
    rig: Rig = "circle",
    perspective: bool = False,
    backend: MeshBackend = "auto",
) -> Tensor:
    """B x ((N, 3), (F, 3)) -> (B, V, 3, H, W) float32 in [0, 1] on the vertices' device; the background is 0.

    Cameras, brightness and light are those of `render_points`, and a mesh is expected in the unit sphere as
    a cloud is (`pointvit.data.Mesh.in_unit_sphere`). A pixel shows the face that its middle falls on. Faces
    are flat, seen from both sides, and lit on the side that is seen. Nothing is random, and no gradient
    reaches the vertices.

    Args:
        meshes: vertices, and the vertex indices of the faces, tensors or arrays; `pointvit.data.read_mesh`
            reads one.
        num_views, size, mode, up_axis, rig, perspective: as of `render_points`.
        backend: `open3d`, ray casting on the CPU; `pytorch3d`, a rasteriser; `auto`, on CUDA PyTorch3D where
            it is installed, else Open3D where it is installed, else PyTorch3D.

    Raises:
        ValueError: for no mesh, an empty one, vertices that are not finite, faces that name no vertex, a
            wrong mode, rig or axis, or where no back end is installed.
    """
    check_mode(mode)
    cameras = Cameras.from_rig(num_views, size, up_axis, rig, perspective)
    if not len(meshes):
        raise ValueError("expected at least one mesh, got none.")
    checked = [_checked(i, vertices, faces) for i, (vertices, faces) in enumerate(meshes)]
    device = checked[0][0].device
    module, cameras = _backend(backend, device.type), cameras.to(device)
    return torch.stack([_draw(vertices, faces, cameras, mode, module) for vertices, faces in checked])


def _draw(vertices: Tensor, faces: Tensor, cameras: Cameras, mode: Mode, backend: ModuleType) -> Tensor:
    """(N, 3), (F, 3) -> (V, 3, H, W)."""
    face, depth = backend.visible_faces(vertices, faces, cameras)
    surface = face >= 0
    if mode == "depth":
        return depth_image(torch.where(surface, brightness(depth), 0.0)[None])[0]
    a, b, c = vertices[faces].unbind(1)
    normals = cameras.turn(torch.linalg.cross(b - a, c - a)[None])[0]
    index = repeat(face.clamp(min=0), "v h w -> v (h w) c", c=3)
    seen = rearrange(normals.gather(1, index), "v (h w) c -> 1 v c h w", w=cameras.size)
    return normal_image(facing(seen, cameras.towards_viewer(), -3), surface[None], mode)[0]


def _checked(i: int, vertices: MeshArray, faces: MeshArray) -> tuple[Tensor, Tensor]:
    """As float32 and int64 tensors on the vertices' device."""
    vertices, faces = torch.as_tensor(vertices), torch.as_tensor(faces)
    if vertices.ndim != 2 or vertices.shape[1] != 3 or faces.ndim != 2 or faces.shape[1] != 3:
        raise ValueError(
            f"mesh {i}: expected vertices of shape (N, 3) and triangles (F, 3), got {tuple(vertices.shape)} "
            f"and {tuple(faces.shape)}."
        )
    if not len(vertices) or not len(faces):
        raise ValueError(
            f"mesh {i} is empty: it has {len(vertices)} vertices and {len(faces)} faces; a cloud without "
            "faces is drawn by render_points."
        )
    if faces.is_floating_point() or faces.is_complex() or faces.dtype == torch.bool:
        raise ValueError(f"mesh {i}: expected faces of whole numbers, got {faces.dtype}.")
    vertices, faces = vertices.float(), faces.long().to(vertices.device)
    if not bool(vertices.isfinite().all()):
        broken = int((~vertices.isfinite().all(1)).sum())
        raise ValueError(
            f"mesh {i}: {broken} of {len(vertices)} vertices are NaN or infinite; read_mesh leaves them out."
        )
    low, high = int(faces.min()), int(faces.max())
    if low < 0 or high >= len(vertices):
        raise ValueError(
            f"mesh {i}: expected faces of vertices 0..{len(vertices) - 1}, got indices from {low} to {high}."
        )
    return vertices, faces


def _backend(name: str, device: str) -> ModuleType:
    if name == "auto":
        reasons = {}
        for each in _ORDER.get(device, _ORDER_ELSEWHERE):
            reasons[each] = _BACKENDS[each].why_unavailable()
            if reasons[each] is None:
                return _BACKENDS[each]
        said = "; ".join(f"{each}: {reason}" for each, reason in reasons.items())
        raise ValueError(f"views of meshes need Open3D or PyTorch3D, and neither can be used: {said}.")
    if name not in _BACKENDS:
        known = ("auto", *_BACKENDS)
        raise ValueError(
            f"expected backend to be one of {', '.join(known)}, got {name!r}; {near(name, known)}"
        )
    reason = _BACKENDS[name].why_unavailable()
    if reason is not None:
        raise ValueError(f"the back end {name!r} for meshes cannot be used: {reason}.")
    return _BACKENDS[name]
