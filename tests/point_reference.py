"""Slow, plain point encoders from the published equations, with the parameter names of the public ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def farthest_points(xyz: Tensor, count: int) -> list[int]:
    """``(P, 3) -> count`` indices: the first point, then always the one farthest from all chosen."""
    chosen, nearest = [0], torch.full((len(xyz),), torch.inf)
    while len(chosen) < count:
        nearest = nearest.minimum((xyz - xyz[chosen[-1]]).square().sum(-1))
        chosen.append(int(nearest.argmax()))
    return chosen


def point_groups(clouds: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """``(B, P, C) -> (B, G, K, C), (B, G, 3)``: neighbours relative to their centre, and the centres."""
    groups, centers = [], []
    for cloud in clouds:
        for center in cloud[farthest_points(cloud[:, :3], count), :3]:
            order = (cloud[:, :3] - center).square().sum(-1).argsort()
            members = cloud[order[:size]].clone()
            members[:, :3] -= center
            groups.append(members)
            centers.append(center)
    shape = (len(clouds), count)
    return torch.stack(groups).unflatten(0, shape), torch.stack(centers).unflatten(0, shape)


def mini_pointnet(first: nn.Module, second: nn.Module, groups: Tensor, axes: int = 1) -> Tensor:
    """``(B, G, K, C) -> (B, G, D)``: convolve, put the maximum *before* every point, again, maximum."""
    points = groups.flatten(0, 1).mT  # (B*G, C, K)
    points = points.unsqueeze(2) if axes == 2 else points
    features = first(points)
    pooled = features.amax(dim=-1, keepdim=True).expand_as(features)
    tokens = second(torch.cat([pooled, features], dim=1)).amax(dim=-1)
    return tokens.flatten(1).unflatten(0, groups.shape[:2])


class Encoder(nn.Module):
    """The mini-PointNet of Point-BERT, Point-MAE and Uni3D."""

    def __init__(self, channels: int, width: int, out: int) -> None:
        super().__init__()
        self.first_conv = nn.Sequential(
            nn.Conv1d(channels, width // 2, 1),
            nn.BatchNorm1d(width // 2),
            nn.ReLU(),
            nn.Conv1d(width // 2, width, 1),
        )
        self.second_conv = nn.Sequential(
            nn.Conv1d(2 * width, 2 * width, 1),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Conv1d(2 * width, out, 1),
        )

    def forward(self, groups: Tensor) -> Tensor:
        return mini_pointnet(self.first_conv, self.second_conv, groups)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        per_head = zip(
            *(part.chunk(self.heads, dim=-1) for part in self.qkv(x).chunk(3, dim=-1)), strict=True
        )
        return self.proj(
            torch.cat([(q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v for q, k, v in per_head], dim=-1)
        )


class Mlp(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, bias: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=eps), nn.LayerNorm(dim, eps=eps)
        self.attn, self.mlp = Attention(dim, heads, bias), Mlp(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Blocks(nn.Module):
    """A list of blocks in a module of their own: ``blocks.blocks.N``."""

    def __init__(self, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm: nn.Module | None = None


class PointTransformer(nn.Module):
    """Point-BERT's (with ``reduced``, the tokenizer's own width) or Point-MAE's, as fine-tuned."""

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        width: int,
        groups: tuple[int, int],
        reduced: int | None = None,
        class_token: bool = True,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.groups = groups
        self.encoder = Encoder(3, width, reduced or dim)
        if reduced is not None:
            self.reduce_dim = nn.Linear(reduced, dim)
        if class_token:
            self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
            self.cls_pos = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = position_mlp(dim)
        self.blocks = Blocks(dim, depth, heads)
        self.norm = nn.LayerNorm(dim)
        if head is not None:
            self.cls_head_finetune = head

    def features(self, clouds: Tensor) -> Tensor:
        """``(B, P, 3) -> (B, [1 +] G, D)``"""
        groups, centers = point_groups(clouds, *self.groups)
        x, pos = self.encoder(groups), self.pos_embed(centers)
        if hasattr(self, "reduce_dim"):
            x = self.reduce_dim(x)
        if hasattr(self, "cls_token"):
            x, pos = with_class_token(self.cls_token, x), with_class_token(self.cls_pos, pos)
        for block in self.blocks.blocks:
            x = block(x + pos)
        return self.norm(x)

    def forward(self, clouds: Tensor) -> Tensor:
        x = self.features(clouds)
        return self.cls_head_finetune(torch.cat([x[:, 0], x[:, 1:].amax(dim=1)], dim=-1))


def position_mlp(dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 128), nn.GELU(), nn.Linear(128, dim))


def with_class_token(token: Tensor, others: Tensor) -> Tensor:
    return torch.cat([token.expand(len(others), -1, -1), others], dim=1)


def bert_head(dim: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2 * dim, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, classes))


def mae_head(dim: int, classes: int) -> nn.Sequential:
    def hidden(width: int) -> list[nn.Module]:
        return [nn.Linear(width, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.5)]

    return nn.Sequential(*hidden(2 * dim), *hidden(256), nn.Linear(256, classes))


class PretrainedPointBert(nn.Module):
    """All that a file of Point-BERT's pre-training holds."""

    def __init__(self, dim: int, depth: int, heads: int, width: int, groups: tuple[int, int], reduced: int):
        super().__init__()
        for name in ("transformer_q", "transformer_k"):
            transformer = PointTransformer(dim, depth, heads, width, groups, reduced)
            transformer.mask_token = nn.Parameter(torch.empty(1, 1, dim))
            transformer.lm_head = nn.Linear(dim, 16)
            transformer.cls_head = nn.Sequential(nn.Linear(dim, 8), nn.GELU(), nn.Linear(8, 8))
            self.add_module(name, transformer)
        self.dvae = nn.ModuleDict({"encoder": Encoder(3, width, reduced), "codebook": nn.Linear(4, 4)})
        self.register_buffer("queue", torch.empty(8, 16))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))


class PretrainedPointMae(nn.Module):
    """All that a file of Point-MAE's pre-training holds."""

    def __init__(self, dim: int, depth: int, heads: int, width: int, groups: tuple[int, int]) -> None:
        super().__init__()
        self.MAE_encoder = PointTransformer(dim, depth, heads, width, groups, class_token=False)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.decoder_pos_embed = position_mlp(dim)
        self.MAE_decoder = Blocks(dim, 1, heads)
        self.MAE_decoder.norm = nn.LayerNorm(dim)
        self.increase_dim = nn.Sequential(nn.Conv1d(dim, 3 * groups[1], 1))


class Pix4PointEncoder(nn.Module):
    """PViT of Pix4Point: two-dimensional convolutions, no bias before a batch norm, eps 1e-6, qkv bias."""

    def __init__(self, dim: int, depth: int, heads: int, width: int, groups: tuple[int, int]) -> None:
        super().__init__()
        self.groups = groups
        self.patch_embed = nn.ModuleDict(
            {
                "conv1": nn.Sequential(
                    conv_norm(3, width // 2), nn.Sequential(nn.Conv2d(width // 2, width, 1))
                ),
                "conv2": nn.Sequential(
                    conv_norm(2 * width, 2 * width), nn.Sequential(nn.Conv2d(2 * width, dim, 1))
                ),
            }
        )
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.cls_pos = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Sequential(nn.Sequential(nn.Linear(3, 128), nn.GELU()), nn.Linear(128, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, bias=True, eps=1e-6) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, clouds: Tensor) -> Tensor:
        """``(B, P, 3) -> (B, 1 + G, D)``"""
        groups, centers = point_groups(clouds, *self.groups)
        tokens = mini_pointnet(self.patch_embed["conv1"], self.patch_embed["conv2"], groups, axes=2)
        x = with_class_token(self.cls_token, tokens)
        pos = with_class_token(self.cls_pos, self.pos_embed(centers))
        for block in self.blocks:
            x = block(x + pos)
        return self.norm(x)


class Pix4Point(nn.Module):
    """``pooled``: how many of class token, maximum and mean the head sees, in this order."""

    def __init__(self, dim: int, encoder: Pix4PointEncoder, classes: int, pooled: int = 3) -> None:
        super().__init__()
        self.encoder, self.pooled = encoder, pooled

        def hidden(width: int) -> nn.Module:
            return nn.Sequential(nn.Linear(width, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU())

        last = nn.Sequential(nn.Linear(256, classes))
        head = nn.Sequential(hidden(pooled * dim), nn.Dropout(0.5), hidden(256), nn.Dropout(0.5), last)
        self.prediction = nn.ModuleDict({"head": head})

    def features(self, clouds: Tensor) -> Tensor:
        return self.encoder(clouds)

    def forward(self, clouds: Tensor) -> Tensor:
        x = self.features(clouds)
        parts = [x[:, 0], x[:, 1:].amax(dim=1), x[:, 1:].mean(dim=1)]
        return self.prediction["head"](torch.cat(parts[: self.pooled], dim=-1))


def conv_norm(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


class Uni3dEncoder(nn.Module):
    """``visual`` is timm's EVA model: its blocks run without rotary positions, the rest is unused."""

    def __init__(
        self, visual: nn.Module, dim: int, width: int, token_dim: int, out: int, groups: tuple[int, int]
    ):
        super().__init__()
        self.groups = groups
        self.encoder = Encoder(6, width, token_dim)
        self.encoder2trans = nn.Linear(token_dim, dim)
        self.trans2embed = nn.Linear(dim, out)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.cls_pos = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = position_mlp(dim)
        self.visual = visual

    def features(self, clouds: Tensor) -> Tensor:
        """``(B, P, 6) -> (B, 1 + G, D)``"""
        groups, centers = point_groups(clouds, *self.groups)
        x = with_class_token(self.cls_token, self.encoder2trans(self.encoder(groups)))
        x = x + with_class_token(self.cls_pos, self.pos_embed(centers))
        for block in self.visual.blocks:
            x = block(x)
        return self.visual.norm(x)

    def forward(self, clouds: Tensor) -> Tensor:
        return self.trans2embed(self.visual.fc_norm(self.features(clouds)[:, 0]))


class Uni3d(nn.Module):
    def __init__(self, point_encoder: Uni3dEncoder) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.empty([]))
        self.point_encoder = point_encoder
