import numpy as np
import pytest
import torch

from pointvit.data.dataset import DataError, PointCloudDataset, check_finite, check_labels, split_by_class


@pytest.fixture
def clouds() -> PointCloudDataset:
    labels = torch.tensor([0, 2, 1, 2, 0])
    return PointCloudDataset(torch.randn(5, 7, 3), labels, ["a", "b", "c"], list("vwxyz"), up_axis="y")


def test_items_and_batches(clouds):
    assert len(clouds) == 5
    points, label = clouds[3]
    assert torch.equal(points, clouds.points[3])
    assert label == 2
    assert type(label) is int
    points, labels = clouds.__getitems__([4, 0, 4])
    assert torch.equal(points, torch.stack([clouds[i][0] for i in (4, 0, 4)]))
    assert labels.tolist() == [0, 0, 0]


def test_subset_keeps_what_belongs_to_the_shapes(clouds):
    part = clouds.subset(np.array([3, 0]))
    assert torch.equal(part.points, clouds.points[[3, 0]])
    assert part.labels.tolist() == [2, 0]
    assert (part.names, part.class_names, part.up_axis) == (["y", "v"], ["a", "b", "c"], "y")


def test_labels_must_index_the_classes():
    check_labels(np.array([0, 2]), ["a", "b", "c"], "file.h5")
    with pytest.raises(DataError, match=r"file.h5: labels run from 0 to 3, but the class list has 3 names"):
        check_labels(np.array([0, 3]), ["a", "b", "c"], "file.h5")
    with pytest.raises(DataError, match="labels run from -1 to 1"):
        check_labels(torch.tensor([-1, 1]), ["a", "b"], "file.h5")
    with pytest.raises(DataError, match="holds no shapes"):
        check_labels(np.zeros(0, dtype=int), ["a"], "file.h5")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_must_be_finite(value):
    points = np.zeros((9, 4, 3), dtype=np.float32)
    check_finite(points, "file.h5")
    points[[2, 5], 1, 1] = value
    with pytest.raises(DataError, match=r"file.h5: 2 of 9 clouds hold NaN or infinite .* \(rows 2, 5\)"):
        check_finite(points, "file.h5")
    points[:, 0] = value
    with pytest.raises(DataError, match=r"9 of 9 clouds .* \(rows 0, 1, 2, 3, 4, ...\)"):
        check_finite(points, "file.h5")


def test_split_is_disjoint_complete_seeded_and_balanced():
    labels = torch.arange(4).repeat_interleave(torch.tensor([100, 40, 7, 2]))
    kept, out = split_by_class(labels, 0.1, seed=3)
    assert sorted([*kept, *out]) == list(range(149))
    assert torch.bincount(labels[out]).tolist() == [10, 4, 1, 1]
    assert kept.tolist() == sorted(kept)
    again = split_by_class(labels, 0.1, seed=3)
    assert all(np.array_equal(a, b) for a, b in zip((kept, out), again, strict=True))
    assert not np.array_equal(out, split_by_class(labels, 0.1, seed=4)[1])


def test_split_leaves_something_of_every_class_to_train_on():
    kept, out = split_by_class(torch.tensor([0, 0, 1, 2, 2, 2]), 0.99, seed=0)
    labels = np.array([0, 0, 1, 2, 2, 2])
    assert set(labels[kept]) == {0, 1, 2}
    assert set(labels[out]) == {0, 2}, "a class of one shape is trained on"


@pytest.mark.parametrize("fraction", [0.0, 1.0, 1.5, -0.1])
def test_split_refuses_other_fractions(fraction):
    with pytest.raises(ValueError, match=f"must lie in \\(0, 1\\), got {fraction}"):
        split_by_class(torch.tensor([0, 0]), fraction, seed=0)


def test_subset_by_a_mask(clouds):
    assert clouds.subset(clouds.labels.numpy() == 2).names == ["w", "y"]
    with pytest.raises(ValueError, match=r"a mask must have shape \(5,\), got \(2,\)"):
        clouds.subset(np.array([True, False]))


def test_up_axis_is_y_or_z(clouds):
    with pytest.raises(ValueError, match="up_axis must be y or z, got 'x'"):
        PointCloudDataset(clouds.points, clouds.labels, clouds.class_names, clouds.names, "x")


def test_nothing_to_hold_out_is_told():
    with pytest.raises(DataError, match="no class has two shapes"):
        split_by_class(torch.tensor([0, 1, 2]), 0.5, seed=0)
