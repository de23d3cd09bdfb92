"""Points, normals and colours, written by other libraries in every format that `read_points` knows."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

RNG = np.random.default_rng(0)
# Few digits, so that a writer that keeps six loses nothing.
POINTS = RNG.normal(size=(50, 3)).round(3)
NORMALS = POINTS / np.linalg.norm(POINTS, axis=1, keepdims=True)
BYTES = RNG.integers(0, 256, size=(50, 3), dtype=np.uint8)
COLORS = BYTES / 255
BOX = (1, 2, 3)


def open3d_cloud(path: Path) -> None:
    import open3d

    cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(POINTS))
    cloud.normals = open3d.utility.Vector3dVector(NORMALS)
    cloud.colors = open3d.utility.Vector3dVector(COLORS)
    kinds = {"write_ascii": "ascii" in path.stem, "compressed": "compressed" in path.stem}
    assert open3d.io.write_point_cloud(str(path), cloud, **kinds)


def open3d_mesh(path: Path) -> None:
    import open3d

    mesh = open3d.geometry.TriangleMesh.create_box(*BOX)
    mesh.compute_triangle_normals()
    with open3d.utility.VerbosityContextManager(open3d.utility.VerbosityLevel.Error):
        assert open3d.io.write_triangle_mesh(str(path), mesh, write_ascii="ascii" in path.stem)


def trimesh_cloud(path: Path) -> None:
    import trimesh

    trimesh.Scene(trimesh.PointCloud(POINTS, colors=BYTES)).export(str(path))


def trimesh_ply(path: Path) -> None:
    import trimesh

    path.write_bytes(trimesh.PointCloud(POINTS, colors=BYTES).export(file_type="ply"))


def trimesh_mesh(path: Path) -> None:
    import trimesh

    # Its corner at the origin, as Open3D's: a node of the scene moves it there.
    box = trimesh.creation.box(BOX)
    box.visual.vertex_colors = np.tile(BYTES[0], (len(box.vertices), 1))
    scene = trimesh.Scene()
    scene.add_geometry(box, transform=trimesh.transformations.translation_matrix(np.array(BOX) / 2))
    if path.suffix in (".glb", ".gltf"):
        scene.export(str(path))
    else:
        kind = "stl_ascii" if "ascii" in path.stem else path.suffix[1:]
        made = scene.to_geometry().export(file_type=kind)
        path.write_bytes(made.encode() if isinstance(made, str) else made)


def laspy_cloud(path: Path) -> None:
    import laspy

    header = laspy.LasHeader(point_format=7, version="1.4")
    header.scales = np.full(3, 0.001)
    las = laspy.LasData(header)
    las.x, las.y, las.z = POINTS.T
    las.red, las.green, las.blue = BYTES.T.astype(np.uint16) * 257
    las.write(str(path), laz_backend=laspy.LazBackend.Lazrs if path.suffix == ".laz" else None)


def big_endian_ply(path: Path) -> None:
    """By the format's description: big-endian, another element first, properties that nobody asked for."""
    head = ["ply", "format binary_big_endian 1.0", "comment x", "element camera 2", "property double time"]
    head += ["property list uchar short ids", f"element vertex {len(POINTS)}", "property uchar label"]
    head += [f"property double {axis}" for axis in "xyz"] + ["property list uint float weights"]
    head += [f"property float n{axis}" for axis in "xyz"]
    head += [f"property uchar {color}" for color in ("red", "green", "blue")] + ["end_header", ""]
    body = struct.pack(">dBhh", 1, 2, -3, 4) + struct.pack(">dB", 2, 0)
    for point, normal, color in zip(POINTS, NORMALS, BYTES, strict=True):
        body += struct.pack(">B3dI2f3f3B", 7, *point, 2, 8, 9, *normal, *color)
    path.write_bytes("\n".join(head).encode() + body)


def separate_pcd(path: Path) -> None:
    """By the format's description: fields of other types, counts and padding."""
    row = np.dtype(
        [("c", "<u2", 2), ("x", "<f8"), ("y", "<f8"), ("z", "<f8"), ("pad", "u1", 3), ("rgb", "u1", 3)]
    )
    table = np.zeros(len(POINTS), row)
    table["x"], table["y"], table["z"] = POINTS.T
    table["rgb"] = BYTES
    head = f"""# .PCD v0.7
VERSION 0.7
FIELDS c x y z _ r g b
SIZE 2 8 8 8 1 1 1 1
TYPE U F F F U U U U
COUNT 2 1 1 1 3 1 1 1
WIDTH {len(POINTS)}
HEIGHT 1
VIEWPOINT 0 0 0 1 0 0 0
POINTS {len(POINTS)}
DATA binary
"""
    path.write_bytes(head.encode() + table.tobytes())


def hdf5_cloud(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"], file["normals"], file["colors"], file["label"] = POINTS, NORMALS, BYTES, np.arange(50)


def float_color_gltf(path: Path) -> None:
    """By the format's description: interleaved floats, normals, base64, a node that turns and scales."""
    import base64

    turned = np.stack([POINTS[:, 0], POINTS[:, 2], -POINTS[:, 1]], axis=1) / 2
    normals = np.stack([NORMALS[:, 0], NORMALS[:, 2], -NORMALS[:, 1]], axis=1)
    data = np.hstack([turned, normals, COLORS]).astype("<f4").tobytes()
    half = 0.5**0.5
    content = {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"children": [1], "scale": [2, 2, 2]}, {"mesh": 0, "rotation": [half, 0, 0, half]}],
        "meshes": [{"primitives": [{"mode": 0, "attributes": {"POSITION": 0, "NORMAL": 1, "COLOR_0": 2}}]}],
        "accessors": [
            {"bufferView": 0, "byteOffset": 12 * i, "componentType": 5126, "count": 50, "type": "VEC3"}
            for i in range(3)
        ],
        "bufferViews": [{"buffer": 0, "byteLength": len(data), "byteStride": 36}],
        "buffers": [
            {
                "byteLength": len(data),
                "uri": "data:application/octet-stream;base64," + base64.b64encode(data).decode(),
            }
        ],
    }
    path.write_text(json.dumps(content))


CLOUD_WRITERS: dict[str, Callable[[Path], None]] = {
    "cloud.ply": open3d_cloud,
    "cloud_ascii.ply": open3d_cloud,
    "cloud_trimesh.ply": trimesh_ply,
    "cloud_big.ply": big_endian_ply,
    "cloud.pcd": open3d_cloud,
    "cloud_ascii.pcd": open3d_cloud,
    "cloud_compressed.pcd": open3d_cloud,
    "cloud_separate.pcd": separate_pcd,
    "cloud.las": laspy_cloud,
    "cloud.laz": laspy_cloud,
    "cloud.glb": trimesh_cloud,
    "cloud.gltf": float_color_gltf,
    "cloud.xyz": open3d_cloud,
    "cloud.pts": open3d_cloud,
    "cloud.txt": lambda path: np.savetxt(path, np.hstack([POINTS, NORMALS]), delimiter=","),
    "cloud_tabs.txt": lambda path: np.savetxt(
        path,
        np.hstack([POINTS, BYTES, NORMALS]),
        delimiter="\t",
        header="X Y Z R G B Nx Ny Nz",
        comments="//",
    ),
    "cloud.csv": lambda path: np.savetxt(
        path, np.hstack([BYTES, POINTS]), delimiter=";", header="r;g;b;x;y;z", comments=""
    ),
    "cloud.npy": lambda path: np.save(path, np.hstack([POINTS, NORMALS])),
    "cloud.npz": lambda path: np.savez(path, points=POINTS, normals=NORMALS, colors=BYTES),
    "cloud.h5": hdf5_cloud,
    "cloud.hdf5": hdf5_cloud,
}
MESH_WRITERS: dict[str, Callable[[Path], None]] = {
    "mesh.off": open3d_mesh,
    "mesh.obj": open3d_mesh,
    "mesh_trimesh.obj": trimesh_mesh,
    "mesh.stl": open3d_mesh,
    "mesh_ascii.stl": trimesh_mesh,
    "mesh.ply": open3d_mesh,
    "mesh_ascii.ply": open3d_mesh,
    "mesh_trimesh.ply": trimesh_mesh,
    "mesh.glb": trimesh_mesh,
    "mesh_open3d.glb": open3d_mesh,
    "mesh.gltf": trimesh_mesh,
}
WRITERS = CLOUD_WRITERS | MESH_WRITERS
