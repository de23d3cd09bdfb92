"""torchvision's Vision Transformers, as ``vit_b_16-c867db91.pth`` and its kin are on disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

from parity import Row, Tensors

SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 192,
    "mlp_dim": 384,
    "num_classes": 10,
}


def older(state: Tensors) -> Tensors:
    """The names before version 0.14, which the public files still have."""
    new = {".mlp.0.": ".mlp.linear_1.", ".mlp.3.": ".mlp.linear_2."}
    return {re.sub(r"\.mlp\.[03]\.", lambda m: new[m[0]], name): t for name, t in state.items()}


def write(model: nn.Module, folder: Path, change: Callable[[Tensors], Any] = dict) -> Path:
    torch.save(change(model.state_dict()), folder / "vit.pth")
    return folder / "vit.pth"


def features(model: nn.Module, x: Tensor) -> Tensor:
    tokens = torch.cat([model.class_token.expand(len(x), -1, -1), model._process_input(x)], dim=1)
    return model.encoder(tokens)


def at(settings: dict[str, Any], model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """As torchvision's users prepare weights for another resolution."""
    other = VisionTransformer(**{**settings, "image_size": shape[2]}).eval()
    other.load_state_dict(interpolate_embeddings(shape[2], settings["patch_size"], model.state_dict()))
    return other


def row(name: str, change: Callable[[Tensors], Any] = dict, **settings: Any) -> Row:
    settings = SMALL | settings
    mlp = "linear_1" if change is older else "0"
    return Row(
        name,
        "torchvision",
        lambda: VisionTransformer(**settings),
        partial(write, change=change),
        features,
        inputs=((2, 3, 32, 32), (2, 3, 48, 48), (2, 3, 24, 24)),
        at=partial(at, settings),
        query_key=("encoder.layers.encoder_layer_1.self_attention.in_proj_weight",),
        kernel="encoder.layers.encoder_layer_0.self_attention.out_proj.weight",
        dropped=f"encoder.layers.encoder_layer_1.mlp.{mlp}.bias",
    )


ROWS = [
    row("torchvision"),
    row("torchvision, older names", older),
    row("torchvision, representation layer", representation_size=24),
    row("torchvision, training checkpoint", lambda state: {"model": state, "epoch": 3}),
]
