"""Parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from pointvit.tokenizers import ImageTokenizer
from pointvit.training.adapters import is_added

TOKENS_AND_POSITIONS = ("cls_token", "reg_tokens", "cls_pos", "pos_embed", "latent", "prompts")
IN_TRUNK = ("trunk.", "cls_token", "reg_tokens")


def parameter_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float,
    trunk_lr_scale: float = 1.0,
    layer_decay: float = 1.0,
    matrices: Container[str] | None = None,
) -> list[dict[str, Any]]:
    """Trainable parameters in groups of one learning rate each, decayed or not.

    No decay on norms, biases, tokens and positions; all of ``tokenizer.pos_embed`` is a position, the table
    of an image encoder as well as the MLP that makes the positions of points. ``matrices`` names what has
    more than one axis, where the shapes do not tell: those of sharded parameters are flat.

    The trunk, its class token included, learns at ``lr * trunk_lr_scale``: pre-trained weights need smaller
    steps than the new tokenizer and head around them, and than layers that a transfer mode has added.

    With ``layer_decay`` < 1 each block learns more slowly than the next by that factor (BEiT, Bao et al.
    2022; MAE, He et al. 2022): block i of L, i from 0, at ``layer_decay ** (L - i)`` of the rate, the final
    norm at all of it, and what stands before the blocks, class token, registers and ``norm_pre``, at
    ``layer_decay ** (L + 1)``. There stands an image encoder's tokenizer, too; that of points, new like the
    head, keeps ``lr``.
    """
    factor = _factors(model, trunk_lr_scale, layer_decay)
    groups: dict[tuple[bool, float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrix = parameter.ndim > 1 if matrices is None else name in matrices
            decayed = matrix and not any(part in TOKENS_AND_POSITIONS for part in name.split("."))
            groups.setdefault((name.startswith(IN_TRUNK), factor(name), decayed), []).append(parameter)
    return [
        {"params": parameters, "lr": lr * scale, "weight_decay": weight_decay if decayed else 0.0}
        for (_, scale, decayed), parameters in groups.items()
    ]


def _factors(model: nn.Module, trunk_lr_scale: float, layer_decay: float) -> Callable[[str], float]:
    """The function name -> factor on the learning rate."""
    blocks = {name: _block_of(name) for name, _ in model.named_parameters()}
    depth = 1 + max((block for block in blocks.values() if block is not None), default=-1)
    before = ("trunk.norm_pre.", "cls_token", "reg_tokens")
    of_images = isinstance(getattr(model, "tokenizer", None), ImageTokenizer)

    def factor(name: str) -> float:
        scale = trunk_lr_scale if name.startswith(IN_TRUNK) else 1.0
        if is_added(name):
            return 1.0
        block = blocks[name]
        if block is not None:
            return scale * layer_decay ** (depth - block)
        if name.startswith(before) or (of_images and name.startswith("tokenizer.")):
            return scale * layer_decay ** (depth + 1)
        return scale

    return factor


def _block_of(name: str) -> int | None:
    match = re.match(r"trunk\.blocks\.(\d+)\.", name)
    return None if match is None else int(match[1])


def adamw(groups: list[dict[str, Any]], scaled: bool = False) -> AdamW:
    """AdamW as one kernel for all parameters; ``scaled``: with float16's gradient scaler, as many kernels."""
    optimizer = AdamW(groups, fused=not scaled)
    # Without a scaler nothing is unscaled, in the kernel or before it. Lightning asks this before it clips.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def warmup_cosine(optimizer: Optimizer, warmup_steps: int, total_steps: int) -> LambdaLR:
    """Linear warm-up to 1 at ``warmup_steps``, then a cosine to 0 at ``total_steps``: a factor on each rate.

    The first step has 1 / (warmup_steps + 1), not 0. A warm-up longer than the training is cut off with it.
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))

    return LambdaLR(optimizer, factor)
