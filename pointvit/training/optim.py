"""Parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

TOKENS_AND_POSITIONS = ("cls_token", "reg_tokens", "cls_pos", "pos_embed", "latent")


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, trunk_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Trainable parameters in at most four groups: trunk or not, decayed or not.

    No decay on norms, biases, tokens and positions; all of ``tokenizer.pos_embed`` is a position, the table
    of an image encoder as well as the MLP that makes the positions of points. The trunk, its class token
    included, learns at ``lr * trunk_lr_scale``: pre-trained weights need smaller steps than the new tokenizer
    and head around them.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            in_trunk = name.startswith(("trunk.", "cls_token", "reg_tokens"))
            decayed = parameter.ndim > 1 and not any(part in TOKENS_AND_POSITIONS for part in name.split("."))
            groups.setdefault((in_trunk, decayed), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": lr * (trunk_lr_scale if in_trunk else 1.0),
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for (in_trunk, decayed), parameters in groups.items()
    ]


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
