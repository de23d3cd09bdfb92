import builtins
import errno
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from point_file_writers import (
    CLOUD_WRITERS,
    COLORS,
    MESH_WRITERS,
    NORMALS,
    POINTS,
    WRITERS,
)
from pointvit.data.io import READERS, read_points, sample_triangles, unit_sphere

SQUARE = "0 0 0\n1 0 0\n1 1 0\n0 1 0\n"
XYZ = "property float x\nproperty float y\nproperty float z\n"
PLY_HEAD = f"ply\nformat ascii 1.0\nelement vertex 3\n{XYZ}end_header\n"
PLY_FACES = "element face 0\nproperty list uchar int vertex_indices\n"
PCD_HEAD = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 3\nHEIGHT 1\nPOINTS 3\nDATA ascii\n"
WITHOUT_NORMALS = ("trimesh.ply", "separate.pcd", ".las", ".laz", ".glb", ".xyz", ".pts", ".csv")
WITHOUT_COLORS = (".xyz", "cloud.txt", ".npy")


def test_every_reader_has_a_foreign_writer():
    assert {Path(name).suffix for name in WRITERS} == set(READERS)


@pytest.mark.parametrize("name", CLOUD_WRITERS)
def test_point_file(tmp_path, name):
    CLOUD_WRITERS[name](tmp_path / name)
    cloud = read_points(tmp_path / name)
    np.testing.assert_allclose(cloud.points, POINTS, rtol=0, atol=1e-6)
    assert cloud.points.dtype == np.float32
    assert (cloud.normals is None) == name.endswith(WITHOUT_NORMALS)
    assert (cloud.colors is None) == name.endswith(WITHOUT_COLORS)
    if cloud.normals is not None:
        np.testing.assert_allclose(cloud.normals, NORMALS, rtol=0, atol=1e-6)
    if cloud.colors is not None:
        assert cloud.colors.dtype == np.float32
        np.testing.assert_allclose(cloud.colors, COLORS, rtol=0, atol=1e-6)
    assert cloud.num_dropped == 0
    assert not cloud.offset.any()


@pytest.mark.parametrize("name", MESH_WRITERS)
def test_mesh_file(tmp_path, name):
    MESH_WRITERS[name](tmp_path / name)
    cloud = read_points(tmp_path / name)
    assert cloud.points.shape == (10_000, 3)
    size = np.array([1, 2, 3])
    on_side = np.isclose(cloud.points, 0, atol=1e-6) | np.isclose(cloud.points, size, atol=1e-6)
    assert on_side.any(axis=1).all()
    # The sides across x, y and z have areas 6, 3 and 2.
    shares = np.abs(cloud.normals).mean(axis=0)
    np.testing.assert_allclose(shares, np.array([6, 3, 2]) / 11, atol=0.02)
    # Normals point outwards.
    assert (((cloud.points - size / 2) * cloud.normals).sum(axis=1) > 0).all()
    if name in ("mesh_trimesh.obj", "mesh_trimesh.ply", "mesh.glb", "mesh.gltf"):
        np.testing.assert_allclose(cloud.colors, np.tile(COLORS[0], (10_000, 1)), rtol=0, atol=1e-6)
    else:
        assert cloud.colors is None
    assert read_points(tmp_path / name, 77).points.shape == (77, 3)


OFF_VARIANTS = {
    "counts on the header line": "OFF4 2 0\n" + SQUARE + "3 0 1 2\n3 0 2 3\n",
    "counts after a space": "OFF 4 2 0\n" + SQUARE + "3 0 1 2\n3 0 2 3\n",
    "comments and blank lines": "# a\n\nOFF # b\n#c\n4 2 0\n\n" + SQUARE + "\n3 0 1 2 # d\n3 0 2 3\n\n",
    "polygon": "OFF\n4 1 0\n" + SQUARE + "4 0 1 2 3\n",
    "face colours": "OFF\n4 2 0\n" + SQUARE + "3 0 1 2 255 0 0\n3 0 2 3 0.5 0.5 0.5 1\n",
    "polygon beside triangle and edge": "OFF\n4 3\n" + SQUARE + "2 0 1\n4 0 1 2 3\n3 0 1 2\n",
    "windows line ends": ("OFF\n4 1 0\n" + SQUARE + "4 0 1 2 3\n").replace("\n", "\r\n"),
    "COFF": "COFF\n4 1 0\n" + SQUARE.replace("\n", " 255 0 51 255\n") + "4 0 1 2 3\n",
    "NOFF": "NOFF\n4 1 0\n" + SQUARE.replace("\n", " 0 0 1\n") + "4 0 1 2 3\n",
}


@pytest.mark.parametrize("variant", OFF_VARIANTS)
def test_off_variants(tmp_path, variant):
    file = tmp_path / "square.off"
    file.write_bytes(OFF_VARIANTS[variant].encode())
    cloud = read_points(file, 2000)
    assert cloud.points.shape == (2000, 3)
    np.testing.assert_allclose(cloud.points.min(axis=0), [0, 0, 0], atol=0.01)
    np.testing.assert_allclose(cloud.points.max(axis=0), [1, 1, 0], atol=0.01)
    np.testing.assert_array_equal(cloud.normals, np.tile([0, 0, 1], (2000, 1)))
    if variant == "COFF":
        np.testing.assert_allclose(cloud.colors, np.tile([1, 0, 0.2], (2000, 1)), atol=1e-6)
    else:
        assert cloud.colors is None


def test_obj_polygons_and_indices_from_the_end(tmp_path):
    file = tmp_path / "square.obj"
    vertices = "".join(f"v {row}\n" for row in SQUARE.splitlines())
    file.write_text(f"o square\n{vertices}vt 0 0\nvn 0 0 1\nf 1/1/1 2/1/1 3/1/1 4/1/1\n")
    whole = read_points(file, 500, seed=3)
    file.write_text(f"{vertices}f -4 -3 -2 -1\n")
    np.testing.assert_array_equal(read_points(file, 500, seed=3).points, whole.points)
    assert whole.points[:, :2].max() > 0.9
    assert (whole.points[:, 1] > whole.points[:, 0]).mean() == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.off", "OFF\n4 0 0\n" + SQUARE),
        ("a.obj", "".join(f"v {row}\n" for row in SQUARE.splitlines())),
        ("a.ply", f"ply\nformat ascii 1.0\nelement vertex 4\n{XYZ}{PLY_FACES}end_header\n{SQUARE}"),
        ("a.xyz", SQUARE),
        ("a.txt", "x y z label\n" + SQUARE.replace("\n", " chair\n")),
        ("a.txt", "# x y z\n" + SQUARE.replace(" ", "\t")),
        ("a.txt", "//X,Y,Z\n" + SQUARE.replace(" ", ", ")),
        ("a.csv", '"z";"y";"x"\n' + "0;0;0\n0;0;1\n0;1;1\n0;1;0\n"),
        ("a.txt", SQUARE.replace("\n", " 7\n")),
        ("a.txt", SQUARE.replace("\n", " 3000 -1 500 2\n")),
    ],
)  # fmt: skip
def test_text_without_faces_is_a_point_cloud(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    cloud = read_points(tmp_path / name)
    np.testing.assert_array_equal(cloud.points, [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    assert cloud.normals is None
    assert cloud.colors is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.off", "", "line 1: expected OFF"),
        ("a.off", "OFF BINARY\n", "line 1: expected OFF"),
        ("a.off", "OFF\n", "ends behind 'OFF'"),
        ("a.off", "OFF\nfour 2 0\n", "line 2: expected at least 2 whole numbers"),
        ("a.off", "OFF\n-4 2 0\n", "line 2: expected counts"),
        ("a.off", "OFF\n4 2 0\n" + SQUARE + "3 0 1 2\n", "promises 2 rows, but the file ends after 1"),
        ("a.off", "OFF\n4 1 0\n" + SQUARE + "3 0 1\n", "line 7: expected at least 4 whole numbers"),
        ("a.off", "OFF\n4 1 0\n" + SQUARE + "3 0 1 4\n", "line 7: a face names a vertex outside the 4"),
        ("a.off", "OFF\n4 1 0\n" + SQUARE.replace("1 1 0", "1 x 0") + "3 0 1 2\n", "line 5: expected"),
        ("a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n", "cannot be sampled by area"),
        ("a.off", "OFF\n0 0 0\n", "holds no points"),
        ("a.off", "OFF\n3 1 0\n0 0 0\nnan 0 0\n2 1 0\n3 0 1 2\n", "no triangle has three finite corners"),
        ("a.obj", "v 0 0 0\nv 1 0\n", "line 2: expected at least 3 numbers"),
        ("a.obj", "v 0 0 0\nv 1 0 0\nv 1 1 0\nf 1 2 x\n", "line 4: expected at least 4 whole numbers"),
        ("a.obj", "v 0 0 0\nv 1 0 0\nv 1 1 0\nf 1 2 0\n", "line 4: a face names a vertex outside"),
        ("a.ply", "off\n", "expected a PLY header"),
        ("a.ply", PLY_HEAD + "0 0 0\n1 zz 0\n1 1 1\n", "line 9: expected at least 3 numbers"),
        ("a.ply", PLY_HEAD + "0 0 0\n1 1 1\n", "promises 3 rows, but the file ends after 2"),
        ("a.ply", PLY_HEAD.replace("float z", "float w") + SQUARE, "expected the properties x"),
        ("a.pcd", PCD_HEAD + "0 0 0\n1 1 1\n", "promises 3 rows, but the file ends after 2"),
        ("a.pcd", PCD_HEAD + "0 0 0\n1 zz 1\n1 1 1\n", "line 10: expected at least 3 numbers"),
        ("a.pcd", PCD_HEAD.replace("POINTS 3", "POINTS"), "expected a line 'POINTS <number>'"),
        ("a.stl", "solid a\nfacet\nouter loop\nvertex 0 0", "line 4: expected at least 3 numbers"),
        ("a.txt", "", "holds no points"),
        ("a.txt", "x y z\n", "holds no points"),
        ("a.txt", "1 2\n3 4\n", "line 1: expected at least 3 numbers"),
        ("a.txt", "1 2 3\n4 5\n", "line 2: expected at least 3 numbers"),
        ("a.txt", "1,2,3\n4,,6\n", "line 2: expected at least 3 numbers"),
        ("a.txt", "nan nan nan\ninf 0 0\n", "all 2 points are NaN or infinite"),
        ("a.npy", "no array", "not a plain .npy file"),
        ("a.npz", "no archive", "not a plain .npz file"),
        ("a.h5", "no file", "not a plain .h5 file"),
        ("a.xyzzy", "1 2 3\n", "unknown extension '.xyzzy'; expected one of .off, .obj"),
    ],
)  # fmt: skip
def test_bad_file_says_what_and_where(tmp_path, capfd, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name}\b.*{message.split(' ')[0]}") as caught:
        read_points(tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name", ["cloud.ply", "mesh.ply", "cloud.pcd", "cloud.npy", "cloud.npz", "cloud.h5", "mesh.stl"]
)
def test_truncated_file(tmp_path, capfd, name):
    (CLOUD_WRITERS | MESH_WRITERS)[name](tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(len(whole) * 0.9)])
    capfd.readouterr()
    with pytest.raises(ValueError, match=name):
        read_points(tmp_path / name)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arrays", "found"),
    [
        ({"points": np.zeros((5, 2))}, "points (5, 2) float64"),
        ({"a": np.ones((5, 3)), "b": np.ones((5, 3))}, "a (5, 3) float64, b (5, 3) float64"),
        ({"data": np.ones((2, 5, 3))}, "data (2, 5, 3) float64"),
        ({}, "found nothing"),
    ],
)
def test_archive_without_one_fitting_array(tmp_path, arrays, found):
    np.savez(tmp_path / "a.npz", **arrays)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    for name in ("a.npz", "a.h5"):
        with pytest.raises(
            ValueError, match=r"expected one numeric array of shape \(P, 3 or more\)"
        ) as caught:
            read_points(tmp_path / name)
        assert found in str(caught.value)


def test_pickled_array_is_not_run(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"not a plain \.npy file"):
        read_points(tmp_path / "a.npy")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read_points(tmp_path / "none.ply")
    with pytest.raises(ValueError, match="is a folder"):
        read_points(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setitem(READERS, ".xyz", refuse)
    (tmp_path / "a.xyz").touch()
    with pytest.raises(ValueError, match=r"a\.xyz: cannot be read \(permission denied\)\.$"):
        read_points(tmp_path / "a.xyz")


def test_num_samples_below_one_is_refused(tmp_path):
    (tmp_path / "a.xyz").write_text(SQUARE)
    with pytest.raises(ValueError, match="at least 1"):
        read_points(tmp_path / "a.xyz", 0)


def test_sampling_of_a_point_file(tmp_path):
    np.save(tmp_path / "a.npy", POINTS)
    some = read_points(tmp_path / "a.npy", 20, seed=1).points
    assert len(np.unique(some, axis=0)) == 20
    assert {tuple(row) for row in some} <= {tuple(row) for row in POINTS.astype(np.float32)}
    np.testing.assert_array_equal(read_points(tmp_path / "a.npy", 20, seed=1).points, some)
    assert not np.array_equal(read_points(tmp_path / "a.npy", 20, seed=2).points, some)
    np.testing.assert_array_equal(read_points(tmp_path / "a.npy", 99).points, POINTS.astype(np.float32))


def test_mesh_sampling_is_seeded_and_leaves_global_state_alone(tmp_path):
    MESH_WRITERS["mesh.off"](tmp_path / "mesh.off")
    state = np.random.get_state()[1].copy()
    one = read_points(tmp_path / "mesh.off", 100, seed=5).points
    np.testing.assert_array_equal(read_points(tmp_path / "mesh.off", 100, seed=5).points, one)
    assert not np.array_equal(read_points(tmp_path / "mesh.off", 100, seed=6).points, one)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_sampling_is_uniform_by_area():
    # A triangle of area 0.5 and one of area 4.5; one without area between them.
    triangles = np.array(
        [
            [[0, 0, 0], [1, 0, 0], [0, 1, 0]],
            [[0, 0, 5], [0, 0, 5], [1, 0, 5]],
            [[0, 0, 1], [3, 0, 1], [0, 3, 1]],
        ],
        dtype=np.float64,
    )
    chosen, weights = sample_triangles(triangles, 40_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(chosen, minlength=3) / 40_000, [0.1, 0, 0.9], atol=0.006)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    # Uniform barycentric weights are Dirichlet(1, 1, 1): mean 1/3, variance 1/18, covariance -1/36.
    np.testing.assert_allclose(weights.mean(axis=0), 1 / 3, atol=0.005)
    np.testing.assert_allclose(np.cov(weights.T), np.eye(3) / 12 - 1 / 36, atol=0.002)


def test_bad_rows_are_dropped_and_counted(tmp_path):
    rows = np.hstack([POINTS, NORMALS])
    rows[3, 1], rows[7, 0], rows[9, 2], rows[11, 4] = np.nan, np.inf, 1e300, np.nan
    np.save(tmp_path / "a.npy", rows)
    cloud = read_points(tmp_path / "a.npy")
    good = np.delete(np.arange(50), [3, 7, 9, 11])
    assert cloud.num_dropped == 4
    np.testing.assert_array_equal(cloud.points, POINTS[good].astype(np.float32))
    np.testing.assert_array_equal(cloud.normals, NORMALS[good].astype(np.float32))


def test_triangles_at_a_bad_vertex_are_dropped(tmp_path):
    (tmp_path / "a.off").write_text("OFF\n5 3 0\n" + SQUARE + "nan 0 0\n3 0 1 2\n3 0 2 3\n3 0 1 4\n")
    cloud = read_points(tmp_path / "a.off", 300)
    assert cloud.num_dropped == 1
    assert np.isfinite(cloud.points).all()


@pytest.mark.parametrize("name", ["a.txt", "a.npy", "a.ply"])
def test_survey_coordinates_do_not_collapse(tmp_path, name):
    survey = POINTS + np.array([7_691_239.55, 561_004.1, 203.7])
    writers = {
        "a.txt": lambda path: np.savetxt(path, survey, fmt="%.9f"),
        "a.npy": lambda path: np.save(path, survey),
        "a.ply": lambda path: write_open3d_points(path, survey),
    }
    writers[name](tmp_path / name)
    cloud = read_points(tmp_path / name)
    np.testing.assert_allclose(cloud.offset, survey.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(cloud.points + cloud.offset, survey, rtol=0, atol=1e-6)


def write_open3d_points(path: Path, points: np.ndarray) -> None:
    import open3d

    open3d.io.write_point_cloud(str(path), open3d.geometry.PointCloud(open3d.utility.Vector3dVector(points)))


def test_near_coordinates_are_kept(tmp_path):
    np.save(tmp_path / "a.npy", POINTS + 100)
    np.testing.assert_array_equal(read_points(tmp_path / "a.npy").points, (POINTS + 100).astype(np.float32))


def test_unit_sphere():
    cloud = unit_sphere((POINTS * 7 + 30).astype(np.float32))
    np.testing.assert_allclose(cloud.mean(axis=0), 0, atol=1e-6)
    assert np.linalg.norm(cloud, axis=1).max() == pytest.approx(1)
    np.testing.assert_array_equal(unit_sphere(np.full((4, 3), 5, dtype=np.float32)), np.zeros((4, 3)))


def test_without_laspy_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    WRITERS["cloud.laz"](tmp_path / "cloud.laz")
    real_import = builtins.__import__

    def no_laspy(name, *args, **kwargs):
        if name == "laspy":
            raise ImportError("No module named 'laspy'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_laspy)
    with pytest.raises(ImportError, match="pip install 'pointvit"):
        read_points(tmp_path / "cloud.laz")


def test_only_laspy_is_imported_and_only_for_las(tmp_path):
    for name in (names := [name for name in WRITERS if not name.endswith((".las", ".laz"))]):
        WRITERS[name](tmp_path / name)
    code = (
        "import sys; from pointvit.data.io import read_points; [read_points(each) for each in sys.argv[1:]]; "
        "sys.exit(any(name in sys.modules for name in ('open3d', 'trimesh', 'laspy')))"
    )
    files = [str(tmp_path / name) for name in names]
    subprocess.run([sys.executable, "-c", code, *files], check=True, cwd=Path(__file__).parents[2])


@pytest.fixture
def fixtures() -> Path:
    if "POINTVIT_DATA" not in os.environ:
        pytest.skip("POINTVIT_DATA, the folder with real data, is not set")
    return Path(os.environ["POINTVIT_DATA"]) / "fixtures"


def test_real_meshes(fixtures):
    files = sorted((fixtures / "meshes").iterdir())
    assert files
    for file in files:
        cloud = read_points(file, 2000)
        assert cloud.points.shape == (2000, 3)
        assert np.ptp(cloud.points, axis=0).min() > 0
        # Uniform sampling of 2,000 points fills the box of the vertices to a few per cent.
        vertices = _vertices(file)
        np.testing.assert_array_less(np.ptp(cloud.points, axis=0), np.ptp(vertices, axis=0) * (1 + 1e-5))
        np.testing.assert_array_less(np.ptp(vertices, axis=0) * 0.85, np.ptp(cloud.points, axis=0))


def _vertices(file: Path) -> np.ndarray:
    import open3d

    with open3d.utility.VerbosityContextManager(open3d.utility.VerbosityLevel.Error):
        return np.asarray(open3d.io.read_triangle_mesh(str(file)).vertices)


def test_real_clouds_with_normals(fixtures):
    for file in sorted((fixtures / "modelnet40_normal_resampled").glob("*/*.txt"))[:3]:
        cloud = read_points(file)
        assert cloud.points.shape == (10_000, 3)
        np.testing.assert_allclose(np.linalg.norm(cloud.normals, axis=1), 1, atol=0.01)
