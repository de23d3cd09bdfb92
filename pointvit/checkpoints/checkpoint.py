"""An opened checkpoint: tensors under our names, and the architecture they imply."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pointvit.checkpoints import google, huggingface, native, timm
from pointvit.checkpoints.files import CheckpointError, WeightFile, open_weights
from pointvit.checkpoints.source import Source
from pointvit.config import ViTConfig, near
from pointvit.positions import resample_grid, square_grid
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

SOURCES: dict[str, Source] = {s.SOURCE.name: s.SOURCE for s in (native, google, huggingface, timm)}
_QKV = "trunk.blocks.0.attn.qkv.weight"


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of a file under the names of :mod:`pointvit.checkpoints.source`, and what else the file says."""

    path: Path
    source: Source
    tensors: dict[str, Tensor]
    settings: dict[str, Any]
    config: dict[str, Any] | None
    set_aside: dict[str, str]
    """Names in the file that no model needs -> why."""
    sha256: str

    @classmethod
    def open(cls, path: str | os.PathLike[str], source: str = "auto") -> Checkpoint:
        """Reads a file or folder (see :func:`pointvit.checkpoints.files.open_weights`) and renames its tensors.

        Raises:
            CheckpointError: if the file cannot be read, or is of no known source.
        """
        file = open_weights(Path(path))
        chosen = _choose(file, source)
        reasons = {n: r for n in file.tensors for start, r in chosen.set_aside.items() if n.startswith(start)}
        tensors = chosen.decode({n: t for n, t in file.tensors.items() if n not in reasons})
        if _QKV not in tensors:
            raise CheckpointError(f"{file.path}: looks like a {chosen.name} checkpoint, but its first block is incomplete")
        settings = chosen.settings(tensors, file.config)
        if chosen is google.SOURCE:
            settings["num_heads"] = google.num_heads(file.tensors)
        return cls(file.path, chosen, tensors, settings, file.config, reasons, file.sha256)

    def trunk_config(self) -> TrunkConfig:
        """The trunk that the file's names, shapes and settings describe."""
        blocks = [int(m[1]) for name in self.tensors if (m := re.match(r"trunk\.blocks\.(\d+)\.", name))]
        width = self.tensors[_QKV].shape[1]
        hidden = self.tensors.get("trunk.blocks.0.mlp.fc1.weight")
        if hidden is None:
            raise CheckpointError(f"{self.path}: block 0 has no plain two-layer MLP (mlp.fc1), which this trunk needs")
        return TrunkConfig(
            embed_dim=width,
            depth=max(blocks) + 1,
            mlp_ratio=hidden.shape[0] / width,
            qkv_bias="trunk.blocks.0.attn.qkv.bias" in self.tensors,
            norm_pre="trunk.norm_pre.weight" in self.tensors,
            final_norm="trunk.norm.weight" in self.tensors,
            layer_scale=1e-5 if "trunk.blocks.0.ls1.gamma" in self.tensors else None,
            **self.settings,
        )

    def image_config(self) -> ViTConfig:
        """The complete image encoder in the file.

        Raises:
            CheckpointError: if the file holds no image encoder.
        """
        saved = (self.config or {}).get("model")
        if self.source is native.SOURCE and saved:
            return ViTConfig.from_dict(saved)
        tensors = self.tensors
        if "tokenizer.proj.weight" not in tensors:
            raise CheckpointError(f"{self.path}: holds no patch projection, so it is no image encoder")
        representation, head = tensors.get("pre_logits.0.weight"), tensors.get("head.weight")
        return ViTConfig(
            trunk=self.trunk_config(),
            tokenizer=self._image_tokenizer(),
            num_classes=0 if head is None else head.shape[0],
            class_token="cls_token" in tensors,
            num_reg_tokens=tensors["reg_tokens"].shape[1] if "reg_tokens" in tensors else 0,
            global_pool=self._global_pool(),
            fc_norm="fc_norm.weight" in tensors,
            representation_size=None if representation is None else representation.shape[0],
        )

    def adapt(self, base: ViTConfig) -> ViTConfig:
        """``base`` with the settings that the file's trunk needs to compute what it was trained to compute.

        Raises:
            CheckpointError: if the file's trunk has another width, depth or number of heads than ``base``.
        """
        trunk = self.trunk_config()
        ours = (base.trunk.embed_dim, base.trunk.depth)
        if (trunk.embed_dim, trunk.depth) != ours:
            raise CheckpointError(
                f"{self.path}: its trunk has width {trunk.embed_dim} and {trunk.depth} blocks, the model asked for has "
                f"width {ours[0]} and {ours[1]}; choose the model of that size, or 'auto' for the one in the file"
            )
        rates = {n: getattr(base.trunk, n) for n in ("drop_rate", "attn_drop_rate", "drop_path_rate")}
        class_token = "cls_token" in self.tensors
        adapted = replace(
            base,
            trunk=replace(trunk, **rates),
            class_token=class_token,
            num_reg_tokens=self.tensors["reg_tokens"].shape[1] if "reg_tokens" in self.tensors else 0,
        )
        if base.modality == "points":
            pool = base.global_pool if class_token else base.global_pool.replace("cls+", "").replace("cls", "max")
            return replace(adapted, global_pool=pool)
        own = self._image_tokenizer()
        wanted = base.tokenizer
        if (own.patch_size, own.in_chans, own.stem) != (wanted.patch_size, wanted.in_chans, wanted.stem):
            raise CheckpointError(
                f"{self.path}: its patch projection takes {own.in_chans} channels in patches of {own.patch_size} with "
                f"stem {own.stem}, the model asked for {wanted.in_chans} channels, {wanted.patch_size} and {wanted.stem}"
            )
        return replace(
            adapted,
            tokenizer=replace(wanted, pos_embed=own.pos_embed, cls_pos=own.cls_pos, patch_bias=own.patch_bias),
            global_pool=self._global_pool(),
            fc_norm="fc_norm.weight" in self.tensors,
        )

    def position_layout(self) -> tuple[bool, tuple[int, int]]:
        """Whether the position table has a row for the class token, and the grid of the other rows.

        Raises:
            CheckpointError: if the rows fit no square grid.
        """
        rows = self.tensors["pos_embed"].shape[1]
        saved = (self.config or {}).get("model")
        if self.source is native.SOURCE and saved:
            grid = ViTConfig.from_dict(saved).tokenizer.grid  # type: ignore[union-attr]
            return rows > grid[0] * grid[1], grid
        with_cls = "cls_token" in self.tensors and int((rows - 1) ** 0.5 + 0.5) ** 2 == rows - 1
        try:
            return with_cls, square_grid(rows - with_cls, str(self.path))
        except ValueError as error:
            raise CheckpointError(str(error)) from error

    def _image_tokenizer(self) -> ImageTokenizerConfig:
        kernel = self.tensors["tokenizer.proj.weight"]
        stem = self._stem()
        stride = 1 if stem is None else 4 * 2 ** max(0, len(stem) - 1)
        patch = (kernel.shape[2] * stride, kernel.shape[3] * stride)
        with_cls, grid = self.position_layout() if "pos_embed" in self.tensors else (False, (224 // patch[0],) * 2)
        root = self.tensors.get("tokenizer.backbone.stem.conv.weight", kernel)
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
        if "tokenizer.backbone.stem.conv.weight" not in self.tensors:
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
    if name != "auto":
        if name not in SOURCES:
            raise CheckpointError(f"unknown checkpoint source {name!r}; {near(name, SOURCES)}")
        return SOURCES[name]
    for source in SOURCES.values():
        if source.matches(file.tensors.keys()):
            return source
    shown = ", ".join(list(file.tensors)[:4])
    raise CheckpointError(
        f"{file.path}: expected a ViT checkpoint ({', '.join(SOURCES)}), found {len(file.tensors)} tensors of no known "
        f"layout ({shown}, ...)"
    )


def resampled_positions(checkpoint: Checkpoint, grid: tuple[int, int]) -> tuple[Tensor | None, Tensor, bool]:
    """The class token's position (or None), the patches' positions on ``grid``, and whether they were resampled."""
    with_cls, old = checkpoint.position_layout()
    table = checkpoint.tensors["pos_embed"]
    patches = resample_grid(table[:, int(with_cls) :], old, grid)
    return (table[:, :1] if with_cls else None), patches, old != grid
