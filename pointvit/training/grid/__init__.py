"""A grid of trainings: initial states, transfer modes, sizes of the training set and seeds."""

from pointvit.training.grid.cells import Arm, Cell, Measured, Plan, Result, Size
from pointvit.training.grid.report import Report
from pointvit.training.grid.running import results, run
from pointvit.training.grid.store import Store

__all__ = ["Arm", "Cell", "Measured", "Plan", "Report", "Result", "Size", "Store", "results", "run"]
