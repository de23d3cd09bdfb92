"""Initial states: a checkpoint's numbers, and the controls that take its knowledge away bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from pointvit.config import ViTConfig, near
from pointvit.model import ViT

FROM_IMAGES = ("trunk.", "cls_token", "reg_tokens", "tokenizer.pos_embed.table")
"""Beginnings of the names of what a point encoder may have from an image checkpoint."""

Draw = Callable[[Tensor, torch.Generator], Tensor]


def _shuffled(tensor: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    return tensor.flatten()[order].view_as(tensor)


def _gaussian_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
    return tensor.mean() + tensor.std(correction=0) * noise


CONTROLS: dict[str, Draw] = {"shuffled": _shuffled, "random_gaussian_like": _gaussian_like}
INITS = ("pretrained", "scratch", *CONTROLS)
"""``pretrained``: as loaded. ``scratch``: architecture and settings that the checkpoint dictates, with
LayerScale at 1 and fresh random weights. ``shuffled``: each tensor's own numbers in random order, which keeps
their distribution and removes what was learned. ``random_gaussian_like``: normal with each tensor's mean and
standard deviation."""


@torch.no_grad()
def initialise(model: ViT, init: str, names: Iterable[str] | None = None, seed: int = 0) -> list[str]:
    """Puts the part of a model that came from a checkpoint into one of the INITS, in place.

    Everything else keeps its numbers, so that trainings which differ in ``init`` alone start from the same
    tokenizer and head. Statistics of batch norms that came from the checkpoint start anew.

    Args:
        init: one of INITS.
        names: what came from the checkpoint (``LoadReport.loaded``), as the state dict has it; None: trunk,
            class token, registers and the table of projected 2D positions.
        seed: of the numbers drawn; they do not depend on, or change, torch's own generator.

    Returns:
        Names of the tensors that were replaced.

    Raises:
        ValueError: for an unknown init.
    """
    if init not in INITS:
        raise ValueError(f"unknown init {init!r}; {near(init, INITS)}")
    if init == "pretrained":
        return []
    state = model.state_dict()
    came = {n for n in state if n.startswith(FROM_IMAGES)} if names is None else set(names)
    if init == "scratch" and any(name.startswith("trunk.") for name in came):
        _reset_layer_scale(model)
    fresh = _fresh(model.config, seed)
    parameters = {name for name, _ in model.named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    replaced = [name for name in state if name in came]
    for name in replaced:
        tensor = state[name]
        keeps = init != "scratch" and name in parameters
        tensor.copy_(CONTROLS[init](tensor, generator) if keeps else fresh[name])
    model.meta.source = {}
    return replaced


def _reset_layer_scale(model: ViT) -> None:
    """A recipe's small initial value goes with its long schedule; 1 is as if there were no LayerScale."""
    if model.config.trunk.layer_scale is not None:
        trunk = replace(model.config.trunk, layer_scale=1.0)
        model.config, model.trunk.config = replace(model.config, trunk=trunk), trunk


def _fresh(config: ViTConfig, seed: int) -> dict[str, Tensor]:
    """State dict of a new model, drawn without touching torch's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = ViT(config)
    return model.state_dict()
