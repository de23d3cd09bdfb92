"""Images of point clouds and of meshes, seen from a fixed rig of cameras, without a display."""

from pointvit.views.cameras import FILL, RIGS, Cameras, Rig, UpAxis, camera_rotations
from pointvit.views.colors import normalize_images
from pointvit.views.meshes import render_mesh, render_meshes
from pointvit.views.points import render_points
from pointvit.views.shading import FAR, MODES, Mode
from pointvit.views.sizes import check_view_size

__all__ = [
    "FAR",
    "FILL",
    "MODES",
    "RIGS",
    "Cameras",
    "Mode",
    "Rig",
    "UpAxis",
    "camera_rotations",
    "check_view_size",
    "normalize_images",
    "render_mesh",
    "render_meshes",
    "render_points",
]
