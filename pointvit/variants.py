"""The table of named models, and their construction."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pointvit.config import CLIP, IMAGENET, UNIT, ViTConfig, near
from pointvit.model import Metadata, Pair, ViT
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

if TYPE_CHECKING:
    from pointvit.checkpoints import Checkpoint, LoadReport

SIZES = {
    # name: (embed_dim, depth, num_heads), table 1 of the ViT paper; Ti and S from Touvron et al. 2021
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}
PATCHES = (8, 14, 16, 32)
HYBRIDS = {
    # name: (size, stem blocks, pixels per token, image size); the paper's R+ViT models
    "vit_tiny_r_s16_p8_224": ("tiny", (), 32, 224),
    "vit_small_r26_s32_224": ("small", (2, 2, 2, 2), 32, 224),
    "vit_base_r50_s16_224": ("base", (3, 4, 9), 16, 224),
    "vit_large_r50_s32_224": ("large", (3, 4, 6, 3), 32, 224),
}


def _trunk(size: str) -> TrunkConfig:
    embed_dim, depth, num_heads = SIZES[size]
    return TrunkConfig(embed_dim, depth, num_heads)


def _image(size: str, patch: int, img: int, stem: tuple[int, ...] | None = None, **trunk: Any) -> ViTConfig:
    tokenizer = ImageTokenizerConfig((img, img), (patch, patch), stem=stem)
    return ViTConfig(replace(_trunk(size), **trunk), tokenizer)


OF_HEAD = {"num_classes", "global_pool", "head", "fc_norm", "representation_size"}
"""Settings with which a checkpoint's head may be left behind."""


def _variants() -> dict[str, ViTConfig]:
    table: dict[str, ViTConfig] = {}
    for size in SIZES:
        shapes = [(patch, img) for patch in PATCHES for img in (224, 384) if img % patch == 0]
        table |= {f"vit_{size}_patch{patch}_{img}": _image(size, patch, img) for patch, img in shapes}
        table[f"pointvit_{size}"] = ViTConfig(
            _trunk(size), PointTokenizerConfig(), num_classes=40, global_pool="cls+max", head="point_mae"
        )
    for name, (size, stem, patch, img) in HYBRIDS.items():
        table[name] = _image(size, patch, img, stem)
    for size in ("small", "base", "large"):
        dinov2 = replace(_image(size, 14, 518, layer_scale=1e-5), num_classes=0)
        table[f"vit_{size}_patch14_dinov2"] = dinov2
        registers = replace(dinov2.tokenizer, cls_pos=False)
        table[f"vit_{size}_patch14_reg4_dinov2"] = replace(dinov2, tokenizer=registers, num_reg_tokens=4)
    for size, patch in (("base", 32), ("base", 16), ("large", 14)):
        clip = _image(size, patch, 224, norm_pre=True, norm_eps=1e-5, activation="quick_gelu")
        clip = clip.override({"patch_bias": False, "num_classes": 0})
        table[f"vit_{size}_patch{patch}_clip_quickgelu_224"] = clip
    return table


VARIANTS = _variants()


def list_models(pattern: str = "") -> list[str]:
    """Names of all models that contain ``pattern``, sorted."""
    return sorted(name for name in VARIANTS if pattern in name)


def model_config(name: str) -> ViTConfig:
    """The configuration of a named model.

    Raises:
        ValueError: for an unknown name; near matches are listed.
    """
    if name not in VARIANTS:
        raise ValueError(f"unknown model {name!r}; {near(name, VARIANTS)}")
    return VARIANTS[name]


def create_model(
    name: str = "auto",
    pretrained: str | os.PathLike[str] | None = None,
    tokenizer: str | None = None,
    **settings: Any,
) -> ViT:
    """An encoder for images or points by name, with random weights or those of a checkpoint.

    Args:
        name: one of :func:`list_models`, or ``auto`` to read the architecture from ``pretrained``.
        pretrained: a checkpoint file or folder, or a repository on the Hugging Face Hub. A 2D checkpoint
            also initialises a point encoder: everything of its trunk and class token is loaded, strictly, and
            the settings that determine its arithmetic (LayerNorm eps, LayerScale, activation, ...) are taken
            from the file. Colours are normalised (``model.meta``) as the source says, or as for the
            public weights of that architecture; DINO and MAE cannot be told from Google's, and want
            ImageNet's mean and deviation.
        tokenizer: with ``auto``, ``points`` for a point encoder on the checkpoint's trunk, whatever front end
            the file has. None: the file's own.
        settings: any field of the model's configuration: ``num_classes``, ``num_groups``, ``img_size``,
            ``drop_path_rate``, ``global_pool``, ... ``img_size`` is what the model takes; the grid of the
            file's own positions is the one that its config states, or else a square.

    Raises:
        ValueError: for an unknown name or setting, or a checkpoint that does not fit.
    """
    return create_with_report(name, pretrained, tokenizer, settings)[0]


def create_with_report(
    name: str, pretrained: str | os.PathLike[str] | None, tokenizer: str | None, settings: Mapping[str, Any]
) -> tuple[ViT, LoadReport | None]:
    """As :func:`create_model`, with what came from the checkpoint, if there is one."""
    if name == "auto" and pretrained is None:
        raise ValueError(
            "create_model('auto') reads the architecture from a checkpoint: pass pretrained=PATH"
        )
    if tokenizer is not None and (tokenizer != "points" or name != "auto"):
        raise ValueError(
            "tokenizer must be 'points', and goes with create_model('auto', pretrained=PATH); got "
            f"tokenizer={tokenizer!r} with {name!r}"
        )
    if pretrained is None:
        return _build(model_config(name).override(settings)), None
    from pointvit.checkpoints import Checkpoint, CheckpointError, load_into
    from pointvit.checkpoints.loading import HEAD

    checkpoint = Checkpoint.open(pretrained)
    if name != "auto":
        base = checkpoint.adapt(model_config(name).override(settings))
        known = checkpoint.saved is not None or checkpoint.source.modality is None or _is_clip(name)
        if not known and "activation" not in checkpoint.settings.keys() | settings.keys():
            raise checkpoint.leaves_open("activation")
    elif tokenizer == "points" and checkpoint.modality == "image":
        base = _point_encoder(checkpoint.encoder_config(settings), num_classes=0)
    else:
        base = checkpoint.encoder_config(settings)
    # What is asked for wins over what the file says.
    config = _with_grid_of(checkpoint, base.override(settings), settings)
    model = model_for(checkpoint, config, is_own=name == "auto")
    report = load_into(model, checkpoint)
    random = [n for n in report.new if n.startswith(HEAD) and n not in checkpoint.source.new]
    if (
        name == "auto"
        and model.config.modality == checkpoint.modality
        and random
        and not settings.keys() & OF_HEAD
    ):
        raise CheckpointError(f"{checkpoint.path}: its head is not complete, it lacks {', '.join(random)}")
    return model, report


def _with_grid_of(checkpoint: Checkpoint, config: ViTConfig, asked: Mapping[str, Any]) -> ViTConfig:
    """The grid of projected positions is the file's own, unless another is asked for."""
    tokenizer = config.tokenizer
    if not isinstance(tokenizer, PointTokenizerConfig) or tokenizer.pos_embed != "projected":
        return config
    if "pos_grid" in asked or "pos_embed" not in checkpoint.tensors:
        return config
    return config.override({"pos_grid": checkpoint.position_layout()[1]})


def _is_clip(name: str) -> bool:
    """Whether a named model is of the one family whose files leave its activation open, and names it."""
    return VARIANTS[name].trunk.norm_pre


def model_for(checkpoint: Checkpoint, config: ViTConfig, is_own: bool = True) -> ViT:
    """A model for the weights of a checkpoint, still with random ones, and with the metadata the file states.

    Args:
        is_own: whether the model is the one in the file, whose saved description then holds for it too.

    Raises:
        CheckpointError: if there is no such model.
    """
    from pointvit.checkpoints import CheckpointError

    try:
        model = _build(config)
    except (ValueError, RuntimeError) as error:  # RuntimeError: sizes, from torch
        raise CheckpointError(f"{checkpoint.path}: no model can be built for it ({error})") from error
    for field, value in checkpoint.meta.items():
        setattr(model.meta, field, value)
    if is_own and checkpoint.saved is not None and checkpoint.config is not None:
        model.meta = Metadata(**checkpoint.config["meta"])
        if model.num_classes != checkpoint.saved.num_classes:
            model.meta.class_names = None
    return model


def _build(config: ViTConfig) -> ViT:
    model = ViT(config)
    if config.modality == "image":
        by_trunk = CLIP if config.trunk.norm_pre else UNIT if config.trunk.layer_scale is None else IMAGENET
        model.meta.image_mean, model.meta.image_std = by_trunk
    return model


def _point_encoder(image: ViTConfig, num_classes: int) -> ViTConfig:
    """A point encoder on the trunk of an image encoder."""
    return replace(
        image,
        tokenizer=PointTokenizerConfig(),
        num_classes=num_classes,
        global_pool="cls+max" if image.class_token else "max",
        fc_norm=not image.trunk.final_norm,  # normalised once: in the trunk or behind the pool
        representation_size=None,
        head="point_mae",
    )


def create_pair(
    name: str,
    pretrained: str | os.PathLike[str] | None = None,
    num_classes: int = 40,
    num_groups: int = 64,
    group_size: int = 32,
    **settings: Any,
) -> Pair:
    """An image and a point encoder on one trunk.

    Args:
        name: the image model, or ``auto``; the point encoder takes its trunk.
        pretrained: as in :func:`create_model`; loads the image encoder, and with it the shared trunk.
        num_classes: classes of both heads (the same objects seen twice).
        num_groups, group_size: the point tokenizer.
        settings: further settings of the image model and the shared trunk.
    """
    image = create_model(name, pretrained, num_classes=num_classes, **settings)
    if image.config.modality != "image":
        raise ValueError(
            f"a pair is named by its image encoder, and {name!r} encodes points; choose one of "
            f"{', '.join(list_models('vit_')[:3])}, ..."
        )
    config = _point_encoder(image.config, num_classes)
    tokenizer = PointTokenizerConfig(num_groups, group_size)
    points = ViT(replace(config, tokenizer=tokenizer), trunk=image.trunk)
    points.meta = replace(image.meta)
    return Pair(image, points)
