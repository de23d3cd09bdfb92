"""DINOv2's own files, against a plain model written from its papers and its published forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parity import Row, Tensors
from parity.timm_rows import write_torch

WIDTH, HEADS, PATCH, GRID = 192, 3, 8, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        attention = (q * (d // HEADS) ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attention @ v).transpose(1, 2).reshape(b, n, d))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class GatedMlp(nn.Module):
    """SwiGLU; two thirds of four times the width, rounded up to a multiple of 8."""

    def __init__(self) -> None:
        super().__init__()
        hidden = (int(4 * WIDTH * 2 / 3) + 7) // 8 * 8
        self.w12, self.w3 = nn.Linear(WIDTH, 2 * hidden), nn.Linear(hidden, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(x1) * x2)


class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, eps=1e-6) for _ in range(2))
        self.attn, self.mlp = Attention(), GatedMlp() if gated else Mlp()
        self.ls1, self.ls2 = LayerScale(), LayerScale()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, PATCH, PATCH)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Dinov2(nn.Module):
    def __init__(
        self, registers: int = 0, gated: bool = False, classes: int = 0, blocks_read: int = 1
    ) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + GRID**2, WIDTH))
        self.register_tokens = nn.Parameter(torch.zeros(1, registers, WIDTH)) if registers else None
        self.mask_token = nn.Parameter(torch.zeros(1, WIDTH))
        self.blocks = nn.ModuleList(Block(gated) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.linear_head = nn.Linear((1 + blocks_read) * WIDTH, classes) if classes else None

    def positions(self, x: Tensor, height: int, width: int) -> Tensor:
        """Resampled by a scale factor with an offset, or with registers to a size, antialiased."""
        new = (height // PATCH, width // PATCH)
        if new == (GRID, GRID):
            return self.pos_embed
        patches = self.pos_embed[:, 1:].reshape(1, GRID, GRID, WIDTH).permute(0, 3, 1, 2)
        if self.register_tokens is None:
            scale = ((new[0] + 0.1) / GRID, (new[1] + 0.1) / GRID)
            patches = F.interpolate(patches, scale_factor=scale, mode="bicubic", antialias=False)
        else:
            patches = F.interpolate(patches, size=new, mode="bicubic", antialias=True)
        assert tuple(patches.shape[-2:]) == new
        return torch.cat([self.pos_embed[:, :1], patches.permute(0, 2, 3, 1).flatten(1, 2)], dim=1)

    def features(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), tokens], dim=1)
        tokens = tokens + self.positions(tokens, *x.shape[2:])
        if self.register_tokens is not None:
            registers = self.register_tokens.expand(len(x), -1, -1)
            tokens = torch.cat([tokens[:, :1], registers, tokens[:, 1:]], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.features(x)
        if self.linear_head is None:
            return tokens[:, 0]
        first = 1 if self.register_tokens is None else 1 + self.register_tokens.shape[1]
        return self.linear_head(torch.cat([tokens[:, 0], tokens[:, first:].mean(dim=1)], dim=1))


def prefixed(state: Tensors, prefix: str) -> Tensors:
    """As within another module; a linear classifier stands beside the backbone."""
    return {name if name.startswith("linear_head.") else prefix + name: t for name, t in state.items()}


def chunked(state: Tensors) -> Tensors:
    """One block in each chunk, as ``block_chunks`` makes them; blocks keep their number."""
    return {re.sub(r"blocks\.(\d+)\.", r"blocks.\1.\1.", name): t for name, t in state.items()}


def training(state: Tensors) -> Any:
    heads = {f"{head}.mlp.0.weight": torch.randn(8, WIDTH) for head in ("dino_head", "ibot_head")}
    return {"teacher": prefixed(chunked(state), "backbone.") | heads, "iteration": 3}


def flat(state: Tensors) -> Tensors:
    student = {f"student.backbone.{name}": torch.randn_like(t) for name, t in state.items()}
    return prefixed(chunked(state), "teacher.backbone.") | student


def row(
    name: str,
    wrap: Callable[[Tensors], Any] = lambda state: state,
    renamed: str = "blocks.{}.",
    **settings: Any,
) -> Row:
    """``renamed``: the beginning of a block's names in the file."""
    return Row(
        name,
        "dinov2",
        lambda: Dinov2(**settings),
        partial(write_torch, wrap=wrap),
        features=lambda model, x: model.features(x),
        query_key=(renamed.format(1) + "attn.qkv.weight",),
        kernel=renamed.format(0) + "attn.proj.weight",
        dropped=renamed.format(1) + "norm2.bias",
    )


ROWS = [
    row("DINOv2"),
    row("DINOv2 with registers", registers=4),
    row("DINOv2 giant", gated=True),
    row("DINOv2 giant with registers", gated=True, registers=4),
    row("DINOv2, chunked blocks", chunked, "blocks.{0}.{0}."),
    row("DINOv2, training checkpoint", training, "backbone.blocks.{0}.{0}.", registers=4),
    row("DINOv2, teacher and student", flat, "teacher.backbone.blocks.{0}.{0}."),
    row("DINOv2, linear classifier", partial(prefixed, prefix="backbone."), "backbone.blocks.{}.", classes=7),
    row("DINOv2 with registers, linear classifier", registers=4, classes=7),
    replace(
        row("DINOv2, linear classifier on four blocks", classes=7, blocks_read=4),
        logits=None,
    ),
]
