"""Probes on planted data, where the answer is known."""

import builtins

import numpy as np
import pytest
import torch
from torch import Tensor

from pointvit.compare import knn_accuracy, knn_probe, linear_probe, probe_layers
from pointvit.compare.samples import Standard

CLASSES, WIDTH = 5, 12


def clusters(per_class: int, spread: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Gaussian clusters around corners of a simplex: (N, WIDTH), (N,), in random order."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat(per_class)[torch.randperm(per_class * CLASSES, generator=generator)]
    noise = torch.randn(len(labels), WIDTH, generator=generator)
    return torch.eye(WIDTH)[labels] + spread * noise, labels


@pytest.mark.parametrize("probe", [linear_probe, knn_probe])
def test_separate_clusters_are_told_apart(probe):
    train, test = clusters(10), clusters(20, seed=1)
    found = probe(*train, *test)
    assert found.accuracy == found.mean_class_accuracy == 1.0
    assert found.chance == 1 / CLASSES
    assert (found.num_train, found.num_test) == (50, 100)


@pytest.mark.parametrize("probe", [linear_probe, knn_probe])
def test_shuffled_labels_give_chance(probe):
    (x, y), (test_x, test_y) = clusters(40), clusters(40, seed=1)
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(2))]
    found = probe(x, shuffled, test_x, test_y)
    # Objects of one cluster get one answer, so that a cluster as a whole is right by luck.
    assert found.accuracy < 0.45


def test_what_no_line_separates_is_seen_by_neighbours_alone():
    """Exclusive or: the mean of both classes is the same."""
    corners = torch.tensor([[1.0, 1], [-1, -1], [1, -1], [-1, 1]]).repeat(25, 1)
    labels = torch.tensor([0, 0, 1, 1]).repeat(25)
    noise = 0.1 * torch.randn(2, 100, 2)
    data = corners + noise[0], labels, corners + noise[1], labels
    assert knn_accuracy(*data) == 1.0
    assert linear_probe(*data).accuracy < 0.8


@pytest.mark.parametrize("probe", [linear_probe, knn_probe])
def test_scale_and_offset_of_single_channels_do_not_matter(probe):
    (x, y), (test_x, test_y) = clusters(10, 0.5), clusters(20, 0.5, seed=1)
    scale, offset = (
        torch.logspace(-4, 4, WIDTH),
        torch.linspace(-50, 50, WIDTH) * torch.logspace(-4, 4, WIDTH),
    )
    expected = probe(x, y, test_x, test_y)
    assert 0.4 < expected.accuracy < 1
    moved = probe(x.double() * scale + offset, y, test_x.double() * scale + offset, test_y)
    assert moved.accuracy == pytest.approx(expected.accuracy, abs=0.011)


def test_equals_scikit_learns_classifiers():
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.preprocessing import StandardScaler

    (x, y), (test_x, test_y) = clusters(12, 0.6), clusters(40, 0.6, seed=1)
    scaler = StandardScaler().fit(x.double().numpy())
    a, b = (scaler.transform(t.double().numpy()) for t in (x, test_x))
    linear = LogisticRegression(C=0.1).fit(a, y.numpy()).score(b, test_y.numpy())
    assert linear_probe(x, y, test_x, test_y, regularization=0.1).accuracy == pytest.approx(linear)
    nearest = KNeighborsClassifier(1, metric="cosine").fit(a, y.numpy()).score(b, test_y.numpy())
    assert knn_accuracy(x, y, test_x, test_y, k=1) == pytest.approx(nearest)


def test_the_regularisation_is_chosen_on_training_objects_alone():
    """With other test objects, or the labels of all of them exchanged, the choice is the same."""
    (x, y), (test_x, test_y) = clusters(12, 0.5), clusters(10, 0.5, seed=1)
    found = linear_probe(x, y, test_x, test_y)
    wrong = linear_probe(x, y, test_x, (test_y + 1) % CLASSES)
    assert found.regularization == wrong.regularization
    assert found == linear_probe(x, y, test_x, test_y, regularization=found.regularization)
    assert found.accuracy > 0.5 > wrong.accuracy
    choices = {linear_probe(x, y, test_x, test_y, seed=seed).regularization for seed in range(6)}
    assert len(choices) > 1


def test_is_deterministic_and_leaves_the_random_state_alone():
    train, test = clusters(10, 0.6), clusters(10, 0.6, seed=1)
    state, global_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = linear_probe(*train, *test), knn_probe(*train, *test)
    assert first == (linear_probe(*train, *test), knn_probe(*train, *test))
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(global_numpy, np.random.get_state()[1])


def test_mean_class_accuracy_and_chance_where_classes_differ_in_size():
    """Objects of class 0 alone are recognised: nine of ten, one class of two."""
    x, y = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
    test_x, test_y = torch.zeros(10, 1), torch.tensor([0] * 9 + [1])
    found = linear_probe(x, y, test_x, test_y)
    assert found.accuracy == found.chance == 0.9
    assert found.mean_class_accuracy == 0.5


def test_features_that_are_the_same_for_all_give_the_constant_answer():
    labels = torch.arange(4).repeat(5)
    x = torch.full((20, 8), 0.1)
    for probe in (linear_probe, knn_probe):
        assert probe(x, labels, x, labels).accuracy == 0.25


def test_equal_votes_go_to_the_nearer_class():
    angles = torch.tensor([10.0, 40, 20, 30]).deg2rad()
    train = torch.cat([torch.stack([angles.cos(), angles.sin()], 1), -torch.ones(4, 2)])
    labels = torch.tensor([1, 1, 0, 0, 2, 2, 2, 2])
    scale = Standard.of(train.double())
    query = train[:1].double()
    order = torch.nn.functional.cosine_similarity(scale(query), scale(train.double())).argsort(
        descending=True
    )
    assert labels[order][:2].tolist() == [1, 0]
    assert knn_accuracy(train, labels, query, torch.tensor([1]), k=2) == 1.0


def test_both_curves_of_layers():
    train, test = clusters(8), clusters(8, seed=1)
    nothing = [torch.randn(len(x), 3) for x in (train[0], test[0])]
    rows = list(probe_layers([nothing[0], train[0]], train[1], [nothing[1], test[0]], test[1], k=3))
    assert [row.layer for row in rows] == [0, 1]
    assert rows[1].linear.accuracy == rows[1].knn.accuracy == 1.0
    assert max(rows[0].linear.accuracy, rows[0].knn.accuracy) < 0.5
    assert rows[1].linear == linear_probe(*train, *test)
    assert rows[1].knn == knn_probe(*train, *test, k=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_x": torch.full((10, 4), torch.nan)}, "train_x: the features of 10 of 10 objects are NaN"),
        ({"test_x": torch.zeros(6, 3)}, "features of one width, got 4 in training and 3 in the test"),
        ({"train_y": torch.arange(9) % 2}, "train_y must be 10 whole numbers"),
        ({"test_y": torch.tensor([0, 1, 7, 0, 1, 0])}, "class 7 has test objects and no training object"),
        (
            {"train_y": torch.zeros(10, dtype=torch.int64), "test_y": torch.zeros(6, dtype=torch.int64)},
            "two classes",
        ),
        ({"train_y": torch.tensor([0] * 9 + [1])}, "two training objects of every class.*class 1 has one"),
        ({"regularization": -1.0}, "regularization must be a positive number, got -1.0"),
        (
            {"test_x": torch.zeros(0, 4), "test_y": torch.zeros(0, dtype=torch.int64)},
            "at least 1 objects, got 0",
        ),
    ],
)
def test_bad_input_is_one_sentence(change, message):
    data = {
        "train_x": torch.randn(10, 4),
        "train_y": torch.arange(10) % 2,
        "test_x": torch.randn(6, 4),
        "test_y": torch.arange(6) % 2,
    }
    with pytest.raises(ValueError, match=message):
        linear_probe(**{**data, **change})


def test_a_single_object_of_a_class_will_do_for_a_given_regularisation():
    found = linear_probe(torch.eye(3), torch.arange(3), torch.eye(3), torch.arange(3), regularization=1.0)
    assert found.accuracy == 1.0


def test_more_neighbours_than_objects_are_refused():
    with pytest.raises(ValueError, match=r"k must lie between 1 and the number of objects, 3, got 5"):
        knn_probe(torch.eye(3), torch.arange(3), torch.eye(3), torch.arange(3))


def test_different_numbers_of_layers_are_refused():
    x, y = clusters(2)
    with pytest.raises(ValueError, match="2 layers and the test objects of 1"):
        next(probe_layers([x, x], y, [x], y))


def test_scikit_learn_is_named_where_it_is_missing(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **settings):
        if name.startswith("sklearn"):
            raise ImportError("No module named 'sklearn'")
        return real(name, *rest, **settings)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="a linear probe needs scikit-learn"):
        linear_probe(*clusters(3), *clusters(3))
