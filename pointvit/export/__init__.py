"""Models as files that run without this library: ONNX, and torch's own exported programs."""

from pointvit.export.exporting import TARGETS, ExportReport, export

__all__ = ["TARGETS", "ExportReport", "export"]
