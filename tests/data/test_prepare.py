import json
import os
from pathlib import Path

import numpy as np
import pytest

from pointvit.data import prepare
from pointvit.data.hdf5 import read_hdf5_split
from pointvit.data.prepare import modelnet_from_off, modelnet_from_text

BOX = "OFF8 6 0\n" + "".join(f"{x} {y} {z}\n" for x in (10, 12) for y in (0, 1) for z in (0, 3)) + (
    "4 0 1 3 2\n4 4 5 7 6\n4 0 1 5 4\n4 2 3 7 6\n4 0 2 6 4\n4 1 3 7 5\n"
)  # fmt: skip


@pytest.fixture
def archive(tmp_path) -> Path:
    root = tmp_path / "ModelNet10"
    for name in ("sofa", "bed"):
        for split, numbers in (("train", (1, 2)), ("test", (3,))):
            folder = root / name / split
            folder.mkdir(parents=True)
            for number in numbers:
                (folder / f"{name}_{number:04d}.off").write_text(BOX)
    return root


def contents(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def test_off_archive_becomes_hdf5(archive, tmp_path):
    root = modelnet_from_off(archive, tmp_path / "cache", num_points=256, workers=1)
    assert root.parent == tmp_path / "cache"
    assert root.name.startswith("modelnet2_")
    points, labels, class_names, names = read_hdf5_split(root, "train")
    assert class_names == ["bed", "sofa"]
    assert labels.tolist() == [0, 0, 1, 1]
    assert names == ["bed_0001", "bed_0002", "sofa_0001", "sofa_0002"]
    assert points.shape == (4, 256, 3)
    np.testing.assert_allclose(points.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(points, axis=2).max(axis=1), 1, rtol=1e-6)
    # z stays up: the box is 2 wide, 1 deep and 3 high.
    extent = np.ptp(points[0], axis=0)
    np.testing.assert_allclose(extent / extent[2], [2 / 3, 1 / 3, 1], atol=0.02)
    assert read_hdf5_split(root, "test")[3] == ["bed_0003", "sofa_0003"]


def test_processes_give_the_same_as_none(archive, tmp_path):
    one = modelnet_from_off(archive, tmp_path / "one", num_points=64, workers=1)
    two = modelnet_from_off(archive, tmp_path / "two", num_points=64, workers=2)
    assert one.name == two.name
    np.testing.assert_array_equal(read_hdf5_split(one, "train")[0], read_hdf5_split(two, "train")[0])


def test_second_call_does_nothing(archive, monkeypatch):
    # The cache may lie inside the archive, as one more folder beside the classes.
    first = modelnet_from_off(archive, archive / "prepared", num_points=64, workers=1)
    before = contents(first)

    def fail(*args, **kwargs):
        raise AssertionError("a mesh was read again")

    monkeypatch.setattr(prepare, "read_points", fail)
    assert modelnet_from_off(archive, archive / "prepared", num_points=64, workers=1) == first
    assert contents(first) == before


def test_what_changes_the_points_changes_the_folder(archive, tmp_path):
    def prepared(**changes: int) -> Path:
        return modelnet_from_off(archive, tmp_path / "cache", **({"num_points": 64} | changes), workers=1)

    folders = [prepared(), prepared(seed=1), prepared(num_points=65)]
    mesh = archive / "bed" / "train" / "bed_0001.off"
    mesh.write_text(BOX.replace("12", "14"))
    folders.append(prepared())
    os.utime(mesh, ns=(0, 0))
    folders.append(prepared())
    mesh.rename(mesh.with_name("bed_0009.off"))
    folders.append(prepared())
    assert len(set(folders)) == 6
    points = [read_hdf5_split(folder, "train")[0] for folder in folders]
    assert not np.array_equal(points[0], points[1])
    assert points[2].shape[1] == 65
    assert not np.array_equal(points[0][0], points[3][0])
    np.testing.assert_array_equal(points[0][1], points[3][1])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_mesh_is_named_and_leaves_nothing(archive, tmp_path, workers):
    (archive / "sofa" / "test" / "sofa_0003.off").write_text(BOX[:60])
    with pytest.raises(ValueError, match=r"sofa_0003\.off"):
        modelnet_from_off(archive, tmp_path / "cache", num_points=64, workers=workers)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_changed_cache_is_refused(archive, tmp_path):
    root = modelnet_from_off(archive, tmp_path / "cache", num_points=64, workers=1)
    record = json.loads((root / "prepared.json").read_text())
    (root / "prepared.json").write_text(json.dumps(record | {"seed": 7}))
    with pytest.raises(ValueError, match="delete it and try again"):
        modelnet_from_off(archive, tmp_path / "cache", num_points=64, workers=1)


def test_no_archive(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected <class>/train/\*\.off"):
        modelnet_from_off(tmp_path, tmp_path / "cache")


@pytest.fixture
def resampled(tmp_path) -> Path:
    root = tmp_path / "modelnet40_normal_resampled"
    rng = np.random.default_rng(0)
    for name, count in (("night_stand", 2), ("bed", 1)):
        (root / name).mkdir(parents=True)
        for number in range(1, count + 1):
            np.savetxt(root / name / f"{name}_{number:04d}.txt", rng.normal(size=(20, 6)), "%.6f", ",")
    (root / "modelnet40_shape_names.txt").write_text("night_stand\nbed\n")
    (root / "modelnet40_train.txt").write_text("night_stand_0001\nbed_0001\n")
    (root / "modelnet40_test.txt").write_text("night_stand_0002\n")
    return root


@pytest.mark.parametrize("normals", [False, True])
def test_text_split_follows_the_lists(resampled, normals):
    points, labels, class_names, names = modelnet_from_text(resampled, "train", 8, normals)
    assert class_names == ["night_stand", "bed"]
    assert labels.tolist() == [0, 1]
    assert names == ["night_stand_0001", "bed_0001"]
    rows = np.loadtxt(resampled / "bed" / "bed_0001.txt", delimiter=",", dtype=np.float32)
    np.testing.assert_array_equal(points[1], rows[:8, : 6 if normals else 3])
    assert modelnet_from_text(resampled, "test", 8, normals)[3] == ["night_stand_0002"]
    assert len(modelnet_from_text(resampled, None, 8, normals)[3]) == 3


def test_text_without_lists(resampled):
    for file in resampled.glob("*.txt"):
        file.unlink()
    assert modelnet_from_text(resampled, None, 8, False)[2] == ["bed", "night_stand"]
    with pytest.warns(UserWarning, match="its test split cannot be told: all 3 shapes are taken"):
        points, labels, _, names = modelnet_from_text(resampled, "test", 8, False)
    assert points.shape == (3, 8, 3)
    assert labels.tolist() == [0, 1, 1]
    assert names == ["bed_0001", "night_stand_0001", "night_stand_0002"]


def test_text_errors(resampled):
    with pytest.raises(ValueError, match="expected 'train', 'test' or None"):
        modelnet_from_text(resampled, "val", 8, False)
    with pytest.raises(ValueError, match=r"night_stand_0001\.txt has 20 points, fewer than num_points=21"):
        modelnet_from_text(resampled, "train", 21, False)
    (resampled / "bed" / "bed_0001.txt").write_text("1,2\n")
    with pytest.raises(ValueError, match=r"bed_0001\.txt: expected rows of 3 numbers"):
        modelnet_from_text(resampled, "train", 1, False)
    (resampled / "bed" / "bed_0001.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"bed_0001\.txt"):
        modelnet_from_text(resampled, "train", 1, False)
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        modelnet_from_text(resampled / "none", "train", 1, False)


def test_real_text_clouds():
    if "POINTVIT_DATA" not in os.environ:
        pytest.skip("POINTVIT_DATA, the folder with real data, is not set")
    root = Path(os.environ["POINTVIT_DATA"]) / "fixtures" / "modelnet40_normal_resampled"
    points, labels, class_names, names = modelnet_from_text(root, None, 128, True)
    assert points.shape == (len(names), 128, 6)
    assert [class_names[label] for label in labels] == [name.rpartition("_")[0] for name in names]
    np.testing.assert_allclose(np.linalg.norm(points[..., 3:], axis=-1), 1, atol=0.01)
