"""The statistics of a grid against numbers computed by hand."""

from __future__ import annotations

import pytest

from pointvit.training.grid import Cell, Result
from pointvit.training.grid.contrasts import bounds, contrasts, finished, lead, summaries, total_seconds

# Differences 0.06, 0.02, 0.04: mean 0.04, deviation 0.02. With t(0.975, 2) = 4.302653 from a table, half the
# interval is 4.302653 * 0.02 / sqrt(3).
OURS, THEIRS = (0.70, 0.74, 0.72), (0.64, 0.72, 0.68)
HALF = 0.0496828


@pytest.fixture
def arm(measured):
    def make(init: str, scores, mode: str = "full", size=10) -> list[Result]:
        return [
            Result(Cell(init, mode, size, seed, 1e-3), measured(score)) for seed, score in enumerate(scores)
        ]

    return make


def test_mean_and_deviation(arm):
    (found,) = summaries(finished(arm("pretrained", OURS)))
    assert (found.seeds, found.label, found.rate) == (3, "pretrained × full", 1e-3)
    assert found.test_oa == pytest.approx(0.72)
    assert found.test_std == pytest.approx(0.02)
    assert found.test_macc == pytest.approx(0.36)
    (one,) = summaries(finished(arm("pretrained", OURS[:1])))
    assert one.test_std is None


def test_a_paired_difference_and_its_interval(arm):
    (found,) = contrasts(finished(arm("pretrained", OURS) + arm("scratch", THEIRS)))
    assert (found.arm, found.against, found.seeds) == (("pretrained", "full"), ("scratch", "full"), 3)
    assert found.difference == pytest.approx(0.04)
    assert bounds(found.interval) == pytest.approx((0.04 - HALF, 0.04 + HALF), abs=1e-6)
    assert found.sentence() == (
        "pretrained × full against scratch × full with 10 shapes per class: no difference can be shown "
        "(+4.0 points, 95 % interval −1.0 to +9.0, 3 seeds)"
    )


@pytest.mark.parametrize(
    ("ours", "verdict", "word"),
    [((0.74, 0.82, 0.785), "yes", "+10.2"), ((0.54, 0.62, 0.585), "no, it cost", "−9.8")],
)
def test_verdicts(arm, ours, verdict, word):
    (found,) = contrasts(finished(arm("pretrained", ours) + arm("scratch", THEIRS)))
    assert found.verdict == verdict
    said = lead([found])
    assert said.startswith(
        "Did the image weights help? Pretrained × full against scratch × full with 10 shapes"
    )
    assert f"{verdict} ({word} points" in said


def test_one_seed_has_no_interval(arm):
    (found,) = contrasts(finished(arm("pretrained", OURS[:1]) + arm("scratch", THEIRS)))
    assert (found.interval, found.seeds, found.verdict) == (None, 1, "one seed cannot tell")
    assert "interval" not in found.sentence()


def test_seeds_are_paired_by_number(arm):
    """Only what both have counts; the order in which cells were done does not."""
    runs = finished(arm("pretrained", OURS)[::-1] + arm("scratch", THEIRS)[1:])
    (found,) = contrasts(runs)
    assert found.seeds == 2
    assert found.difference == pytest.approx(0.03)
    assert contrasts(finished(arm("pretrained", OURS)[:1] + arm("scratch", THEIRS)[1:])) == []


def test_which_arms_are_compared(arm):
    results = []
    for init, mode in (
        ("pretrained", "full"),
        ("scratch", "full"),
        ("shuffled", "full"),
        ("pretrained", "norm"),
        ("scratch", "norm"),
        ("aligned", "head"),
    ):
        results += arm(init, OURS, mode)
    results += arm("pretrained", OURS, "full", 5)
    found = contrasts(finished(results), [(("aligned", "head"), ("pretrained", "full"))])
    assert {(":".join(c.arm), ":".join(c.against)) for c in found} == {
        ("pretrained:full", "scratch:full"),
        ("pretrained:full", "shuffled:full"),
        ("shuffled:full", "scratch:full"),
        ("pretrained:norm", "scratch:norm"),
        ("aligned:head", "scratch:full"),
        ("aligned:head", "pretrained:full"),
    }
    assert {c.size for c in found} == {10}, "at 5 there is no arm from scratch"
    said = lead(found)
    assert said.count("Pretrained × full against scratch") == 1
    assert "Aligned × head against scratch × full" in said
    assert "norm" not in said


def test_nothing_to_compare(arm):
    assert lead(contrasts(finished(arm("pretrained", OURS)))).startswith("There is nothing to say yet")


def test_compute_counts_a_continued_search_once(arm, measured):
    cell = Cell("scratch", "full", 10, 0, 1e-3)
    results = [
        Result(Cell("scratch", "full", 10, 0, 1e-3, search=True), measured(None, seconds=5.0)),
        Result(Cell("scratch", "full", 10, 0, 1e-4, search=True), measured(None, seconds=4.0)),
        Result(cell, measured(seconds=7.0)),
    ]
    assert total_seconds(results) == 11
