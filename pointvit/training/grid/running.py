"""Running the trainings of a grid, each once, over several calls, processes or machines."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from pointvit.training.grid.cells import Cell, Measured, Plan, Result
from pointvit.training.grid.store import Store, locked

Train = Callable[[Cell, Path, Measured | None], Measured]
"""``(cell, folder for checkpoints, the same training done by a search, or None) -> what it gave``."""


def run(
    plan: Plan,
    store: Store,
    train: Train,
    share: tuple[int, int] = (0, 1),
    keep: bool = False,
    announce: Callable[[Cell, int, int], None] = lambda cell, done, total: None,
) -> list[Cell]:
    """Runs the cells of a plan that are not done, one after another.

    What was done stays done if a cell fails or the process is killed. A cell that another process is running
    is passed over.

    Args:
        train: runs one cell; it finds in the folder what an earlier attempt left there.
        share: (i, n), of n processes the i-th from 0: it takes every n-th cell.
        keep: leave the checkpoints of finished cells where they are.
        announce: told of each cell before it runs, with the number of cells done before it, and of all.

    Returns:
        The cells of this share that are not done: others run them, or their search is not done.
    """
    mine = plan.cells()[share[0] :: share[1]]
    left = []
    for i, planned in enumerate(mine):
        cell = with_rate(plan, store, planned)
        if cell is None or not _run_once(store, cell, train, partial(announce, cell, i, len(mine))):
            left.append(planned)
        elif not keep:
            _tidy(plan, store, cell)
    return left


def with_rate(plan: Plan, store: Store, cell: Cell) -> Cell | None:
    """The cell with its learning rate, which may be that of the search; None while the search is not done.

    The best validation accuracy wins, and of equal ones the lower rate.
    """
    if cell.rate is not None:
        return cell
    found = [store.read(search) for search in plan.searches(plan.arm(cell))]
    results = [result for result in found if result is not None]
    if len(results) < len(found):
        return None
    best = max(results, key=lambda result: (result.measured.val_best, -(result.cell.rate or 0)))
    return replace(cell, rate=best.cell.rate)


def results(plan: Plan, store: Store) -> list[Result]:
    """Of the plan's cells, in its order, those that are done."""
    cells = [with_rate(plan, store, cell) for cell in plan.cells()]
    found = [store.read(cell) for cell in cells if cell is not None]
    return [result for result in found if result is not None]


def is_first_rank() -> bool:
    """Whether this process is the one of a distributed training that writes."""
    return not getattr(rank_zero_only, "rank", 0)


def _run_once(store: Store, cell: Cell, train: Train, announce: Callable[[], None]) -> bool:
    """Whether the cell is done now."""
    if store.read(cell) is not None:
        return True
    folder = store.checkpoints(cell)
    # Other ranks of a distributed training follow the first, which holds the lock and writes.
    leads = is_first_rank()
    with locked(folder) if leads else nullcontext(True) as ours:
        if not ours:
            return False
        if store.read(cell) is not None:  # done while this process came here
            return True
        announce()
        search = None if cell.search else store.read(replace(cell, search=True))
        measured = train(cell, folder, search.measured if search else None)
        if leads:
            store.save(cell, measured)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()  # all read the same results next
    return True


def _tidy(plan: Plan, store: Store, cell: Cell) -> None:
    """Removes checkpoints that nothing will continue: of a finished cell, and of the rates that lost."""
    if not cell.search:
        shutil.rmtree(store.checkpoints(cell), ignore_errors=True)
        return
    final = with_rate(plan, store, replace(cell, rate=None, search=False))
    if final is not None:
        arm = plan.arm(cell)
        for search in plan.searches(arm):
            if search.rate != final.rate or search.size not in arm.sizes:
                shutil.rmtree(store.checkpoints(search), ignore_errors=True)
