"""The transformer encoder of the ViT paper: ``(B, T, D) -> (B, T, D)``, knowing nothing of images or points.

Equation numbers refer to Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021 (arXiv:2010.11929).
Parameter names are timm's, so that most public weights load without renaming.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pointvit import lean
from pointvit.layers import ACTIVATIONS, DropPath, LayerScale, Linear, Mlp


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
    swiglu: bool = False
    """A gated MLP (Shazeer 2020) without ``activation``, as in EVA-02 and DINOv2's giant."""
    attn_norm: bool = False
    mlp_norm: bool = False
    """LayerNorms inside the branches, before their last layer (sub-LN, EVA-02)."""
    layer_scale: float | None = None
    """Initial value of LayerScale (Touvron et al. 2021), or None for no LayerScale."""
    drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    """Stochastic depth (Huang et al. 2016), growing from 0 at the first block to this at the last."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.embed_dim * self.mlp_ratio):
            raise ValueError(f"mlp_ratio must be a finite number, got {self.mlp_ratio}")
        if not 0.0 < self.norm_eps < 1.0:
            raise ValueError(f"norm_eps must lie in (0, 1), got {self.norm_eps}")
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
        if self.mlp_norm and not self.swiglu:
            raise ValueError("mlp_norm is a part of the gated MLP: it needs swiglu=True")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        for name in ("drop_rate", "attn_drop_rate", "drop_path_rate"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)}")

    @property
    def hidden_dim(self) -> int:
        """Width inside an MLP; rounded, as a ratio read from a file may miss the whole number by a hair."""
        return round(self.embed_dim * self.mlp_ratio)


class Attention(nn.Module):
    """``(B, T, D) -> (B, T, D)``: multi-head self-attention, eq. 5-8 of the paper's appendix A."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attn_drop = config.attn_drop_rate
        self.qkv = Linear(config.embed_dim, 3 * config.embed_dim, bias=config.qkv_bias)
        self.norm = _layer_norm(config.embed_dim, config, config.attn_norm)
        self.proj = Linear(config.embed_dim, config.embed_dim)
        self.proj_drop = nn.Dropout(config.drop_rate)

    def forward(self, x: Tensor, rope: Tensor | None = None) -> Tensor:
        """``rope`` (1|B, N, 2d) turns the queries and keys of the last N tokens; see :func:`rotate`."""
        q, k, v = self._heads(x, rope)
        if _plain_is_faster(q):
            return self._merge(F.dropout(self._attend(q, k), self.attn_drop, self.training) @ v)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop if self.training else 0.0)
        return self._merge(x)

    def forward_with_weights(self, x: Tensor, rope: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(B, T, D) -> (B, T, D), (B, H, T, T)``: the same output, and the softmax weights A of eq. 6."""
        q, k, v = self._heads(x, rope)
        weights = self._attend(q, k)
        return self._merge(F.dropout(weights, self.attn_drop, self.training) @ v), weights

    def _attend(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * q.shape[-1] ** -0.5 @ k.mT).softmax(dim=-1)  # eq. 6

    def _heads(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(x).contiguous()  # the fused kernel wants each head's channels together
        q, k, v = rearrange(qkv, "b t (qkv h d) -> qkv b h t d", qkv=3, h=self.num_heads)
        return (q, k, v) if rope is None else (rotate(q, rope), rotate(k, rope), v)

    def _merge(self, x: Tensor) -> Tensor:
        return self.proj_drop(self.proj(self.norm(rearrange(x, "b h t d -> b t (h d)"))))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """``(B, H, T, d), (1|B, N, 2d) -> (B, H, T, d)``: rotary positions (Su et al. 2021) of the last N tokens.

    ``rope`` holds the cosines of each token's angles, then the sines; channels 2i and 2i+1 turn together.
    Class and register tokens, which stand before the others, have no position and stay.
    """
    prefix, patches = x.split([x.shape[2] - rope.shape[1], rope.shape[1]], dim=2)
    cos, sin = rope[:, None].chunk(2, dim=-1)
    turned = torch.stack([-patches[..., 1::2], patches[..., ::2]], dim=-1).flatten(-2)
    return torch.cat([prefix, (patches * cos + turned * sin).to(x.dtype)], dim=2)


def _plain_is_faster(q: Tensor) -> bool:
    """Whether two matrix products beat the fused kernel: its CPU version is slow on short bfloat16 sequences
    (docs/performance.md)."""
    return q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[-2] <= 512


class SwiGLU(nn.Module):
    """``(B, T, in) -> (B, T, in)``: a gated MLP, fc2(norm(silu(g) * x)) with [g, x] = fc1."""

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.embed_dim, 2 * config.hidden_dim)
        self.drop1 = nn.Dropout(config.drop_rate)
        self.norm = _layer_norm(config.hidden_dim, config, config.mlp_norm)
        self.fc2 = Linear(config.hidden_dim, config.embed_dim)
        self.drop2 = nn.Dropout(config.drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        gate, x = self.fc1(x).chunk(2, dim=-1)
        return self.drop2(self.fc2(self.norm(self.drop1(F.silu(gate) * x))))


class Block(nn.Module):
    """``(B, T, D) -> (B, T, D)``: one pre-norm encoder layer, eq. 2 and 3."""

    def __init__(self, config: TrunkConfig, drop_path_rate: float) -> None:
        super().__init__()
        dim = config.embed_dim

        def layer_scale() -> nn.Module:
            return nn.Identity() if config.layer_scale is None else LayerScale(dim, config.layer_scale)

        self.norm1 = lean.LayerNorm(dim, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = layer_scale()
        self.drop_path1 = DropPath(drop_path_rate)
        self.norm2 = lean.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = (
            SwiGLU(config)
            if config.swiglu
            else Mlp(dim, config.hidden_dim, config.activation, config.drop_rate)
        )
        self.ls2 = layer_scale()
        self.drop_path2 = DropPath(drop_path_rate)

    def forward(self, x: Tensor, rope: Tensor | None = None) -> Tensor:
        return self._residuals(x, self.attn(self.norm1(x), rope))

    def forward_with_weights(self, x: Tensor, rope: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(B, T, D) -> (B, T, D), (B, H, T, T)``: the layer's output and its attention weights."""
        attended, weights = self.attn.forward_with_weights(self.norm1(x), rope)
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
        self.norm_pre = _layer_norm(config.embed_dim, config, config.norm_pre)
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = _layer_norm(config.embed_dim, config, config.final_norm)
        self.grad_checkpointing = False
        """Whether training keeps each block's input alone and computes the rest again (Chen et al. 2016)."""
        self.apply(_init_weights)

    def forward(self, x: Tensor, pos: Tensor | None = None, rope: Tensor | None = None) -> Tensor:
        """``(B, T, D), (B|1, T, D) -> (B, T, D)``.

        Args:
            x: tokens.
            pos: position embeddings to add before *every* block (Point-BERT, Point-MAE, Pix4Point); None
                where the caller has added them once, as ViT does.
            rope: (1|B, N, 2d) rotary positions of the last N tokens (EVA-02's images), see :func:`rotate`.
        """
        x = self.norm_pre(x)
        for block in self.blocks:
            x = x if pos is None else x + pos
            if self.grad_checkpointing and self.training and torch.is_grad_enabled():
                x = checkpoint(block, x, rope, use_reentrant=False)
            else:
                x = block(x, rope)
        return self.norm(x)

    def forward_intermediates(
        self,
        x: Tensor,
        pos: Tensor | None = None,
        rope: Tensor | None = None,
        indices: Sequence[int] | None = None,
        norm: bool = False,
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
            x = block(x if pos is None else x + pos, rope)
            if i in wanted:
                outputs[i] = self.norm(x) if norm else x
        return [outputs[i] for i in wanted]

    def attention_weights(
        self, x: Tensor, pos: Tensor | None = None, rope: Tensor | None = None
    ) -> list[Tensor]:
        """``(B, T, D) -> [(B, H, T, T)] * L``: softmax weights of every block, rows summing to 1."""
        return [w for _, w in self.forward_layers(x, pos, rope, weights=True) if w is not None]

    def forward_layers(
        self, x: Tensor, pos: Tensor | None = None, rope: Tensor | None = None, weights: bool = False
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """``(B, T, D) -> L + 1 times (B, T, D), (B, H, T, T)``: one layer at a time, for whoever keeps none.

        First the tokens that the first block meets, with None, then each block's output (before the final
        norm) with its softmax weights, or with None where ``weights`` are not asked for.
        """
        x, attention = self.norm_pre(x), None
        yield x, None
        for block in self.blocks:
            assert isinstance(block, Block)
            x = x if pos is None else x + pos
            if weights:
                x, attention = block.forward_with_weights(x, rope)
            else:
                x = block(x, rope)
            yield x, attention


def _layer_norm(dim: int, config: TrunkConfig, present: bool) -> nn.Module:
    return nn.LayerNorm(dim, eps=config.norm_eps) if present else nn.Identity()


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
