"""How classifiers stand corrupted clouds: two public benchmarks and sweeps."""

from pointvit.robustness.evaluation import Contestant, Settings, conditions, evaluate
from pointvit.robustness.results import Done
from pointvit.robustness.scores import PUBLISHED, Row, Summary, corruption_errors, error_rates, summarise
from pointvit.robustness.sources import Condition, Generated, PublicFiles, find_sources

__all__ = [
    "PUBLISHED",
    "Condition",
    "Contestant",
    "Done",
    "Generated",
    "PublicFiles",
    "Row",
    "Settings",
    "Summary",
    "conditions",
    "corruption_errors",
    "error_rates",
    "evaluate",
    "find_sources",
    "summarise",
]
