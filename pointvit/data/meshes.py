"""Files to meshes: the vertices and triangles of a file, for views of its surface."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointvit.data.geometry import Geometry
from pointvit.data.io import READERS, drop_non_finite, far_offset, read_as

# Formats that may have faces.
MESH_ENDINGS = (".off", ".obj", ".ply", ".stl", ".glb", ".gltf")
_FACES_NEEDED = (
    f"a view of a mesh needs faces ({', '.join(MESH_ENDINGS)}), and pointvit.views.render_points draws clouds"
)


class Mesh(NamedTuple):
    """(N, 3) float32 vertices, and (F, 3) int64 indices of each triangle's corners."""

    vertices: NDArray[np.float32]
    faces: NDArray[np.int64]

    def in_unit_sphere(self) -> Mesh:
        """The mesh with its surface's centroid at the origin and its farthest vertex at radius 1.

        This is the frame of `unit_sphere` for a cloud sampled from it, up to the sampling's noise.
        """
        corners = self.vertices.astype(np.float64)[self.faces]
        area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
        if not area.sum() > 0:
            raise ValueError(
                f"expected triangles with a positive total area, got {len(self.faces)} without any."
            )
        centroid = np.average(corners.mean(axis=1), axis=0, weights=area)
        radius = np.linalg.norm(corners - centroid, axis=2).max()
        return Mesh(((self.vertices - centroid) / radius).astype(np.float32), self.faces)


def read_mesh(path: str | Path, format: str | None = None) -> Mesh:
    """File -> its triangles, in the file's unit and axes; polygons become fans.

    Vertices that no triangle names, and triangles at vertices that are NaN or infinite, are left out. As with
    `read_points`, the mean is subtracted where float32 would blur the coordinates.

    Args:
        format: an extension such as "off", for files whose name does not end in their kind.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a folder, a file without faces, an unknown extension or a damaged file.
    """
    return read_as(_to_mesh, Path(path), format)


def mesh_files(source: str | Path) -> list[Path]:
    """A file, or a folder with meshes at any depth -> the files, sorted by path.

    Names beginning with `.` or `__` are skipped. Whether a file has faces shows when `read_mesh` reads it.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a folder that holds no mesh, such as one of clouds.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(f"There is no file or folder {source}.")
    if source.is_file():
        return [source]
    files = sorted(file for file in source.rglob("*") if _shown(file.relative_to(source)))
    meshes = [file for file in files if file.suffix.lower() in MESH_ENDINGS]
    if not meshes:
        clouds = sum(file.suffix.lower() in READERS for file in files)
        raise ValueError(f"{source} has {clouds} point files and no mesh; {_FACES_NEEDED}.")
    return meshes


def _to_mesh(path: Path, geometry: Geometry) -> Mesh:
    geometry, _ = drop_non_finite(path, geometry)
    if geometry.triangles is None:
        raise ValueError(f"{path} has points but no faces; {_FACES_NEEDED}.")
    if not len(geometry.triangles):
        raise ValueError(f"{path}: no triangle has three finite corners.")
    used, faces = np.unique(geometry.triangles, return_inverse=True)
    vertices = geometry.points[used]
    return Mesh((vertices - far_offset(vertices)).astype(np.float32), faces.reshape(-1, 3))


def _shown(path: Path) -> bool:
    return not any(part.startswith((".", "__")) for part in path.parts)
