"""Both metrics against numbers worked out by hand."""

import math

import pytest

from pointvit.data.corruptions import BENCHMARKS, CLEAN
from pointvit.robustness import Row, corruption_errors, error_rates, summarise
from pointvit.robustness.scores import DGCNN_ACCURACY


def row(benchmark: str, corruption: str, severity: int, accuracy: float, model: str = "a") -> Row:
    return Row(model, benchmark, corruption, severity, None, "ours", 100, 1024, accuracy, accuracy / 2)


def test_error_rates():
    found = error_rates({"shear": [0.9, 0.8, 0.7], "lidar": [0.5]})
    assert found == pytest.approx({"shear": 0.2, "lidar": 0.5})


def test_corruption_errors_are_relative_to_dgcnn():
    # (1 - 0.842) / (1 - 0.684) = 0.5; (1 - 0.589) / (1 - 0.725) = 0.411 / 0.275
    found = corruption_errors({"jitter": [0.842], "add_local": [0.689, 0.489]})
    assert found["jitter"] == pytest.approx(0.5)
    assert found["add_local"] == pytest.approx(1.494545, abs=1e-6)


def test_dgcnn_itself_has_an_mce_of_one():
    rows = [
        row("modelnet-c", name, severity, DGCNN_ACCURACY[name])
        for name in BENCHMARKS["modelnet-c"].corruptions
        for severity in range(1, 6)
    ]
    [summary] = summarise([*rows, row("modelnet-c", CLEAN, 0, DGCNN_ACCURACY[CLEAN])])
    assert summary.score == pytest.approx(1)
    assert summary.by_corruption == pytest.approx(dict.fromkeys(BENCHMARKS["modelnet-c"].corruptions, 1.0))
    assert (summary.clean, summary.sets, summary.of, summary.complete) == (0.926, 35, 35, True)


def test_mce_is_the_mean_of_ratios_and_not_the_ratio_of_means():
    # CE 0.5 and 2: mCE 1.25, while the errors' sums would give (0.158 + 0.188) / (0.316 + 0.094) = 0.84.
    [summary] = summarise([row("modelnet-c", "jitter", 1, 0.842), row("modelnet-c", "scale", 1, 0.812)])
    assert summary.score == pytest.approx(1.25)
    assert not summary.complete
    assert summary.clean is None


def test_the_mean_error_rate_is_over_all_75_sets():
    rows = [
        row("modelnet40-c", name, severity, 1 - 0.01 * severity)
        for name in BENCHMARKS["modelnet40-c"].corruptions
        for severity in range(1, 6)
    ]
    [summary] = summarise([row("modelnet40-c", CLEAN, 0, 0.99), *rows])
    assert summary.score == pytest.approx(0.03), "clean clouds are not among them"
    assert (summary.sets, summary.of, summary.complete) == (75, 75, True)


def test_models_and_benchmarks_are_kept_apart():
    rows = [
        row("modelnet40-c", "shear", 1, 0.9, "a"),
        row("modelnet40-c", "shear", 1, 0.7, "b"),
        row("modelnet-c", "jitter", 1, 0.684, "b"),
        row("sweeps", "outliers", 1, 0.1, "a"),
        row("modelnet-c", CLEAN, 0, 0.9, "a"),
    ]
    found = {(each.benchmark, each.model): each.score for each in summarise(rows)}
    assert found == pytest.approx(
        {("modelnet40-c", "a"): 0.1, ("modelnet40-c", "b"): 0.3, ("modelnet-c", "b"): 1.0}
    )
    assert not any(math.isnan(score) for score in found.values())
