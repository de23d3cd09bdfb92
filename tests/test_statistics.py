import numpy as np
import pytest
from scipy import stats

from pointvit.statistics import mean_interval


def test_mean_and_interval():
    values = [0.71, 0.68, 0.74, 0.70, 0.69]
    interval = mean_interval(values)
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert interval.values == tuple(values)
    assert (interval.mean - interval.half, interval.mean + interval.half) == pytest.approx(
        (low, high), abs=1e-12
    )
    assert interval.std == pytest.approx(np.std(values, ddof=1), abs=1e-15)
    assert mean_interval(values, 0.99).half > interval.half
    assert str(interval) == "0.704 ± 0.023 (95% interval ± 0.029)"


def test_paired_differences_can_be_narrower_than_either():
    first, second = np.array([0.6, 0.7, 0.8]), np.array([0.61, 0.72, 0.81])
    assert mean_interval(second - first).half < mean_interval(first).half / 5


@pytest.mark.parametrize("values", [[], [0.5]])
def test_one_run_has_no_interval(values):
    with pytest.raises(ValueError, match=f"an interval needs at least 2 runs, got {len(values)}"):
        mean_interval(values)
