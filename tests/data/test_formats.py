"""What the formats allow beyond what other libraries write."""

import io
import json
import struct
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from point_file_writers import BYTES, COLORS, NORMALS, POINTS, WRITERS
from pointvit.data.geometry import unit_colors
from pointvit.data.io import read_points

CORNERS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0.5, 1.5, 0]])
SURVEY = POINTS + np.array([500_123.25, 4_649_776.5, 203.75])


class Input:
    """What `sys.stdin` is, of these bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize("name", ["cloud.laz", "cloud.xyz", "cloud.npz", "mesh.stl", "cloud_big.ply"])
def test_standard_input_gives_what_the_file_does(tmp_path, monkeypatch, name):
    WRITERS[name](tmp_path / name)
    monkeypatch.setattr(sys, "stdin", Input((tmp_path / name).read_bytes()))
    piped = read_points("-", 20, seed=3, format=name.rpartition(".")[2])
    whole = read_points(tmp_path / name, 20, seed=3)
    np.testing.assert_array_equal(piped.points, whole.points)


def test_damaged_standard_input_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", Input(b"1 2 3\n4 x 6\n"))
    with pytest.raises(ValueError, match=r"^Standard input, line 2: expected at least 3 numbers"):
        read_points("-", format=".xyz")
    with pytest.raises(ValueError, match="give its format"):
        read_points("-")


def test_more_standard_input_than_is_kept(monkeypatch):
    monkeypatch.setattr("pointvit.data.io.LARGEST_INPUT", 100)
    monkeypatch.setattr(sys, "stdin", Input(b"1 2 3\n" * 100))
    with pytest.raises(ValueError, match="Standard input has more than 100 bytes"):
        read_points("-", format="xyz")


def test_the_format_stands_for_an_ending(tmp_path):
    np.savetxt(tmp_path / "points", POINTS)
    np.testing.assert_allclose(read_points(tmp_path / "points", format="XYZ").points, POINTS, atol=1e-6)
    (tmp_path / "-").write_text("1 2 3\n")
    assert read_points(tmp_path / "-", format="xyz").points.shape == (1, 3)


def las_survey(path: Path) -> None:
    import laspy

    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales, header.offsets = np.full(3, 0.001), np.array([500_000, 4_600_000, 0])
    las = laspy.LasData(header)
    las.x, las.y, las.z = SURVEY.T
    # Bytes in the two bytes of a colour, as some writers leave them.
    las.red, las.green, las.blue = BYTES.T
    las.write(str(path), laz_backend=laspy.LazBackend.Lazrs if path.suffix == ".laz" else None)


@pytest.mark.parametrize("name", ["a.las", "a.laz"])
def test_survey_coordinates_of_las(tmp_path, name):
    las_survey(tmp_path / name)
    cloud = read_points(tmp_path / name)
    np.testing.assert_allclose(cloud.offset, SURVEY.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(cloud.points + cloud.offset, SURVEY, rtol=0, atol=1e-6)
    np.testing.assert_allclose(cloud.colors, COLORS, atol=1e-6)


def test_black_las_has_no_colors(tmp_path):
    WRITERS["cloud.las"](tmp_path / "a.las")
    import laspy

    las = laspy.read(tmp_path / "a.las")
    las.red = las.green = las.blue = np.zeros(50, np.uint16)
    las.write(str(tmp_path / "a.las"))
    assert read_points(tmp_path / "a.las").colors is None


@pytest.mark.parametrize(
    ("name", "head", "order", "mark"),
    [
        ("a.csv", "x,y,z,nx,ny,nz,r,g,b", "pnc", ","),
        ("a.csv", "Blue;Green;Red;X;Y;Z;id", "bp", ";"),
        ("a.txt", "# r g b x y z nx ny nz", "cpn", " "),
        ("a.txt", '"normal_x"\t"normal_y"\t"normal_z"\t"x"\t"y"\t"z"', "np", "\t"),
        ("a.txt", "", "pcn", "  "),
        ("a.xyz", "", "pnc", " "),
        ("a.txt", "50", "pc", ", "),
        ("a.pts", "50", "pic", " "),
        ("a.pts", "", "pic", " "),
    ],
)
def test_tables(tmp_path, name, head, order, mark):
    blocks = {"p": POINTS, "n": NORMALS, "c": BYTES, "b": BYTES[:, ::-1], "i": np.arange(-9, 41)[:, None]}
    rows = np.hstack([blocks[block] for block in order])
    text = "\n".join(mark.join(f"{number:.9g}" for number in row) for row in rows)
    (tmp_path / name).write_text(f"{head}\n{text}\n")
    cloud = read_points(tmp_path / name)
    np.testing.assert_allclose(cloud.points, POINTS, rtol=0, atol=1e-6)
    assert (cloud.normals is not None) == ("n" in order)
    assert (cloud.colors is not None) == bool(set("cb") & set(order))
    if cloud.normals is not None:
        np.testing.assert_allclose(cloud.normals, NORMALS, rtol=0, atol=1e-6)
    if cloud.colors is not None:
        np.testing.assert_allclose(cloud.colors, COLORS, rtol=0, atol=1e-6)


def test_a_long_table_keeps_order_and_names_a_line_far_down(tmp_path):
    rows = np.arange(3 * 70_000).reshape(-1, 3)
    np.savetxt(tmp_path / "a.txt", rows, fmt="%d")
    np.testing.assert_array_equal(read_points(tmp_path / "a.txt").points, rows)
    text = (tmp_path / "a.txt").read_text().replace(f"{3 * 69_000} ", "oops ")
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ValueError, match=r"a\.txt, line 69001: expected at least 3 numbers, found 'oops"):
        read_points(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.uint8([[0, 1, 1]]), [0, 1 / 255, 1 / 255]),
        (np.uint16([[0, 51, 255]]), [0, 0.2, 1]),
        (np.uint16([[0, 13107, 65535]]), [0, 0.2, 1]),
        (np.int64([[0, 51, 255]]), [0, 0.2, 1]),
        (np.float32([[0, 0.2, 1]]), [0, 0.2, 1]),
        (np.float64([[0, 51, 255]]), [0, 0.2, 1]),
        (np.float64([[-0.5, 0.2, np.nan]]), [0, 0.2, np.nan]),
    ],
)
def test_colors_by_type(values, expected):
    assert unit_colors(values).dtype == np.float32
    np.testing.assert_allclose(unit_colors(values)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("order", ["<", ">"])
def test_binary_ply_of_triangle_and_quad(tmp_path, order):
    kind = {"<": "binary_little_endian", ">": "binary_big_endian"}[order]
    head = f"""ply
format {kind} 1.0
element vertex 5
property double x
property double y
property double z
element face 3
property uchar flag
property list ushort int vertex_index
end_header
"""
    body = b"".join(struct.pack(f"{order}3d", *corner) for corner in CORNERS)
    body += struct.pack(f"{order}BH3i", 1, 3, 3, 2, 4) + struct.pack(f"{order}BH4i", 0, 4, 0, 1, 2, 3)
    body += struct.pack(f"{order}BH2i", 0, 2, 0, 1)
    (tmp_path / "a.ply").write_bytes(head.encode() + body)
    cloud = read_points(tmp_path / "a.ply", 4000)
    # The quad has an area of 1, the triangle on it of 1/4.
    assert (cloud.points[:, 1] > 1).mean() == pytest.approx(0.2, abs=0.03)
    assert ((cloud.points >= 0) & (cloud.points <= 1.5)).all()


def scene(mode: int, indices: list[int], node: dict) -> dict:
    data = CORNERS.astype("<f4").tobytes() + np.array(indices, "<u2").tobytes()
    views = [{"buffer": 0, "byteLength": 60}, {"buffer": 0, "byteOffset": 60, "byteLength": 2 * len(indices)}]
    position = {"bufferView": 0, "componentType": 5126, "count": 5, "type": "VEC3"}
    corners = {"bufferView": 1, "componentType": 5123, "count": len(indices), "type": "SCALAR"}
    return {
        "asset": {"version": "2.0"},
        "nodes": [{"mesh": 0} | node],
        "meshes": [{"primitives": [{"mode": mode, "attributes": {"POSITION": 0}, "indices": 1}]}],
        "accessors": [position, corners],
        "bufferViews": views,
        "buffers": [{"byteLength": len(data), "uri": "points%20of%20it.bin"}],
        "data": data.hex(),
    }


@pytest.mark.parametrize(
    ("mode", "indices"),
    [(4, [0, 1, 2, 0, 2, 3]), (5, [0, 1, 3, 2]), (6, [0, 1, 2, 3])],
)
@pytest.mark.parametrize(
    ("node", "up"),
    [
        ({}, 1),
        ({"scale": [1, 1, -1]}, -1),
        ({"matrix": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]}, 1),
    ],
)
def test_gltf_modes_and_mirrors(tmp_path, mode, indices, node, up):
    content = scene(mode, indices, node)
    (tmp_path / "points of it.bin").write_bytes(bytes.fromhex(content.pop("data")))
    (tmp_path / "a.gltf").write_text(json.dumps(content))
    cloud = read_points(tmp_path / "a.gltf", 2000)
    np.testing.assert_allclose(cloud.points.min(axis=0), [0, 0, 0], atol=0.01)
    np.testing.assert_allclose(cloud.points.max(axis=0), [1, 1, 0], atol=0.01)
    # A mirror turns the side round that is the outer one, and with it the normal back: z of the scene is up.
    np.testing.assert_allclose(cloud.normals, np.tile([0, 0, up], (2000, 1)), atol=1e-6)


def test_obj_points_with_normals(tmp_path):
    lines = [f"v {x} {y} {z}" for x, y, z in POINTS] + [f"vn\t{x} {y} {z}" for x, y, z in NORMALS]
    (tmp_path / "a.obj").write_text("\n".join(lines))
    cloud = read_points(tmp_path / "a.obj")
    np.testing.assert_allclose(cloud.points, POINTS, atol=1e-6)
    np.testing.assert_allclose(cloud.normals, NORMALS, atol=1e-6)


def test_wide_arrays_are_read_in_part(tmp_path):
    wide = np.hstack([POINTS, BYTES, NORMALS, np.zeros((50, 30))])
    np.save(tmp_path / "a.npy", wide)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("xyz", data=wide, chunks=(10, 39), compression="gzip")
    for name in ("a.npy", "a.h5"):
        cloud = read_points(tmp_path / name)
        np.testing.assert_allclose(cloud.points, POINTS, atol=1e-6)
        np.testing.assert_allclose(cloud.normals, NORMALS, atol=1e-6)
        np.testing.assert_allclose(cloud.colors, COLORS, atol=1e-6)
