import logging
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from pointvit.data import DataError, PointCloudDataModule, ScanObjectNN
from pointvit.data.scanobjectnn import CLASSES, VARIANTS

FILES = {
    ("obj_bg", "train"): "main_split/training_objectdataset.h5",
    ("obj_bg", "test"): "main_split/test_objectdataset.h5",
    ("obj_only", "train"): "main_split_nobg/training_objectdataset.h5",
    ("obj_only", "test"): "main_split_nobg/test_objectdataset.h5",
    ("pb_t50_rs", "train"): "main_split/training_objectdataset_augmentedrot_scale75.h5",
    ("pb_t50_rs", "test"): "main_split/test_objectdataset_augmentedrot_scale75.h5",
}


def write(path: Path, count: int = 30, num_points: int = 12, seed: int = 0, mask: int | None = None) -> None:
    """Clouds of the layout; ``mask`` is the value of half of each mask, or there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        file["data"] = rng.normal(size=(count, num_points, 3)).astype(np.float32) + 3
        file["label"] = (np.arange(count) % 15).astype(np.int64)
        if mask is not None:
            values = np.full((count, num_points), 4)
            values[:, ::2] = mask
            file["mask"] = values


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The archive's layout, in which the number of clouds tells the files apart."""
    for i, ((variant, _), file) in enumerate(FILES.items()):
        write(tmp_path / file, 30 + i, seed=i, mask=4 if variant == "obj_only" else -1)
    return tmp_path


@pytest.mark.parametrize(("key", "file"), FILES.items(), ids=str)
def test_each_variant_reads_its_own_file(archive, key, file, caplog):
    variant, split = key
    data = ScanObjectNN(archive, split, variant, num_points=12)
    with h5py.File(archive / file) as h5:
        stored, labels = np.asarray(h5["data"]), np.asarray(h5["label"])
    assert len(data) == len(stored)
    assert data.labels.tolist() == labels.tolist()
    assert (tuple(data.class_names), data.up_axis) == (CLASSES, "y")
    assert (
        f"holds {len(stored)} clouds, the published file {VARIANTS[variant].counts[split]:,}" in caplog.text
    )
    centred = stored[0] - stored[0].mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1).max()
    rows = torch.cdist(data.points[0], torch.from_numpy(centred)).argmin(dim=1)
    assert sorted(rows.tolist()) == list(range(12)), "every stored point once, in another order"
    assert rows.tolist() != list(range(12))
    torch.testing.assert_close(data.points[0], torch.from_numpy(centred)[rows], atol=1e-5, rtol=0)


def test_the_folder_of_the_archive_may_hold_another(archive, tmp_path_factory):
    outer = tmp_path_factory.mktemp("outer")
    archive.rename(outer / "h5_files")
    assert len(ScanObjectNN(outer, "test", "obj_only", num_points=4)) == 33


def test_fewer_points_are_the_same_places_of_every_cloud(archive):
    few, all_ = (ScanObjectNN(archive, "test", "obj_bg", num_points=n) for n in (5, 12))
    assert few.points.shape == (31, 5, 3)
    assert few.points[0].norm(dim=1).max() == pytest.approx(1, abs=1e-6)
    assert few.names == all_.names == [f"test_objectdataset:{i}" for i in range(31)]
    with pytest.raises(DataError, match="stores 12 points a cloud, fewer than num_points=13"):
        ScanObjectNN(archive, "test", "obj_bg", num_points=13)


def test_a_file_that_is_not_there_is_named_with_what_is(archive):
    wanted = archive / FILES["pb_t50_rs", "train"]
    wanted.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        ScanObjectNN(archive)
    said = str(caught.value)
    assert said.startswith(
        f"{wanted}: expected this file for variant pb_t50_rs, split train; it comes in h5_files"
    )
    assert "found main_split/test_objectdataset.h5 (obj_bg, test), " in said
    assert "main_split_nobg/training_objectdataset.h5 (obj_only, train)" in said
    with pytest.raises(FileNotFoundError, match=r"found test_objectdataset.h5 \(obj_bg, test\), "):
        ScanObjectNN(archive / "main_split")
    with pytest.raises(
        FileNotFoundError, match=r"nowhere: no such folder; ScanObjectNN comes as h5_files\.zip"
    ):
        ScanObjectNN(archive / "nowhere")


def publish(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the published files held few clouds."""
    small = {"obj_bg": (30, 31), "obj_only": (30, 31), "pb_t50_rs": (40, 41)}
    for variant, (train, test) in small.items():
        monkeypatch.setitem(VARIANTS[variant].counts, "train", train)
        monkeypatch.setitem(VARIANTS[variant].counts, "test", test)


@pytest.mark.parametrize(
    ("count", "found"),
    [(30, "30, which is obj_bg, train or obj_only, train"), (41, "41, which is pb_t50_rs, test")],
)
def test_a_file_of_another_variant_or_split_is_refused(tmp_path, monkeypatch, count, found):
    publish(monkeypatch)
    file = tmp_path / FILES["pb_t50_rs", "train"]
    write(file, count)
    with pytest.raises(DataError) as caught:
        ScanObjectNN(tmp_path, num_points=4)
    assert str(caught.value).startswith(
        f"{file}: expected the 40 clouds of variant pb_t50_rs, split train, found {found}; copy the file"
    )


def test_the_published_number_of_clouds_is_no_warning(tmp_path, monkeypatch, caplog):
    publish(monkeypatch)
    write(tmp_path / FILES["pb_t50_rs", "train"], 40)
    with caplog.at_level(logging.WARNING):
        ScanObjectNN(tmp_path, num_points=4)
    assert not caplog.text


def test_the_mask_tells_with_background_from_without(archive, caplog):
    write(archive / FILES["obj_bg", "train"], 30, mask=4)
    with pytest.raises(
        DataError, match=r"expected clouds with background for variant obj_bg, .*main_split_nobg"
    ):
        ScanObjectNN(archive, "train", "obj_bg", num_points=4)
    write(archive / FILES["obj_only", "train"], 30, mask=-1)
    ScanObjectNN(archive, "train", "obj_only", num_points=4)
    assert "its mask marks background, which obj_only should not have" in caplog.text


def test_another_class_list_is_refused(archive):
    (archive / "shape_names_ext.txt").write_text("\n".join(CLASSES))
    ScanObjectNN(archive, "test", "obj_bg", num_points=4)
    (archive / "shape_names_ext.txt").write_text("\n".join(sorted(CLASSES)))
    with pytest.raises(
        DataError, match=r"shape_names_ext.txt: is not the class list .*\(1 is bed, not bin\)"
    ):
        ScanObjectNN(archive, "test", "obj_bg", num_points=4)
    (archive / "shape_names_ext.txt").write_text("\n".join(CLASSES[:14]))
    with pytest.raises(DataError, match="it has 14 names, not 15"):
        ScanObjectNN(archive, "test", "obj_bg", num_points=4)


def test_labels_outside_the_classes_and_wrong_options(archive):
    with h5py.File(archive / FILES["obj_bg", "test"], "r+") as file:
        file["label"][3] = 15
    with pytest.raises(DataError, match="labels run from 0 to 15"):
        ScanObjectNN(archive, "test", "obj_bg", num_points=4)
    for options, message in (
        ({"split": "val"}, "split must be train or test, got 'val'"),
        ({"variant": "hard"}, "variant must be one of obj_bg, obj_only, pb_t50_rs, got 'hard'"),
        ({"num_points": 0}, "num_points must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            ScanObjectNN(archive, **options)


def test_data_module_reads_the_variant(archive):
    options = {"num_points": 4, "val_fraction": 0.4}
    data = PointCloudDataModule("scanobjectnn", str(archive), **options)
    assert len(data.dataset("test")) == 35
    assert len(data.dataset("train")) + len(data.dataset("val")) == 34
    data = PointCloudDataModule("scanobjectnn", str(archive), variant="obj_only", **options)
    assert len(data.dataset("test")) == 33
    assert data.dataset("test").up_axis == "y"
