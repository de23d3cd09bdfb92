"""An opened checkpoint: tensors under our names, and the architecture they imply."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pointvit.checkpoints import google, huggingface, native, timm
from pointvit.checkpoints.files import CheckpointError, WeightFile, open_weights
from pointvit.checkpoints.source import Source, heads_of
from pointvit.config import ViTConfig, near
from pointvit.positions import resample_grid, square_grid
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

SOURCES: dict[str, Source] = {s.SOURCE.name: s.SOURCE for s in (native, google, huggingface, timm)}
_QKV, _FC1 = "trunk.blocks.0.attn.qkv.weight", "trunk.blocks.0.mlp.fc1.weight"
RANKS = {_QKV: 2, _FC1: 2, "pos_embed": 3, "tokenizer.proj.weight": 4, "reg_tokens": 3, "head.weight": 2,
         "pre_logits.0.weight": 2}  # fmt: skip
_STEM_ROOTS = ("tokenizer.backbone.stem.conv.weight", "tokenizer.backbone.conv.weight")
"""The first convolution of a hybrid stem with stages, and of one without."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of a file under the names of :mod:`pointvit.checkpoints.source`, and what else it says."""

    path: Path
    source: Source
    tensors: dict[str, Tensor]
    settings: dict[str, Any]
    config: dict[str, Any] | None
    set_aside: dict[str, str]
    """Tensors of the file that no model needs -> why."""
    sha256: str
    saved: ViTConfig | None = None
    """The model as pointvit described it when it wrote the file, in whatever layout."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], source: str = "auto") -> Checkpoint:
        """Reads a file or folder (see :func:`~pointvit.checkpoints.files.open_weights`), renames its tensors.

        Raises:
            CheckpointError: if the file cannot be read, or is of no known source.
        """
        file = open_weights(Path(path))
        chosen = _choose(file, source)
        try:
            described = native.description(file.config)
            saved = None if described is None else ViTConfig.from_dict(described["model"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{file.path}: its config does not describe a model ({error})") from error
        try:
            decoded = chosen.decode(file.tensors)
            _check_ranks(decoded)
            settings = _settings(chosen, file, decoded) if saved is None else _settings_of(saved)
        except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: shapes, from einops and torch
            reason = str(error).strip().splitlines()[0]
            raise CheckpointError(f"{file.path}: not a sound {chosen.name} checkpoint ({reason})") from error
        aside = {n: why for n in decoded for start, why in chosen.set_aside.items() if n.startswith(start)}
        tensors = {n: t for n, t in decoded.items() if n not in aside}
        return cls(file.path, chosen, tensors, settings, described or file.config, aside, file.sha256, saved)

    def trunk_config(self) -> TrunkConfig:
        """The trunk that the file's names, shapes and settings describe."""
        if self.saved is not None:
            return self.saved.trunk
        blocks = [int(m[1]) for name in self.tensors if (m := re.match(r"trunk\.blocks\.(\d+)\.", name))]
        width = self.tensors[_QKV].shape[1]
        hidden = self.tensors.get(_FC1)
        if hidden is None:
            raise CheckpointError(
                f"{self.path}: block 0 has no plain two-layer MLP (mlp.fc1), which is needed"
            )
        try:
            return TrunkConfig(
                embed_dim=width,
                depth=max(blocks) + 1,
                mlp_ratio=hidden.shape[0] / width,
                qkv_bias="trunk.blocks.0.attn.qkv.bias" in self.tensors,
                norm_pre="trunk.norm_pre.weight" in self.tensors,
                final_norm="trunk.norm.weight" in self.tensors or "fc_norm.weight" not in self.tensors,
                layer_scale=1e-5 if "trunk.blocks.0.ls1.gamma" in self.tensors else None,
                **{"num_heads": heads_of(width), **self.settings},
            )
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {error}") from error

    def image_config(self) -> ViTConfig:
        """The complete encoder in the file: of images, or of points where pointvit saved one.

        Raises:
            CheckpointError: if the file holds no encoder.
        """
        if self.saved is not None:
            return self.saved
        tensors = self.tensors
        if "tokenizer.proj.weight" not in tensors:
            raise CheckpointError(f"{self.path}: holds no patch projection, so it is no image encoder")
        trunk, representation = self.trunk_config(), tensors.get("pre_logits.0.weight")
        features = trunk.embed_dim if representation is None else representation.shape[0]
        head = tensors.get("head.weight")
        fits = head is not None and head.shape[1] == features  # DINOv2's classifier sees two pooled vectors
        return ViTConfig(
            trunk=trunk,
            tokenizer=self._image_tokenizer(),
            num_classes=head.shape[0] if head is not None and fits else 0,
            class_token="cls_token" in tensors,
            num_reg_tokens=self._num_reg_tokens(),
            global_pool=self._global_pool(),
            fc_norm="fc_norm.weight" in tensors,
            representation_size=None if representation is None else representation.shape[0],
        )

    def adapt(self, base: ViTConfig) -> ViTConfig:
        """``base`` with the settings that the file's trunk needs to compute what it was trained to compute.

        Where the file has the front end of the same modality, its settings are taken too.

        Raises:
            CheckpointError: if the file's trunk has another width or depth than ``base``, or other patches.
        """
        trunk = self.trunk_config()
        ours = (base.trunk.embed_dim, base.trunk.depth)
        if (trunk.embed_dim, trunk.depth) != ours:
            raise CheckpointError(
                f"{self.path}: its trunk has width {trunk.embed_dim} and {trunk.depth} blocks, the model has "
                f"width {ours[0]} and {ours[1]} blocks; choose the model of that size, or 'auto'"
            )
        unknown = {"norm_eps", "activation", "num_heads"} - self.settings.keys()
        rates = {"drop_rate", "attn_drop_rate", "drop_path_rate"}
        trunk = replace(trunk, **{name: getattr(base.trunk, name) for name in unknown | rates})
        if self.saved is not None and self.saved.modality == base.modality == "points":
            return replace(self.saved, trunk=trunk, num_classes=base.num_classes)
        adapted = replace(
            base, trunk=trunk, class_token="cls_token" in self.tensors, num_reg_tokens=self._num_reg_tokens()
        )
        if base.modality == "points":
            pool = base.global_pool
            if not adapted.class_token:
                pool = pool.replace("cls+", "").replace("cls", "max")
            return replace(adapted, global_pool=pool, fc_norm=base.fc_norm or not trunk.final_norm)
        own = self.image_config()
        patches, wanted = own.tokenizer, base.tokenizer
        if not isinstance(patches, ImageTokenizerConfig) or not isinstance(wanted, ImageTokenizerConfig):
            return adapted
        for name in ("patch_size", "in_chans", "stem"):
            if getattr(patches, name) != getattr(wanted, name):
                raise CheckpointError(
                    f"{self.path}: its patch projection has {name}={getattr(patches, name)}, the model asked "
                    f"for {getattr(wanted, name)}; choose the model with those patches, or 'auto'"
                )
        return replace(
            adapted,
            tokenizer=replace(patches, img_size=wanted.img_size),
            global_pool=own.global_pool,
            fc_norm=own.fc_norm,
            pos_mode=own.pos_mode,
        )

    def position_layout(self) -> tuple[bool, tuple[int, int]]:
        """Whether the position table has a row for the class token, and the grid of the other rows.

        The grid is the one that the file's config states, or else a square.

        Raises:
            CheckpointError: if the rows fit no square grid.
        """
        rows = self.tensors["pos_embed"].shape[1]
        stated = self._stated_grid()
        if stated is not None and rows - stated[0] * stated[1] in (0, 1):
            return rows > stated[0] * stated[1], stated
        with_cls = "cls_token" in self.tensors and rows > 1 and math.isqrt(rows - 1) ** 2 == rows - 1
        try:
            return with_cls, square_grid(rows - with_cls, str(self.path))
        except ValueError as error:
            raise CheckpointError(str(error)) from error

    def _stated_grid(self) -> tuple[int, int] | None:
        if self.saved is not None and isinstance(self.saved.tokenizer, ImageTokenizerConfig):
            return self.saved.tokenizer.grid
        return huggingface.stated_grid(self.config) if self.source is huggingface.SOURCE else None

    def _num_reg_tokens(self) -> int:
        return self.tensors["reg_tokens"].shape[1] if "reg_tokens" in self.tensors else 0

    def _image_tokenizer(self) -> ImageTokenizerConfig:
        kernel = self.tensors["tokenizer.proj.weight"]
        stem = self._stem()
        stride = 1 if stem is None else 4 * 2 ** max(0, len(stem) - 1)
        patch = (kernel.shape[2] * stride, kernel.shape[3] * stride)
        with_cls, grid = False, (224 // patch[0], 224 // patch[1])
        if "pos_embed" in self.tensors:
            with_cls, grid = self.position_layout()
        root = next((self.tensors[name] for name in _STEM_ROOTS if name in self.tensors), kernel)
        return ImageTokenizerConfig(
            img_size=(grid[0] * patch[0], grid[1] * patch[1]),
            patch_size=patch,
            in_chans=root.shape[1],
            pos_embed="learned" if "pos_embed" in self.tensors else "none",
            cls_pos=with_cls,
            patch_bias="tokenizer.proj.bias" in self.tensors,
            stem=stem,
        )

    def _stem(self) -> tuple[int, ...] | None:
        if not any(name in self.tensors for name in _STEM_ROOTS):
            return None
        pattern = re.compile(r"tokenizer\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")
        units = {(int(m[1]), int(m[2])) for name in self.tensors if (m := pattern.match(name))}
        stages = max((stage for stage, _ in units), default=-1) + 1
        return tuple(sum(stage == s for stage, _ in units) for s in range(stages))

    def _global_pool(self) -> str:
        if "pool.attn_pool.latent" in self.tensors:
            return "map"
        return "cls" if "cls_token" in self.tensors and "fc_norm.weight" not in self.tensors else "mean"


def _choose(file: WeightFile, name: str) -> Source:
    if name not in ("auto", *SOURCES):
        raise CheckpointError(f"unknown checkpoint source {name!r}; {near(name, SOURCES)}")
    fitting = [source for source in SOURCES.values() if source.matches(file.tensors.keys())]
    chosen = next((source for source in fitting if name in ("auto", source.name)), None)
    if chosen is None:
        wanted = f"a ViT checkpoint ({', '.join(SOURCES)})" if name == "auto" else f"a {name} checkpoint"
        layout = f"the layout of {fitting[0].name}" if fitting else "no known layout"
        shown = ", ".join(list(file.tensors)[:4])
        raise CheckpointError(
            f"{file.path}: expected {wanted}, found {len(file.tensors)} tensors of {layout} ({shown}, ...)"
        )
    return chosen


def _settings(source: Source, file: WeightFile, decoded: dict[str, Tensor]) -> dict[str, Any]:
    settings = source.settings(decoded, file.config)
    return {**settings, "num_heads": google.num_heads(file.tensors)} if source is google.SOURCE else settings


def _settings_of(config: ViTConfig) -> dict[str, Any]:
    return {name: getattr(config.trunk, name) for name in ("norm_eps", "activation", "num_heads")}


def _check_ranks(tensors: dict[str, Tensor]) -> None:
    """Of the tensors whose shapes are read before they are compared with the model's."""
    if _QKV not in tensors:
        raise ValueError("the attention of its first block is incomplete")
    for name, rank in RANKS.items():
        if name in tensors and tensors[name].ndim != rank:
            shape = tuple(tensors[name].shape)
            raise ValueError(f"{name} should have {rank} dimensions, its shape is {shape}")


def resampled_positions(checkpoint: Checkpoint, grid: tuple[int, int]) -> tuple[Tensor | None, Tensor, bool]:
    """The class token's position (or None), the patches' on ``grid``, and whether those were resampled."""
    with_cls, old = checkpoint.position_layout()
    table = checkpoint.tensors["pos_embed"]
    patches = table[:, int(with_cls) :]
    if old != grid:
        patches = resample_grid(patches.float(), old, grid)
    return (table[:, :1] if with_cls else None), patches, old != grid
