from pathlib import Path

import numpy as np
import pytest

from point_file_writers import CLOUD_WRITERS, MESH_WRITERS
from pointvit.data import Mesh, mesh_files, read_mesh, read_points
from pointvit.data.io import unit_sphere
from pointvit.data.meshes import MESH_ENDINGS

TRIANGLE = "OFF\n{0} 1 0\n{1}3 {2}\n"


@pytest.mark.parametrize("name", MESH_WRITERS)
def test_a_mesh_is_the_surface_that_clouds_are_sampled_from(tmp_path, name):
    MESH_WRITERS[name](tmp_path / name)
    mesh = read_mesh(tmp_path / name)
    assert mesh.vertices.dtype == np.float32
    assert mesh.faces.dtype == np.int64
    a, b, c = mesh.vertices[mesh.faces].transpose(1, 0, 2)
    # The writers' box of sides 1, 2 and 3.
    normals = np.cross(b - a, c - a)
    assert np.linalg.norm(normals, axis=1).sum() / 2 == pytest.approx(22, rel=1e-5)
    np.testing.assert_allclose(mesh.vertices.min(0), [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(mesh.vertices.max(0), [1, 2, 3], atol=1e-6)
    assert set(np.unique(mesh.faces)) == set(range(len(mesh.vertices)))


def test_in_the_unit_sphere_it_lies_where_its_cloud_does(tmp_path):
    MESH_WRITERS["mesh.off"](tmp_path / "a.off")
    mesh = read_mesh(tmp_path / "a.off").in_unit_sphere()
    assert np.linalg.norm(mesh.vertices, axis=1).max() == pytest.approx(1)
    cloud = unit_sphere(read_points(tmp_path / "a.off", 50_000).points)
    np.testing.assert_allclose(cloud.min(0), mesh.vertices.min(0), atol=0.02)
    np.testing.assert_allclose(cloud.max(0), mesh.vertices.max(0), atol=0.02)
    flat = Mesh(np.zeros((3, 3), np.float32), np.array([[0, 1, 2]]))
    with pytest.raises(ValueError, match="positive total area"):
        flat.in_unit_sphere()


def test_vertices_without_a_face_broken_ones_and_far_offsets_go(tmp_path):
    rows = ["9 9 9", "0 0 0", "1 0 0", "0 1 0"]
    (tmp_path / "stray.off").write_text(TRIANGLE.format(4, "\n".join(rows) + "\n", "1 2 3"))
    mesh = read_mesh(tmp_path / "stray.off")
    np.testing.assert_array_equal(mesh.vertices, [[0, 0, 0], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(mesh.faces, [[0, 1, 2]])
    far = ["7000000.1 0 0", "7000001.1 0 0", "7000000.1 1 0"]
    (tmp_path / "far.off").write_text(TRIANGLE.format(3, "\n".join(far) + "\n", "0 1 2"))
    vertices = read_mesh(tmp_path / "far.off").vertices
    np.testing.assert_allclose(vertices - vertices[0], [[0, 0, 0], [1, 0, 0], [0, 1, 0]], atol=1e-6)
    (tmp_path / "nan.off").write_text(TRIANGLE.format(3, "nan 0 0\n1 0 0\n0 1 0\n", "0 1 2"))
    with pytest.raises(ValueError, match=r"nan\.off: no triangle has three finite corners"):
        read_mesh(tmp_path / "nan.off")


@pytest.mark.parametrize("name", CLOUD_WRITERS)
def test_a_cloud_is_no_mesh(tmp_path, name):
    CLOUD_WRITERS[name](tmp_path / name)
    with pytest.raises(ValueError, match="has points but no faces; a view of a mesh needs faces") as caught:
        read_mesh(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_files_of_a_folder_and_a_folder_of_clouds(tmp_path):
    (tmp_path / "chair" / "train").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    for name in ("chair/train/b.off", "chair/train/a.OBJ", "chair/c.xyz", ".hidden/d.off", "chair/__e.stl"):
        (tmp_path / name).touch()
    found = [file.relative_to(tmp_path).as_posix() for file in mesh_files(tmp_path)]
    assert found == ["chair/train/a.OBJ", "chair/train/b.off"]
    assert mesh_files(tmp_path / "chair" / "c.xyz") == [tmp_path / "chair" / "c.xyz"]
    for file in found:
        (tmp_path / file).unlink()
    with pytest.raises(ValueError, match="has 1 point files and no mesh; a view of a mesh needs faces"):
        mesh_files(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        mesh_files(tmp_path / "missing")
    with pytest.raises(ValueError, match="is a folder"):
        read_mesh(tmp_path)


def test_every_ending_that_may_have_faces_is_tried():
    assert {Path(name).suffix for name in MESH_WRITERS} == set(MESH_ENDINGS)
