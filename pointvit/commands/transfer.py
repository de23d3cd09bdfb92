"""``pointvit transfer --config CONFIG``: do image weights help these point clouds?"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pointvit.commands.predict import PARTLY_DONE

if TYPE_CHECKING:
    from pointvit.training.grid import Cell, Plan, Store


def run(args: list[str]) -> int:
    from pointvit.training.cli import quiet, sentences
    from pointvit.training.memory import keep_freed_memory

    keep_freed_memory()
    # What Lightning says of every training and test is too much for a grid of them.
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    with quiet(), sentences():
        return _run(args)


def _run(args: list[str]) -> int:
    import torch

    from pointvit.training.grid import Report, Store, config, results
    from pointvit.training.grid import options as given
    from pointvit.training.grid.runner import CellRunner
    from pointvit.training.grid.running import is_first_rank
    from pointvit.training.grid.running import run as run_grid

    torch.set_float32_matmul_precision("high")
    parser = config.make_parser()
    options = config.parsed(parser, args)
    starts = given.starts(options.start, options.aligned)
    plan = config.make_plan(options, starts)
    pairs, share = given.compared(options.compare, plan.arms), given.share(options.cells)
    settings = config.arm_settings(parser, options, plan)
    common = config.common_config(parser, options)
    digests = {name: config.digest(Path(folder)) for name, folder in starts.items()}
    own = {arm.name: [digests.get(arm.init), settings.get(arm.name, {})] for arm in plan.arms}
    terminal = Console(stderr=True)
    with _Progress(terminal) as progress:
        runner = CellRunner(parser, options, starts, settings, progress.tick)
        if not options.report_only:
            runner.check(plan.arms)  # before anything is written
        elif not (options.output / "grid.json").is_file():
            raise ValueError(f"{options.output}: holds no grid yet; run the command without --report-only")
        store = Store(options.output, common, own)
        if not options.report_only:
            try:
                run_grid(plan, store, runner, share, options.keep, progress.announce)
            except SystemExit as end:
                if not isinstance(end.__context__, KeyboardInterrupt):
                    raise
                raise InterruptedError("interrupted; the same command goes on from here") from None
    if not is_first_rank():
        return 0
    done = results(plan, store)
    if not done and options.report_only:
        raise ValueError(
            f"{options.output}: no cell of this grid is done; run the command without --report-only"
        )
    missing = len(plan.cells()) - len(done)
    if missing and not options.report_only:
        print(f"{missing} cells of the grid are not done: {_why(plan, store)}")
        return PARTLY_DONE
    shown = {name: value for name, value in settings.items() if value} | starts
    text = parser.dump(config.trainings(options), skip_default=True)
    report = Report(done, missing, ["pointvit", "transfer", *args], text, shown, pairs)
    page = report.write(options.output)
    print(report.answer)
    print(f"Results: {page}, and results.csv, results.json, low_data.png and low_data.svg beside it")
    return 0


def _why(plan: Plan, store: Store) -> str:
    from pointvit.training.grid.running import with_rate

    waiting = {f"{cell.init}:{cell.mode}" for cell in plan.cells() if with_rate(plan, store, cell) is None}
    if waiting:
        arms = ", ".join(sorted(waiting))
        return f"the learning rate of {arms} is still searched for; when that is done, run this command again"
    return "other processes have them, or their --cells was not run yet; the last one to end writes the page"


class _Progress:
    """On a terminal two bars, cells and epochs; elsewhere a line for each cell."""

    def __init__(self, terminal: Console) -> None:
        self.terminal = terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bars = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
        self.cells = self.bars.add_task("cells")
        self.epochs = self.bars.add_task("epochs")

    def __enter__(self) -> _Progress:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def announce(self, cell: Cell, done: int, total: int) -> None:
        from pointvit.training.grid.cells import size_name
        from pointvit.training.grid.running import is_first_rank

        words = (
            f"{cell.init} × {cell.mode}, {size_name(cell.size)} a class, seed {cell.seed}, rate {cell.rate:g}"
        )
        if not self.terminal.is_terminal and is_first_rank():
            print(f"[{done + 1}/{total}] {words}", file=sys.stderr, flush=True)
        self.bars.update(self.cells, completed=done, total=total)
        self.bars.update(self.epochs, description=words, completed=0, total=None)

    def tick(self, epoch: int, epochs: int, accuracy: float | None) -> None:
        self.bars.update(self.epochs, completed=epoch, total=epochs)
