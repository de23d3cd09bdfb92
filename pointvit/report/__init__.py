"""Pages of results: one file each, without a network, and without scripts but for those a page is given."""

from pointvit.report.page import Page
from pointvit.report.parts import Cell, Part, code, figure, paragraph, svg, table

__all__ = ["Cell", "Page", "Part", "code", "figure", "paragraph", "svg", "table"]
