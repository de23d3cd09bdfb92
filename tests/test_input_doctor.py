"""Planted defects are found, and nothing is found where nothing is wrong."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from pointvit.data.io import PointCloud, read_points
from pointvit.input_cleaning import cleaned, write_cloud
from pointvit.input_doctor import (
    duplicate_points,
    examine,
    isolated_points,
    likely_up,
    neighbour_distance,
    outward_share,
    singular_shares,
)
from pointvit.input_files import find_files
from pointvit.input_words import (
    about_many,
    about_one,
    about_unreadable,
    remarks,
    treatment,
)


def ball(count: int = 1000, seed: int = 0) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, 3))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def mushroom(seed: int = 0) -> np.ndarray:
    """A flat cap on a thin stem, z up: the same from all sides, but not from above and below."""
    rng = np.random.default_rng(seed)
    angle, radius = rng.uniform(0, 2 * np.pi, 1000), np.sqrt(rng.random(1000))
    radius[700:] *= 0.1
    height = np.where(np.arange(1000) < 700, 1.0, rng.random(1000))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1).astype(np.float32)


@pytest.mark.parametrize("count", [16, 1000])
def test_an_ordinary_cloud_is_no_patient(count):
    points = ball(count)
    found = examine(PointCloud(points, normals=points))
    assert (found.num_points, found.num_duplicates, found.num_outliers, found.num_dropped) == (count, 0, 0, 0)
    assert (found.rest, found.shape, found.outward) == (1.0, "solid", 1.0)
    assert remarks(PointCloud(points), count) == []
    assert remarks(PointCloud(np.random.default_rng(1).normal(size=(count, 3))), None) == []


def test_duplicates_are_counted_where_they_repeat():
    points = np.concatenate([ball(20), ball(20)[:7], [[0.0, 1, 2], [-0.0, 1, 2]]]).astype(np.float32)
    assert np.flatnonzero(duplicate_points(points)).tolist() == [*range(20, 27), 28]
    assert examine(PointCloud(points)).num_duplicates == 8
    assert remarks(PointCloud(points), None) == ["8 of 29 points repeat others"]


@pytest.mark.parametrize("count", [64, 1000, 30_000])
def test_outliers_are_found_and_what_they_shrink_is_said(count):
    points = np.concatenate([ball(count), [[20, 0, 0], [0, -30, 0], [20, 0.1, 0]]]).astype(np.float32)
    assert np.flatnonzero(isolated_points(points)).tolist() == [count, count + 1, count + 2]
    [remark] = remarks(PointCloud(points), None)
    assert remark.startswith("3 points lie far off; without them the radius would be ")
    if count < 20_000:
        found = examine(PointCloud(points))
        assert found.num_outliers == 3
        assert found.rest == pytest.approx(1 / 30, rel=0.3)


def test_a_dense_part_makes_no_outliers_of_the_rest():
    sparse_and_dense = np.concatenate([ball(700), 0.05 * ball(300, seed=1)])
    assert not isolated_points(sparse_and_dense).any()


@pytest.mark.parametrize("far", [1e5, 1e9, 3e38])
def test_an_outlier_however_far_makes_no_line_of_the_rest(far):
    cloud = PointCloud(np.concatenate([ball(400), [[far, 0, 0]]]).astype(np.float32))
    found = examine(cloud)
    assert (found.num_outliers, found.shape) == (1, "solid")
    assert found.spacing == pytest.approx(examine(PointCloud(ball(400))).spacing, rel=0.01)
    said = "1 point lies far off; without it the radius would be less than 1% of what it is"
    assert remarks(cloud, None) == [said]


def test_distance_to_neighbours_against_a_plain_search():
    points, far = ball(50).astype(np.float64), np.array([1e6, -2e6, 3e6])
    apart = np.sort(np.linalg.norm(points[:, None] - points, axis=2), axis=1)
    for k in (1, 8):
        np.testing.assert_allclose(neighbour_distance(points + far, points + far, k), apart[:, k], rtol=1e-5)


@pytest.mark.parametrize(
    ("scale", "shape"),
    [
        ((1, 1, 0), "flat"),
        ((0, 1, 0), "straight"),
        ((0, 0, 0), "a single place"),
        ((1, 1, 0.1), "solid"),
    ],
)
def test_flatness_is_that_of_the_singular_values(scale, shape):
    points = ball() * np.array(scale, dtype=np.float32)
    found = examine(PointCloud(points))
    assert found.shape == shape
    expected = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    if shape != "a single place":
        np.testing.assert_allclose(singular_shares(points), expected / expected[0], atol=1e-6)
    assert ("the points lie in a plane, on a line or in one place" in remarks(PointCloud(points), None)) == (
        shape != "solid"
    )


def test_normals_that_point_inwards():
    points = ball() + np.float32(5)
    assert outward_share(points, points - 5) == 1
    assert outward_share(points, 5 - points) == 0
    half = np.where(np.arange(1000)[:, None] < 250, points - 5, 5 - points)
    assert examine(PointCloud(points, normals=half)).outward == pytest.approx(0.25)


def test_the_vertical_axis_is_found_whatever_it_is_called():
    x, y, z = mushroom().T
    for axis, columns in {"z": (x, y, z), "y": (x, z, -y), "x": (z, x, y)}.items():
        found = likely_up(np.stack(columns, axis=1))
        assert found.axis == axis
        assert "halves differ" in found.reason


def test_no_axis_is_guessed_where_none_is_told_apart():
    for points in (ball(), np.random.default_rng(0).uniform(size=(1000, 3)), ball(3)):
        assert likely_up(points).axis == "unsure"


@pytest.mark.parametrize(
    "points",
    [np.zeros((1, 3)), np.zeros((40, 3)), np.eye(3), np.full((20, 3), 3e38), ball(20) * np.float32(1e-30)],
)
def test_extremes_have_findings_too(points):
    cloud = PointCloud(points.astype(np.float32))
    found = examine(cloud)
    assert found.num_points == len(points)
    assert np.isfinite([found.radius, found.spacing, found.rest, *found.singular]).all()
    assert isinstance(remarks(cloud, 1), list)
    assert all(treatment(found, 1024, "z"))
    assert all(about_one("a", found, 1024))


def test_survey_coordinates_keep_their_centre():
    cloud = PointCloud(ball(), offset=np.array([7_691_239.55, 0, 0]))
    assert examine(cloud).centre[0] == pytest.approx(7_691_239.55, abs=0.1)


def on_its_side() -> np.ndarray:
    return mushroom()[:, [2, 0, 1]]


def test_treatment_says_what_predicting_does():
    found = examine(PointCloud(mushroom()))
    said = "\n".join(treatment(found, 256, "y"))
    assert "thinned at random from 1,000 to 256 points" in said
    assert "say --up z, which turns it to y up as in training" in said
    same = "\n".join(treatment(found, 8192, "z", "none"))
    assert "radius" not in same
    assert "say --up z; --up auto, the default, tries y and z" in same
    assert "in training" not in "\n".join(treatment(found, None, None))
    assert "if you know which axis points up" in treatment(examine(PointCloud(ball())), None, None)[-1]
    assert "--up" not in "\n".join(treatment(examine(PointCloud(on_its_side())), None, "z"))


def test_one_cloud_in_words():
    assert about_one("a.ply", examine(PointCloud(ball())), 1000) == ["a.ply: nothing unusual."]
    lines = about_one("a.ply", examine(PointCloud(on_its_side(), num_dropped=1)), 8192)
    assert lines == [
        "a.ply: 3 things are unusual.",
        "- 1 point is NaN or infinite: predicting leaves them out.",
        "- 1,000 points, where the model was trained on 8,192: the answer may be wrong.",
        "- x looks vertical, so that the object lies on its side: turn the file until y or z points up, as "
        "--up knows no other.",
    ]
    far = np.concatenate([ball(), ball()[:250], [[50, 0, 0]]]).astype(np.float32)
    first, outlier, repeated = about_one("a.ply", examine(PointCloud(far)), None)
    assert first == "a.ply: 2 things are unusual."
    assert outlier.startswith(
        "- 1 point lies far off; without it the radius would be 2% of what it is: --fix"
    )
    assert repeated.startswith("- 250 of 1,251 points repeat others: --fix")
    few = examine(PointCloud(np.concatenate([ball(), ball()[:9]])))
    assert about_one("a.ply", few, None) == ["a.ply: nothing unusual."]
    assert about_one("a\n.ply", examine(PointCloud(ball(1))), None) == [
        "a\\n.ply: 1 thing is unusual.",
        "- there is only 1 point: look whether the file was cut short.",
    ]
    assert len(about_one("a.ply", examine(PointCloud(ball(1))), 1024)) == 2
    flat = about_one("a.ply", examine(PointCloud(ball() * np.float32([1, 1, 0]), normals=-ball())), None)
    assert flat == [
        "a.ply: 2 things are unusual.",
        "- all points lie in a plane: look whether a dimension was lost.",
        "- 100% of the normals point inwards: turn them round, if the model uses normals.",
    ]


def test_many_clouds_in_as_few_words_as_two():
    usual, broken = examine(PointCloud(ball())), examine(PointCloud(mushroom()[:990], num_dropped=3))
    lines = about_many({"a": usual, "b c": usual}, 0, None, None)
    assert lines[:2] == ["2 files: nothing unusual.", "Points: 1,000."]
    assert lines[2].startswith("Vertical axis, by the looks of each file: not clear in 2. Predicting tries")
    assert lines[3:] == ["More about one of them: pointvit doctor a"]
    many = about_many({"b c": usual} | {f"x {i}": broken for i in range(1200)}, 1, 8192, "y")
    assert len(many) == len(lines) + 2
    assert many[0] == "1,202 files: 1,201 unusual, 1 not readable."
    assert many[1] == (
        "- 1,200 files have points that are NaN or infinite (x 0, x 1, x 2 and 1,197 more): predicting "
        "leaves them out."
    )
    assert many[2].startswith("- 1,201 files have far fewer points than the model was trained on (b c, x 0, ")
    assert many[3] == "Points: 990 to 1,000; the model was trained on 8,192."
    assert "z in 1,200, not clear in 1; the model's clouds are y up. " in many[4]
    assert many[5] == "More about one of them: pointvit doctor 'x 0'"


def test_files_that_cannot_be_read_are_told_by_reason():
    same = [(name, ValueError(f"{name}: is cut short.")) for name in ("a", "b", "c", "d")]
    other = [("e", ValueError("e holds no points.")), ("", FileNotFoundError("*.las: no file matches."))]
    here = [(f"./{name}", ValueError(f"{name}: an odd kind.")) for name in ("a", "d")]
    assert about_unreadable(same + here + other) == [
        "4 files cannot be read (a, b, c and 1 more): is cut short.",
        "2 files cannot be read (./a, ./d): an odd kind.",
        "e holds no points.",
        "*.las: no file matches.",
    ]


def test_a_cleaned_cloud_is_an_ordinary_one():
    points = np.concatenate([ball(), ball()[:30], [[50, 0, 0]]]).astype(np.float32)
    colors = np.random.default_rng(0).random(points.shape).astype(np.float32)
    clean = cleaned(PointCloud(points, points, colors, num_dropped=3))
    for part, before in ((clean.points, points), (clean.normals, points), (clean.colors, colors)):
        np.testing.assert_array_equal(part, before[:1000])
    again = examine(clean)
    assert (again.num_duplicates, again.num_outliers, again.num_dropped) == (0, 0, 0)


@pytest.mark.parametrize("ending", [".ply", ".xyz", ".npy"])
@pytest.mark.parametrize("offset", [0.0, 7_691_239.5])
def test_written_files_are_read_again(ending, offset, tmp_path: Path):
    points = ball()
    colors = np.random.default_rng(0).integers(0, 256, points.shape).astype(np.float32) / 255
    cloud = PointCloud(points, points, colors, offset=np.full(3, offset))
    write_cloud(tmp_path / f"a{ending}", cloud)
    read = read_points(tmp_path / f"a{ending}")
    np.testing.assert_allclose(read.points + read.offset, points + cloud.offset, atol=1e-6, rtol=0)
    np.testing.assert_allclose(read.normals, points, atol=1e-6)
    if ending == ".ply":
        np.testing.assert_allclose(read.colors, colors, atol=1e-6)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("b/2.xyz", "b/1.PLY", "b/c/3.npy", "b/notes.md", "b/.hidden.xyz", "b/.git/4.xyz", "a.off"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["b", "a.off"], ["b/1.PLY", "b/2.xyz", "b/c/3.npy", "a.off"]),
        (["b/*.xyz", "-", "no.ply"], ["b/2.xyz", "-", "no.ply"]),
        (["**/*.npy"], ["b/c/3.npy"]),
        (["*"], ["a.off", "b/1.PLY", "b/2.xyz", "b/c/3.npy"]),
        (["a.off", "a.off"], ["a.off", "a.off"]),
    ],
)
def test_names_stand_for_files(tree, names, found):
    assert find_files(names) == found


def test_names_that_look_like_patterns_are_files_first(tree):
    Path("[a].xyz").touch()
    assert find_files(["[a].xyz"]) == ["[a].xyz"]


def test_what_stands_for_nothing_says_so_in_its_place(tree):
    Path("empty").mkdir()
    first, file, second = find_files(["empty", "a.off", "*.las"])
    assert file == "a.off"
    assert "empty: the folder holds no file ending in one of .off" in str(first)
    assert "*.las: no file matches this pattern" in str(second)


def test_folders_that_cannot_be_read_are_told(tree, monkeypatch):
    scan = os.scandir

    def refusing(path):
        if Path(path).name in ("c", ".hidden"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    (tree / "b" / ".hidden").mkdir()
    monkeypatch.setattr(os, "scandir", refusing)
    *files, error = find_files(["b"])
    assert files == ["b/1.PLY", "b/2.xyz"]
    assert str(error) == "b/c: the folder cannot be read (permission denied)."


def test_what_is_being_written_is_not_read(tree):
    assert find_files(["b"], leave_out=[tree / "b" / "2.xyz"]) == ["b/1.PLY", "b/c/3.npy"]
