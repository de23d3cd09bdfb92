"""Pages of results: one file each, without scripts and without a network."""

from pointvit.report.page import Page
from pointvit.report.parts import Cell, Part, code, figure, paragraph, svg, table

__all__ = ["Cell", "Page", "Part", "code", "figure", "paragraph", "svg", "table"]
