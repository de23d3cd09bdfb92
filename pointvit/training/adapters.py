"""Layers that are added to a trunk that stays as it is: LoRA, parallel adapters and deep prompts.

They take the place of a layer or block and keep its parameters, under the same names, beside their own. The
trunk does not know of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pointvit.config import near
from pointvit.layers import ACTIVATIONS, LayerScale, Linear, Mlp, linear
from pointvit.trunk import Block, SwiGLU, Trunk, TrunkConfig

Option = bool | int | float
Options = Mapping[str, Option]

ADDED = ("lora_a", "lora_b", "adapter", "prompts")
"""Parts of the names of parameters that a trunk has only with these layers."""


def is_added(name: str) -> bool:
    """Whether a parameter of that name is one of these layers'."""
    return any(part in ADDED for part in name.split("."))


class LoRALinear(Linear):
    """``(*, in) -> (*, out)``: W x + b + (alpha / r) B A x (Hu et al. 2022, arXiv:2106.09685, section 4.1).

    A has random numbers and B zeros, so that at first it computes what the layer in its place did.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)  # the parameters are there already
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = layer.weight
        self.register_parameter("bias", layer.bias)
        self.lora_a = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + linear(linear(x, self.lora_a), self.lora_b) * self.scale

    @torch.no_grad()
    def merged(self) -> Linear:
        """The layer with weight W + (alpha / r) B A."""
        plain = Linear(self.in_features, self.out_features, bias=self.bias is not None)
        plain.to(self.weight.device, self.weight.dtype).train(self.training)
        plain.weight.copy_(self.weight.double() + self.lora_b.double() @ self.lora_a.double() * self.scale)
        if self.bias is not None:
            plain.bias.copy_(self.bias)
        return plain


class ParallelAdapter(nn.Module):
    """``(B, T, D) -> (B, T, D)``: s up(act(down(x))), a narrow MLP beside a block's own.

    AdaptFormer (Chen et al. 2022, arXiv:2205.13535, eq. 4 and 5), but with the activation of the trunk's MLP,
    or its gate, so that both are one wider MLP (:func:`merge_adapters`). ``up`` starts at zero.
    """

    def __init__(self, config: TrunkConfig, bottleneck: int, scale: float) -> None:
        super().__init__()
        self.gated, self.scale = config.swiglu, scale
        self.down = Linear(config.embed_dim, bottleneck * (2 if config.swiglu else 1))
        self.act = ACTIVATIONS[config.activation]()
        self.up = Linear(bottleneck, config.embed_dim)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        if self.gated:
            gate, x = x.chunk(2, dim=-1)
            return self.up(F.silu(gate) * x) * self.scale
        return self.up(self.act(x)) * self.scale


class AdaptedBlock(Block):
    """``(B, T, D) -> (B, T, D)``: a block whose MLP has an adapter beside it, on the same normed input.

    The adapter joins behind LayerScale, which in the first blocks of DINOv2 would leave a fiftieth of it.
    """

    def __init__(self, block: Block, adapter: ParallelAdapter) -> None:
        _take_over(self, block)
        self.adapter = adapter

    def _residuals(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.drop_path1(self.ls1(attended))
        normed = self.norm2(x)
        return x + self.drop_path2(self.ls2(self.mlp(normed)) + self.adapter(normed))


class PromptedBlock(Block):
    """``(B, T, D) -> (B, T, D)``: a block that sees prompts of its own before the tokens, and drops them.

    VPT-deep (Jia et al. 2022, arXiv:2203.12119, eq. 5): what a block makes of its prompts is not used, as the
    next one has its own. They have no positions.
    """

    def __init__(self, block: Block, count: int) -> None:
        _take_over(self, block)
        like = block.norm1.weight
        self.prompts = nn.Parameter(like.new_empty(1, count, len(like)))
        bound = math.sqrt(3.0 / len(like))  # the paper's, for patches of as many pixels as channels
        nn.init.uniform_(self.prompts, -bound, bound)

    def forward(self, x: Tensor, rope: Tensor | None = None) -> Tensor:
        return super().forward(self._prompted(x), rope)[:, self.prompts.shape[1] :]

    def forward_with_weights(self, x: Tensor, rope: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``(B, T, D) -> (B, T, D), (B, H, T, T)``: of the attention, how the tokens share theirs."""
        x, weights = super().forward_with_weights(self._prompted(x), rope)
        count = self.prompts.shape[1]
        among = weights[..., count:, count:]
        return x[:, count:], among / among.sum(dim=-1, keepdim=True)

    def _prompted(self, x: Tensor) -> Tensor:
        return torch.cat([self.prompts.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)


def add_lora(trunk: Trunk, options: Options) -> None:
    """Puts :class:`LoRALinear` in the place of ``qkv`` and ``proj``, and with ``mlp`` of fc1 and fc2.

    Raises:
        ValueError: if the rank is greater than the trunk's width.
    """
    rank, alpha = int(options["rank"]), float(options["alpha"])
    _check_most("rank", rank, trunk.config.embed_dim)
    for parent, name in _adapted_linears(trunk, bool(options["mlp"])):
        setattr(parent, name, LoRALinear(getattr(parent, name), rank, alpha))


def merge_lora(trunk: Trunk) -> None:
    for parent, name in _adapted_linears(trunk, mlp=True):
        layer = getattr(parent, name)
        if isinstance(layer, LoRALinear):
            setattr(parent, name, layer.merged())


def add_adapters(trunk: Trunk, options: Options) -> None:
    """Puts :class:`AdaptedBlock` in the place of every block.

    Raises:
        ValueError: if the bottleneck is wider than the trunk's MLPs.
    """
    bottleneck, scale = int(options["bottleneck"]), float(options["scale"])
    _check_most("bottleneck", bottleneck, trunk.config.hidden_dim)
    for i, block in enumerate(_blocks(trunk)):
        like = block.norm1.weight
        adapter = ParallelAdapter(trunk.config, bottleneck, scale).to(like.device, like.dtype)
        trunk.blocks[i] = AdaptedBlock(block, adapter).train(block.training)


def merge_adapters(trunk: Trunk) -> None:
    """Makes each MLP wider by its adapter; ``trunk.config`` then has the greater ``mlp_ratio``."""
    blocks = [block for block in _blocks(trunk) if isinstance(block, AdaptedBlock)]
    config = trunk.config
    hidden = config.hidden_dim + blocks[0].adapter.up.in_features
    trunk.config = replace(config, mlp_ratio=hidden / config.embed_dim)
    for i, block in enumerate(blocks):
        adapter = block.adapter
        del block.adapter
        plain = Block.__new__(Block)
        _take_over(plain, block)
        plain.mlp = _widened(block, adapter, trunk.config)
        trunk.blocks[i] = plain.train(block.training)


def add_prompts(trunk: Trunk, options: Options) -> None:
    """Puts :class:`PromptedBlock` in the place of every block."""
    count = int(options["count"])
    _check_most("count", count, 1000)
    for i, block in enumerate(_blocks(trunk)):
        trunk.blocks[i] = PromptedBlock(block, count).train(block.training)


def _no_obstacle(trunk: Trunk) -> str | None:
    return None


def _adapter_obstacle(trunk: Trunk) -> str | None:
    if trunk.config.mlp_norm:
        return "adapters beside MLPs with a LayerNorm inside (mlp_norm) cannot be merged: it would see both"
    scales = [block.ls2.gamma for block in _blocks(trunk) if isinstance(block.ls2, LayerScale)]
    if any(bool((gamma == 0).any()) for gamma in scales):
        return "the adapters cannot be merged: LayerScale is zero for some channels, where no MLP is heard"
    return None


def _prompt_obstacle(trunk: Trunk) -> str | None:
    return (
        "prompts cannot be merged: they are tokens, and no weights do what they do; save them with the model"
    )


@dataclass(frozen=True)
class Layers:
    """A kind of layers: how they are added to a trunk, and how its own become what both were."""

    options: dict[str, Option]
    """Their options, with defaults."""
    add: Callable[[Trunk, Options], None]
    obstacle: Callable[[Trunk], str | None]
    """Why they cannot be merged, or None."""
    merge: Callable[[Trunk], None] = lambda trunk: None


LAYERS = {
    "lora": Layers({"rank": 8, "alpha": 16.0, "mlp": False}, add_lora, _no_obstacle, merge_lora),
    "adapter": Layers({"bottleneck": 64, "scale": 0.1}, add_adapters, _adapter_obstacle, merge_adapters),
    "prompt": Layers({"count": 10}, add_prompts, _prompt_obstacle),
}


def add_layers(trunk: Trunk, record: Mapping[str, Any]) -> None:
    """Adds the layers that ``record`` describes: ``mode``, one of LAYERS, and its options.

    Raises:
        ValueError: if it describes none.
    """
    options = dict(record)
    mode = options.pop("mode", None)
    if mode not in LAYERS:
        raise ValueError(f"unknown layers {mode!r} beside a trunk's own; {near(str(mode), LAYERS)}")
    LAYERS[mode].add(trunk, checked(mode, options, LAYERS[mode].options))


def checked(mode: str, given: Mapping[str, Any], known: Options) -> dict[str, Option]:
    """All options of a mode: those given, and the defaults in ``known`` for the others.

    Raises:
        ValueError: for an option that the mode does not have, or a value of another kind or not positive.
    """
    for name, value in given.items():
        if name not in known:
            have = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ValueError(f"transfer mode {mode} has no option {name!r}; {have}")
        kind = type(known[name])
        fits = isinstance(value, bool) if kind is bool else _is_number(value, kind)
        if not fits:
            wanted = {bool: "true or false", int: "a whole number of at least 1", float: "a positive number"}
            raise ValueError(f"option {name} of transfer mode {mode} must be {wanted[kind]}, got {value!r}")
    return {name: type(default)(given.get(name, default)) for name, default in known.items()}


def _is_number(value: Any, kind: type) -> bool:
    number = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    return number and value > 0 and math.isfinite(value)


def _check_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"{name} must be at most {most} for this trunk, got {value}")


def _blocks(trunk: Trunk) -> list[Block]:
    blocks = list(trunk.blocks)
    assert all(isinstance(block, Block) for block in blocks)
    return blocks  # type: ignore[return-value]


def _adapted_linears(trunk: Trunk, mlp: bool) -> list[tuple[nn.Module, str]]:
    """The layers that LoRA works on, each as its parent and its name there."""
    found: list[tuple[nn.Module, str]] = []
    for block in _blocks(trunk):
        found += [(block.attn, "qkv"), (block.attn, "proj")]
        found += [(block.mlp, "fc1"), (block.mlp, "fc2")] if mlp else []
    return found


def _take_over(new: nn.Module, old: nn.Module) -> None:
    """Makes the layers of ``old`` those of ``new``, which has none of its own yet."""
    nn.Module.__init__(new)
    for name, layer in old.named_children():
        new.add_module(name, layer)


@torch.no_grad()
def _widened(block: Block, adapter: ParallelAdapter, config: TrunkConfig) -> Mlp | SwiGLU:
    """The MLP of a block and its adapter as one, as wide as ``config`` says."""
    own, new = block.mlp, adapter
    assert isinstance(own, Mlp | SwiGLU)
    wide = SwiGLU(config) if config.swiglu else _mlp(config)
    wide.to(own.fc1.weight.device, own.fc1.weight.dtype)
    parts = 2 if config.swiglu else 1  # the gate's half of fc1 stands before the other
    for into, a, b in (
        (wide.fc1.weight, own.fc1.weight, new.down.weight),
        (wide.fc1.bias, own.fc1.bias, new.down.bias),
    ):
        halves = zip(a.chunk(parts), b.chunk(parts), strict=True)
        into.copy_(torch.cat([half for pair in halves for half in pair]))
    # The MLP stands before LayerScale, the adapter behind it.
    gamma = block.ls2.gamma.double() if isinstance(block.ls2, LayerScale) else 1.0
    factor = torch.as_tensor(new.scale / gamma, device=new.up.weight.device)
    up = new.up.weight.double() * factor[..., None]
    wide.fc2.weight.copy_(torch.cat([own.fc2.weight.double(), up], dim=1))
    wide.fc2.bias.copy_(own.fc2.bias.double() + new.up.bias.double() * factor)
    return wide


def _mlp(config: TrunkConfig) -> Mlp:
    return Mlp(config.embed_dim, config.hidden_dim, config.activation, config.drop_rate)
