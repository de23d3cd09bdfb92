"""Front ends: an image or a point cloud becomes ``Tokens`` of the trunk's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from pointvit.ops import farthest_point_sample, group, knn
from pointvit.positions import Learned2d, PointPositions, resample_grid, sincos_2d
from pointvit.resnetv2 import ResNetV2Stem


class Tokens(NamedTuple):
    """What a tokenizer returns; where ``pos`` is added is the model's setting, not the tokenizer's."""

    x: Tensor
    """(B, N, D) token features."""
    pos: Tensor | None
    """(B|1, N, D) position embeddings, or None."""
    centers: Tensor
    """(B|1, N, 2|3) where each token sits: pixels (x right, y down) or the cloud's own unit."""


@dataclass(frozen=True)
class ImageTokenizerConfig:
    """Patches of an image (section 3.1 of the ViT paper)."""

    img_size: tuple[int, int] = (224, 224)
    """(H, W) the positions are learned for; other sizes are resampled in the forward pass."""
    patch_size: tuple[int, int] = (16, 16)
    """(h, w) in pixels; with a hybrid stem, the patch times the stem's stride."""
    in_chans: int = 3
    pos_embed: str = "learned"
    """``learned`` (1D, the paper's), ``learned_2d``, ``sincos_2d`` (fixed) or ``none``."""
    cls_pos: bool = True
    """Whether the class token has a position of its own (a row of the position table)."""
    patch_bias: bool = True
    stem: tuple[int, ...] | None = None
    """Blocks per stage of a ResNetV2 stem (hybrid), () for its root alone, None for plain patches."""
    patch_drop_rate: float = 0.0
    """Share of the patches left out at random in training (Li et al. 2023); all are used in eval."""

    def __post_init__(self) -> None:
        _check_rate(self.patch_drop_rate)
        for size, patch in zip(self.img_size, self.patch_size, strict=True):
            if patch < 1 or size < patch or size % patch:
                raise ValueError(
                    f"img_size {self.img_size} must be a multiple of patch_size {self.patch_size}"
                )
        if self.pos_embed not in POSITIONS_2D:
            raise ValueError(f"pos_embed must be one of {', '.join(POSITIONS_2D)}, got {self.pos_embed!r}")

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
    cls_pos: bool = True
    patch_drop_rate: float = 0.0
    """Share of the groups left out at random in training, before they are embedded; all are used in eval."""

    def __post_init__(self) -> None:
        _check_rate(self.patch_drop_rate)
        if self.num_groups < 1 or self.group_size < 1 or self.in_chans < 3:
            raise ValueError(
                "a point tokenizer needs num_groups >= 1, group_size >= 1 and in_chans >= 3, got "
                f"{self.num_groups}, {self.group_size} and {self.in_chans}"
            )


class ImageTokenizer(nn.Module):
    """``(B, C, H, W) -> Tokens`` of N = H/h * W/w patches, eq. 1 without the class token."""

    pos_embed: Tensor | nn.Module | None

    def __init__(self, config: ImageTokenizerConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
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
        self.cls_pos = _class_position(embed_dim) if config.cls_pos and config.pos_embed != "none" else None

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
        if self.training and self.config.patch_drop_rate > 0:
            kept = _random_subset(len(x), tokens.shape[1], self.config.patch_drop_rate, x.device)
            tokens, centers = group(tokens, kept), group(centers.expand(len(x), -1, -1), kept)
            pos = None if pos is None else group(pos.expand(len(x), -1, -1), kept)
        return Tokens(tokens, pos, centers)

    def _positions(self, grid: tuple[int, int]) -> Tensor | None:
        table = self.pos_embed() if isinstance(self.pos_embed, nn.Module) else self.pos_embed
        return None if table is None else resample_grid(table, self.config.grid, grid)

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
    only; no scale); a mini-PointNet makes one token of each group, an MLP on the centre itself its position.

    Fewer points than groups: groups repeat in FPS order. Fewer points than neighbours: the group repeats its
    points, nearest first. Duplicates count as points. Padding behind ``lengths`` is never read.
    """

    def __init__(self, config: PointTokenizerConfig, embed_dim: int) -> None:
        super().__init__()
        self.config = config
        self.embed = MiniPointNet(config.in_chans, embed_dim, config.width)
        self.pos_embed = PointPositions(embed_dim)
        self.cls_pos = _class_position(embed_dim) if config.cls_pos else None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tokens:
        neighborhoods, centers = self.group(x, lengths)
        # Grouped in the input's precision (float64 keeps far coordinates apart), embedded in the weights'.
        dtype = next(self.pos_embed.parameters()).dtype
        return Tokens(self.embed(neighborhoods.to(dtype)), self.pos_embed(centers.to(dtype)), centers)

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


class MiniPointNet(nn.Module):
    """``(B, G, K, C) -> (B, G, D)``: a shared MLP, max over the group, a second MLP that sees both, max.

    Point-BERT's encoder. The second MLP's first layer acts on [global, point]; its weight is applied in two
    halves, W [g, f] = W_g g + W_f f, so that the global half is computed once per group, not once per point.
    """

    def __init__(self, in_chans: int, embed_dim: int, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(in_chans, width // 2),
            nn.BatchNorm1d(width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, width),
        )
        self.second = nn.Sequential(
            nn.Linear(2 * width, 2 * width),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, embed_dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, groups, size = x.shape[:3]  # all given below, since an empty batch leaves none to infer
        points = self.first(rearrange(x, "b g k c -> (b g k) c"))
        points = rearrange(points, "(n k) c -> n k c", k=size)
        pooled = points.amax(dim=1)

        mix, norm, act, out = self.second
        assert isinstance(mix, nn.Linear)
        of_global, of_point = mix.weight.split(points.shape[-1], dim=1)
        hidden = F.linear(points, of_point) + F.linear(pooled, of_global, mix.bias)[:, None]
        tokens = out(act(norm(rearrange(hidden, "n k c -> (n k) c"))))
        return rearrange(tokens, "(b g k) d -> b g k d", b=batch, g=groups, k=size).amax(dim=2)


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
