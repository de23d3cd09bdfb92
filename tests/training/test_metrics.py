import csv
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix
from torchmetrics.classification import MulticlassConfusionMatrix

from pointvit import plots
from pointvit.training.metrics import Scores

NAMES = ["chair", "table, round", "$bed$ <b>"]


def test_values_by_hand():
    scores = Scores.of(np.array([[8, 2, 0], [1, 3, 0], [1, 0, 1]]))
    assert scores.overall_accuracy == 12 / 16
    assert scores.mean_class_accuracy == pytest.approx((8 / 10 + 3 / 4 + 1 / 2) / 3, abs=1e-15)
    np.testing.assert_array_equal(scores.per_class, [0.8, 0.75, 0.5])


def test_absent_classes_do_not_count_as_zero():
    scores = Scores.of(torch.tensor([[3, 1, 0], [0, 0, 0], [0, 2, 2]]))
    assert scores.mean_class_accuracy == (0.75 + 0.5) / 2
    assert scores.overall_accuracy == 5 / 8
    assert np.isnan(scores.per_class[1])


@pytest.mark.parametrize("seed", range(3))
def test_values_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    truth, guess = rng.integers(0, 6, size=200), rng.integers(0, 6, size=200)
    truth[truth == 4] = 0
    guess[guess == 4] = 1
    scores = Scores.of(confusion_matrix(truth, guess, labels=range(6)))
    assert scores.overall_accuracy == pytest.approx(accuracy_score(truth, guess), abs=1e-12)
    assert scores.mean_class_accuracy == pytest.approx(balanced_accuracy_score(truth, guess), abs=1e-12)


@pytest.mark.parametrize("batch", [1, 7, 32, 100])
def test_cutting_into_batches_changes_nothing(batch):
    truth, guess = torch.randint(5, (100,)), torch.randint(5, (100,))
    confusion = MulticlassConfusionMatrix(num_classes=5)
    for t, g in zip(truth.split(batch), guess.split(batch), strict=True):
        confusion.update(g, t)
    expected = confusion_matrix(truth, guess, labels=range(5))
    np.testing.assert_array_equal(Scores.of(confusion.compute()).confusion, expected)


def test_nothing_scored_is_an_error():
    with pytest.raises(ValueError, match="no shapes were scored"):
        Scores.of(np.zeros((3, 3)))


def test_files(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    scores = Scores.of(np.array([[3, 1, 0], [0, 0, 0], [0, 2, 2]]))
    scores.save(tmp_path / "test", NAMES, "test split")
    scores.save(tmp_path / "test", NAMES, "again")
    assert {file.name for file in (tmp_path / "test").iterdir()} == {
        "metrics.json",
        "per_class.csv",
        "confusion.csv",
        "confusion.png",
    }

    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (tmp_path / "test" / "metrics.json").read_text()
    assert json.loads(text, parse_constant=no_constants) == {
        "overall_accuracy": 5 / 8,
        "mean_class_accuracy": 0.625,
        "shapes": 8,
        "classes": 3,
    }
    rows = list(csv.reader((tmp_path / "test" / "per_class.csv").read_text().splitlines()))
    assert rows == [
        ["class", "shapes", "accuracy"],
        ["chair", "4", "0.7500"],
        ["table, round", "0", ""],
        ["$bed$ <b>", "4", "0.5000"],
    ]
    rows = list(csv.reader((tmp_path / "test" / "confusion.csv").read_text().splitlines()))
    assert rows[0][1:] == NAMES
    assert [row[1:] for row in rows[1:]] == [["3", "1", "0"], ["0", "0", "0"], ["0", "2", "2"]]
    pixels = image.imread(tmp_path / "test" / "confusion.png")
    assert min(pixels.shape[:2]) > 300
    assert pixels[..., :3].std() > 0.05


def test_failed_write_leaves_no_part(tmp_path, monkeypatch):
    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(plots, "confusion_matrix", fail)
    with pytest.raises(OSError, match="disk full"):
        Scores.of(np.eye(3)).save(tmp_path, NAMES, "")
    assert list(tmp_path.iterdir()) == []
