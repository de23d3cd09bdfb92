"""OpenAI's and OpenCLIP's image towers, alone or in a whole CLIP: their own ViT, or one of timm's."""

from __future__ import annotations

from collections.abc import Collection

from pointvit.checkpoints.sources import openclip_config, openclip_timm
from pointvit.checkpoints.sources.source import (
    Source,
    Tensors,
    invert,
    refuse_obstacles,
    refuse_unplaced,
    rename_blocks,
    rename_prefixes,
    unnamed_obstacles,
)
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

PREFIX = "visual."
BLOCK, OURS = "visual.transformer.resblocks.{}.", "trunk.blocks.{}."
TOP = {
    "visual.class_embedding": "cls_token",
    "visual.positional_embedding": "pos_embed",
    "visual.conv1.": "tokenizer.proj.",
    "visual.ln_pre.": "trunk.norm_pre.",
    "visual.ln_post.": "trunk.norm.",
    "visual.proj": "head.weight",
}
CLIPA = {**TOP, "visual.ln_post.": "fc_norm."}
"""CLIPA has no LayerNorm before the blocks, and the one behind them acts on the mean of the patches."""
IN_BLOCK = {
    "ln_1.": "norm1.",
    "attn.in_proj_": "attn.qkv.",
    "attn.out_proj.": "attn.proj.",
    "ls_1.": "ls1.",
    "ln_2.": "norm2.",
    "mlp.c_fc.": "mlp.fc1.",
    "mlp.c_proj.": "mlp.fc2.",
    "ls_2.": "ls2.",
}
UNSUPPORTED = {
    "visual.attn_pool.": "CoCa's attentional pooler",
    "visual.layer1.": "a ResNet",
    "visual.head.mlp.": "a projection of two layers",
}
"""Names in towers that the trunk cannot hold -> what they are of."""


def matches(names: Collection[str]) -> bool:
    bare = "class_embedding" in names and "transformer.resblocks.0.attn.in_proj_weight" in names
    within = ("visual.transformer.resblocks.", "visual.trunk.", "visual.layer1.0.conv1.")
    return bare or any(name.startswith(within) for name in names)


def decode(tensors: Tensors) -> Tensors:
    """A whole CLIP, or its image tower with or without ``visual.`` before the names.

    Raises:
        ValueError: for a tower that is no ViT, or whose pool or projection is none of ours.
    """
    if not any(name.startswith(PREFIX) for name in tensors):
        tensors = {PREFIX + name: tensor for name, tensor in tensors.items()}
    for start, what in UNSUPPORTED.items():
        if any(name.startswith(start) for name in tensors):
            raise ValueError(f"its image tower has {what} ({start}*), which is not supported")
    if openclip_timm.has_trunk(tensors):
        return openclip_timm.decode(tensors)
    table = TOP if any(name.startswith("visual.ln_pre.") for name in tensors) else CLIPA
    decoded = rename_prefixes(rename_blocks(tensors, BLOCK, OURS, IN_BLOCK), table)
    shaped = {
        "cls_token": lambda t: t[None, None],
        "pos_embed": lambda t: t[None],
        "head.weight": lambda t: t.T,
    }
    return {name: shaped[name](t) if name in shaped else t for name, t in decoded.items()}


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    _refuse(config)
    top, in_block = invert(TOP if config.trunk.norm_pre else CLIPA), invert(IN_BLOCK)
    refuse_unplaced(tensors, top, in_block, SOURCE.name)
    shaped = {
        "cls_token": lambda t: t[0, 0],
        "pos_embed": lambda t: t[0],
        "head.weight": lambda t: t.T,
    }
    encoded = {name: shaped[name](t) if name in shaped else t for name, t in tensors.items()}
    return rename_prefixes(rename_blocks(encoded, OURS, BLOCK, in_block), top)


def _refuse(config: ViTConfig) -> None:
    trunk, front_end = config.trunk, config.tokenizer
    assert isinstance(front_end, ImageTokenizerConfig)
    pool = (config.global_pool, trunk.final_norm, config.fc_norm)
    expected = ("cls", True, False) if trunk.norm_pre else ("mean", False, True)
    before = "with" if trunk.norm_pre else "without"
    refuse_obstacles(
        {
            **unnamed_obstacles(config),
            "a model without class token": not config.class_token,
            f"norm_eps={trunk.norm_eps:g} (it is 1e-5 there)": trunk.norm_eps != 1e-5,
            f"activation={trunk.activation!r}": trunk.activation not in ("gelu", "quick_gelu"),
            f"global_pool, final_norm and fc_norm = {pool} {before} norm_pre": pool != expected,
            f"{front_end.in_chans} channels (there are 3)": front_end.in_chans != 3,
            "a patch projection with bias": front_end.patch_bias,
            "a model without head": config.num_classes == 0,
            f"the head {config.head!r} (it is a projection there)": config.head != "projection",
        },
        SOURCE.name,
    )


TEXT = ("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection", "text.")
SET_ASIDE = {
    **dict.fromkeys(TEXT, "the text tower"),
    "text_decoder.": "the text decoder",
    "logit_": "scale and bias of the contrastive loss",
    **dict.fromkeys(
        (openclip_config.OPENAI, "context_length", "vocab_size"), "a number that the shapes tell, too"
    ),
    **openclip_timm.SET_ASIDE,
}
SOURCE = Source("openclip", matches, decode, encode, openclip_config.settings, SET_ASIDE)
