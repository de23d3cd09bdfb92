"""The public layouts of both benchmarks, by name and shape, and what is said where files are otherwise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from pointvit.data.corruptions import BENCHMARKS, CLEAN
from pointvit.data.corruptions.public import (
    CLASS_NAMES,
    OURS,
    check_present,
    class_names_of,
    folder_of,
    is_ours,
    read_set,
)
from pointvit.data.dataset import DataError
from pointvit.data.hdf5 import read_class_names
from pointvit.robustness.results import write_set
from pointvit.robustness.sources import Condition

POINTS = np.random.default_rng(0).normal(size=(4, 8, 3)).astype(np.float32)
LABELS = np.array([0, 39, 5, 5])


def public(folder: Path) -> Path:
    """A set of each benchmark as their authors' scripts save them: float64, labels (N, 1) uint8."""
    np.save(folder / "data_shear_2.npy", POINTS.astype(np.float64))
    np.save(folder / "label.npy", LABELS.astype(np.uint8)[:, None])
    with h5py.File(folder / "add_local_4.h5", "w") as file:
        file["data"], file["label"] = POINTS.astype(np.float64), LABELS.astype(np.uint8)[:, None]
    return folder


SETS = [("modelnet40-c", "shear", 2), ("modelnet-c", "add_local", 5)]


@pytest.mark.parametrize(("benchmark", "name", "severity"), SETS)
def test_files_are_read_by_their_exact_names(benchmark, name, severity, tmp_path):
    public(tmp_path)
    points, labels = read_set(benchmark, tmp_path, name, severity, CLASS_NAMES)
    np.testing.assert_array_equal(points, POINTS)
    np.testing.assert_array_equal(labels, LABELS)
    assert (points.dtype, labels.dtype) == (np.float32, np.int64)
    assert folder_of(benchmark, tmp_path) == tmp_path
    assert not is_ours(tmp_path)
    assert class_names_of(tmp_path) == CLASS_NAMES


def test_names_are_those_of_the_benchmarks():
    names = {
        benchmark: [
            known.file(name, s) for name in (CLEAN, *known.corruptions) for s in known.severities(name)
        ]
        for benchmark, known in BENCHMARKS.items()
        if known.folder
    }
    assert [len(files) for files in names.values()] == [76, 36]
    assert {"data_original.npy", "data_distortion_rbf_inv_1.npy", "data_lidar_5.npy"} <= set(
        names["modelnet40-c"]
    )
    assert {"clean.h5", "scale_0.h5", "dropout_global_4.h5"} <= set(names["modelnet-c"])
    assert "dropout_global_5.h5" not in names["modelnet-c"]


def test_labels_count_modelnet40s_own_list(data_root):
    assert read_class_names(data_root / "modelnet40" / "shape_names.txt") == CLASS_NAMES


def test_a_folder_is_found_under_its_usual_name(tmp_path):
    (tmp_path / "modelnet40_c").mkdir()
    assert folder_of("modelnet40-c", tmp_path) is None
    public(tmp_path / "modelnet40_c")
    assert folder_of("modelnet40-c", tmp_path) == tmp_path / "modelnet40_c"
    assert folder_of("modelnet-c", tmp_path) is None


def test_missing_files_are_listed(tmp_path):
    public(tmp_path)
    sets = [("shear", s) for s in range(1, 6)] + [("lidar", s) for s in range(1, 6)]
    with pytest.raises(FileNotFoundError) as error:
        check_present("modelnet40-c", tmp_path, sets)
    said = str(error.value)
    assert said.startswith(
        f"{tmp_path}: 9 of 11 files of ModelNet40-C are missing: data_shear_1.npy, data_shear_3"
    )
    assert "and 4 more" in said
    assert "data/README.md" in said
    check_present("modelnet40-c", tmp_path, [("shear", 2)])
    (tmp_path / "label.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 2 files .* are missing: label\.npy"):
        check_present("modelnet40-c", tmp_path, [("shear", 2)])


def test_where_the_files_come_from_is_written_down():
    page = (Path(__file__).parents[2] / "data" / "README.md").read_text(encoding="utf-8")
    assert "## ModelNet40-C and ModelNet-C" in page


WRONG = {
    "points of two coordinates": (
        POINTS[..., :2],
        LABELS,
        r"expected points \(N, P, 3\) of floats, got \(4, 8, 2\)",
    ),
    "points of whole numbers": (
        POINTS.astype(int),
        LABELS,
        r"expected points \(N, P, 3\) of floats, .* int64",
    ),
    "one cloud": (POINTS[0], LABELS, r"expected points \(N, P, 3\)"),
    "fewer labels": (POINTS, LABELS[:3], r"expected 4 whole numbers, one for each cloud of .*, got \(3,\)"),
    "labels of floats": (POINTS, LABELS / 2, r"expected 4 whole numbers, .* float64"),
    "labels beyond the classes": (POINTS, LABELS + 1, "labels run from 1 to 40, but the class list has 40"),
    "not a number": (np.where(POINTS > 2, np.nan, POINTS), LABELS, "of 4 clouds hold NaN or infinite"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize(("benchmark", "name", "severity"), SETS)
def test_wrong_arrays_are_refused_in_one_sentence(benchmark, name, severity, case, tmp_path):
    points, labels, sentence = WRONG[case]
    if benchmark == "modelnet40-c":
        np.save(tmp_path / "data_shear_2.npy", points)
        np.save(tmp_path / "label.npy", labels)
    else:
        with h5py.File(tmp_path / "add_local_4.h5", "w") as file:
            file["data"], file["label"] = points, labels
    with pytest.raises(DataError, match=sentence) as error:
        read_set(benchmark, tmp_path, name, severity, CLASS_NAMES)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00v\x00{"])
@pytest.mark.parametrize(("benchmark", "name", "severity"), SETS)
def test_damaged_files_are_refused_in_one_sentence(benchmark, name, severity, content, tmp_path):
    public(tmp_path)
    (tmp_path / BENCHMARKS[benchmark].file(name, severity)).write_bytes(content)
    with pytest.raises(DataError, match=r"not a readable .*, cut short or damaged"):
        read_set(benchmark, tmp_path, name, severity, CLASS_NAMES)


def test_a_pickle_is_not_run(tmp_path):
    public(tmp_path)
    np.save(tmp_path / "data_shear_2.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="not a readable NumPy array"):
        read_set("modelnet40-c", tmp_path, "shear", 2, CLASS_NAMES)


def test_an_archive_and_a_file_without_labels(tmp_path):
    public(tmp_path)
    with (tmp_path / "data_shear_2.npy").open("wb") as file:
        np.savez(file, a=POINTS)
    with pytest.raises(DataError, match="expected one NumPy array, got an archive"):
        read_set("modelnet40-c", tmp_path, "shear", 2, CLASS_NAMES)
    with h5py.File(tmp_path / "add_local_4.h5", "r+") as file:
        del file["label"]
    with pytest.raises(DataError, match="expected the arrays data and label, found data"):
        read_set("modelnet-c", tmp_path, "add_local", 5, CLASS_NAMES)


@pytest.mark.parametrize(("benchmark", "name", "severity"), SETS)
def test_what_is_written_is_read_and_says_whose_it_is(benchmark, name, severity, tmp_path):
    labels = np.array([0, 1, 2, 1])
    path = write_set(tmp_path, Condition(benchmark, name, severity), POINTS, labels, ["a", "b", "c"])
    folder = folder_of(benchmark, tmp_path)
    assert folder is not None
    assert path == folder / BENCHMARKS[benchmark].file(name, severity)
    assert is_ours(folder)
    assert class_names_of(folder) == ["a", "b", "c"]
    points, read = read_set(benchmark, folder, name, severity, class_names_of(folder))
    np.testing.assert_array_equal(points, POINTS)
    np.testing.assert_array_equal(read, labels)
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
    write_set(tmp_path, Condition(benchmark, name, severity), POINTS, labels, ["a", "b", "c"])


def test_public_files_are_not_written_over(tmp_path):
    (tmp_path / "modelnet40_c").mkdir()
    public(tmp_path / "modelnet40_c")
    before = (tmp_path / "modelnet40_c" / "data_shear_2.npy").read_bytes()
    with pytest.raises(FileExistsError, match="holds files of ModelNet40-C that were not made here"):
        write_set(tmp_path, Condition("modelnet40-c", "shear", 2), POINTS * 2, LABELS, CLASS_NAMES)
    assert (tmp_path / "modelnet40_c" / "data_shear_2.npy").read_bytes() == before
    assert not (tmp_path / "modelnet40_c" / OURS).exists()


@pytest.mark.parametrize("note", [{"made_by": "x"}, {"class_names": 3}, {"class_names": [1]}, [], None])
def test_a_note_without_classes(note, tmp_path):
    (tmp_path / OURS).write_text(json.dumps(note), encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / OURS}: does not say class_names")):
        class_names_of(tmp_path)
