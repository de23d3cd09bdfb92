"""Public checkpoints, loaded strictly: one file per source, key names in, key names out."""

from pointvit.checkpoints.checkpoint import Checkpoint
from pointvit.checkpoints.files import CheckpointError
from pointvit.checkpoints.layouts import save_checkpoint
from pointvit.checkpoints.loading import LoadReport, load_checkpoint, load_into
from pointvit.checkpoints.saving import load, save
from pointvit.checkpoints.sources import SOURCES

__all__ = [
    "SOURCES",
    "Checkpoint",
    "CheckpointError",
    "LoadReport",
    "load",
    "load_checkpoint",
    "load_into",
    "save",
    "save_checkpoint",
]
