from pathlib import Path

import numpy as np
import pytest
import torch

from pointvit.data import ModelNet10, ModelNet40
from pointvit.data.dataset import DataError
from pointvit.data.hdf5 import read_class_names, write_hdf5_split
from pointvit.data.modelnet import MODELNET10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        names = [f"{split}_{i}" for i in range(6)]
        points = rng.normal(size=(6, 16, 6)).astype(np.float32)
        write_hdf5_split(tmp_path, split, points, np.arange(6) % 3, names, ["bed", "chair", "lamp"])
    return tmp_path


def test_hdf5_form(root):
    data = ModelNet40(root, "train", num_points=16)
    points, label = data[4]
    assert (points.shape, points.dtype, label) == ((16, 3), torch.float32, 1)
    assert (data.class_names, data.names[4], data.up_axis) == (["bed", "chair", "lamp"], "train_4", "z")
    assert ModelNet40(root, "test", num_points=16).names[0] == "test_0"


def test_first_points_normals_and_up_axis(root):
    whole, part = ModelNet40(root, num_points=16), ModelNet40(root, num_points=5, up_axis="y")
    assert torch.equal(part.points, whole.points[:, :5])
    assert part.points.is_contiguous()
    assert part.up_axis == "y"
    with_normals = ModelNet40(root, num_points=16, normals=True)
    assert torch.equal(with_normals.points[..., :3], whole.points)
    assert with_normals.points.shape == (6, 16, 6)


def test_folder_inside(root, tmp_path_factory):
    outer = tmp_path_factory.mktemp("outer")
    (outer / "modelnet40_ply_hdf5_2048").symlink_to(root)
    assert torch.equal(ModelNet40(outer, num_points=16).points, ModelNet40(root, num_points=16).points)


def test_ten_classes_of_forty(tmp_path):
    names = ["lamp", *reversed(MODELNET10), "vase"]
    labels = np.arange(24) % 12
    points = np.zeros((24, 4, 3)) + np.arange(24)[:, None, None]
    write_hdf5_split(
        tmp_path, "train", points, labels, [f"{names[y]}_{i}" for i, y in enumerate(labels)], names
    )
    data = ModelNet10(tmp_path, "train", num_points=4)
    assert data.class_names == list(MODELNET10)
    assert len(data) == 20
    for i, name in enumerate(data.names):
        kind, _, row = name.rpartition("_")
        assert data.class_names[data[i][1]] == kind
        assert data.points[i, 0, 0] == int(row)


def test_ten_classes_are_not_in_another_data_set(root):
    with pytest.raises(DataError, match="its class list lacks bathtub, desk"):
        ModelNet10(root, num_points=16)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"split": "val"}, ValueError, "split must be train or test, got 'val'"),
        ({"num_points": 17}, DataError, "stores 16 points a shape, fewer than num_points=17"),
        ({"num_points": 0}, ValueError, "num_points must be at least 1, got 0"),
    ],
)
def test_wrong_options(root, options, error, message):
    with pytest.raises(error, match=message):
        ModelNet40(root, **{"num_points": 16, **options})


def test_missing_and_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        ModelNet40(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"expected test_files\.txt with HDF5 files.*found none of them"
    ):
        ModelNet40(tmp_path, "test")


def test_off_meshes_have_no_normals(tmp_path):
    (tmp_path / "bed" / "train").mkdir(parents=True)
    (tmp_path / "bed" / "train" / "bed_0001.off").write_text("OFF\n")
    with pytest.raises(DataError, match="OFF meshes are sampled without normals"):
        ModelNet40(tmp_path, normals=True)


def test_text_form_is_y_up(data_root):
    folder = data_root / "fixtures" / "modelnet40_normal_resampled"
    with pytest.warns(UserWarning, match="its train split cannot be told"):
        data = ModelNet40(folder, "train", num_points=100, normals=True)
    assert data.up_axis == "y"
    assert data.points.shape[1:] == (100, 6)
    assert float(data.points[..., :3].norm(dim=2).amax(dim=1).sub(1).abs().max()) < 1e-5, "unit sphere"
    torch.testing.assert_close(data.points[..., 3:].norm(dim=2).mean(), torch.tensor(1.0), rtol=0, atol=1e-2)


@pytest.mark.parametrize(("split", "forty", "ten"), [("train", 9843, 3991), ("test", 2468, 908)])
def test_real_data(data_root, split, forty, ten):
    root = data_root / "modelnet40"
    data = ModelNet40(root, split)
    assert data.points.shape == (forty, 1024, 3)
    assert data.class_names == read_class_names(root / "shape_names.txt")
    assert len(data.class_names) == 40
    assert (data.class_names[0], data.class_names[-1]) == ("airplane", "xbox")
    # Names are those of the shapes, so they tell whether labels are in the order of the class list.
    assert all(data.names[i].startswith(data.class_names[data.labels[i]]) for i in range(len(data)))
    radius = data.points.norm(dim=2).amax(dim=1)
    torch.testing.assert_close(radius, torch.ones(forty), rtol=0, atol=5e-3)
    small = ModelNet10(root, split, num_points=8)
    assert len(small) == ten
    assert len(set(small.labels.tolist())) == 10
