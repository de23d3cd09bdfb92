"""The complete description of a model as data: checked, overridden by name, and saved as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

POSITION_MODES = ("once", "every_block")
# Mean and standard deviation of the colours that published weights were trained on.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
UNIT = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
PAIRS = ("img_size", "patch_size", "pos_grid")
"""Settings that are (height, width), or rows and columns, and may be given as one number for both."""


@dataclass(frozen=True)
class ViTConfig:
    """Tokenizer, trunk, pool and head of one encoder."""

    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    tokenizer: ImageTokenizerConfig | PointTokenizerConfig = field(default_factory=ImageTokenizerConfig)
    num_classes: int = 1000
    """0 for no head."""
    class_token: bool = True
    num_reg_tokens: int = 0
    """Register tokens (Darcet et al. 2024), behind the class token, without positions."""
    pos_mode: str = "once"
    """Where positions are added: ``once`` (ViT, Uni3D) or at ``every_block`` (Point-BERT, Point-MAE)."""
    global_pool: str = "cls"
    fc_norm: bool = False
    """A LayerNorm behind the pool (with ``final_norm=False`` it replaces the trunk's)."""
    representation_size: int | None = None
    """Width of the tanh layer before the head (the pre-training head of the paper's section 3.1), or None."""
    head: str = "linear"
    head_drop_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.pos_mode not in POSITION_MODES:
            raise ValueError(f"pos_mode must be one of {', '.join(POSITION_MODES)}, got {self.pos_mode!r}")
        if self.num_classes < 0 or self.num_reg_tokens < 0:
            raise ValueError("num_classes and num_reg_tokens must not be negative")
        if self.representation_size is not None and self.representation_size < 1:
            raise ValueError(f"representation_size must be at least 1, got {self.representation_size}")

    @property
    def modality(self) -> str:
        """``image`` or ``points``."""
        return "points" if isinstance(self.tokenizer, PointTokenizerConfig) else "image"

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.class_token) + self.num_reg_tokens

    def override(self, settings: Mapping[str, Any]) -> ViTConfig:
        """The same model with settings changed by name, wherever they live (``num_groups``, ``norm_eps``).

        Raises:
            ValueError: for a name that no part of this model has (near matches are listed), or a value of
                another kind than the setting's.
        """
        parts: dict[str, dict[str, Any]] = {"trunk": {}, "tokenizer": {}, "": {}}
        owners = {"trunk": self.trunk, "tokenizer": self.tokenizer, "": self}
        for name, value in settings.items():
            for part, owner in owners.items():
                if name not in owners and name in (f.name for f in fields(owner)):
                    parts[part][name] = _as_declared(type(owner), name, value)
                    break
            else:
                known = [f.name for owner in owners.values() for f in fields(owner) if f.name not in owners]
                raise ValueError(
                    f"unknown model setting {name!r} for an encoder of {self.modality}; {near(name, known)}"
                )
        trunk, tokenizer = (
            replace(self.trunk, **parts["trunk"]),
            replace(self.tokenizer, **parts["tokenizer"]),
        )
        return replace(self, trunk=trunk, tokenizer=tokenizer, **parts[""])

    def to_dict(self) -> dict[str, Any]:
        return {"modality": self.modality, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ViTConfig:
        """The inverse of :meth:`to_dict`, also after a round trip through JSON.

        Raises:
            ValueError: naming a key that this version does not know.
        """
        data = dict(data)
        kinds = {"image": ImageTokenizerConfig, "points": PointTokenizerConfig}
        modality = data.pop("modality", None)
        if modality not in kinds:
            raise ValueError(f"modality must be image or points, got {modality!r}")
        tokenizer = _build(kinds[modality], data.pop("tokenizer", {}))
        return _build(
            cls, {**data, "trunk": _build(TrunkConfig, data.pop("trunk", {})), "tokenizer": tokenizer}
        )


def near(name: str, known: Iterable[str]) -> str:
    """A clause naming what ``name`` may have meant."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else f"known are {', '.join(known)}"


def _build(kind: type, data: Mapping[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    for name in data:
        if name not in known:
            raise ValueError(f"unknown key {name!r} in a saved {kind.__name__}; {near(name, known)}")
    return kind(**{name: _as_declared(kind, name, value) for name, value in data.items()})


def _as_declared(owner: type, name: str, value: Any) -> Any:
    """``value`` as the type that the field declares: numpy's numbers become plain ones, lists tuples.

    Raises:
        ValueError: if it is of another kind, such as text for a number.
    """
    declared = get_type_hints(owner)[name]
    options = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    kinds = tuple(get_origin(option) or option for option in options)
    converted = value
    if name in PAIRS and isinstance(value, Integral):
        converted = (int(value), int(value))
    elif tuple in kinds and isinstance(value, (list, tuple)):
        whole = all(isinstance(n, Integral) for n in value)
        converted = tuple(map(int, value)) if whole else list(value)  # a list fits nowhere
    elif not isinstance(value, bool):
        if int in kinds and isinstance(value, Integral):
            converted = int(value)
        elif float in kinds and isinstance(value, Real):
            converted = float(value)
    fits = isinstance(converted, kinds) and isinstance(converted, bool) == (bool in kinds)
    if not fits or (name in PAIRS and len(converted) != 2):
        expected = getattr(declared, "__name__", declared) if declared in kinds else declared
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return converted
