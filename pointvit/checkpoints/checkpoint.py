"""An opened checkpoint: tensors under our names, and the architecture they imply."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pointvit.checkpoints.architecture import NEEDED, POINTS, encoder_of, patch_of, trunk_of
from pointvit.checkpoints.files import CheckpointError, WeightFile, open_weights
from pointvit.checkpoints.soundness import UNSOUND, check_described, check_tensors, reason_of
from pointvit.checkpoints.sources import SOURCES, native
from pointvit.checkpoints.sources.source import Facts, Source
from pointvit.config import ViTConfig, near
from pointvit.model import Metadata
from pointvit.positions import square_grid
from pointvit.tokenizers import ImageTokenizerConfig
from pointvit.trunk import TrunkConfig

HINTS = {"activation": " (quick_gelu for OpenAI's CLIP, gelu for most of OpenCLIP's)"}
_META = {f.name for f in fields(Metadata)}


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of a file under our names (see :mod:`~.sources.source`), and what else it says."""

    path: Path
    source: Source
    tensors: dict[str, Tensor]
    settings: dict[str, Any]
    """Fields of the model's configuration that the source or the file's config.json states."""
    config: dict[str, Any] | None
    set_aside: dict[str, str]
    """Tensors of the file that no model needs -> why."""
    sha256: str
    sizes: dict[str, int] = field(default_factory=dict)
    """Numbers in each tensor that is set aside."""
    meta: dict[str, Any] = field(default_factory=dict)
    """Fields of :class:`~pointvit.model.Metadata` that the source states."""
    saved: ViTConfig | None = None
    """The model as pointvit described it when it wrote the file, in whatever layout."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], source: str = "auto") -> Checkpoint:
        """Reads a file or folder (see :func:`~pointvit.checkpoints.files.open_weights`), renames its tensors.

        Raises:
            CheckpointError: if the file cannot be read, is of no known source, or holds layers that no plain
                model has.
        """
        checkpoint = cls.from_file(open_weights(path), source)
        described = checkpoint.config if checkpoint.saved is not None else None
        transfer = (described or {}).get("meta", {}).get("transfer")
        if transfer:
            raise CheckpointError(
                f"{checkpoint.path}: holds the layers of transfer mode {transfer.get('mode')} in its "
                "trunk; to start from it, open it with pointvit.load and save it after merge_transfer"
            )
        return checkpoint

    @classmethod
    def from_file(cls, file: WeightFile, source: str = "auto") -> Checkpoint:
        """As :meth:`open`, for a file that is open."""
        chosen = _choose(file, source)
        facts = Facts(file.config or {}, {name: tuple(t.shape) for name, t in file.tensors.items()})
        try:
            described = native.description(file.config)
            saved = None if described is None else ViTConfig.from_dict(described["model"])
            _ = None if described is None else Metadata(**described["meta"])
        except UNSOUND as error:
            reason = reason_of(error)
            raise CheckpointError(f"{file.path}: its config does not describe a model ({reason})") from error
        try:
            decoded = chosen.decode(file.tensors)
            aside = {n: y for n in decoded for start, y in chosen.set_aside.items() if n.startswith(start)}
            check_tensors(decoded, aside)
            if saved is not None:
                check_described(saved, decoded)
            settings = chosen.settings(decoded, facts) if saved is None else _settings_of(saved)
        except UNSOUND as error:
            reason = reason_of(error)
            raise CheckpointError(f"{file.path}: not a sound {chosen.name} checkpoint ({reason})") from error
        return cls(
            file.path,
            chosen,
            tensors={n: t for n, t in decoded.items() if n not in aside},
            settings={name: value for name, value in settings.items() if name not in _META},
            config=described or file.config,
            set_aside=aside,
            sha256=file.sha256,
            sizes={n: decoded[n].numel() for n in aside},
            meta={name: value for name, value in settings.items() if name in _META},
            saved=saved,
        )

    @property
    def modality(self) -> str:
        return "points" if POINTS in self.tensors else "image"

    def trunk_config(self) -> TrunkConfig:
        """The trunk that the file's names, shapes and settings describe."""
        if self.saved is not None:
            return self.saved.trunk
        try:
            return trunk_of(self.tensors, self.settings)
        except UNSOUND as error:
            raise CheckpointError(f"{self.path}: {reason_of(error)}") from error

    def encoder_config(self, asked: Mapping[str, Any] | None = None) -> ViTConfig:
        """The complete encoder in the file, of images or of points.

        Args:
            asked: settings that the user states, such as those the file leaves open.

        Raises:
            CheckpointError: if the file holds no encoder, or leaves open what ``asked`` does not state.
        """
        if self.saved is not None:
            return self.saved
        try:
            layout = self.position_layout() if "pos_embed" in self.tensors else None
            said = {name: value for name, value in self.settings.items() if name != "img_size"}
            config = encoder_of(self.tensors, said, layout)
        except CheckpointError:
            raise
        except UNSOUND as error:
            raise CheckpointError(f"{self.path}: {reason_of(error)}") from error
        stated = NEEDED if asked is None else (*self.settings, *asked)
        for name in NEEDED:
            if name not in stated:
                raise self.leaves_open(name)
        return config

    def leaves_open(self, name: str) -> CheckpointError:
        """What to raise where the file does not tell a setting, and nobody else did."""
        return CheckpointError(
            f"{self.path}: the {self.source.name} layout does not say {name}, and a wrong one would load "
            f"cleanly; state {name}{HINTS.get(name, '')}"
        )

    def adapt(self, base: ViTConfig) -> ViTConfig:
        """``base`` with the settings that the file's trunk needs to compute what it was trained to compute.

        Where the file has the front end of the same modality, its settings are taken too, but for sizes that
        tensors can be resampled to.

        Raises:
            CheckpointError: if the file's trunk has another width or depth than ``base``, or another stem.
        """
        trunk = self.trunk_config()
        ours = (base.trunk.embed_dim, base.trunk.depth)
        if (trunk.embed_dim, trunk.depth) != ours:
            raise CheckpointError(
                f"{self.path}: its trunk has width {trunk.embed_dim} and {trunk.depth} blocks, the model has "
                f"width {ours[0]} and {ours[1]} blocks; choose the model of that size, or 'auto'"
            )
        unknown = set(NEEDED) - self.settings.keys() if self.saved is None else set()
        rates = {"drop_rate", "attn_drop_rate", "drop_path_rate"}
        trunk = replace(trunk, **{name: getattr(base.trunk, name) for name in unknown | rates})
        if self.modality == base.modality:
            return self._adapt_encoder(base, trunk)
        class_token = "cls_token" in self.tensors or "cls_token" in self.source.new
        pool = base.global_pool
        if not class_token and base.modality == "points":
            pool = pool.replace("cls+", "").replace("cls", "max")
        return replace(
            base,
            trunk=trunk,
            class_token=class_token,
            num_reg_tokens=self._num_reg_tokens(),
            global_pool=pool,
            fc_norm=base.fc_norm or not trunk.final_norm,  # normalised once: in the trunk or behind the pool
        )

    def _adapt_encoder(self, base: ViTConfig, trunk: TrunkConfig) -> ViTConfig:
        if self.saved is None and self.source.modality is None:  # names alone say nothing of the rest
            return replace(
                base,
                trunk=trunk,
                class_token="cls_token" in self.tensors,
                num_reg_tokens=self._num_reg_tokens(),
            )
        own, tokenizer = self.encoder_config(), base.tokenizer
        front_end = own.tokenizer
        if isinstance(front_end, ImageTokenizerConfig) and isinstance(tokenizer, ImageTokenizerConfig):
            for name in ("stem",) if front_end.stem is None else ("stem", "patch_size", "in_chans"):
                theirs, asked = getattr(front_end, name), getattr(tokenizer, name)
                if theirs != asked:
                    raise CheckpointError(
                        f"{self.path}: its patch projection has {name}={theirs}, the model asked for "
                        f"{asked}; choose the model with those patches, or 'auto'"
                    )
            front_end = replace(
                front_end,
                img_size=tokenizer.img_size,
                patch_size=tokenizer.patch_size,
                in_chans=tokenizer.in_chans,
            )
        return replace(
            own,
            trunk=trunk,
            tokenizer=front_end,
            num_classes=base.num_classes,
            head=own.head if own.num_classes in (0, base.num_classes) else base.head,
            representation_size=base.representation_size,
            head_drop_rate=base.head_drop_rate,
        )

    def position_layout(self) -> tuple[int, tuple[int, int]]:
        """How many rows of the position table stand before the patches', and the grid of the patches.

        The grid is the one that the file's config states, or else a square. The class token may have a row,
        and beside it a distillation token.

        Raises:
            CheckpointError: if the rows are not those of the stated grid, or fit no square.
        """
        rows, stated = self.tensors["pos_embed"].shape[1], self._stated_grid()
        most = 0 if "cls_token" not in self.tensors else 2 if self._num_reg_tokens() == 1 else 1
        if stated is not None:
            patches = stated[0] * stated[1]
            if not 0 <= rows - patches <= most:
                expected = f"{patches} to {patches + most}" if most else patches
                raise CheckpointError(
                    f"{self.path}: its config states images of {stated[0]} x {stated[1]} patches, its "
                    f"position table has {rows} rows, expected {expected}"
                )
            return rows - patches, stated
        prefix = 0
        for count in range(1, most + 1):
            if rows > count and math.isqrt(rows - count) ** 2 == rows - count:
                prefix = count
        try:
            return prefix, square_grid(rows - prefix, str(self.path))
        except ValueError as error:
            raise CheckpointError(str(error)) from error

    def _num_reg_tokens(self) -> int:
        return self.tensors["reg_tokens"].shape[1] if "reg_tokens" in self.tensors else 0

    def _stated_grid(self) -> tuple[int, int] | None:
        if self.saved is not None and isinstance(self.saved.tokenizer, ImageTokenizerConfig):
            return self.saved.tokenizer.grid
        if "tokenizer.proj.weight" not in self.tensors or "img_size" not in self.settings:
            return None
        (height, width), patch = self.settings["img_size"], patch_of(self.tensors)
        return height // patch[0], width // patch[1]


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


def _settings_of(config: ViTConfig) -> dict[str, Any]:
    return {name: getattr(config.trunk, name) for name in NEEDED}
