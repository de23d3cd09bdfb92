"""ViT = tokenizer + trunk + pool + head, for images and for points."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pointvit.config import ViTConfig
from pointvit.pooling import Pool, make_head
from pointvit.tokenizers import ImageTokenizer, ImageTokenizerConfig, PointTokenizer, Tokens
from pointvit.trunk import Trunk

UP_AXES = ("y", "z")
NORMALIZATIONS = ("unit_sphere", "none")


@dataclass
class Metadata:
    """What travels with the weights so that predicting needs nothing else."""

    class_names: list[str] | None = None
    num_points: int | None = None
    """Points per cloud in training; predicting samples as many."""
    up_axis: str = "z"
    normalization: str = "unit_sphere"
    """``unit_sphere`` (centre, radius 1) or ``none``, for points."""
    image_mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    image_std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    source: dict[str, str] = field(default_factory=dict)
    """``file``, ``sha256`` and ``format`` of the checkpoint behind the trunk; empty if from scratch."""
    transfer: dict[str, Any] = field(default_factory=dict)
    """``mode`` and options of layers that ``training.apply_transfer`` added to the trunk; empty for none."""

    def __post_init__(self) -> None:
        if not isinstance(self.transfer, dict):
            raise ValueError(f"transfer must be a mode and its options, by name, got {self.transfer!r}")
        names = self.class_names
        if not (names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names))):
            raise ValueError(f"class_names must be a list of names, or None, got {names!r}")
        if self.num_points is not None and not (isinstance(self.num_points, int) and self.num_points > 0):
            raise ValueError(f"num_points must be a number of at least 1, or None, got {self.num_points!r}")
        if self.up_axis not in UP_AXES or self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"up_axis must be y or z and normalization unit_sphere or none, got {self.up_axis!r} and "
                f"{self.normalization!r}"
            )


Model = TypeVar("Model", bound="Shareable")


class Shareable:
    """Saving, loading and sharing a model under the names that the Hugging Face Hub's libraries use.

    These are :func:`pointvit.save` and :func:`pointvit.load`. The Hub's own ``PyTorchModelHubMixin`` writes
    down what a constructor is called with, and calls it again: here a model is also what stands in ``meta``,
    a head may have been exchanged since, and a pair's constructor takes models.
    """

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """As :func:`pointvit.save`."""
        from pointvit.checkpoints import save

        assert isinstance(self, ViT | Pair)
        return save(self, folder)

    @classmethod
    def from_pretrained(cls: type[Model], source: str | os.PathLike[str]) -> Model:
        """As :func:`pointvit.load`: a folder, a training checkpoint, or ``owner/name`` on the Hub.

        Raises:
            ValueError: if there is a pair where one encoder is expected, or the other way round.
        """
        from pointvit.checkpoints import load

        model = load(source)
        if not isinstance(model, cls):
            found = type(model).__name__
            raise ValueError(
                f"{source}: expected a {cls.__name__}, found a {found}; use {found}.from_pretrained"
            )
        return model

    def push_to_hub(
        self,
        name: str,
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str = "Upload a pointvit model",
    ) -> str:
        """Uploads what :func:`pointvit.save` writes, with a model card; returns the commit's URL.

        See :func:`pointvit.checkpoints.hub_client.push`.
        """
        from pointvit.checkpoints.hub_client import push

        assert isinstance(self, ViT | Pair)
        return push(self, name, private, token, commit_message)


class ViT(nn.Module, Shareable):
    """``(B, C, H, W)`` or ``(B, P, C) -> (B, num_classes)``.

    Top to bottom like figure 1 of the ViT paper (arXiv:2010.11929): tokenizer, class token, positions,
    encoder, pool, head.
    """

    def __init__(self, config: ViTConfig, trunk: Trunk | None = None) -> None:
        """``trunk``: an existing trunk to share instead of a new one."""
        super().__init__()
        self.meta = Metadata()
        dim = config.trunk.embed_dim
        self.tokenizer: ImageTokenizer | PointTokenizer
        if isinstance(config.tokenizer, ImageTokenizerConfig):
            self.tokenizer = ImageTokenizer(config.tokenizer, dim, dim // config.trunk.num_heads)
        else:
            self.tokenizer = PointTokenizer(config.tokenizer, dim)
        self.cls_token = _prefix_parameter(1, dim) if config.class_token else None
        if self.cls_token is None:
            self.tokenizer.cls_pos = None
        self.reg_tokens = _prefix_parameter(config.num_reg_tokens, dim) if config.num_reg_tokens else None
        if self.reg_tokens is None:
            self.tokenizer.dist_pos = None
        self.pos_drop = nn.Dropout(config.trunk.drop_rate)
        self.trunk = Trunk(config.trunk) if trunk is None else trunk
        self._build_head(config)

    def _build_head(self, config: ViTConfig) -> None:
        self.pool = Pool(config.global_pool, config.trunk, config.num_prefix_tokens, config.class_token)
        features = self.pool.features
        self.fc_norm = nn.LayerNorm(features, eps=config.trunk.norm_eps) if config.fc_norm else nn.Identity()
        size = config.representation_size
        self.pre_logits = (
            nn.Identity() if size is None else nn.Sequential(nn.Linear(features, size), nn.Tanh())
        )
        self.head_drop = nn.Dropout(config.head_drop_rate)
        self.head = make_head(config.head, size or features, config.num_classes)
        for module in (*self.pre_logits.modules(), *self.head.modules()):
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.config = config

    @property
    def embed_dim(self) -> int:
        return self.config.trunk.embed_dim

    @property
    def num_classes(self) -> int:
        return self.config.num_classes

    @property
    def num_prefix_tokens(self) -> int:
        """Class and register tokens, which stand before the patches."""
        return self.config.num_prefix_tokens

    def train(self, mode: bool = True) -> ViT:
        """As torch's, but a batch norm with frozen parameters stays in eval mode, and so its statistics."""
        super().train(mode)
        for norm in self.modules():
            if isinstance(norm, nn.BatchNorm1d | nn.SyncBatchNorm) and norm.affine:
                norm.train(mode and norm.weight.requires_grad)
        return self

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``(B, C, H, W) | (B, P, C) -> (B, num_classes)``; ``lengths`` (B,) marks padded clouds."""
        return self.forward_head(self.forward_features(x, lengths))

    def forward_features(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """``(B, C, H, W) | (B, P, C) -> (B, prefix + N, D)``: tokens after the final norm (z_L of eq. 3)."""
        return self.forward_tokens(self.tokenizer(x, lengths))

    def forward_tokens(self, tokens: Tokens) -> Tensor:
        """``Tokens -> (B, prefix + N, D)``: the rest of :meth:`forward_features`, behind the tokenizer."""
        return self.trunk(*self._sequence(tokens))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """``(B, T, D) -> (B, num_classes)``, or with ``pre_logits`` the representation y of eq. 4."""
        x = self.head_drop(self.pre_logits(self.fc_norm(self.pool(x))))
        return x if pre_logits else self.head(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Sequence[int] | None = None,
        norm: bool = False,
        lengths: Tensor | None = None,
    ) -> list[Tensor]:
        """``(B, ...) -> [(B, prefix + N, D), ...]``: outputs of the blocks ``indices``, all by default."""
        return self.trunk.forward_intermediates(*self._embed(x, lengths), indices, norm)

    def attention_weights(self, x: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """``(B, ...) -> [(B, H, T, T)] * L``: softmax attention of every block."""
        return self.trunk.attention_weights(*self._embed(x, lengths))

    def forward_layers(self, tokens: Tokens, weights: bool = False) -> Iterator[tuple[Tensor, Tensor | None]]:
        """``Tokens -> L + 1 times (B, prefix + N, D), (B, H, T, T)``: see :meth:`Trunk.forward_layers`."""
        return self.trunk.forward_layers(*self._sequence(tokens), weights=weights)

    def _embed(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """``(B, ...) -> (B, prefix + N, D)`` tokens, then positions for every block and rotary ones."""
        return self._sequence(self.tokenizer(x, lengths))

    def _sequence(self, tokens: Tokens) -> tuple[Tensor, Tensor | None, Tensor | None]:
        prefix = [p for p in (self.cls_token, self.reg_tokens) if p is not None]
        x = torch.cat([*(p.expand(tokens.x.shape[0], -1, -1) for p in prefix), tokens.x], dim=1)  # eq. 1
        if tokens.pos is None:
            return self.pos_drop(x), None, tokens.rope
        pos = torch.cat([self._prefix_positions(tokens.pos), tokens.pos], dim=1)
        if self.config.pos_mode == "every_block":
            return self.pos_drop(x), pos, tokens.rope
        return self.pos_drop(x + pos), None, tokens.rope

    def _prefix_positions(self, pos: Tensor) -> Tensor:
        """``(B|1, prefix, D)``: positions of the class and distillation tokens, zero for the others."""
        zero = pos.new_zeros(1, 1, pos.shape[2])
        tokens = ((self.cls_token, self.tokenizer.cls_pos), (self.reg_tokens, self.tokenizer.dist_pos))
        rows = [pos[:1, :0]]
        for token, own in tokens:
            if token is not None:
                first = [] if own is None else [own.to(pos.dtype)]
                rows += [*first, zero.expand(-1, token.shape[1] - len(first), -1)]
        return torch.cat(rows, dim=1).expand(pos.shape[0], -1, -1)

    def resample_positions_as(self, method: str | None) -> None:
        """Sets an image encoder's ``pos_resample`` to that of the weights' source; None changes nothing."""
        if method is not None and isinstance(self.tokenizer, ImageTokenizer):
            tokenizer = replace(self.tokenizer.config, pos_resample=method)
            self.tokenizer.config, self.config = tokenizer, replace(self.config, tokenizer=tokenizer)

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for ``num_classes`` (0: none), optionally with another pool.

        Everything before it is kept, except ``fc_norm`` and ``pre_logits`` where the pool's width changes.
        Class names are forgotten where their number changes.
        """
        if num_classes != self.num_classes:
            self.meta.class_names = None
        old, fc_norm, pre_logits = self.pool, self.fc_norm, self.pre_logits
        pool = self.config.global_pool if global_pool is None else global_pool
        self._build_head(replace(self.config, num_classes=num_classes, global_pool=pool))
        if self.pool.kind == old.kind:
            self.pool = old
        if self.pool.features == old.features:
            self.fc_norm, self.pre_logits = fc_norm, pre_logits
        like = next(self.trunk.parameters())
        for module in (self.pool, self.fc_norm, self.pre_logits, self.head_drop, self.head):
            module.to(like.device, like.dtype).train(self.training)

    def predict(
        self, source: str | Path | Any, top: int = 5, up: str | None = None
    ) -> list[tuple[str, float]]:
        """One file, or cloud (P, 3), -> the ``top`` most probable ``(class name, probability)``, best first.

        Brings the cloud into the frame the model was trained in, as stored in ``meta``. See
        :func:`pointvit.inference.predict` for options (batches, up axis).
        """
        from pointvit.inference import predict

        return predict(self, [source], top, up)[0]


class Pair(nn.Module, Shareable):
    """An image and a point encoder on the same trunk, class token and registers (the same Parameters)."""

    def __init__(self, image: ViT, points: ViT) -> None:
        super().__init__()
        if points.config.trunk != image.config.trunk:
            raise ValueError("a pair shares one trunk, and the two configurations describe different ones")
        prefix = [(vit.config.class_token, vit.config.num_reg_tokens) for vit in (image, points)]
        if prefix[0] != prefix[1]:
            raise ValueError(
                "a pair shares its class and register tokens, and the two encoders have different ones"
            )
        points.trunk, points.cls_token, points.reg_tokens = image.trunk, image.cls_token, image.reg_tokens
        self.image, self.points = image, points

    @property
    def trunk(self) -> Trunk:
        return self.image.trunk


def _prefix_parameter(count: int, dim: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(1, count, dim), std=1e-6 if count == 1 else 0.02))
