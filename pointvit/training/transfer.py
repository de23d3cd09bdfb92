"""Transfer modes: which parameters of a model learn, and which layers are added for it.

Every mode but ``head`` trains tokenizer and head beside its part of the trunk: the tokenizer of a point
encoder on an image encoder's trunk is new, and has to learn the trunk's language. Where it is not new (an
image encoder's, or that of a point encoder trained before), ``tokenizer=False`` keeps it as it is.

A frozen parameter has no gradient and gets no update. A batch norm that is frozen uses its stored statistics
and leaves them alone, also in training (:meth:`pointvit.model.ViT.train`). Dropout, drop path and patch
dropout stay as the model's settings have them, in frozen parts too: they are noise on what learns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from pointvit.config import near
from pointvit.model import Pair, ViT
from pointvit.training.adapters import LAYERS, Option, Options, checked, is_added
from pointvit.trunk import Trunk

PREFIX_TOKENS = ("cls_token", "reg_tokens")


@dataclass(frozen=True)
class TransferMode:
    """One row of TRANSFER_MODES."""

    learns: str
    """What learns of the trunk, in words."""
    trunk: Callable[[Trunk, Options], Iterable[str]]
    """Names of the trunk's parameters that learn."""
    prefix_tokens: bool = False
    """Whether the class token and the registers learn."""
    tokenizer: bool = True
    """Whether the tokenizer learns, unless the mode has an option of that name."""
    options: dict[str, Option] = field(default_factory=dict)
    """Its options, with defaults."""
    pretrained: bool = False
    """Whether parameters learn that stood in the trunk before."""


def _everything(trunk: Trunk, options: Options) -> Iterable[str]:
    return [name for name, _ in trunk.named_parameters()]


def _nothing(trunk: Trunk, options: Options) -> Iterable[str]:
    return []


def _norms(trunk: Trunk, options: Options) -> Iterable[str]:
    return [
        f"{module}.{name}"
        for module, norm in trunk.named_modules()
        if isinstance(norm, nn.LayerNorm)
        for name, _ in norm.named_parameters()
    ]


def _biases(trunk: Trunk, options: Options) -> Iterable[str]:
    return [name for name, _ in trunk.named_parameters() if name.endswith("bias")]


def _last_blocks(trunk: Trunk, options: Options) -> Iterable[str]:
    depth, k = len(trunk.blocks), int(options["k"])
    if k > depth:
        raise ValueError(f"transfer mode blocks={k} asks for more blocks than the trunk's {depth}")
    last = tuple(f"blocks.{i}." for i in range(depth - k, depth))
    return [name for name, _ in trunk.named_parameters() if name.startswith((*last, "norm."))]


def _added(trunk: Trunk, options: Options) -> Iterable[str]:
    return [name for name, _ in trunk.named_parameters() if is_added(name)]


_TOKENIZER: dict[str, Option] = {"tokenizer": True}
TRANSFER_MODES = {
    "full": TransferMode("everything, class token and registers too", _everything, True, pretrained=True),
    "frozen": TransferMode("nothing", _nothing),
    "head": TransferMode("nothing, and nothing of the tokenizer", _nothing, tokenizer=False),
    "norm": TransferMode("its LayerNorms", _norms, options=_TOKENIZER, pretrained=True),
    "bias": TransferMode(
        "its biases, those of LayerNorms too (BitFit)", _biases, options=_TOKENIZER, pretrained=True
    ),
    "lora": TransferMode(
        "low-rank updates of qkv and proj, and with `mlp` of fc1 and fc2",
        _added,
        options={**_TOKENIZER, **LAYERS["lora"].options},
    ),
    "adapter": TransferMode(
        "a narrow MLP beside that of every block (AdaptFormer)",
        _added,
        options={**_TOKENIZER, **LAYERS["adapter"].options},
    ),
    "prompt": TransferMode(
        "prompt tokens of every block (VPT-deep)",
        _added,
        options={**_TOKENIZER, **LAYERS["prompt"].options},
    ),
    "blocks": TransferMode(
        "its last `k` blocks and the final norm",
        _last_blocks,
        options={**_TOKENIZER, "k": 1},
        pretrained=True,
    ),
}
"""Name -> mode; ``blocks=3`` is ``blocks`` with k=3."""


def apply_transfer(model: ViT | Pair, mode: str, **options: Option) -> list[str]:
    """Lets exactly those parameters of a model learn that a mode names, adding layers where it has some.

    In place. The head (all behind the trunk: pool, ``fc_norm``, ``pre_logits``, ``head``) learns in every
    mode. A mode may be changed for another; layers that it has added go by :func:`merge_transfer` first.

    Args:
        mode: one of TRANSFER_MODES; ``blocks=k`` is the mode ``blocks`` with that option.
        options: of the mode, see its row. ``tokenizer``: whether the tokenizer learns.

    Returns:
        Names of the parameters that learn, in the model's order.

    Raises:
        ValueError: for an unknown mode or option, a mode that trains nothing, or a model that has added
            layers; the model is then as it was.
    """
    mode, chosen = resolve(mode, options)
    encoders = _encoders(model)
    present = encoders[0].meta.transfer.get("mode")
    if present is not None:
        raise ValueError(
            f"the model has the layers of transfer mode {present} in its trunk; "
            "call merge_transfer(model) before another"
        )
    if mode in LAYERS:
        own = {name: chosen[name] for name in LAYERS[mode].options}
        LAYERS[mode].add(model.trunk, own)
        for encoder in encoders:
            encoder.meta.transfer = {"mode": mode, **own}
    return _choose(model, mode, chosen)


def reapply_transfer(model: ViT | Pair, mode: str, **options: Option) -> list[str]:
    """As :func:`apply_transfer`, for a model that has the mode's layers already, such as a loaded one."""
    return _choose(model, *resolve(mode, options))


def _choose(model: ViT | Pair, mode: str, chosen: Options) -> list[str]:
    row, trunk = TRANSFER_MODES[mode], set(TRANSFER_MODES[mode].trunk(model.trunk, chosen))
    tokenizer = bool(chosen.get("tokenizer", row.tokenizer))

    def learns(name: str) -> bool:
        part, _, rest = name.removeprefix("image.").removeprefix("points.").partition(".")
        if part == "trunk":
            return rest in trunk
        return row.prefix_tokens if part in PREFIX_TOKENS else tokenizer if part == "tokenizer" else True

    parameters = dict(model.named_parameters())
    learning = [name for name in parameters if learns(name)]
    if not learning:
        raise ValueError(
            f"transfer mode {mode} trains nothing: the model has no head (num_classes=0); "
            "call reset_classifier(num_classes), or choose a mode that trains more"
        )
    for name, parameter in parameters.items():
        parameter.requires_grad_(learns(name))
    model.train(model.training)  # frozen batch norms take note
    return learning


def merge_transfer(model: ViT | Pair) -> None:
    """Makes a plain model of one that :func:`apply_transfer` changed: same outputs, no added layers.

    LoRA goes into the weights it updates. Adapters make the MLPs wider, and with them ``mlp_ratio``. All
    parameters learn again. A plain model stays as it is.

    Raises:
        ValueError: for layers that cannot be merged (:func:`merge_obstacle`); the model is then as it was.
    """
    obstacle = merge_obstacle(model)
    if obstacle is not None:
        raise ValueError(obstacle)
    encoders = _encoders(model)
    mode = encoders[0].meta.transfer.get("mode")
    if mode is not None:
        LAYERS[mode].merge(model.trunk)
    for encoder in encoders:
        encoder.config = replace(encoder.config, trunk=model.trunk.config)
        encoder.meta.transfer = {}
    model.requires_grad_(True)
    model.train(model.training)


def merge_obstacle(model: ViT | Pair) -> str | None:
    """Why the layers in a model cannot be merged, or None if they can or there are none."""
    mode = _encoders(model)[0].meta.transfer.get("mode")
    if mode is None:
        return None
    if mode == "adapter" and any(encoder.pool.attn_pool is not None for encoder in _encoders(model)):
        return "adapters cannot be merged with global_pool='map', whose MLP is as wide as the trunk's"
    return LAYERS[mode].obstacle(model.trunk)


def resolve(mode: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Option]]:
    """``("blocks=2", {}) -> ("blocks", {"tokenizer": True, "k": 2})``: a mode's own name, all its options.

    Raises:
        ValueError: for an unknown mode (near matches are listed) or option, or an unsuitable value.
    """
    name, equals, k = mode.partition("=")
    if name not in TRANSFER_MODES or (equals and name != "blocks"):
        known = [name] if name in TRANSFER_MODES else TRANSFER_MODES
        raise ValueError(f"unknown transfer mode {mode!r}; {near(name, known)}")
    given = dict(options)
    if equals:
        if "k" in given:
            raise ValueError(f"transfer mode {mode} has its k in its name already; leave out the option k")
        given["k"] = int(k) if k.isdecimal() else k
    return name, checked(name, given, TRANSFER_MODES[name].options)


def _encoders(model: ViT | Pair) -> list[ViT]:
    return [model.image, model.points] if isinstance(model, Pair) else [model]
