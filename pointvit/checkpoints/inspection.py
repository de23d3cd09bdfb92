"""What is in a checkpoint, from its headers and its position table alone."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from pointvit.checkpoints.architecture import NEEDED
from pointvit.checkpoints.checkpoint import Checkpoint
from pointvit.checkpoints.files import CheckpointError, open_weights
from pointvit.checkpoints.shapes import ShapesAlone
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.variants import list_models, model_config

SHUFFLES = 20
CLEARLY = 4.0
"""Standard deviations of the shuffled tables by which a trained one exceeds their mean."""
NONE, FEW, FIXED, TRAINED, RANDOM = (
    "no position table",
    "too few rows to tell",
    "fixed sine-cosine",
    "trained",
    "like random",
)


@dataclass(frozen=True)
class PositionStructure:
    """How much a table of positions shows the grid its rows stand for."""

    word: str
    """One of NONE, FEW, FIXED, TRAINED and RANDOM above."""
    structure: float | None = None
    """See :func:`structure_of`."""
    control: float | None = None
    """The mean of the same number over tables with their rows shuffled, and its standard deviation."""
    spread: float | None = None


@dataclass(frozen=True)
class Inspection:
    """What a file holds."""

    file: str
    source: str
    sha256: str
    size: int
    """Bytes on the disk."""
    tensors: int
    numbers: int
    """In all tensors of the encoder; what is set aside is counted apart."""
    set_aside: dict[str, int]
    """Reason -> numbers that no model needs."""
    dtypes: tuple[str, ...]
    architecture: dict[str, Any]
    left_open: tuple[str, ...]
    """Settings that neither names nor shapes nor a config.json tell, and that have to be given."""
    positions: PositionStructure
    initialises: tuple[str, ...]
    """Named models that can start from the file and are then what their names say; see `_can_initialise`."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def rows(self) -> list[tuple[str, str]]:
        """``(what, value)`` as text, one fact each."""
        table = self.positions
        measured = (
            ""
            if table.structure is None
            else f" (structure {table.structure:.3f}, rows shuffled {table.control:.3f} ± {table.spread:.3f})"
        )
        return [
            ("file", self.file),
            ("source", self.source),
            *((name.replace("_", " "), _shown(value)) for name, value in self.architecture.items()),
            *(("left open", f"{name}; give it when loading or converting") for name in self.left_open),
            ("encoder", f"{self.numbers:,} numbers in {self.tensors} tensors"),
            *(("set aside", f"{count:,} numbers: {why}") for why, count in self.set_aside.items()),
            ("numbers", ", ".join(self.dtypes)),
            ("size", f"{self.size:,} bytes"),
            ("sha256", self.sha256),
            ("positions", table.word + measured),
            ("initialises", ", ".join(self.initialises) or "none of the named models; use 'auto'"),
        ]


def inspect(path: str | os.PathLike[str], source: str = "auto") -> Inspection:
    """Reads the headers of a checkpoint and its position table, and the whole file once for its hash.

    Raises:
        FileNotFoundError, CheckpointError: as :func:`~pointvit.checkpoints.load_checkpoint`.
    """
    file = open_weights(path, headers_only=True)
    with ShapesAlone():
        checkpoint = Checkpoint.from_file(file, source)
    known = NEEDED if checkpoint.saved is not None else tuple(checkpoint.settings)
    left_open = tuple(name for name in NEEDED if name not in known)
    config = checkpoint.encoder_config(dict.fromkeys(left_open))
    aside: Counter[str] = Counter()
    for name, why in checkpoint.set_aside.items():
        aside[why] += checkpoint.sizes[name]
    return Inspection(
        str(file.path),
        checkpoint.source.name,
        file.sha256,
        file.size,
        len(checkpoint.tensors),
        sum(tensor.numel() for tensor in checkpoint.tensors.values()),
        dict(aside),
        tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in file.tensors.values()})),
        _architecture(config, left_open),
        left_open,
        _positions(checkpoint),
        tuple(name for name in list_models() if _can_initialise(checkpoint, config, name)),
    )


def structure_of(table: Tensor, grid: tuple[int, int]) -> float:
    """``(h*w, D) -> ()``: how much more alike neighbours are than rows far apart.

    Rows are centred (their mean is subtracted), and compared by cosine similarity: the mean over pairs of
    neighbours, up and down or left and right, minus the mean over pairs that are half a grid apart in both
    directions, going on at the opposite edge. Between -2 and 2; near 0 if rows do not know where they stand.

    Raises:
        ValueError: if no side of the grid has four rows.
    """
    if max(grid) < 4:
        raise ValueError(f"a grid of {grid[0]}x{grid[1]} has no pairs far apart")
    table = table.double()
    unit = rearrange(F.normalize(table - table.mean(dim=0), dim=1), "(h w) d -> h w d", h=grid[0])
    down, right = (unit[1:] * unit[:-1]).sum(-1), (unit[:, 1:] * unit[:, :-1]).sum(-1)
    far = (unit * unit.roll((grid[0] // 2, grid[1] // 2), (0, 1))).sum(-1)
    return (torch.cat([down.flatten(), right.flatten()]).mean() - far.mean()).item()


def is_sine_cosine(table: Tensor) -> bool:
    """``(N, D) -> ()``: whether rows are sines and cosines of coordinates, in whatever order of channels.

    Squares of sine and cosine add up to one, so all rows have the norm sqrt(D/2); and at the origin, the
    first row, all are 0 or 1.
    """
    table = table.double()
    norms, first = table.norm(dim=1), table[0].abs()
    tolerance = 1e-2  # half precision
    constant = (norms / math.sqrt(table.shape[1] / 2) - 1).abs().max() < tolerance
    return bool(constant and torch.minimum(first, (first - 1).abs()).max() < tolerance)


def _positions(checkpoint: Checkpoint) -> PositionStructure:
    if "pos_embed" not in checkpoint.tensors:
        return PositionStructure(NONE)
    prefix, grid = checkpoint.position_layout()
    table = checkpoint.tensors["pos_embed"][0, prefix:]
    if not bool(torch.isfinite(table).all()):
        raise CheckpointError(f"{checkpoint.path}: its positions hold NaN or infinite numbers")
    try:
        structure = structure_of(table, grid)
    except ValueError:
        return PositionStructure(FEW)
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(table), generator=generator) for _ in range(SHUFFLES))
    shuffled = torch.tensor([structure_of(table[order], grid) for order in orders], dtype=torch.float64)
    control, spread = shuffled.mean().item(), shuffled.std().item()
    word = TRAINED if structure > control + CLEARLY * spread else RANDOM
    return PositionStructure(FIXED if is_sine_cosine(table) else word, structure, control, spread)


def _architecture(config: ViTConfig, left_open: tuple[str, ...]) -> dict[str, Any]:
    trunk, tokenizer = config.trunk, config.tokenizer
    activation = "an activation that is left open" if "activation" in left_open else trunk.activation
    shown: dict[str, Any] = {
        "modality": config.modality,
        "width": trunk.embed_dim,
        "depth": trunk.depth,
        "heads": None if "num_heads" in left_open else trunk.num_heads,
        "mlp": ("SwiGLU" if trunk.swiglu else activation) + f", {trunk.mlp_ratio:.4g} x width",
        "norm_eps": None if "norm_eps" in left_open else trunk.norm_eps,
        "layer_scale": trunk.layer_scale is not None,
        "class_token": config.class_token,
        "registers": config.num_reg_tokens,
        "pool": config.global_pool,
        "head": f"{config.head}, {config.num_classes} classes" if config.num_classes else None,
    }
    if isinstance(tokenizer, ImageTokenizerConfig):
        return shown | {
            "image_size": tokenizer.img_size,
            "patch_size": tokenizer.patch_size,
            "channels": tokenizer.in_chans,
            "stem": tokenizer.stem,
        }
    return shown | {"channels": tokenizer.in_chans, "tokenizer_width": tokenizer.width}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " x ".join(map(str, value)) or "root only"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _can_initialise(checkpoint: Checkpoint, own: ViTConfig, name: str) -> bool:
    """Whether ``create_model(name, pretrained=...)`` takes the file and gives what the name says.

    Of another modality the trunk alone is taken, whatever its arithmetic.
    """
    named = model_config(name)
    try:
        adapted = checkpoint.adapt(named)
    except CheckpointError:
        return False
    if named.modality == "points" or own.modality == "points":
        return adapted.trunk.num_heads == named.trunk.num_heads and named.modality == "points"
    return adapted.trunk == named.trunk and adapted.num_reg_tokens == named.num_reg_tokens
