"""What is written in timm's names, loaded strictly by timm; and what timm would build as another model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from timm.layers import SwiGLUPacked
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from pointvit import ViT, create_model, save_checkpoint
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

SMALL = {"img_size": 48, "patch_size": 16, "embed_dim": 192, "num_heads": 3, "depth": 2, "num_classes": 7}
OURS = ViTConfig(TrunkConfig(192, 2, 3), ImageTokenizerConfig((48, 48), (16, 16)), num_classes=7)
Written = tuple[dict[str, Any], type[VisionTransformer], dict[str, Any]]
WRITTEN: dict[str, Written] = {
    # what is written: ours, and timm's class and settings for it
    "registers": (
        {"num_reg_tokens": 4, "cls_pos": False}, VisionTransformer, {"reg_tokens": 4, "no_embed_class": True}
    ),
    "registers beside a class position": ({"num_reg_tokens": 4}, VisionTransformer, {"reg_tokens": 4}),
    "distilled": (
        {"num_reg_tokens": 1, "dist_pos": True, "global_pool": "cls+dist", "head": "distilled"},
        VisionTransformerDistilled, {}
    ),
    "attention pooling": (
        {"class_token": False, "cls_pos": False, "global_pool": "map"}, VisionTransformer,
        {"class_token": False, "global_pool": "map"}
    ),
    "mean": (
        {"global_pool": "mean", "final_norm": False, "fc_norm": True}, VisionTransformer,
        {"global_pool": "avg"}
    ),
    "CLIP": (
        {"norm_pre": True, "patch_bias": False, "activation": "quick_gelu", "norm_eps": 1e-5},
        VisionTransformer,
        {"pre_norm": True, "act_layer": "quick_gelu", "norm_layer": partial(nn.LayerNorm, eps=1e-5)}
    ),
    "gated MLP": (
        {"swiglu": True, "mlp_ratio": 2.0, "layer_scale": 0.1}, VisionTransformer,
        {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 4.0, "init_values": 0.1}
    ),
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("kind", WRITTEN)
def test_timm_loads_strictly_what_is_written_for_it(
    kind: str, tmp_path: Path, randomise: Callable, error_of: Callable
) -> None:
    ours_settings, timm_class, settings = WRITTEN[kind]
    ours = randomise(ViT(OURS.override(ours_settings))).eval()
    path = save_checkpoint(ours, tmp_path / "written.safetensors", "timm")
    theirs = timm_class(**{**SMALL, **settings}).eval()
    theirs.load_state_dict(load_file(path), strict=True)
    x = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    assert error_of(ours.forward_features(x), theirs.forward_features(x)) <= 1e-5
    assert error_of(ours(x), theirs(x)) <= 1e-5
    assert torch.equal(create_model("auto", pretrained=path).eval()(x), ours(x))


NOT_WRITTEN: dict[str, dict[str, Any]] = {
    "rotary positions": {"rope": True},
    "attention pooling beside a class token or registers": {"global_pool": "map"},
    "a norm before the pool and one behind it": {"fc_norm": True, "global_pool": "mean"},
    r"global_pool='cls\+max'": {"global_pool": "cls+max"},
    "the head 'projection'": {"head": "projection"},
    "the head 'linear'": {"num_reg_tokens": 1, "dist_pos": True},
    "norm_pre and a patch projection with bias": {"norm_pre": True},
    "a patch projection without bias": {"patch_bias": False},
    "registers beside a grid that is not square": {"num_reg_tokens": 4, "img_size": (48, 80)},
}


@pytest.mark.parametrize("what", NOT_WRITTEN)
def test_what_timm_would_build_otherwise_is_not_written(what: str, tmp_path: Path, refused: Callable) -> None:
    model = ViT(OURS.override(NOT_WRITTEN[what]))
    with refused(None, f"the timm layout has no place for {what}.*; use pointvit.save"):
        save_checkpoint(model, tmp_path / "file.safetensors", "timm")
    assert not list(tmp_path.iterdir())
