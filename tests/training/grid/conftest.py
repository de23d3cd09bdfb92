"""Grids without trainings: what a cell gives is written down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pointvit.training.grid import Arm, Cell, Measured, Plan, Store

CONFIG = {"version": "1", "model": {"model": "pointvit_tiny"}, "trainer": {"max_epochs": 4}}


def given(test_oa: float | None = 0.5, val_best: float = 0.6, **changes) -> Measured:
    values = {
        "train_shapes": 40,
        "num_classes": 4,
        "val_best": val_best,
        "best_epoch": 2,
        "val_last": val_best - 0.125,
        "epochs": 4,
        "curve": ((2, val_best), (4, val_best - 0.125)),
        "test_oa": test_oa,
        "test_macc": None if test_oa is None else test_oa / 2,
        "trainable": 100,
        "total": 300,
        "seconds": 6.0,
        "device": "a <processor>",
        "versions": "pointvit 0",
    }
    return Measured(**{**values, **changes})


@pytest.fixture(scope="session")
def measured() -> Callable[..., Measured]:
    """The function ``measured(test_oa=0.5, val_best=0.6, **changes) -> Measured``."""
    return given


class Trainer:
    """Gives what ``scores`` says, and remembers what it was asked for."""

    def __init__(self, scores: Callable[[Cell], tuple[float, float]]) -> None:
        self.scores = scores
        self.asked: list[Cell] = []
        self.searched: list[Measured | None] = []

    def __call__(self, cell: Cell, folder: Path, searched: Measured | None) -> Measured:
        self.asked.append(cell)
        self.searched.append(searched)
        assert folder.is_dir()
        (folder / "best.ckpt").write_text("weights")
        val, test = self.scores(cell)
        return given(None if cell.search else test, val)


@pytest.fixture
def trainer() -> Trainer:
    """Better with more shapes, a higher seed, and a learning rate near 1e-3."""

    def scores(cell: Cell) -> tuple[float, float]:
        start = {"pretrained": 0.3, "scratch": 0.2}.get(cell.init, 0.1)
        score = start + (cell.size or 100) / 1000 + cell.seed / 64
        return score - abs(cell.rate - 1e-3), score + 0.05

    return Trainer(scores)


@pytest.fixture
def plan() -> Plan:
    arms = (Arm("pretrained", "full", (5, 10), 5), Arm("scratch", "full", (5, 10), 5))
    return Plan(
        (*arms, Arm("pretrained", "blocks=2", (10,), 10)), 2, (1e-4, 1e-3), {"scratch:full": (2e-3,)}, 5e-4
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "grid", CONFIG, {})
