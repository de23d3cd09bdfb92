"""The cloud in Open3D's own window."""

from __future__ import annotations

import os
import sys

import numpy as np

from pointvit.viewer.image import point_colors
from pointvit.viewer.looks import Look, checked
from pointvit.viewer.scene import Scene


def show_window(scene: Scene, look: Look) -> None:
    """Opens a window, and returns once it is closed.

    Raises:
        ValueError: where Open3D or a display is missing, or a look asks for what the scene lacks.
    """
    look = checked(scene, look)
    on_linux = sys.platform.startswith("linux")
    if on_linux and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise ValueError(
            "--desktop needs a display, and neither DISPLAY nor WAYLAND_DISPLAY is set; write a page with "
            "--output or a picture with --image instead"
        )
    try:
        import open3d
    except (ImportError, OSError) as error:
        raise ValueError(
            f"--desktop needs Open3D (pip install 'pointvit[io]'), which does not load here ({error}); "
            "write a page with --output instead"
        ) from error
    cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(scene.cloud.points.astype(np.float64)))
    cloud.colors = open3d.utility.Vector3dVector(point_colors(scene, look))
    window = open3d.visualization.Visualizer()
    name = scene.name.encode("utf-8", "replace").decode()
    if not window.create_window(name):
        raise ValueError("Open3D could not open a window on this display; write a page with --output instead")
    try:
        window.add_geometry(cloud)
        window.run()
    finally:
        window.destroy_window()
