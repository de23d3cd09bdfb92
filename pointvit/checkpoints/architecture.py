"""The architecture that a checkpoint's tensors and settings imply."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from pointvit.config import ViTConfig
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

QKV, FC1, FC2 = (f"trunk.blocks.0.{n}.weight" for n in ("attn.qkv", "mlp.fc1", "mlp.fc2"))
POINTS = "tokenizer.embed.first.0.weight"
NEEDED = ("norm_eps", "activation", "num_heads")
"""Settings that a wrong value would leave loading cleanly and computing something else."""
STEM_ROOTS = ("tokenizer.backbone.stem.conv.weight", "tokenizer.backbone.conv.weight")
"""The first convolution of a hybrid stem with stages, and of one without."""
_LAST = {"linear": "head.weight", "projection": "head.weight", "distilled": "head.cls.weight",
         "point_bert": "head.3.weight",
         "point_mae": "head.8.weight", "pix4point": "head.8.weight"}  # fmt: skip
"""The last layer of each kind of head."""
_TRUNK_FIELDS = {f.name for f in fields(TrunkConfig)}


def trunk_of(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> TrunkConfig:
    """The trunk that names, shapes and settings describe; what they leave open has TrunkConfig's defaults.

    Raises:
        ValueError: if there is no complete first block, or what it describes is no trunk.
    """
    if FC1 not in tensors or FC2 not in tensors:
        raise ValueError("block 0 has no complete MLP (mlp.fc1 and mlp.fc2)")
    depth = block_count(tensors)
    width, hidden = tensors[QKV].shape[1], tensors[FC2].shape[1]
    return TrunkConfig(
        **{
            "embed_dim": width,
            "depth": depth,
            "num_heads": max(1, width // 64),
            "mlp_ratio": hidden / width,
            "qkv_bias": "trunk.blocks.0.attn.qkv.bias" in tensors,
            "norm_pre": "trunk.norm_pre.weight" in tensors,
            "final_norm": "trunk.norm.weight" in tensors or "fc_norm.weight" not in tensors,
            "swiglu": tensors[FC1].shape[0] == 2 * hidden,
            "attn_norm": "trunk.blocks.0.attn.norm.weight" in tensors,
            "mlp_norm": "trunk.blocks.0.mlp.norm.weight" in tensors,
            "layer_scale": 1e-5 if "trunk.blocks.0.ls1.gamma" in tensors else None,
            **{name: value for name, value in settings.items() if name in _TRUNK_FIELDS},
        }
    )


def block_count(names: Iterable[str]) -> int:
    """How many blocks there are.

    Raises:
        ValueError: unless they are numbered 0, 1, 2, ...
    """
    return _numbered(names, r"trunk\.blocks\.(\d+)\.", "blocks")


def _numbered(names: Iterable[str], pattern: str, what: str) -> int:
    found = {int(m[1]) for name in names if (m := re.match(pattern, name))}
    if found and max(found) != len(found) - 1:
        gap = next(i for i in range(len(found)) if i not in found)
        raise ValueError(f"it has {what} up to number {max(found)}, but none of number {gap}")
    return len(found)


def encoder_of(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], layout: tuple[int, tuple[int, int]] | None
) -> ViTConfig:
    """The complete encoder of images or points that the tensors describe.

    Args:
        layout: of an image encoder's position table, the rows that stand before the patches' and the grid.

    Raises:
        ValueError: if there is no front end among the tensors.
    """
    trunk = trunk_of(tensors, settings)
    rest = {name: value for name, value in settings.items() if name not in _TRUNK_FIELDS}
    representation = tensors.get("pre_logits.0.weight")
    registers = tensors["reg_tokens"].shape[1] if "reg_tokens" in tensors else 0
    config = ViTConfig(
        trunk=trunk,
        tokenizer=_point_tokenizer(tensors) if POINTS in tensors else _image_tokenizer(tensors, layout),
        num_classes=0,
        class_token="cls_token" in tensors,
        num_reg_tokens=registers,
        global_pool=_global_pool(tensors),
        fc_norm="fc_norm.weight" in tensors,
        representation_size=None if representation is None else representation.shape[0],
        head=_head(tensors),
    ).override(rest)
    last = tensors.get(_LAST[config.head])
    return config if last is None else config.override({"num_classes": last.shape[0]})


def _head(tensors: Mapping[str, Tensor]) -> str:
    if "head.cls.weight" in tensors:
        return "distilled"
    return "projection" if "head.weight" in tensors and "head.bias" not in tensors else "linear"


def _global_pool(tensors: Mapping[str, Tensor]) -> str:
    if "pool.attn_pool.latent" in tensors:
        return "map"
    if "cls_token" not in tensors or "fc_norm.weight" in tensors:
        return "mean"
    return "cls+dist" if "head.dist.weight" in tensors else "cls"


def _point_tokenizer(tensors: Mapping[str, Tensor]) -> PointTokenizerConfig:
    return PointTokenizerConfig(
        in_chans=tensors[POINTS].shape[1],
        width=tensors["tokenizer.embed.first.3.weight"].shape[0],
        token_dim=(
            tensors["tokenizer.reduce.weight"].shape[1] if "tokenizer.reduce.weight" in tensors else None
        ),
    )


def patch_of(tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """(h, w) in pixels of what becomes a token: the kernel's size times the stride of a stem before it."""
    stem, kernel = stem_of(tensors), tensors["tokenizer.proj.weight"]
    stride = 1 if stem is None else 4 * 2 ** max(0, len(stem) - 1)
    return kernel.shape[2] * stride, kernel.shape[3] * stride


def _image_tokenizer(
    tensors: Mapping[str, Tensor], layout: tuple[int, tuple[int, int]] | None
) -> ImageTokenizerConfig:
    kernel = tensors.get("tokenizer.proj.weight")
    if kernel is None:
        raise ValueError("holds no patch projection, so it is no image encoder")
    stem, patch = stem_of(tensors), patch_of(tensors)
    prefix, grid = (0, (224 // patch[0], 224 // patch[1])) if layout is None else layout
    root = next((tensors[name] for name in STEM_ROOTS if name in tensors), kernel)
    return ImageTokenizerConfig(
        img_size=(grid[0] * patch[0], grid[1] * patch[1]),
        patch_size=patch,
        in_chans=root.shape[1],
        pos_embed="none" if layout is None else "learned",
        cls_pos=prefix > 0,
        dist_pos=prefix > 1,
        patch_bias="tokenizer.proj.bias" in tensors,
        stem=stem,
    )


def stem_of(tensors: Mapping[str, Tensor]) -> tuple[int, ...] | None:
    """Blocks per stage of a hybrid's stem, or None if there is no stem.

    Raises:
        ValueError: unless stages and blocks are numbered 0, 1, 2, ...
    """
    if not any(name in tensors for name in STEM_ROOTS):
        return None
    stages = "tokenizer.backbone.stages."
    count = _numbered(tensors, re.escape(stages) + r"(\d+)\.", "stages of its stem")
    return tuple(
        _numbered(tensors, re.escape(f"{stages}{stage}.blocks.") + r"(\d+)\.", f"blocks of stage {stage}")
        for stage in range(count)
    )
