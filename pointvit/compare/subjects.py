"""Who is compared: an image and a point encoder, what tuning started from, and ones of no training."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pointvit.checkpoints import load
from pointvit.compare.drift import image_encoder_on
from pointvit.compare.record import with_random_weights
from pointvit.config import ViTConfig
from pointvit.data.transforms import swap_up_axis
from pointvit.model import Pair, ViT
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizer, PointTokenizerConfig
from pointvit.variants import create_model, create_pair

LABELS = {
    "image": "image encoder",
    "points": "point encoder",
    "image_after": "image encoder on the tuned trunk",
    "points_before": "point encoder before tuning",
    "image_random": "image encoder, random weights",
    "points_random": "point encoder, random weights",
}
KINDS = {
    "untuned": "an untuned point encoder: a new tokenizer with random weights on the image encoder's trunk",
    "pair": "the pair's own point encoder, on the trunk it shares with the image encoder",
    "tuned": "a point encoder with a trunk of its own, tuned from the image encoder's or trained otherwise",
}


@dataclass(frozen=True)
class Subjects:
    """The encoders of a comparison, by the names of :data:`LABELS`; all in eval mode on one device."""

    encoders: dict[str, ViT]
    kind: str
    """One of :data:`KINDS`."""

    @property
    def image(self) -> ViT:
        return self.encoders["image"]

    @property
    def points(self) -> ViT:
        return self.encoders["points"]

    @property
    def patches(self) -> ImageTokenizerConfig:
        """How images are cut up."""
        config = self.image.config.tokenizer
        assert isinstance(config, ImageTokenizerConfig)
        return config

    @property
    def groups(self) -> PointTokenizerConfig:
        """How clouds are grouped."""
        config = self.points.config.tokenizer
        assert isinstance(config, PointTokenizerConfig)
        return config

    def group(self, clouds: Tensor, up_axis: str) -> tuple[Tensor, Tensor, Tensor]:
        """``(B, P, C)`` of that vertical axis -> the point encoder's frame, its groups and their centres."""
        tokenizer = self.points.tokenizer
        assert isinstance(tokenizer, PointTokenizer)
        device = next(tokenizer.parameters()).device
        framed = swap_up_axis(clouds, up_axis, self.points.meta.up_axis).to(device)
        return framed, *tokenizer.group(framed)

    @property
    def is_tuned(self) -> bool:
        return self.kind == "tuned"

    def of(self, modality: str) -> dict[str, ViT]:
        """The encoders of ``image`` or ``points``."""
        return {name: each for name, each in self.encoders.items() if each.config.modality == modality}

    def to(self, device: str | torch.device) -> Subjects:
        return replace(self, encoders={name: each.to(device) for name, each in self.encoders.items()})


def find_subjects(
    image: str | os.PathLike[str],
    points: str | os.PathLike[str] | None = None,
    activation: str | None = None,
    seed: int = 0,
) -> Subjects:
    """The encoders of a saved pair, or of an image checkpoint and, where there is one, a point model.

    Args:
        image: any 2D checkpoint, or a saved image encoder or pair.
        points: a saved point encoder or pair, a training checkpoint (``.ckpt``) or a public point model,
            whose trunk has the shape of the image encoder's. None: the pair's own, or an untuned one.
        activation: of the image checkpoint, where its layout does not tell.
        seed: of new tokenizers and random weights.

    Raises:
        ValueError: for an image model in the place of a point model or the other way round, or trunks that
            differ in shape or arithmetic.
        CheckpointError, FileNotFoundError: for files that cannot be used.
    """
    found = _image_side(image, activation)
    encoder = found.image if isinstance(found, Pair) else found
    if encoder.config.modality != "image":
        raise ValueError(
            f"{image}: encodes points, and the first file must hold an image encoder or a pair; a point "
            "model comes second: pointvit compare IMAGE POINTS"
        )
    if points is None and isinstance(found, Pair):
        return _subjects(encoder, found.points, "pair", seed)
    if points is None:
        with torch.random.fork_rng(devices=[]):
            config = create_pair("auto", image, num_classes=0, **_activation(activation)).points.config
        return _subjects(encoder, on_trunk_of(encoder, config, seed), "untuned", seed)
    return _subjects(encoder, _point_side(points), "tuned", seed)


def on_trunk_of(image: ViT, config: ViTConfig, seed: int = 0) -> ViT:
    """A point encoder with a new tokenizer of random weights on the trunk and tokens of an image encoder."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        config = replace(config, trunk=image.config.trunk, num_classes=0)
        encoder = ViT(config, trunk=image.trunk)
    encoder.cls_token, encoder.reg_tokens = image.cls_token, image.reg_tokens
    return encoder.to(next(image.parameters())).eval()


def _subjects(image: ViT, points: ViT, kind: str, seed: int) -> Subjects:
    encoders = {"image": image, "points": points}
    after = image_encoder_on(image, points)  # refuses trunks that differ
    if kind == "tuned":
        encoders["image_after"] = after
        encoders["points_before"] = on_trunk_of(image, points.config, seed)
    encoders["image_random"] = _random(image, seed)
    encoders["points_random"] = on_trunk_of(encoders["image_random"], points.config, seed)
    for name in encoders.keys() & {"points_before", "points_random"}:
        encoders[name].meta = replace(points.meta, class_names=None)
    return Subjects({name: each.eval().float() for name, each in encoders.items()}, kind)


def _random(image: ViT, seed: int) -> ViT:
    """The same architecture with random weights, but LayerScale as it was trained.

    It starts at 1e-5 or so, with which every block is the identity: no control of what a network does.
    """
    encoder = with_random_weights(image, seed)
    own = encoder.trunk.state_dict()
    with torch.no_grad():
        for name, value in image.trunk.state_dict().items():
            if name.endswith((".ls1.gamma", ".ls2.gamma")):
                own[name].copy_(value)
    return encoder


def _image_side(path: str | os.PathLike[str], activation: str | None) -> ViT | Pair:
    if _is_ours(path):
        return load(path)
    return create_model("auto", pretrained=path, num_classes=0, **_activation(activation))


def _point_side(path: str | os.PathLike[str]) -> ViT:
    model = load(path) if _is_ours(path) else create_model("auto", pretrained=path, num_classes=0)
    encoder = model.points if isinstance(model, Pair) else model
    if encoder.config.modality != "points":
        raise ValueError(
            f"{path}: encodes images, and the second file must hold a point encoder or a pair; leave it out "
            "for the untuned point encoder on the image encoder's trunk"
        )
    if encoder.meta.transfer:
        from pointvit.training import merge_transfer  # here, as few models need it

        merge_transfer(encoder)
    return encoder


def _is_ours(path: str | os.PathLike[str]) -> bool:
    """Whether pointvit saved it, so that all of it is described there."""
    path = Path(path)
    if path.suffix == ".ckpt" and path.is_file():
        return True
    try:
        return "pointvit" in json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def _activation(activation: str | None) -> dict[str, Any]:
    return {} if activation is None else {"activation": activation}
