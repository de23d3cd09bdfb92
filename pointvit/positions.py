"""Position embeddings in 2D and 3D, and their resampling to other grids."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


def sincos_2d(grid: tuple[int, int], dim: int, temperature: float = 10_000.0) -> Tensor:
    """``(h, w), D -> (1, h*w, D)``: fixed sine-cosine embedding of the patch's column and row.

    After Vaswani et al. 2017. Channel layout as big_vision and MoCo v3 have it:
    sin(x), cos(x), sin(y), cos(y), D/4 channels each.
    """
    if dim % 4:
        raise ValueError(f"a 2D sine-cosine embedding needs a width that is a multiple of 4, got {dim}")
    rows, cols = (torch.arange(n, dtype=torch.float64) for n in grid)
    # The device is given, since transformers lets linspace leave the surrounding `with torch.device("meta")`.
    omega = temperature ** -torch.linspace(0, 1, dim // 4, dtype=torch.float64, device=rows.device)
    y, x = (torch.meshgrid(rows, cols, indexing="ij")[i].flatten()[:, None] * omega for i in (0, 1))
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()[None]


RESAMPLINGS = ("antialias", "bicubic", "offset", "aligned")
"""Bicubic with a wider filter where the grid shrinks (timm, OpenCLIP, DINOv2 with registers); without (most
of Hugging Face's); without, at a scale of (h' + 0.1) / h (DINOv2's own code); and with the outer rows of both
grids at the same place (torchvision)."""


def resample_grid(
    pos: Tensor, old: tuple[int, int], new: tuple[int, int], method: str = "antialias"
) -> Tensor:
    """``(1, h*w, D) -> (1, h'*w', D)``: bicubic resampling of a grid of position embeddings.

    The paper's section 3.2 ("2D interpolation of the pre-trained position embeddings, according to their
    location in the original image"). Equal grids return the input itself, bit for bit. Implementations
    differ in the filter, so ``method``, one of ``RESAMPLINGS``, belongs to a checkpoint's source.

    Raises:
        ValueError: if the number of rows is not h*w.
    """
    if pos.shape[1] != old[0] * old[1]:
        raise ValueError(f"expected {old[0]}x{old[1]} = {old[0] * old[1]} position rows, got {pos.shape[1]}")
    if old == new:
        return pos
    image = rearrange(pos.float(), "1 (h w) d -> 1 d h w", h=old[0])
    if method == "offset":
        scale = tuple((n + 0.1) / o for n, o in zip(new, old, strict=True))
        image = F.interpolate(image, scale_factor=scale, mode="bicubic", align_corners=False)
    else:
        image = F.interpolate(
            image,
            size=new,
            mode="bicubic",
            antialias=method == "antialias",
            align_corners=method == "aligned",
        )
    return rearrange(image, "1 d h w -> 1 (h w) d").to(pos.dtype)


def rope_2d(
    grid: tuple[int, int],
    head_dim: int,
    reference: tuple[int, int] = (16, 16),
    temperature: float = 10_000.0,
    device: torch.device | None = None,
) -> Tensor:
    """``(h, w), d -> (1, h*w, 2d)``: cosines, then sines, of rotary angles for rows and columns of patches.

    After Su et al. 2021, along two axes as EVA-02 has it (Fang et al. 2023): half of the channels turn with
    the row, half with the column. Coordinates are scaled to the ``reference`` grid of pre-training.
    """
    bands = temperature ** -(
        torch.arange(head_dim // 4, dtype=torch.float32, device=device) / (head_dim // 4)
    )
    rows, cols = (
        torch.arange(n, dtype=torch.float32, device=device) / n * r
        for n, r in zip(grid, reference, strict=True)
    )
    angles = torch.cat(
        [(axis[..., None] * bands) for axis in torch.meshgrid(rows, cols, indexing="ij")], dim=-1
    )
    angles = rearrange(angles, "h w a -> 1 (h w) a").repeat_interleave(2, dim=-1)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def square_grid(rows: int, context: str) -> tuple[int, int]:
    """``n -> (s, s)`` with s*s = n.

    Raises:
        ValueError: if n is not a square; ``context`` names the file or tensor in the message.
    """
    side = math.isqrt(rows)
    if side * side != rows:
        raise ValueError(
            f"{context}: {rows} position rows are not a square grid, so their layout cannot be told"
        )
    return side, side


class Learned2d(nn.Module):
    """``() -> (1, h*w, D)``: learned 2D positions (appendix D.4), D/2 channels for each axis."""

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"learned 2D positions need an even width, got {dim}")
        self.rows = nn.Parameter(torch.empty(grid[0], dim // 2))
        self.cols = nn.Parameter(torch.empty(grid[1], dim // 2))
        for table in (self.rows, self.cols):
            nn.init.trunc_normal_(table, std=0.02)

    def forward(self) -> Tensor:
        h, w = len(self.rows), len(self.cols)
        cols = self.cols[None, :].expand(h, -1, -1)
        rows = self.rows[:, None].expand(-1, w, -1)
        return rearrange(torch.cat([cols, rows], dim=-1), "h w d -> 1 (h w) d")


class PointPositions(nn.Sequential):
    """``(B, G, 3) -> (B, G, D)``: Linear(3, 128), GELU, Linear(128, D) on absolute centres (Point-BERT)."""

    def __init__(self, dim: int, hidden: int = 128) -> None:
        super().__init__(nn.Linear(3, hidden), nn.GELU(), nn.Linear(hidden, dim))


class FourierPositions(nn.Linear):
    """``(B, G, 3) -> (B, G, D)``: sines and cosines of 2^k pi c for k < 6, then a linear layer.

    Mildenhall et al. 2020 (NeRF), eq. 4; the finest wave is a sixteenth of the unit sphere's radius long.
    """

    def __init__(self, dim: int, frequencies: int = 6) -> None:
        self.frequencies = frequencies
        super().__init__(2 * 3 * frequencies, dim)

    def forward(self, centers: Tensor) -> Tensor:
        octaves = 2.0 ** torch.arange(self.frequencies, device=centers.device, dtype=centers.dtype)
        angles = torch.pi * centers[..., None] * octaves
        return super().forward(torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2))


class ProjectedPositions(nn.Module):
    """``(B, G, 3) -> (B, G, D)``: a 2D position table where a centre is seen along each axis, averaged.

    The square from -1 to 1 is the image, its row 0 on top: z is up from front and side, y from above. The
    table is sampled bilinearly between the places of its patches; beyond the outermost a centre gets what
    the nearest place on the border has. The table is a parameter, which learns with the tokenizer.
    """

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.grid = grid
        self.table = nn.Parameter(torch.empty(1, grid[0] * grid[1], dim))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, centers: Tensor) -> Tensor:
        image = rearrange(self.table.float(), "1 (h w) d -> 1 d h w", h=self.grid[0])
        x, y, z = centers.float().unbind(dim=-1)
        right, up = torch.stack([x, y, x], dim=-1), torch.stack([z, z, y], dim=-1)
        places = rearrange(torch.stack([right, -up], dim=-1), "b g v c -> 1 b (g v) c")
        seen = F.grid_sample(image, places, mode="bilinear", padding_mode="border", align_corners=False)
        views = rearrange(seen, "1 d b (g v) -> b g v d", v=3)
        return views.mean(dim=2).to(centers.dtype)


def point_positions(kind: str, dim: int, grid: tuple[int, int]) -> nn.Module:
    """``(B, G, 3) -> (B, G, D)``: one of POSITIONS_3D; ``grid`` is that of the table of ``projected``."""
    if kind == "projected":
        return ProjectedPositions(grid, dim)
    return FourierPositions(dim) if kind == "fourier" else PointPositions(dim)


POSITIONS_3D = ("mlp", "fourier", "projected")
