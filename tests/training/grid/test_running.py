"""Every cell is run once: after an error, a kill, in several processes, and with a search before it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import replace

import pytest

from pointvit.training.grid import Arm, Cell, Plan, Store, results, run
from pointvit.training.grid.running import with_rate
from pointvit.training.grid.store import locked


def test_cells_of_a_plan(plan):
    cells = plan.cells()
    searches = [cell for cell in cells if cell.search]
    assert searches == cells[:4], "searches come first"
    assert {(c.init, c.mode, c.size, c.rate) for c in searches} == {
        ("pretrained", mode, size, rate)
        for mode, size in (("full", 5), ("blocks=2", 10))
        for rate in (1e-4, 1e-3)
    }
    rest = cells[4:]
    assert [cell.seed for cell in rest] == [0] * 5 + [1] * 5, "a whole seed before the next"
    assert [(c.init, c.mode, c.size, c.rate) for c in rest[:5]] == [
        ("pretrained", "full", 5, None),
        ("scratch", "full", 5, 2e-3),
        ("pretrained", "full", 10, None),
        ("scratch", "full", 10, 2e-3),
        ("pretrained", "blocks=2", 10, None),
    ]


def test_without_a_search_rates_are_known():
    arm = Arm("scratch", "full", (0.5, 3, None), 3)
    for rates, rate in (((), 5e-4), ((2e-3,), 2e-3)):
        cells = Plan((arm,), 1, rates, {}, 5e-4).cells()
        assert [(cell.size, cell.rate, cell.search) for cell in cells] == [
            (0.5, rate, False),
            (3, rate, False),
            (None, rate, False),
        ]


def test_an_arm_may_try_rates_of_its_own():
    arms = tuple(Arm(init, "full", (3,), 3) for init in ("pretrained", "scratch", "shuffled"))
    given = {"scratch:full": (1e-2, 3e-2), "shuffled:full": (5e-2,)}
    cells = Plan(arms, 1, (1e-4, 1e-3), given, 5e-4).cells()
    assert [(cell.init, cell.rate) for cell in cells if cell.search] == [
        ("pretrained", 1e-4),
        ("pretrained", 1e-3),
        ("scratch", 1e-2),
        ("scratch", 3e-2),
    ]
    assert [(cell.init, cell.rate) for cell in cells if not cell.search] == [
        ("pretrained", None),
        ("scratch", None),
        ("shuffled", 5e-2),
    ]


def test_everything_runs_once_and_no_more(plan, store, trainer):
    assert run(plan, store, trainer) == []
    assert len(trainer.asked) == len(set(trainer.asked)) == 14
    assert run(plan, Store(store.folder, store.config, {}), trainer) == []
    assert len(trainer.asked) == 14
    assert [result.measured.test_oa is None for result in results(plan, store)] == [True] * 4 + [False] * 10
    assert not list((store.folder / "checkpoints").iterdir()), "checkpoints of finished cells are gone"


def test_the_search_picks_on_validation(plan, store, trainer):
    scores = trainer.scores

    def misleading(cell: Cell) -> tuple[float, float]:
        val, test = scores(cell)
        return val, 0.99 if cell.rate == 1e-4 else test

    trainer.scores = misleading
    run(plan, store, trainer)
    finals = [cell for cell in trainer.asked if not cell.search]
    assert {cell.rate for cell in finals if cell.init == "pretrained"} == {1e-3}
    assert {cell.rate for cell in finals if cell.init == "scratch"} == {2e-3}
    # The search has trained the first cell of each arm already, and its checkpoint was kept for that.
    again = [cell for cell, searched in zip(trainer.asked, trainer.searched, strict=True) if searched]
    assert again == [c for c in finals if c.init == "pretrained" and c.seed == 0 and c.size in (5, 10)][
        :1
    ] + [c for c in finals if c.mode == "blocks=2" and c.seed == 0]


def test_of_equal_rates_the_lower_is_used(plan, store, trainer):
    trainer.scores = lambda cell: (0.5, 0.5)
    run(plan, store, trainer)
    assert {cell.rate for cell in trainer.asked if not cell.search and cell.init == "pretrained"} == {1e-4}


def test_checkpoints_of_rates_that_lost_go_at_once(plan, store, trainer):
    folders = []
    run(plan, store, trainer, announce=lambda *_: folders.append(sorted(store.folder.glob("checkpoints/*"))))
    # With that of the cell to come; the first one after the search goes on with what the search has left.
    assert [len(found) for found in folders[:5]] == [1, 2, 2, 3, 2]
    run(replace(plan, seeds=3), store, trainer, keep=True)
    assert len(list(store.folder.glob("checkpoints/*/best.ckpt"))) == 5


def test_an_error_keeps_what_was_done(plan, store, trainer):
    scores = trainer.scores

    def failing(cell: Cell) -> tuple[float, float]:
        if len(trainer.asked) == 7:
            raise FloatingPointError("the loss became nan")
        return scores(cell)

    trainer.scores = failing
    with pytest.raises(FloatingPointError):
        run(plan, store, trainer)
    trainer.scores = scores
    failed = trainer.asked[-1]
    done = trainer.asked[:-1]
    trainer.asked.clear()
    run(plan, store, trainer)
    assert trainer.asked[0] == failed
    assert not set(trainer.asked) & set(done)
    assert len(trainer.asked) == 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_process_leaves_its_cell_to_the_next(plan, store, trainer):
    scores = trainer.scores

    def hanging(cell: Cell) -> tuple[float, float]:
        if len(trainer.asked) == 6:
            (store.folder / "hangs").touch()
            time.sleep(60)
        return scores(cell)

    trainer.scores = hanging
    process = multiprocessing.get_context("fork").Process(target=run, args=(plan, store, trainer))
    process.start()
    begin = time.monotonic()
    while not (store.folder / "hangs").exists():
        assert time.monotonic() < begin + 30
        time.sleep(0.01)
    trainer.scores = scores
    left = run(plan, store, trainer)
    assert len(left) == 1, "the cell that the other process holds"
    assert len(trainer.asked) == 8
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    assert run(plan, store, trainer) == []
    assert trainer.asked[-1] == with_rate(plan, store, left[0])
    assert len(trainer.asked) == 9


def test_shares_part_the_cells(plan, store, trainer):
    whole = plan.cells()
    counts = []
    for i in range(3):
        left = run(plan, store, trainer, share=(i, 3))
        counts.append(len(whole[i::3]) - len(left))
    # Cells of arms whose search is with a later share had to wait.
    assert sum(counts) < len(whole)
    for i in range(3):
        assert run(plan, store, trainer, share=(i, 3)) == []
    assert len(trainer.asked) == len(set(trainer.asked)) == len(whole)


def test_a_cell_in_other_hands_is_passed_over(plan, store, trainer):
    held = plan.cells()[0]
    with locked(store.checkpoints(held)) as ours:
        assert ours
        left = run(plan, store, trainer)
    assert left[0] == held
    assert {(cell.init, cell.mode) for cell in left} == {("pretrained", "full")}, (
        "its arm waits for the search"
    )


def test_what_matters_changes_the_key(store):
    cell = Cell("scratch", "full", 10, 0, 1e-3)
    keys = {store.key(cell)}
    changes = {"init": "shuffled", "mode": "norm", "size": 5, "seed": 1, "rate": 2e-3}
    keys |= {store.key(replace(cell, **{name: value})) for name, value in changes.items()}
    keys.add(Store(store.folder, store.config, {"scratch:full": ["digest", {}]}).key(cell))
    assert len(keys) == 7
    assert store.key(cell) == store.key(replace(cell, search=True)), "the same training"


def test_another_config_is_refused(store):
    other = {**store.config, "trainer": {"max_epochs": 5}}
    with pytest.raises(
        ValueError, match=r"grid: holds a grid of another config \(trainer.max_epochs was 4, now"
    ):
        Store(store.folder, other, {})
    assert json.loads((store.folder / "grid.json").read_text()) == store.config


def test_a_damaged_cell_is_named(plan, store, trainer):
    run(plan, store, trainer)
    file = next(file for file in store.folder.glob("cells/*.json") if ".search" not in file.name)
    whole = file.read_text()
    for text, said in (
        ("{", "not readable as JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "not the result of"),
        (whole.replace('"curve": [', '"curve": 3, "x": ['), "not the result of"),
        (whole.replace('"val_best": ', '"val_best": "high", "x": '), "not the result of"),
        (whole.replace('"test_oa": ', '"test_oa": null, "x": '), "not the result of"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=said) as error:
            results(plan, store)
        assert str(error.value).startswith(str(file))
