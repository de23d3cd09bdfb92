"""big_vision's ``.npz`` names: its ViTs, and the image tower of its pairs (LiT, SigLIP, PaliGemma).

They are the paper's (:mod:`~pointvit.checkpoints.sources.google`) but for the numbers inside a block, the
position table at the top, blocks that may be stacked on a leading axis, and the head of attention pooling. A
class token has no position of its own. A file without position table is of a model with
``posemb="sincos2d"``, whose fixed positions need not be stored. GELU is approximated by tanh there; timm
reads these files with the exact one, and so does this library; ``activation="gelu_tanh"`` gives the former.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pointvit.checkpoints.sources import flax, google
from pointvit.checkpoints.sources.source import (
    Facts,
    Source,
    Tensors,
    invert,
    refuse_obstacles,
    rename_blocks,
    rename_prefixes,
    unnamed_obstacles,
)
from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig

IN_BLOCK = {
    # big_vision's -> the paper's
    "MultiHeadDotProductAttention_0/": google.ATTENTION,
    "LayerNorm_1/": "LayerNorm_2/",
    "MlpBlock_0/": "MlpBlock_3/",
}
POSITIONS = {
    "pos_embedding": google.TOP["pos_embed"],
    "Transformer/pos_embedding": google.TOP["pos_embed"],  # before 2022
}
MAP, MAP_ATTENTION = "MAPHead_0/", "MAPHead_0/MultiHeadDotProductAttention_0/"
MAP_LAYERS = {
    "pool.attn_pool.q": ("query",),
    "pool.attn_pool.kv": ("key", "value"),
    "pool.attn_pool.proj": ("out",),
}
MAP_NAMES = {
    "probe": "pool.attn_pool.latent",
    "LayerNorm_0/scale": "pool.attn_pool.norm.weight",
    "LayerNorm_0/bias": "pool.attn_pool.norm.bias",
    "MlpBlock_0/Dense_0/kernel": "pool.attn_pool.mlp.fc1.weight",
    "MlpBlock_0/Dense_0/bias": "pool.attn_pool.mlp.fc1.bias",
    "MlpBlock_0/Dense_1/kernel": "pool.attn_pool.mlp.fc2.weight",
    "MlpBlock_0/Dense_1/bias": "pool.attn_pool.mlp.fc2.bias",
}


def matches(names: Collection[str]) -> bool:
    prefix = "|".join(google.PREFIXES)
    pattern = rf"({prefix})?Transformer/encoderblock(_0)?/MultiHeadDotProductAttention_0/query/kernel"
    return any(re.fullmatch(pattern, name) for name in names)


def decode(tensors: Tensors) -> Tensors:
    """
    Raises:
        ValueError: if a part of attention pooling is missing.
    """
    tensors = rename_prefixes(_unstacked(google.strip(tensors)), POSITIONS)
    tensors = rename_blocks(tensors, google.BLOCK, google.BLOCK, IN_BLOCK)
    pool = _take_pool(tensors)
    return google.from_paper(tensors) | pool


def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
    """Blocks are written one by one, under the prefix ``params/``."""
    tokenizer = config.tokenizer
    assert isinstance(tokenizer, ImageTokenizerConfig)
    pools = ("cls",) if config.class_token else ("mean", "map")
    refuse_obstacles(
        {
            **unnamed_obstacles(config),
            **google.google_obstacles(config),
            "a class token without position": False,  # it has none here
            "a class token with a position": config.class_token and tokenizer.cls_pos,
            "a hybrid stem": tokenizer.stem is not None,
            f"global_pool={config.global_pool!r} (it is {' or '.join(pools)} there)": (
                config.global_pool not in pools
            ),
        },
        SOURCE.name,
    )
    fixed = ("pos_embed",) if tokenizer.pos_embed == "sincos_2d" else ()
    pool = {name: tensor for name, tensor in tensors.items() if name.startswith("pool.attn_pool.")}
    rest = {name: tensor for name, tensor in tensors.items() if name not in (*pool, *fixed)}
    encoded = google.to_paper(rest, config, SOURCE.name)
    encoded = rename_blocks(encoded, google.BLOCK, google.BLOCK, invert(IN_BLOCK))
    encoded = rename_prefixes(encoded, {google.TOP["pos_embed"]: "pos_embedding"})
    for name, tensor in pool.items():
        layer = name.rpartition(".")[0]
        if layer in MAP_LAYERS:
            split = flax.split_heads(name, tensor, MAP_LAYERS[layer], config.trunk.num_heads)
            encoded |= {MAP_ATTENTION + part: value for part, value in split.items()}
        else:
            encoded[MAP + invert(MAP_NAMES)[name]] = flax.to_flax(tensor)
    return {f"params/{name}": tensor for name, tensor in encoded.items()}


def settings(tensors: Tensors, facts: Facts) -> dict[str, Any]:
    fixed = {} if "pos_embed" in tensors else {"pos_embed": "sincos_2d"}
    return google.common_settings(tensors, facts) | fixed


def _take_pool(tensors: Tensors) -> Tensors:
    """Takes the head of attention pooling out of ``tensors``, under our names.

    Raises:
        ValueError: if a part of it is missing, as loading would start with a new one.
    """
    if not any(name.startswith(MAP) for name in tensors):
        return {}
    pool = flax.join_heads(tensors, MAP_ATTENTION, MAP_LAYERS)
    for theirs, ours in MAP_NAMES.items():
        if MAP + theirs not in tensors:
            raise ValueError(f"{MAP}{theirs} is missing")
        pool[ours] = flax.to_flax(tensors.pop(MAP + theirs))
    return pool


def _unstacked(tensors: Tensors) -> Tensors:
    """Blocks that are stacked on a leading axis, one by one."""
    stacked = "Transformer/encoderblock/"
    apart: Tensors = {}
    for name, tensor in tensors.items():
        if name.startswith(stacked):
            inner = name.removeprefix(stacked)
            apart |= {google.BLOCK.format(n) + inner: block for n, block in enumerate(tensor)}
        else:
            apart[name] = tensor
    return apart


SET_ASIDE = {
    "params/t": "the temperature of contrastive training",
    "params/b": "the bias of contrastive training",
    "params/txt/": "the text tower",
    "params/llm/": "the language model",
    "opt/": "the optimiser's state",
}
"""Later rows win: ``params/t`` alone is the temperature. They stand beside ``params/img/``."""
SOURCE = Source("big_vision", matches, decode, encode, settings, SET_ASIDE)
