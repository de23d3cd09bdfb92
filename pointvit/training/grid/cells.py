"""The cells of a grid: initial states, transfer modes, sizes of the training set, seeds, learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Size = int | float | None
"""Of a training set: shapes per class, a share of each class in (0, 1), or None for all of them."""


@dataclass(frozen=True)
class Arm:
    """An initial state and a transfer mode, and the sizes at which they are trained.

    Attributes:
        search_size: at which learning rates are tried.
    """

    init: str
    mode: str
    sizes: tuple[Size, ...]
    search_size: Size = None

    @property
    def name(self) -> str:
        return f"{self.init}:{self.mode}"


@dataclass(frozen=True)
class Cell:
    """One training. Cells of one size and seed see the same shapes in the same order, whatever their arm.

    Attributes:
        rate: peak learning rate; None where a search has yet to find it.
        search: whether it only looks for a learning rate; its test split is not read.
    """

    init: str
    mode: str
    size: Size
    seed: int
    rate: float | None
    search: bool = False


@dataclass(frozen=True)
class Measured:
    """What a cell's training gave. Accuracies are shares of 1, epochs count from 1.

    Attributes:
        val_best: the best validation accuracy, which chose the weights tested; 0 if the loss diverged.
        val_last: that after the last epoch.
        curve: (epoch, validation accuracy) pairs.
        test_oa: overall accuracy on the test split, None in a search.
        test_macc: mean class accuracy there.
        seconds: of training, validation and test.
    """

    train_shapes: int
    num_classes: int
    val_best: float
    best_epoch: int
    val_last: float
    epochs: int
    curve: tuple[tuple[int, float], ...]
    test_oa: float | None
    test_macc: float | None
    trainable: int
    total: int
    seconds: float
    device: str
    versions: str


@dataclass(frozen=True)
class Result:
    """A cell that is done."""

    cell: Cell
    measured: Measured


@dataclass(frozen=True)
class Plan:
    """Arms, seeds 0 to ``seeds - 1`` and learning rates.

    Attributes:
        rates: tried with seed 0 by each arm of which ``given`` has none; the best on validation is used.
        given: by an arm's name, its own instead, one or several.
        default_rate: of all other arms, if ``rates`` is empty.
    """

    arms: tuple[Arm, ...]
    seeds: int
    rates: tuple[float, ...]
    given: Mapping[str, tuple[float, ...]]
    default_rate: float

    def searches(self, arm: Arm) -> list[Cell]:
        """The trainings that look for the learning rate of an arm; none where it has but one."""
        rates = self._rates(arm)
        if len(rates) < 2:
            return []
        return [Cell(arm.init, arm.mode, arm.search_size, 0, rate, search=True) for rate in rates]

    def cells(self) -> list[Cell]:
        """Searches first; then seed by seed, so that what is there early can be compared."""
        found = [cell for arm in self.arms for cell in self.searches(arm)]
        sizes = sorted({size for arm in self.arms for size in arm.sizes}, key=in_order)
        for seed in range(self.seeds):
            for size in sizes:
                for arm in self.arms:
                    rates = self._rates(arm)
                    if size in arm.sizes:
                        rate = rates[0] if len(rates) == 1 else None
                        found.append(Cell(arm.init, arm.mode, size, seed, rate))
        return found

    def arm(self, cell: Cell) -> Arm:
        """The arm that a cell belongs to."""
        return next(arm for arm in self.arms if (arm.init, arm.mode) == (cell.init, cell.mode))

    def _rates(self, arm: Arm) -> tuple[float, ...]:
        return self.given.get(arm.name, self.rates or (self.default_rate,))


def in_order(size: Size) -> tuple[int, float]:
    """A key that sorts sizes: shares, then counts, then all shapes."""
    return (2, 0.0) if size is None else (int(isinstance(size, int)), size)


def size_name(size: Size) -> str:
    """``10``, ``5%`` or ``all``."""
    return "all" if size is None else str(size) if isinstance(size, int) else f"{100 * size:g}%"
