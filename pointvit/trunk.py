"""The transformer encoder of the ViT paper: ``(B, T, D) -> (B, T, D)``, knowing nothing of images or points.

Equation numbers refer to Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021 (arXiv:2010.11929).
Parameter names are timm's, so that most public weights load without renaming.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


@dataclass(frozen=True)
class TrunkConfig:
    """What determines the trunk's parameters and arithmetic.

    A wrong ``norm_eps``, ``activation`` or ``norm_pre`` loads cleanly and computes something else, which is
    why a checkpoint's source sets them.
    """

    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    activation: str = "gelu"
    """``gelu`` (exact), ``gelu_tanh`` or ``quick_gelu`` (OpenAI CLIP)."""
    norm_eps: float = 1e-6
    norm_pre: bool = False
    """A LayerNorm before the first block (CLIP)."""
    final_norm: bool = True
    layer_scale: float | None = None
    """Initial value of LayerScale (Touvron et al. 2021), or None for no LayerScale."""
    drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    """Stochastic depth (Huang et al. 2016), growing from 0 at the first block to this at the last."""

    def __post_init__(self) -> None:
        if min(self.embed_dim, self.depth, self.num_heads, self.hidden_dim) < 1:
            raise ValueError(
                "a trunk needs embed_dim, depth and num_heads >= 1 and a positive mlp_ratio, got "
                f"{self.embed_dim}, {self.depth}, {self.num_heads} and {self.mlp_ratio}"
            )
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads, got embed_dim={self.embed_dim} and "
                f"num_heads={self.num_heads}"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        for name in ("drop_rate", "attn_drop_rate", "drop_path_rate"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")

    @property
    def hidden_dim(self) -> int:
        """Width inside an MLP; rounded, as a ratio read from a file may miss the whole number by a hair."""
        return round(self.embed_dim * self.mlp_ratio)


class QuickGELU(nn.Module):
    """``(*) -> (*)``: x * sigmoid(1.702 x), the approximation OpenAI's CLIP was trained with."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "quick_gelu": QuickGELU,
}


class Attention(nn.Module):
    """``(B, T, D) -> (B, T, D)``: multi-head self-attention, eq. 5-8 of the paper's appendix A."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attn_drop = config.attn_drop_rate
        self.qkv = nn.Linear(config.embed_dim, 3 * config.embed_dim, bias=config.qkv_bias)
        self.proj = nn.Linear(config.embed_dim, config.embed_dim)
        self.proj_drop = nn.Dropout(config.drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(x)
        if _plain_is_faster(q):
            return self._merge(F.dropout(self._attend(q, k), self.attn_drop, self.training) @ v)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop if self.training else 0.0)
        return self._merge(x)

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, T, D) -> (B, T, D), (B, H, T, T)``: the same output, and the softmax weights A of eq. 6."""
        q, k, v = self._heads(x)
        weights = self._attend(q, k)
        return self._merge(F.dropout(weights, self.attn_drop, self.training) @ v), weights

    def _attend(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * q.shape[-1] ** -0.5 @ k.mT).softmax(dim=-1)  # eq. 6

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = rearrange(self.qkv(x), "b t (qkv h d) -> qkv b h t d", qkv=3, h=self.num_heads)
        return q, k, v

    def _merge(self, x: Tensor) -> Tensor:
        return self.proj_drop(self.proj(rearrange(x, "b h t d -> b t (h d)")))


def _plain_is_faster(q: Tensor) -> bool:
    """Whether two matrix products beat the fused kernel: its CPU version is slow on short bfloat16 sequences
    (docs/performance.md)."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-2] <= 512


class Mlp(nn.Module):
    """``(B, T, in) -> (B, T, in)``: two layers with a GELU between (the MLP of eq. 3)."""

    def __init__(self, dim: int, hidden: int, activation: str = "gelu", drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = ACTIVATIONS[activation]()
        self.drop1 = nn.Dropout(drop_rate)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop2 = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))


class LayerScale(nn.Module):
    """``(B, T, D) -> (B, T, D)``: a learned factor per channel."""

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """``(B, ...) -> (B, ...)``: drops a residual branch for whole samples in training, keeping its mean."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        mask = x.new_empty(x.shape[0], *(1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * (mask / keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"


class Block(nn.Module):
    """``(B, T, D) -> (B, T, D)``: one pre-norm encoder layer, eq. 2 and 3."""

    def __init__(self, config: TrunkConfig, drop_path_rate: float) -> None:
        super().__init__()
        dim = config.embed_dim

        def layer_scale() -> nn.Module:
            return nn.Identity() if config.layer_scale is None else LayerScale(dim, config.layer_scale)

        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = layer_scale()
        self.drop_path1 = DropPath(drop_path_rate)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = Mlp(dim, config.hidden_dim, config.activation, config.drop_rate)
        self.ls2 = layer_scale()
        self.drop_path2 = DropPath(drop_path_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self._residuals(x, self.attn(self.norm1(x)))

    def forward_with_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, T, D) -> (B, T, D), (B, H, T, T)``: the layer's output and its attention weights."""
        attended, weights = self.attn.forward_with_weights(self.norm1(x))
        return self._residuals(x, attended), weights

    def _residuals(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.drop_path1(self.ls1(attended))  # eq. 2
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))  # eq. 3


class Trunk(nn.Module):
    """``(B, T, D) -> (B, T, D)``: the encoder that image and point tokens share, ending in the final norm."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.config = config
        rates = [config.drop_path_rate * i / max(1, config.depth - 1) for i in range(config.depth)]
        self.norm_pre = (
            nn.LayerNorm(config.embed_dim, eps=config.norm_eps) if config.norm_pre else nn.Identity()
        )
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = (
            nn.LayerNorm(config.embed_dim, eps=config.norm_eps) if config.final_norm else nn.Identity()
        )
        self.apply(_init_weights)

    def forward(self, x: Tensor, pos: Tensor | None = None) -> Tensor:
        """``(B, T, D), (B|1, T, D) -> (B, T, D)``.

        Args:
            x: tokens.
            pos: position embeddings to add before *every* block (Point-BERT, Point-MAE, Pix4Point); None
                where the caller has added them once, as ViT does.
        """
        x = self.norm_pre(x)
        for block in self.blocks:
            x = block(x if pos is None else x + pos)
        return self.norm(x)

    def forward_intermediates(
        self, x: Tensor, pos: Tensor | None = None, indices: Sequence[int] | None = None, norm: bool = False
    ) -> list[Tensor]:
        """``(B, T, D) -> [(B, T, D), ...]``: outputs of the blocks ``indices``, in that order.

        All by default; negative ones count from the end. With ``norm`` each passes through the final norm.
        """
        wanted = [
            _block_index(i, len(self.blocks))
            for i in (range(len(self.blocks)) if indices is None else indices)
        ]
        outputs: dict[int, Tensor] = {}
        x = self.norm_pre(x)
        for i, block in enumerate(self.blocks[: max(wanted, default=-1) + 1]):
            x = block(x if pos is None else x + pos)
            if i in wanted:
                outputs[i] = self.norm(x) if norm else x
        return [outputs[i] for i in wanted]

    def attention_weights(self, x: Tensor, pos: Tensor | None = None) -> list[Tensor]:
        """``(B, T, D) -> [(B, H, T, T)] * L``: softmax weights of every block, rows summing to 1."""
        x, weights = self.norm_pre(x), []
        for block in self.blocks:
            assert isinstance(block, Block)
            x, w = block.forward_with_weights(x if pos is None else x + pos)
            weights.append(w)
        return weights


def _block_index(index: int, depth: int) -> int:
    if not -depth <= index < depth:
        raise IndexError(f"block index must lie in [{-depth}, {depth - 1}] for {depth} blocks, got {index}")
    return index % depth


def _init_weights(module: nn.Module) -> None:
    """ViT's initialisation: truncated normal of 0.02 for weights, zero biases."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
