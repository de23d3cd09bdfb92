"""pointvit: one Vision Transformer trunk for images and point clouds."""

from pointvit.checkpoints import CheckpointError, LoadReport, load, load_checkpoint, save, save_checkpoint
from pointvit.export import export
from pointvit.model import Pair, ViT
from pointvit.variants import create_model, create_pair, list_models

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "LoadReport",
    "Pair",
    "ViT",
    "create_model",
    "create_pair",
    "export",
    "list_models",
    "load",
    "load_checkpoint",
    "save",
    "save_checkpoint",
]
