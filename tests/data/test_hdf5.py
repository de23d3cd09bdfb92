import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from pointvit.data.dataset import DataError
from pointvit.data.hdf5 import has_hdf5_split, read_class_names, read_hdf5_split, write_hdf5_split

NAMES = ["chair", "table"]


def write(root: Path, channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(5, 8, channels)).astype(np.float32)
    labels = np.array([0, 1, 1, 0, 1])
    for split in ("train", "test"):
        write_hdf5_split(root, split, points, labels, [f"{split}_{i}" for i in range(5)], NAMES)
    return points, labels


def test_written_is_read(tmp_path):
    points, labels = write(tmp_path)
    assert has_hdf5_split(tmp_path, "train")
    read = read_hdf5_split(tmp_path, "train")
    np.testing.assert_array_equal(read[0], points)
    np.testing.assert_array_equal(read[1], labels)
    assert read[2:] == (NAMES, [f"train_{i}" for i in range(5)])
    assert (read[0].dtype, read[1].dtype) == (np.float32, np.int64)
    with h5py.File(tmp_path / "ply_data_train0.h5") as file:
        assert (file["label"].dtype, file["label"].shape) == (np.uint8, (5, 1))


def test_normals(tmp_path):
    points, _ = write(tmp_path, channels=6)
    np.testing.assert_array_equal(read_hdf5_split(tmp_path, "test", normals=True)[0], points)
    np.testing.assert_array_equal(read_hdf5_split(tmp_path, "test")[0], points[..., :3])
    with h5py.File(tmp_path / "ply_data_test0.h5", "r+") as file:
        del file["normal"]
        file["normal"] = np.zeros((5, 4, 3))
    with pytest.raises(DataError, match=r"test0.h5: expected normal \(5, 8, 3\) like data, got \(5, 4, 3\)"):
        read_hdf5_split(tmp_path, "test", normals=True)


def test_more_than_256_classes_keep_their_labels(tmp_path):
    names = [f"class {i}" for i in range(300)]
    write_hdf5_split(tmp_path, "train", np.zeros((300, 2, 3)), np.arange(300), names, names)
    np.testing.assert_array_equal(read_hdf5_split(tmp_path, "train")[1], np.arange(300))


@pytest.mark.parametrize("prefix", ["data/modelnet40_ply_hdf5_2048/", "/home/someone/", "C:\\clouds\\", ""])
def test_prefixes_of_other_machines_in_the_list_of_files(tmp_path, prefix):
    points, _ = write(tmp_path)
    (tmp_path / "train_files.txt").write_text(f"\n{prefix}ply_data_train0.h5\r\n\n")
    np.testing.assert_array_equal(read_hdf5_split(tmp_path, "train")[0], points)


def test_several_files_in_the_order_of_the_list(tmp_path):
    points, _ = write(tmp_path)
    (tmp_path / "ply_data_train1.h5").write_bytes((tmp_path / "ply_data_train0.h5").read_bytes())
    (tmp_path / "train_files.txt").write_text("ply_data_train1.h5\nply_data_train0.h5\n")
    read = read_hdf5_split(tmp_path, "train")
    assert len(read[0]) == len(read[1]) == 10
    assert read[3] == [f"ply_data_train1:{i}" for i in range(5)] + [f"train_{i}" for i in range(5)]
    (tmp_path / "train_files.txt").unlink()
    assert read_hdf5_split(tmp_path, "train")[3][:5] == [f"train_{i}" for i in range(5)]
    np.testing.assert_array_equal(read_hdf5_split(tmp_path, "train")[0], np.concatenate([points, points]))


@pytest.mark.parametrize("shape", [(5, 1), (5,)])
@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.int64])
def test_labels_of_any_integer_kind(tmp_path, kind, shape):
    _, labels = write(tmp_path)
    with h5py.File(tmp_path / "ply_data_train0.h5", "r+") as file:
        del file["label"]
        file["label"] = labels.astype(kind).reshape(shape)
    read = read_hdf5_split(tmp_path, "train")[1]
    assert read.dtype == np.int64
    np.testing.assert_array_equal(read, labels)


def damaged(root: Path, **arrays: np.ndarray) -> None:
    with h5py.File(root / "ply_data_train0.h5", "r+") as file:
        for name, array in arrays.items():
            del file[name]
            file[name] = array


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"label": np.full((5, 1), 2)}, "labels run from 2 to 2, but the class list has 2 names"),
        (
            {"label": np.zeros((4, 1))},
            r"expected data \(N, P, 3\) and label \(N, 1\), got \(5, 8, 3\), \(4, 1\)",
        ),
        ({"label": np.zeros((5, 2))}, "expected data"),
        ({"label": np.int64(3)}, "expected data"),
        ({"data": np.zeros((5, 8))}, "expected data"),
        ({"data": np.zeros((5, 8, 2))}, "expected data"),
        (
            {"data": np.full((5, 8, 3), np.nan)},
            r"5 of 5 clouds hold NaN or infinite .* \(rows 0, 1, 2, 3, 4\)",
        ),
    ],
)
def test_arrays_that_are_not_the_layout(tmp_path, arrays, message):
    write(tmp_path)
    damaged(tmp_path, **arrays)
    with pytest.raises(DataError, match=rf"ply_data_train0\.h5: {message}"):
        read_hdf5_split(tmp_path, "train")


@pytest.mark.parametrize("keep", [0, 10, 600, -200])
def test_truncated_file(tmp_path, keep):
    write(tmp_path)
    file = tmp_path / "ply_data_train0.h5"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(
        DataError, match=r"ply_data_train0.h5: not a readable HDF5 file, cut short or damaged"
    ):
        read_hdf5_split(tmp_path, "train")


def test_absent_array_is_named(tmp_path):
    write(tmp_path)
    with pytest.raises(DataError, match="expected the arrays data, label, normal, found data, label"):
        read_hdf5_split(tmp_path, "train", normals=True)


def test_files_of_different_sizes(tmp_path):
    write(tmp_path)
    with h5py.File(tmp_path / "ply_data_train1.h5", "w") as file:
        file["data"], file["label"] = np.zeros((1, 9, 3)), np.zeros((1, 1))
    (tmp_path / "train_files.txt").unlink()
    with pytest.raises(DataError, match=r"differ in number of points: \[\(8, 3\), \(9, 3\)\]"):
        read_hdf5_split(tmp_path, "train")


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("shape_names.txt", "shape_names.txt: expected the list of classes"),
        ("ply_data_train0.h5", "ply_data_train0.h5: in train_files.txt, but not there"),
    ],
)
def test_missing_files_are_named(tmp_path, gone, message):
    write(tmp_path)
    (tmp_path / gone).unlink()
    with pytest.raises(FileNotFoundError, match=message):
        read_hdf5_split(tmp_path, "train")


def test_nothing_there(tmp_path):
    assert not has_hdf5_split(tmp_path, "train")
    with pytest.raises(
        FileNotFoundError, match=r"expected train_files.txt or ply_data_train\*.h5, found neither"
    ):
        read_hdf5_split(tmp_path, "train")


@pytest.mark.parametrize("text", ["", "chair\nchair\n", "\n \n"])
def test_class_list_without_distinct_names(tmp_path, text):
    (tmp_path / "shape_names.txt").write_text(text)
    with pytest.raises(DataError, match=r"shape_names\.txt: expected distinct class names"):
        read_class_names(tmp_path / "shape_names.txt")


def test_class_list_that_is_no_text(tmp_path):
    (tmp_path / "shape_names.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"shape_names\.txt: expected text in UTF-8, one name a line"):
        read_class_names(tmp_path / "shape_names.txt")


@pytest.mark.parametrize("text", ["[1", json.dumps(["a"]), json.dumps({"a": 1})])
def test_names_of_shapes_that_do_not_fit(tmp_path, text):
    write(tmp_path)
    (tmp_path / "ply_data_train_0_id2file.json").write_text(text)
    with pytest.raises(DataError, match=r"ply_data_train_0_id2file\.json: "):
        read_hdf5_split(tmp_path, "train")
