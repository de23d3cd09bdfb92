"""timm's EVA models, and files with the names of EVA's own code."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import torch

from parity import Row, Tensors
from parity.timm_rows import tiny, write_repository, write_torch

SEPARATE = ("blocks.1.attn.q_proj.weight", "blocks.1.attn.k_proj.weight")
OWN_NAMES = {
    "attn.norm.": "attn.inner_attn_ln.",
    "attn.q_proj.bias": "attn.q_bias",
    "attn.v_proj.bias": "attn.v_bias",
    "mlp.norm.": "mlp.ffn_ln.",
    "mlp.fc1_g.": "mlp.w1.",
    "mlp.fc1_x.": "mlp.w2.",
    "mlp.fc2.": "mlp.w3.",
}


def own_names(state: Tensors) -> dict[str, Tensors]:
    """As EVA-02's own code names them, with its tables of rotary positions and its mask token."""
    renamed = {}
    for name, tensor in state.items():
        for ours, theirs in OWN_NAMES.items():
            name = re.sub(rf"^(blocks\.\d+\.){re.escape(ours)}", rf"\g<1>{theirs}", name)
        renamed[name] = tensor
    places = ("rope.", *(f"blocks.{n}.attn.rope." for n in range(2)))
    tables = {f"{place}freqs_{f}": torch.randn(16, 64) for place in places for f in ("cos", "sin")}
    return {"module": renamed | tables | {"mask_token": torch.randn(1, 1, 192)}}


def eva(name: str, architecture: str, separate: bool = False, **settings: int) -> Row:
    row = tiny(name, architecture, source="eva", **settings)
    return replace(row, query_key=SEPARATE) if separate else row


TI, B, CLIP_B = "eva02_tiny_patch14_336", "eva02_base_patch14_448", "eva02_base_patch16_clip_224"
ROWS = [
    eva("EVA-02 Ti and S", TI),
    eva("EVA-02 Ti and S without head", TI, num_classes=0),
    replace(eva("EVA-02 Ti and S with config.json", TI), write=write_repository),
    eva("EVA-02 B and L", B, separate=True),
    replace(eva("EVA-02 B and L with config.json", B, separate=True), write=write_repository),
    replace(eva("EVA-02 B and L, own names", B, separate=True), write=partial(write_torch, wrap=own_names)),
    eva("EVA-02-CLIP", CLIP_B, separate=True),
    replace(eva("EVA-02-CLIP, own names", CLIP_B, separate=True), write=partial(write_torch, wrap=own_names)),
    eva("EVA giant", "eva_giant_patch14_224"),
    eva("EVA giant of CLIP", "eva_giant_patch14_clip_224"),
    eva("timm ViT with rotary positions", "vit_medium_patch16_rope_reg1_gap_256"),
    eva("timm ViT with rotary positions, no qkv bias", "vit_mediumd_patch16_rope_reg1_gap_256"),
    replace(
        eva("timm ViT with rotary positions and config.json", "vit_betwixt_patch16_rope_reg4_gap_256"),
        write=write_repository,
    ),
]
