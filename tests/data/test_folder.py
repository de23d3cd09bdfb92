from pathlib import Path

import numpy as np
import pytest
import torch

from pointvit.data.dataset import PointCloudDataset
from pointvit.data.folder import PointCloudFolder, track_many

TRIANGLE = "OFF\n3 1 0\n0 0 0\n4 0 0\n0 4 0\n3 0 1 2\n"


def write_classes(root: Path, *parts: str, classes: tuple[str, ...] = ("chair", "table")) -> Path:
    """Two files a class under root, where `parts` such as "{name}/train" make the folder."""
    for label, name in enumerate(classes):
        folder = root.joinpath(*(part.format(name=name) for part in parts))
        folder.mkdir(parents=True)
        np.save(folder / "a.npy", np.random.default_rng(label).normal(size=(40, 3)))
        (folder / "b.off").write_text(TRIANGLE)
    return root


def test_reads_every_known_file_in_order(tmp_path):
    write_classes(tmp_path, "{name}")
    (tmp_path / "chair" / "b.mtl").write_text("no points")
    (tmp_path / "chair" / "._a.npy").write_text("no points")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    dataset = PointCloudFolder(tmp_path, num_points=32)
    assert isinstance(dataset, PointCloudDataset)
    assert dataset.class_names == ["chair", "table"]
    assert dataset.names == ["chair/a.npy", "chair/b.off", "table/a.npy", "table/b.off"]
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    points, label = dataset[2]
    assert (points.shape, points.dtype, label) == ((32, 3), torch.float32, 1)
    assert dataset.up_axis == "z"
    assert PointCloudFolder(tmp_path, 32, up_axis="y").up_axis == "y"


def test_clouds_fill_the_unit_sphere(tmp_path):
    points = PointCloudFolder(write_classes(tmp_path, "{name}"), num_points=32).points
    torch.testing.assert_close(points.mean(dim=1), torch.zeros(4, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(points.norm(dim=2).amax(dim=1), torch.ones(4))


def test_seed_decides(tmp_path):
    write_classes(tmp_path, "{name}")
    one = PointCloudFolder(tmp_path, 32, seed=1).points
    torch.testing.assert_close(PointCloudFolder(tmp_path, 32, seed=1).points, one, atol=0, rtol=0)
    other = PointCloudFolder(tmp_path, 32, seed=2).points
    assert all(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_small_cloud_is_repeated(tmp_path):
    write_classes(tmp_path, "{name}")
    cloud = PointCloudFolder(tmp_path, num_points=100).points[0]
    _, counts = torch.unique(cloud, dim=0, return_counts=True)
    # 100 points of 40: every point twice, 20 of them a third time.
    assert sorted(counts.tolist()) == [2] * 20 + [3] * 20


@pytest.mark.parametrize("parts", [("{name}", "test"), ("test", "{name}")])
def test_split_folder_inside_or_outside(tmp_path, parts):
    write_classes(tmp_path, *parts)
    write_classes(tmp_path, *(part.replace("test", "train") for part in parts))
    dataset = PointCloudFolder(tmp_path, 32, split="test")
    assert dataset.class_names == ["chair", "table"]
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert all("test" in name for name in dataset.names)


def test_given_class_names_decide_the_labels(tmp_path):
    write_classes(tmp_path, "{name}")
    dataset = PointCloudFolder(tmp_path, 32, class_names=["table", "lamp", "chair"])
    assert dataset.class_names == ["table", "lamp", "chair"]
    assert dataset.labels.tolist() == [2, 2, 0, 0]


def test_folder_outside_the_given_class_names(tmp_path):
    write_classes(tmp_path, "{name}")
    with pytest.raises(ValueError, match="not among the 1 class names: table; expected chair"):
        PointCloudFolder(tmp_path, 32, class_names=["chair"])


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        PointCloudFolder(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="no class folders"):
        PointCloudFolder(tmp_path)
    write_classes(tmp_path, "{name}", "train")
    with pytest.raises(FileNotFoundError, match="has the folders train: is one of them a split"):
        PointCloudFolder(tmp_path)
    with pytest.raises(FileNotFoundError, match="no split 'test' of chair, table"):
        PointCloudFolder(tmp_path, split="test")


def test_bad_file_names_itself(tmp_path):
    write_classes(tmp_path, "{name}")
    (tmp_path / "table" / "c.xyz").write_text("1 2\n")
    with pytest.raises(ValueError, match=r"table/c\.xyz, line 1"):
        PointCloudFolder(tmp_path)


def test_num_points_below_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        PointCloudFolder(tmp_path, num_points=0)


def test_progress_only_for_many_files_and_on_the_error_stream(capfd):
    assert list(track_many(range(64), 64, "few")) == list(range(64))
    assert capfd.readouterr() == ("", "")
    assert list(track_many(range(65), 65, "many")) == list(range(65))
    out, err = capfd.readouterr()
    assert out == ""
    assert "many" in err
