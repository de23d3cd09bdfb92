from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from pointvit.data import DataError, FewShot, PointCloudDataModule
from pointvit.data.hdf5 import write_hdf5_split
from pointvit.data.mixing import PointCutMix
from pointvit.data.module import EpochSampler, step_seed
from pointvit.data.transforms import Compose, RandomJitter, RandomRotate, RandomScaleTranslate

SIZES = {"train": [20, 30, 43], "test": [4, 11, 6]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clouds whose first coordinate counts them: from 0 in the training split, from 1000 in the test."""
    folder = tmp_path_factory.mktemp("modelnet")
    for split, sizes in SIZES.items():
        labels = np.repeat([0, 1, 2], sizes)
        points = np.random.default_rng(0).normal(size=(len(labels), 6, 3))
        points[:, 0, 0] = np.arange(len(labels)) + (1000 if split == "test" else 0)
        names = [f"{split}_{i}" for i in range(len(labels))]
        write_hdf5_split(folder, split, points, labels, names, ["a", "b", "c"])
    return folder


def module(root: Path, **options) -> PointCloudDataModule:
    return PointCloudDataModule("modelnet40", str(root), **{"num_points": 6, "val_fraction": 0.1, **options})


def numbers(loader) -> list[int]:
    return [int(number) for points, _ in loader for number in points[:, 0, 0]]


def test_validation_is_a_seeded_balanced_part_of_training(root):
    data = module(root)
    train, val, test = (data.dataset(split) for split in ("train", "val", "test"))
    assert not set(train.names) & set(val.names)
    assert set(train.names) | set(val.names) == {f"train_{i}" for i in range(93)}
    assert torch.bincount(val.labels).tolist() == [2, 3, 4]
    assert set(test.names) == {f"test_{i}" for i in range(21)}
    assert module(root).dataset("val").names == val.names
    assert module(root, seed=1).dataset("val").names != val.names


def test_only_test_reads_the_test_split(root, tmp_path):
    for file in root.iterdir():
        if "test" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    data = module(tmp_path)
    for stage in ("fit", "validate"):
        data.setup(stage)
    assert max(numbers(data.train_dataloader()) + numbers(data.val_dataloader())) < 1000
    with pytest.raises(FileNotFoundError):
        data.setup("test")


def test_splits_are_read_once(root):
    data = module(root)
    for stage in ("fit", "validate", "test"):
        data.setup(stage)
    before = {split: data.dataset(split) for split in ("train", "val", "test")}
    for stage in ("fit", "validate", "test"):
        data.setup(stage)
    assert all(data.dataset(split) is dataset for split, dataset in before.items())


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (7, 0), (32, 0), (7, 1)])
def test_an_epoch_sees_training_shapes_at_most_and_test_shapes_exactly_once(root, batch_size, workers):
    data = module(root, batch_size=batch_size, num_workers=workers)
    data.setup("fit")
    data.setup("test")
    train = Counter(numbers(data.train_dataloader()))
    assert max(train.values()) == 1
    assert sum(train.values()) == 84 // batch_size * batch_size
    assert set(train) <= {int(p[0, 0]) for p in data.dataset("train").points}
    assert sorted(numbers(data.val_dataloader())) == sorted(int(p[0, 0]) for p in data.dataset("val").points)
    assert numbers(data.test_dataloader()) == list(range(1000, 1021))
    assert all(len(labels) == batch_size for _, labels in data.train_dataloader())
    for points, labels in data.test_dataloader():
        rows = [int(number) - 1000 for number in points[:, 0, 0]]
        assert torch.equal(labels, data.dataset("test").labels[rows])


def test_batches_larger_than_the_data(root):
    data = module(root, batch_size=1000)
    data.setup("fit")
    assert [len(labels) for _, labels in data.train_dataloader()] == [84]


def test_order_changes_with_the_epoch_and_repeats_with_the_seed(root):
    def epochs(**options) -> list[list[int]]:
        data = module(root, **options)
        data.setup("fit")
        loader = data.train_dataloader()
        orders = []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            orders.append(numbers(loader))
        return orders

    orders = epochs()
    assert orders[0] != orders[1] != orders[2]
    assert epochs() == orders
    assert set(map(tuple, epochs(seed=1))).isdisjoint(map(tuple, orders))


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_an_epoch_without_overlap(size, world):
    for epoch in range(3):
        shares = []
        for rank in range(world):
            sampler = EpochSampler(size, rank, world, seed=4)
            sampler.set_epoch(epoch)
            shares.append(list(sampler))
            assert len(shares[-1]) == len(sampler) == size // world
        together = [index for share in shares for index in share]
        assert len(set(together)) == len(together)
        assert set(together) <= set(range(size))


def test_ranks_score_every_shape_once(root, monkeypatch):
    data = module(root, batch_size=3)
    data.setup("test")
    seen = []
    for rank in range(4):
        monkeypatch.setattr(data, "_world", lambda rank=rank: (rank, 4))
        seen += numbers(data.test_dataloader())
    assert sorted(seen) == list(range(1000, 1021))


def test_seeds_of_steps_ranks_and_uses_differ():
    seeds = {
        step_seed(seed, step, rank, stream)
        for seed in range(4)
        for step in range(50)
        for rank in range(3)
        for stream in range(3)
    }
    assert len(seeds) == 4 * 50 * 3 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert step_seed(1, 2) == step_seed(1, 2)


def test_shapes_per_class_limits_training_alone(root):
    data = module(root, shapes_per_class=5)
    assert torch.bincount(data.dataset("train").labels).tolist() == [5, 5, 5]
    assert data.dataset("val").names == module(root).dataset("val").names
    assert len(data.dataset("test")) == 21
    assert data.dataset("train").names == module(root, shapes_per_class=5).dataset("train").names
    assert data.dataset("train").names != module(root, shapes_per_class=5, seed=1).dataset("train").names


def chosen(root: Path, **options) -> set[str]:
    return set(module(root, **options).dataset("train").names)


def test_train_fraction_is_of_each_class_and_at_least_one(root):
    data = module(root, train_fraction=0.25)
    assert torch.bincount(data.dataset("train").labels).tolist() == [4, 7, 10]  # of 18, 27, 39
    assert data.dataset("val").names == module(root).dataset("val").names
    assert torch.bincount(module(root, train_fraction=0.001).dataset("train").labels).tolist() == [1, 1, 1]
    assert chosen(root, train_fraction=1.0) == chosen(root)


@pytest.mark.parametrize("seed", [0, 1])
def test_fewer_shapes_are_nested_in_more(root, seed):
    counts = [chosen(root, shapes_per_class=n, seed=seed) for n in (1, 5, 10, 30)]
    shares = [chosen(root, train_fraction=x, seed=seed) for x in (0.01, 0.05, 0.25, 0.5, 1.0)]
    for sets in (counts, shares):
        assert all(small < large for small, large in pairwise(sets))


def test_few_shot_trains_on_an_episode(root):
    few = FewShot(way=2, shot=3, queries=4, fold=1)
    train, val, test = (module(root, few_shot=few).dataset(split) for split in ("train", "val", "test"))
    assert train.class_names == val.class_names == test.class_names
    assert set(train.class_names) < {"a", "b", "c"}
    assert [torch.bincount(data.labels).tolist() for data in (train, test)] == [[3, 3], [4, 4]]
    assert not set(train.names) & set(val.names)
    full = {split: module(root).dataset(split) for split in ("train", "val", "test")}
    labels = {
        name: data.class_names[int(label)]
        for data in full.values()
        for name, label in zip(data.names, data.labels, strict=True)
    }
    for data in (train, val, test):
        assert [labels[name] for name in data.names] == [data.class_names[int(i)] for i in data.labels]
    assert module(root, few_shot=few, seed=3).dataset("train").names == train.names
    assert chosen(root, few_shot=FewShot(way=2, shot=3, queries=4, fold=2)) != set(train.names)


class Steps:
    """What on_after_batch_transfer asks of a trainer."""

    training, global_rank = True, 0

    def __init__(self, step: int) -> None:
        self.fit_loop = type("Loop", (), {"total_batch_idx": step - 1})()


def test_mixing_follows_augmentation_in_training_and_depends_on_the_step(root, monkeypatch):
    data = module(root, mix=PointCutMix("random", probability=1.0), augment=[])
    batch = (torch.randn(8, 6, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))

    def at(step: int, training: bool = True):
        monkeypatch.setattr(data, "trainer", Steps(step), raising=False)
        monkeypatch.setattr(data.trainer, "training", training)
        return data.on_after_batch_transfer(batch, 0)

    points, targets = at(3)
    assert targets.shape == (8, 3)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(8))
    assert not torch.equal(points, batch[0])
    again = at(3)
    assert torch.equal(again[0], points)
    assert torch.equal(again[1], targets)
    assert not torch.equal(at(4)[0], points)
    assert at(3, training=False) is batch


def test_up_axis_reaches_the_data(root):
    assert module(root).dataset("train").up_axis == "z"
    assert module(root, up_axis="y").dataset("train").up_axis == "y"
    with pytest.raises(ValueError, match="up_axis"):
        PointCloudDataModule("shapes", up_axis="y")
    with pytest.raises(ValueError, match="up_axis"):
        module(root, up_axis="w")


def test_augmentation_of_training_has_a_default():
    assert PointCloudDataModule().augment == Compose([RandomScaleTranslate()])
    assert PointCloudDataModule(augment=[]).augment == Compose([])
    chosen = [RandomRotate("z"), RandomJitter()]
    assert PointCloudDataModule(augment=chosen).augment == Compose(chosen)


def test_batches_outside_a_trainer_are_left_alone(root):
    data = module(root)
    batch = (torch.randn(2, 6, 3), torch.tensor([0, 1]))
    assert data.on_after_batch_transfer(batch, 0) is batch


def test_folder_and_synthetic_shapes(tmp_path, monkeypatch):
    monkeypatch.setattr("pointvit.data.shapes.SHAPES_PER_CLASS", {"train": 3, "test": 2})
    for split in ("train", "test"):
        for name in ("ball", "rod"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(4):
                np.savetxt(tmp_path / split / name / f"{i}.xyz", np.random.default_rng(i).normal(size=(9, 3)))
    data = PointCloudDataModule("folder", str(tmp_path), num_points=8, val_fraction=0.25)
    assert data.dataset("train").class_names == ["ball", "rod"]
    assert [len(data.dataset(split)) for split in ("train", "val", "test")] == [6, 2, 8]
    shapes = PointCloudDataModule("shapes", str(tmp_path / "shapes"), num_points=4, shapes_per_class=2)
    assert len(shapes.dataset("train")) == 40
    assert shapes.dataset("train").points.shape[1:] == (4, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"name": "modelnet41"},
            "data.name must be one of modelnet40, modelnet10, scanobjectnn, shapes, folder, got 'modelnet41'",
        ),
        ({"name": "folder"}, "data.name=folder needs data.root"),
        ({"batch_size": 0}, "data.batch_size must be at least 1, got 0"),
        ({"num_points": 0}, "data.num_points must be at least 1, got 0"),
        ({"shapes_per_class": 0}, "data.shapes_per_class must be at least 1, got 0"),
        ({"seed": -1}, "data.seed must not be negative, got -1"),
        ({"num_workers": -1}, "data.num_workers must not be negative, got -1"),
        ({"val_fraction": 1.5}, "data.val_fraction must lie between 0 and 1, got 1.5"),
        ({"val_fraction": 0.0}, "data.val_fraction must lie between 0 and 1, got 0.0"),
        ({"normals": True}, "data.normals is for ModelNet, data.name=shapes has xyz alone"),
        ({"variant": "obj_bg"}, "data.variant is for ScanObjectNN, data.name is shapes"),
        (
            {"name": "scanobjectnn", "root": ".", "variant": "bg"},
            "data.variant must be one of obj_bg, obj_only",
        ),
        ({"name": "scanobjectnn", "root": ".", "up_axis": "z"}, "scanobjectnn is y up; got 'z'"),
        ({"train_fraction": 0.0}, r"data.train_fraction must lie in \(0, 1\], got 0.0"),
        ({"train_fraction": 5.0}, r"data.train_fraction must lie in \(0, 1\], got 5.0"),
        (
            {"train_fraction": 0.5, "shapes_per_class": 3},
            "data.shapes_per_class and data.train_fraction both choose the training shapes; give one",
        ),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        PointCloudDataModule(**options)


def test_too_few_shapes_for_the_devices(root, monkeypatch):
    data = module(root, shapes_per_class=1)
    data.setup("fit")
    monkeypatch.setattr(data, "_world", lambda: (0, 2))
    with pytest.raises(DataError, match="at least two shapes per device, got 3"):
        data.train_dataloader()


def test_real_modelnet40(data_root):
    data = PointCloudDataModule("modelnet40", str(data_root / "modelnet40"), num_points=16)
    train, val, test = (data.dataset(split) for split in ("train", "val", "test"))
    assert len(train) + len(val) == 9843
    assert len(test) == 2468
    counts = torch.bincount(torch.cat([train.labels, val.labels]), minlength=40)
    expected = [max(1, round(0.05 * int(count))) for count in counts]
    assert torch.bincount(val.labels, minlength=40).tolist() == expected
    assert not set(val.names) & set(train.names)
    assert not set(val.names) & set(test.names)


def test_loaders_read_what_they_need(root):
    assert len(numbers(module(root, batch_size=7).test_dataloader())) == sum(SIZES["test"])
    assert numbers(module(root).train_dataloader())


def test_a_class_without_test_shapes_keeps_the_labels_of_the_others(tmp_path):
    for file in ("train/a/0", "train/a/1", "train/b/0", "train/b/1", "test/b/0"):
        path = tmp_path / f"{file}.xyz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(path, np.random.default_rng(0).normal(size=(9, 3)))
    data = PointCloudDataModule("folder", str(tmp_path), num_points=8)
    test = data.dataset("test")
    assert test.class_names == data.dataset("train").class_names == ["a", "b"]
    assert test.labels.tolist() == [1]
