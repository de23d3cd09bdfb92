"""From tokens to one vector per object, and from there to classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from pointvit.layers import Mlp
from pointvit.trunk import TrunkConfig

POOLS = ("cls", "mean", "max", "cls+max", "cls+mean", "cls+max+mean", "cls+dist", "map")
HEADS = ("linear", "projection", "distilled", "point_bert", "point_mae", "pix4point")


class AttentionPool(nn.Module):
    """``(B, T, D) -> (B, D)``: a learned query attends to all tokens (MAP head, Zhai et al. 2022; SigLIP).

    Parameter names are timm's ``attn_pool``.
    """

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        self.num_heads = config.num_heads
        self.latent = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=dim**-0.5))
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = Mlp(dim, config.hidden_dim, config.activation)

    def forward(self, x: Tensor) -> Tensor:
        query = self.q(self.latent.expand(x.shape[0], -1, -1))
        q = rearrange(query, "b t (h d) -> b h t d", h=self.num_heads)
        k, v = rearrange(self.kv(x), "b t (kv h d) -> kv b h t d", kv=2, h=self.num_heads)
        pooled = self.proj(rearrange(F.scaled_dot_product_attention(q, k, v), "b h t d -> b t (h d)"))
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]


class Pool(nn.Module):
    """``(B, T, D) -> (B, F)`` with F = ``features``.

    The class token, the first register (``dist``: DeiT's distillation token), the maximum or mean of the
    patches, a concatenation of these, or attention pooling over all tokens.
    """

    def __init__(self, kind: str, trunk: TrunkConfig, num_prefix: int, has_cls: bool) -> None:
        super().__init__()
        if kind not in POOLS:
            raise ValueError(f"global_pool must be one of {', '.join(POOLS)}, got {kind!r}")
        if "cls" in kind and not has_cls:
            raise ValueError(
                f"global_pool={kind!r} needs a class token, and this model has none (class_token=False)"
            )
        if "dist" in kind and num_prefix < 2:
            raise ValueError(f"global_pool={kind!r} needs a distillation token (num_reg_tokens >= 1)")
        self.kind, self.num_prefix = kind, num_prefix
        self.features = trunk.embed_dim * len(kind.split("+"))
        self.attn_pool = AttentionPool(trunk) if kind == "map" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.attn_pool is not None:
            return self.attn_pool(x)
        tokens = x[:, self.num_prefix :]
        parts = {
            "cls": lambda: x[:, 0],
            "dist": lambda: x[:, 1],
            "max": lambda: tokens.amax(dim=1),
            "mean": lambda: tokens.mean(dim=1),
        }
        return torch.cat([parts[name]() for name in self.kind.split("+")], dim=-1)

    def extra_repr(self) -> str:
        return self.kind


class DistilledHead(nn.Module):
    """``(B, 2D) -> (B, K)``: the mean of a class and a distillation classifier, each on its own token.

    Inference of DeiT (Touvron et al. 2021, section 4, "joint classifiers").
    """

    def __init__(self, features: int, num_classes: int) -> None:
        super().__init__()
        self.cls = nn.Linear(features // 2, num_classes)
        self.dist = nn.Linear(features // 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        of_cls, of_dist = x.chunk(2, dim=-1)
        return (self.cls(of_cls) + self.dist(of_dist)) / 2


def make_head(kind: str, features: int, num_classes: int, drop_rate: float = 0.5) -> nn.Module:
    """``(B, features) -> (B, num_classes)``: ``linear`` (ViT), or the heads of other public models.

    ``projection``: linear without bias (CLIP's embedding); ``distilled``: DeiT's two classifiers;
    ``point_bert``: F-256-K; ``point_mae``: F-256-256-K with batch norm; ``pix4point``: the same without the
    biases that batch norm makes redundant. ``num_classes=0`` gives the identity.
    """
    if kind not in HEADS:
        raise ValueError(f"head must be one of {', '.join(HEADS)}, got {kind!r}")
    if num_classes == 0:
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(features, num_classes)
    if kind == "projection":
        return nn.Linear(features, num_classes, bias=False)
    if kind == "distilled":
        return DistilledHead(features, num_classes)
    if kind == "point_bert":
        return nn.Sequential(
            nn.Linear(features, 256), nn.ReLU(), nn.Dropout(drop_rate), nn.Linear(256, num_classes)
        )
    bias = kind == "point_mae"

    def hidden(width: int) -> list[nn.Module]:
        return [nn.Linear(width, 256, bias=bias), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(drop_rate)]

    return nn.Sequential(*hidden(features), *hidden(256), nn.Linear(256, num_classes))
