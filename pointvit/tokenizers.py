"""Front ends: an image or a point cloud becomes ``Tokens`` of the trunk's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from pointvit.layers import Linear
from pointvit.mini_pointnet import MiniPointNet
from pointvit.ops import farthest_point_sample, group, knn
from pointvit.positions import (
    POSITIONS_3D,
    RESAMPLINGS,
    Learned2d,
    point_positions,
    resample_grid,
    rope_2d,
    sincos_2d,
)
from pointvit.resnetv2 import ResNetV2Stem


class Tokens(NamedTuple):
    """What a tokenizer returns; where ``pos`` is added is the model's setting, not the tokenizer's."""

    x: Tensor
    """(B, N, D) token features."""
    pos: Tensor | None
    """(B|1, N, D) position embeddings, or None."""
    centers: Tensor
    """(B|1, N, 2|3) where each token sits: pixels (x right, y down) or the cloud's own unit."""
    rope: Tensor | None = None
    """(B|1, N, 2d) rotary positions for heads of d channels, or None."""


@dataclass(frozen=True)
class ImageTokenizerConfig:
    """Patches of an image (section 3.1 of the ViT paper)."""

    img_size: tuple[int, int] = (224, 224)
    """(H, W) the positions are learned for; other sizes are resampled in the forward pass."""
    patch_size: tuple[int, int] = (16, 16)
    """(h, w) in pixels; with a hybrid stem, the patch times the stem's stride."""
    in_chans: int = 3
    pos_embed: str = "learned"
    """``learned`` (1D, the paper's), ``learned_2d``, ``sincos_2d`` (fixed, at any size) or ``none``."""
    cls_pos: bool = True
    """Whether the class token has a position of its own (a row of the position table)."""
    dist_pos: bool = False
    """Whether the first register has one too, as DeiT's distillation token."""
    pos_resample: str = "antialias"
    """How positions are resampled to other grids, one of ``positions.RESAMPLINGS``."""
    rope: bool = False
    """Rotary positions beside the others (EVA-02)."""
    patch_bias: bool = True
    stem: tuple[int, ...] | None = None
    """Blocks per stage of a ResNetV2 stem (hybrid), () for its root alone, None for plain patches."""
    patch_drop_rate: float = 0.0
    """Share of the patches left out at random in training (Li et al. 2023); all are used in eval."""

    def __post_init__(self) -> None:
        _check_rate(self.patch_drop_rate)
        if self.in_chans < 1 or min(self.stem or (1,)) < 1:
            raise ValueError(
                "an image tokenizer needs in_chans >= 1, and at least one block in each stage of a stem, got "
                f"{self.in_chans} and {self.stem}"
            )
        for size, patch in zip(self.img_size, self.patch_size, strict=True):
            if patch < 1 or size < patch or size % patch:
                raise ValueError(
                    f"img_size {self.img_size} must be a multiple of patch_size {self.patch_size}"
                )
        if self.pos_embed not in POSITIONS_2D:
            raise ValueError(f"pos_embed must be one of {', '.join(POSITIONS_2D)}, got {self.pos_embed!r}")
        if self.pos_resample not in RESAMPLINGS:
            raise ValueError(
                f"pos_resample must be one of {', '.join(RESAMPLINGS)}, got {self.pos_resample!r}"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches at ``img_size``."""
        return self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1]


POSITIONS_2D = ("learned", "learned_2d", "sincos_2d", "none")


@dataclass(frozen=True)
class PointTokenizerConfig:
    """Point patches: FPS, kNN and a mini-PointNet (Point-BERT, Yu et al. 2022, arXiv:2111.14819)."""

    num_groups: int = 64
    group_size: int = 32
    in_chans: int = 3
    """xyz first, then any further channels (normals, colour)."""
    width: int = 256
    """Channels of the mini-PointNet's first half; its second half is twice as wide."""
    token_dim: int | None = None
    """Width that the mini-PointNet puts out, if a linear layer follows it (Point-BERT, Uni3D)."""
    cls_pos: bool = True
    patch_drop_rate: float = 0.0
    """Share of the groups left out at random in training, before they are embedded; all are used in eval."""
    pos_embed: str = "mlp"
    """Positions of centres: ``mlp`` (Point-BERT), ``fourier`` (fixed features and a linear layer) or
    ``projected`` (an image checkpoint's own table, where a centre falls on three planes)."""
    pos_grid: tuple[int, int] = (14, 14)
    """(rows, columns) of the table of ``projected``; with a checkpoint, its own unless stated."""

    def __post_init__(self) -> None:
        _check_rate(self.patch_drop_rate)
        if self.pos_embed not in POSITIONS_3D:
            raise ValueError(f"pos_embed must be one of {', '.join(POSITIONS_3D)}, got {self.pos_embed!r}")
        if min(self.pos_grid) < 1:
            raise ValueError(f"pos_grid must be at least one row and column, got {self.pos_grid}")
        if self.num_groups < 1 or self.group_size < 1 or self.in_chans < 3:
            raise ValueError(
                "a point tokenizer needs num_groups >= 1, group_size >= 1 and in_chans >= 3, got "
                f"{self.num_groups}, {self.group_size} and {self.in_chans}"
            )


class ImageTokenizer(nn.Module):
    """``(B, C, H, W) -> Tokens`` of N = H/h * W/w patches, eq. 1 without the class token."""

    pos_embed: Tensor | nn.Module | None

    def __init__(self, config: ImageTokenizerConfig, embed_dim: int, head_dim: int = 64) -> None:
        """``head_dim``: channels of an attention head, for rotary positions."""
        super().__init__()
        self.config, self.head_dim = config, head_dim
        if config.rope and head_dim % 4:
            raise ValueError(
                f"rotary positions need heads whose channels are a multiple of 4, got {head_dim}"
            )
        self.backbone: ResNetV2Stem | None = None
        channels, patch = config.in_chans, config.patch_size
        if config.stem is not None:
            self.backbone = ResNetV2Stem(config.stem, config.in_chans)
            channels, stride = self.backbone.out_channels, self.backbone.stride
            if patch[0] % stride or patch[1] % stride:
                raise ValueError(
                    f"patch_size {patch} must be a multiple of the hybrid stem's stride, {stride}"
                )
            patch = (patch[0] // stride, patch[1] // stride)
        self.proj = nn.Conv2d(channels, embed_dim, kernel_size=patch, stride=patch, bias=config.patch_bias)
        _init_projection(self.proj)
        if config.pos_embed == "learned":
            self.pos_embed = nn.Parameter(torch.empty(1, config.grid[0] * config.grid[1], embed_dim))
            nn.init.trunc_normal_(self.pos_embed, std=0.02)
        elif config.pos_embed == "learned_2d":
            self.pos_embed = Learned2d(config.grid, embed_dim)
        elif config.pos_embed == "sincos_2d":
            self.register_buffer("pos_embed", sincos_2d(config.grid, embed_dim))
        else:
            self.pos_embed = None
        has_table = config.pos_embed != "none"
        self.cls_pos = _class_position(embed_dim) if config.cls_pos and has_table else None
        self.dist_pos = _class_position(embed_dim) if config.dist_pos and has_table else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tokens:
        if lengths is not None:
            raise ValueError("lengths is for point clouds; an image encoder takes images (B, C, H, W) alone")
        self._check(x)
        height, width = x.shape[2:]
        features = x if self.backbone is None else self.backbone(x)
        patches = self.proj(features)
        grid = (patches.shape[2], patches.shape[3])
        tokens = rearrange(patches, "b d h w -> b (h w) d")
        pos, centers = self._positions(grid), _patch_centers(grid, (height, width), x.device)
        rope = rope_2d(grid, self.head_dim, device=x.device) if self.config.rope else None
        if self.training and self.config.patch_drop_rate > 0:
            kept = _random_subset(len(x), tokens.shape[1], self.config.patch_drop_rate, x.device)
            tokens, centers = group(tokens, kept), group(centers.expand(len(x), -1, -1), kept)
            pos, rope = (t if t is None else group(t.expand(len(x), -1, -1), kept) for t in (pos, rope))
        return Tokens(tokens, pos, centers, rope)

    def _positions(self, grid: tuple[int, int]) -> Tensor | None:
        table = self.pos_embed() if isinstance(self.pos_embed, nn.Module) else self.pos_embed
        if table is None:
            return None
        if self.config.pos_embed == "sincos_2d" and grid != self.config.grid:
            return sincos_2d(grid, table.shape[2]).to(table)
        return resample_grid(table, self.config.grid, grid, self.config.pos_resample)

    def _check(self, x: Tensor) -> None:
        c, (h, w) = self.config.in_chans, self.config.patch_size
        if x.ndim != 4 or x.shape[1] != c or x.shape[2] % h or x.shape[3] % w or 0 in x.shape[2:]:
            raise ValueError(
                f"images must have shape (B, {c}, H, W) with H a multiple of {h} and W of {w}, "
                f"got {tuple(x.shape)}"
            )


class PointTokenizer(nn.Module):
    """``(B, P, C) -> Tokens`` of G point patches.

    centers = FPS(xyz, G); each centre's K nearest points, itself included, are taken relative to it (xyz
    only; no scale); a mini-PointNet makes one token of each group. Its position is made of the centre itself.

    Fewer points than groups: groups repeat in FPS order. Fewer points than neighbours: the group repeats its
    points, nearest first. Duplicates count as points. Padding behind ``lengths`` is never read.
    """

    def __init__(self, config: PointTokenizerConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
        self.embed = MiniPointNet(config.in_chans, config.token_dim or embed_dim, config.width)
        self.reduce = nn.Identity() if config.token_dim is None else Linear(config.token_dim, embed_dim)
        self.pos_embed = point_positions(config.pos_embed, embed_dim, config.pos_grid)
        self.cls_pos = _class_position(embed_dim) if config.cls_pos else None
        self.dist_pos = None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tokens:
        neighborhoods, centers = self.group(x, lengths)
        # Grouped in the input's precision (float64 keeps far coordinates apart), embedded in the weights'.
        dtype = next(self.pos_embed.parameters()).dtype
        tokens = self.reduce(self.embed(neighborhoods.to(dtype)))
        return Tokens(tokens, self.pos_embed(centers.to(dtype)), centers)

    def group(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(B, P, C) -> (B, G, K, C), (B, G, 3)``: groups with xyz relative to their centres, and those."""
        if x.ndim != 3 or x.shape[2] != self.config.in_chans or x.shape[1] < 1:
            raise ValueError(
                f"points must have shape (B, P, {self.config.in_chans}) with P >= 1, got {tuple(x.shape)}"
            )
        xyz = x[..., :3]
        centers = group(xyz, farthest_point_sample(xyz, self.config.num_groups, lengths))
        if self.training and self.config.patch_drop_rate > 0:
            kept = _random_subset(len(x), self.config.num_groups, self.config.patch_drop_rate, x.device)
            centers = group(centers, kept)
        index = knn(centers, xyz, self.config.group_size, lengths)
        neighborhoods = group(x, index)
        neighborhoods[..., :3] -= centers[:, :, None]
        return neighborhoods, centers


def _random_subset(batch: int, count: int, drop_rate: float, device: torch.device) -> Tensor:
    """``(B, kept)``: of each sample a random ``1 - drop_rate`` of ``count`` patches, at least one."""
    kept = max(1, round(count * (1.0 - drop_rate)))
    return torch.rand(batch, count, device=device).topk(kept, dim=1).indices


def _check_rate(rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"patch_drop_rate must lie in [0, 1), got {rate}")


def _class_position(embed_dim: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, embed_dim), std=0.02))


def _init_projection(proj: nn.Conv2d) -> None:
    fan_in = proj.in_channels * proj.kernel_size[0] * proj.kernel_size[1]
    nn.init.trunc_normal_(proj.weight, std=fan_in**-0.5)
    if proj.bias is not None:
        nn.init.zeros_(proj.bias)


def _patch_centers(grid: tuple[int, int], size: tuple[int, int], device: torch.device) -> Tensor:
    """``(1, h*w, 2)``: patch centres in pixels, (x, y)."""
    y, x = ((torch.arange(n, device=device) + 0.5) * (s / n) for n, s in zip(grid, size, strict=True))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(1, -1, 2)
