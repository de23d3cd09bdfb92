"""Encoders as most research code has them: the peers that benchmarks/ measures against.

Written plainly from the published equations of ViT, Point-BERT and Point-MAE: farthest point sampling as a
loop of indexing, neighbours by a distance matrix, a mini-PointNet that concatenates, attention as softmax and
product.
``load`` takes the weights of the model here, so that both compute the same.
"""

from __future__ import annotations

import re
from typing import TypeVar

import torch
from torch import Tensor, nn

import pointvit


def farthest_point_sample(points: Tensor, num_samples: int) -> Tensor:
    """``(B, P, 3) -> (B, G)``, from index 0: the loop that PointNet++ in PyTorch made common."""
    batch, size, _ = points.shape
    rows = torch.arange(batch, device=points.device)
    chosen = torch.zeros(batch, num_samples, dtype=torch.long, device=points.device)
    distance = torch.full((batch, size), 1e10, device=points.device, dtype=points.dtype)
    farthest = torch.zeros(batch, dtype=torch.long, device=points.device)
    for i in range(num_samples):
        chosen[:, i] = farthest
        center = points[rows, farthest, :].view(batch, 1, 3)
        to_center = ((points - center) ** 2).sum(-1)
        closer = to_center < distance
        distance[closer] = to_center[closer]
        farthest = distance.max(-1)[1]
    return chosen


def neighbors(queries: Tensor, points: Tensor, k: int) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)`` by the whole matrix of distances."""
    return torch.cdist(queries, points).topk(k, dim=-1, largest=False).indices


class MiniPointNet(nn.Module):
    """``(B, G, K, 3) -> (B, G, D)``: convolutions of width 1, the group's maximum joined to every point."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.first = nn.Sequential(
            nn.Conv1d(3, 128, 1), nn.BatchNorm1d(128), nn.ReLU(inplace=True), nn.Conv1d(128, 256, 1)
        )
        self.second = nn.Sequential(
            nn.Conv1d(512, 512, 1), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Conv1d(512, dim, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, groups, size, _ = x.shape
        features = self.first(x.reshape(batch * groups, size, 3).transpose(2, 1))
        largest = torch.max(features, dim=2, keepdim=True)[0]
        features = self.second(torch.cat([largest.expand(-1, -1, size), features], dim=1))
        return torch.max(features, dim=2)[0].reshape(batch, groups, self.dim)


class Block(nn.Module):
    """``(B, T, D) -> (B, T, D)``."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.act, self.fc2 = nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(dim=-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class PointEncoder(nn.Module):
    """``(B, P, 3) -> (B, K)``: what ``pointvit_small`` with a linear head computes."""

    def __init__(self, dim: int = 384, depth: int = 12, heads: int = 6, num_classes: int = 40) -> None:
        super().__init__()
        self.groups, self.size = 64, 32
        self.embed = MiniPointNet(dim)
        self.pos_embed = nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, dim))
        self.cls_token, self.cls_pos = (nn.Parameter(torch.zeros(1, 1, dim)) for _ in range(2))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(2 * dim, num_classes)

    def tokens(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, P, 3) -> (B, G, D), (B, G, D)``: tokens and their positions."""
        rows = torch.arange(len(points), device=points.device)
        centers = points[rows[:, None], farthest_point_sample(points, self.groups)]
        index = neighbors(centers, points, self.size)
        groups = points[rows[:, None, None], index] - centers[:, :, None]
        return self.embed(groups), self.pos_embed(centers)

    def forward(self, points: Tensor) -> Tensor:
        tokens, pos = self.tokens(points)
        x = torch.cat([self.cls_token.expand(len(points), -1, -1), tokens], dim=1)
        x = x + torch.cat([self.cls_pos.expand(len(points), -1, -1), pos], dim=1)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(torch.cat([x[:, 0], x[:, 1:].max(dim=1)[0]], dim=-1))


class ImageEncoder(nn.Module):
    """``(B, 3, 224, 224) -> (B, K)``: what ``vit_*_patch16_224`` computes."""

    def __init__(self, dim: int, heads: int, depth: int = 12, num_classes: int = 1000) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, kernel_size=16, stride=16)
        self.cls_token, self.cls_pos = (nn.Parameter(torch.zeros(1, 1, dim)) for _ in range(2))
        self.pos_embed = nn.Parameter(torch.zeros(1, 14 * 14, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(images), -1, -1), x], dim=1)
        x = x + torch.cat([self.cls_pos, self.pos_embed], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


Encoder = TypeVar("Encoder", PointEncoder, ImageEncoder)


def load(theirs: Encoder, ours: pointvit.ViT) -> Encoder:
    """Gives the plain model the weights of ours."""

    def name(ours: str) -> str:
        ours = re.sub(r"^(tokenizer|trunk)\.", "", ours)
        return re.sub(r"(blocks\.\d+)\.(attn|mlp)\.", r"\1.", ours)

    state = {name(n): t for n, t in ours.state_dict().items()}
    theirs.load_state_dict({n: state[n].view_as(t) for n, t in theirs.state_dict().items()})
    return theirs
