import logging
import os
from pathlib import Path

import numpy as np
import pytest

from pointvit.data.dataset import DataError
from pointvit.data.primitives import box, cylinder, ellipsoid, prism, sample_surface, smooth_curve, tube, turn
from pointvit.data.shapes import SHAPES_CLASSES, Shapes, _say_synthetic, make_shape


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


def area(triangles: np.ndarray) -> float:
    a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2)


def occupancy(clouds: np.ndarray, cells: int = 12) -> np.ndarray:
    """(N, P, 3) in the unit sphere -> (N, cells^3) of 0 and 1."""
    index = np.clip(((clouds + 1) * cells / 2).astype(int), 0, cells - 1)
    grid = np.zeros((len(clouds), cells**3), dtype=np.float32)
    np.put_along_axis(grid, (index[..., 0] * cells + index[..., 1]) * cells + index[..., 2], 1, axis=1)
    return grid


@pytest.mark.parametrize(
    ("triangles", "expected"),
    [
        (box((1, 2, 3)), 22.0),
        (box((2, 2, 1), top=(0, 0)), 4 + 4 * np.sqrt(2)),
        (cylinder(1, 2, sides=200), 6 * np.pi),
        (ellipsoid((1, 1, 1)), 4 * np.pi),
        (tube([(0, 0, 0), (0, 0, 1), (0, 0, 2)], 0.5, sides=100), 2 * np.pi),
        (prism([(-1, -1), (1, -1), (1, 1), (-1, 1)], 0.5), 8 + 8 * 0.5),
    ],
    ids=["box", "pyramid", "cylinder", "sphere", "tube", "prism"],
)
def test_primitives_have_the_area_of_the_solid(triangles, expected):
    assert triangles.shape[1:] == (3, 3)
    assert area(triangles) == pytest.approx(expected, rel=0.03)


def test_turns_are_counter_clockwise_about_the_given_point():
    x, y, z = np.eye(3)
    np.testing.assert_allclose(turn(x, "z", 90), y, atol=1e-12)
    np.testing.assert_allclose(turn(y, "x", 90), z, atol=1e-12)
    np.testing.assert_allclose(turn(z, "y", 90), x, atol=1e-12)
    np.testing.assert_allclose(turn(x, "z", 180, about=(2, 0, 0)), 3 * x, atol=1e-12)


def test_curve_passes_through_its_knots():
    knots = np.array([(0, 0), (1, 2), (3, 1), (4, 4)])
    np.testing.assert_allclose(smooth_curve(knots, samples=5)[::5], knots, atol=1e-12)


def test_points_are_spread_by_area_and_lie_on_the_surface():
    small, large = box((1, 1, 1)), box((3, 3, 3), at=(10, 0, 0))
    points = sample_surface(np.concatenate([small, large]), 20_000, np.random.default_rng(0))
    assert (points[:, 0] > 5).mean() == pytest.approx(0.9, abs=0.01)
    near = points[points[:, 0] < 5] - [0, 0, 0.5]
    np.testing.assert_allclose(np.abs(near).max(axis=1), 0.5, atol=1e-9)


def test_a_surface_without_area_is_refused():
    with pytest.raises(ValueError, match="positive total area"):
        sample_surface(np.zeros((2, 3, 3)), 8, np.random.default_rng(0))


@pytest.mark.parametrize("name", SHAPES_CLASSES)
def test_every_category_gives_sound_clouds_that_vary(name):
    clouds = [make_shape(name, np.random.default_rng(seed), 256) for seed in range(25)]
    for cloud in clouds:
        assert cloud.shape == (256, 3)
        assert cloud.dtype == np.float32
        assert np.isfinite(cloud).all()
        np.testing.assert_allclose(cloud.mean(axis=0), 0, atol=1e-5)
        assert np.linalg.norm(cloud, axis=1).max() == pytest.approx(1, abs=1e-5)
        assert np.linalg.svd(cloud, compute_uv=False).min() > 0.2
    assert len({cloud.tobytes() for cloud in clouds}) == len(clouds)


def test_up_is_z():
    """A bottle's neck is thinner than its body."""
    for seed in range(10):
        cloud = make_shape("bottle", np.random.default_rng(seed), 2000)
        widths = np.linalg.norm(cloud[:, :2] - cloud[:, :2].mean(axis=0), axis=1)
        top, bottom = cloud[:, 2] > np.quantile(cloud[:, 2], 0.97), cloud[:, 2] < 0
        assert np.median(widths[top]) < np.median(widths[bottom])


def test_the_surface_does_not_depend_on_the_number_of_points():
    few, many = (make_shape("chair", np.random.default_rng(3), n) for n in (4000, 12_000))
    np.testing.assert_allclose(np.ptp(few, axis=0), np.ptp(many, axis=0), atol=0.05)


def test_one_point_is_the_origin():
    assert make_shape("cup", np.random.default_rng(0), 1).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_shape("spaceship", np.random.default_rng(0)), "spaceship.*airplane"),
        (lambda: make_shape("cup", np.random.default_rng(0), 0), "num_points"),
        (lambda: Shapes("unused", split="val"), "'train' or 'test'"),
        (lambda: Shapes("unused", shapes_per_class=0), "shapes_per_class"),
    ],
)
def test_bad_settings_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_classes_are_modelnet40s():
    folder = os.environ.get("POINTVIT_DATA")
    if not folder or not (Path(folder) / "modelnet40" / "shape_names.txt").is_file():
        pytest.skip("set POINTVIT_DATA to a folder with modelnet40/shape_names.txt")
    names = (Path(folder) / "modelnet40" / "shape_names.txt").read_text().split()
    assert set(SHAPES_CLASSES) <= set(names)
    assert sorted(SHAPES_CLASSES) == SHAPES_CLASSES


def test_dataset_is_balanced_ordered_by_shape_and_depends_on_seed_split_and_index_alone(root):
    data = Shapes(root, "test", num_points=64, shapes_per_class=2)
    points, label = data[21]
    assert points.shape == (64, 3)
    assert data.up_axis == "z"
    assert data.class_names == SHAPES_CLASSES
    assert np.bincount(data.labels).tolist() == [2] * len(SHAPES_CLASSES)
    assert data.names[21] == f"{SHAPES_CLASSES[label]}_00021"
    alone = make_shape(SHAPES_CLASSES[label], np.random.default_rng([0, 1, 21]), 64)
    np.testing.assert_array_equal(points.numpy(), alone)
    larger = Shapes(root, "test", num_points=64, shapes_per_class=3)
    np.testing.assert_array_equal(larger.points[:40], data.points)
    for other in (Shapes(root, "train", 64, 2), Shapes(root, "test", 64, 2, seed=1)):
        assert not np.isclose(other.points, data.points).all(axis=(1, 2)).any()


def test_clouds_are_written_once_and_the_temporary_folder_is_gone(tmp_path, monkeypatch):
    first = Shapes(tmp_path, "train", num_points=32, shapes_per_class=1)
    assert [path.is_dir() for path in tmp_path.iterdir()] == [True]
    monkeypatch.setattr("pointvit.data.shapes.make_shape", lambda *_: pytest.fail("made again"))
    np.testing.assert_array_equal(Shapes(tmp_path, "train", 32, 1).points, first.points)


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("pointvit.data.shapes.write_hdf5_split", full)
    with pytest.raises(OSError, match="no space"):
        Shapes(tmp_path, "train", num_points=32, shapes_per_class=1)
    assert list(tmp_path.iterdir()) == []


def test_default_folder_is_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Shapes(split="test", num_points=16, shapes_per_class=1)
    assert (tmp_path / "pointvit" / "shapes").is_dir()


def test_says_once_that_it_is_synthetic(root, caplog):
    _say_synthetic.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            Shapes(root, "test", num_points=64, shapes_per_class=2)
    assert sum("synthetic" in record.message for record in caplog.records) == 1


def test_a_nearest_neighbour_on_an_occupancy_grid_is_above_chance_and_far_from_perfect(root):
    """Half the default training set: 35 to 70 %, where chance is 5 %."""
    train, test = Shapes(root, "train", 1024, 40), Shapes(root, "test", 1024, 20)
    known, asked = occupancy(train.points.numpy()), occupancy(test.points.numpy())
    distance = known.sum(axis=1) - 2 * asked @ known.T
    accuracy = (train.labels[distance.argmin(axis=1)] == test.labels).float().mean().item()
    assert 0.35 < accuracy < 0.70


def test_the_folder_of_another_data_set_is_left_alone(tmp_path):
    (tmp_path / "shape_names.txt").write_text("chair\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"holds another data set \(shape_names.txt\), and Shapes are made data"
    ):
        Shapes(tmp_path, "test", num_points=16, shapes_per_class=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["shape_names.txt"]
