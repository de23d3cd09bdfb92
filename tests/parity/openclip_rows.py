"""OpenCLIP's models and OpenAI's files: whole CLIPs and image towers, OpenCLIP's own ViT and timm's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import open_clip
import timm
import torch
from open_clip.model import resize_pos_embed
from open_clip.timm_model import TimmModel
from safetensors.torch import save_file
from torch import Tensor, nn

from parity import Row, Tensors

Config = dict[str, Any]
WIDTH, EMBED = 192, 16
OWN: Config = {"image_size": 32, "patch_size": 8, "width": WIDTH, "layers": 2, "mlp_ratio": 2.0}
TEXT: Config = {"context_length": 8, "vocab_size": 50, "width": 64, "heads": 1, "layers": 1}
TIMM: Config = {"depth": 2, "embed_dim": WIDTH, "num_heads": 3, "img_size": 32, "patch_size": 8,
                "dynamic_img_size": True}  # fmt: skip
CLIPA: Config = {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
COLOURS = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}


def config(quick_gelu: bool | None = None, **vision: Any) -> Config:
    """As ``open_clip_config.json`` has it under ``model_cfg``."""
    vision = vision if "timm_model_name" in vision else OWN | vision
    said = {} if quick_gelu is None else {"quick_gelu": quick_gelu}
    return {"embed_dim": EMBED, "vision_cfg": vision, "text_cfg": TEXT, **said}


def build(model: Config) -> nn.Module:
    """The public model, but for the sizes of timm's, which OpenCLIP leaves no way to set."""
    kind = open_clip.CustomTextCLIP if "timm_model_name" in model["vision_cfg"] else open_clip.CLIP
    small = partial(timm.create_model, **TIMM)
    with mock.patch("open_clip.timm_model.timm.create_model", small):
        return kind(**model)


def folder(model: nn.Module, path: Path, said: Config, weights: str = "open_clip_model.safetensors") -> Path:
    """A repository of OpenCLIP's."""
    if weights.endswith(".bin"):
        torch.save(model.state_dict(), path / weights)
    else:
        save_file(model.state_dict(), path / weights)
    described = json.dumps({"model_cfg": said, "preprocess_cfg": COLOURS})
    (path / "open_clip_config.json").write_text(described)
    return path


def training(model: nn.Module, path: Path, said: Config) -> Path:
    """A checkpoint of OpenCLIP's training on several devices."""
    state = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 32, "name": "ViT", "state_dict": state}, path / "epoch_32.pt")
    return path / "epoch_32.pt"


def openai(model: nn.Module, path: Path, said: Config) -> Path:
    """The state dict of OpenAI's programs, mostly in half precision."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(tensor.half())  # so that the file holds the model's very numbers
    numbers = {"input_resolution": 32, "context_length": 8, "vocab_size": 50}
    state = {name: t.half() if t.ndim > 1 else t for name, t in model.state_dict().items()}
    torch.save(state | {n: torch.tensor(v) for n, v in numbers.items()}, path / "ViT-B-32.pt")
    return path / "ViT-B-32.pt"


def tower(model: nn.Module, path: Path, said: Config, change: Callable[[Tensors], Tensors] = dict) -> Path:
    """The image tower alone."""
    save_file(change(model.visual.state_dict()), path / "tower.safetensors")
    return path / "tower.safetensors"


def prefixed(state: Tensors) -> Tensors:
    return {f"visual.{name}": tensor for name, tensor in state.items()}


def features(model: nn.Module, x: Tensor) -> Tensor:
    """Tokens behind the last norm, where that acts on tokens."""
    if isinstance(model.visual, TimmModel):
        return model.visual.trunk.forward_features(x)
    tokens = model.visual.transformer(model.visual._embeds(x))
    return model.visual.ln_post(tokens) if model.visual.pool_type == "tok" else tokens


def every_token_normalised(model: nn.Module, x: Tensor) -> Tensor:
    return model.visual.ln_post(model.visual.transformer(model.visual._embeds(x)))


def at(said: Config, model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """As OpenCLIP loads weights into a model of another resolution."""
    if isinstance(model.visual, TimmModel):
        return model
    other = build({**said, "vision_cfg": {**said["vision_cfg"], "image_size": shape[2:]}}).eval()
    state = model.state_dict()
    resize_pos_embed(state, other)
    other.load_state_dict(state)
    return other


def row(
    name: str,
    said: Config,
    write: Callable[[nn.Module, Path, Config], Path] = folder,
    settings: Mapping[str, Any] = {},
    prefix: str = "visual.",
    of_tokens: Callable[[nn.Module, Tensor], Tensor] = features,
    **names: Any,
) -> Row:
    block = f"{prefix}transformer.resblocks."
    own = {
        "query_key": (f"{block}1.attn.in_proj_weight",),
        "kernel": f"{block}0.attn.out_proj.weight",
        "dropped": f"{block}1.ln_2.bias",
    }
    return Row(
        name,
        "openclip",
        partial(build, said),
        partial(write, said=said),
        of_tokens,
        logits=lambda model, x: model.visual(x),
        at=partial(at, said),
        settings=settings,
        **own | names,
    )


SEPARATE = tuple(f"visual.trunk.blocks.1.attn.{part}_proj.weight" for part in "qk")
"""Names of EVA-02's queries and keys."""


def trunk_row(
    name: str, model: str, pool: str, proj: str | None, prefix: str = "visual.", **options: Any
) -> Row:
    said = config(timm_model_name=model, timm_pool=pool, timm_proj=proj, image_size=32)
    block = f"{prefix}trunk.blocks."
    names = {
        "query_key": (f"{block}1.attn.qkv.weight",),
        "kernel": f"{block}0.attn.proj.weight",
        "dropped": f"{block}1.norm2.bias",
    }
    return row(name, said, **names | options)


GELU, QUICK = {"activation": "gelu"}, {"activation": "quick_gelu"}
ROWS = [
    row("OpenAI CLIP", config(quick_gelu=True), openai),
    row("OpenCLIP", config()),
    row("OpenCLIP, .bin and QuickGELU", config(quick_gelu=True),
        partial(folder, weights="open_clip_pytorch_model.bin")),
    row("OpenCLIP, training checkpoint", config(), training, GELU, prefix="module.visual."),
    row("OpenCLIP, tower alone", config(quick_gelu=True), tower, QUICK, prefix=""),
    row("OpenCLIP, tower with prefix", config(), partial(tower, change=prefixed), GELU),
    row("OpenCLIP, heads", config(head_width=32)),
    row("OpenCLIP, LayerScale", config(ls_init_value=1e-4)),
    row("OpenCLIP, other eps and GELU",
        config(norm_kwargs={"eps": 1e-3}, act_kwargs={"approximate": "tanh"})),
    row("OpenCLIP, mean", config(pool_type="avg"), of_tokens=every_token_normalised),
    row("OpenCLIP, norm behind the pool", config(final_ln_after_pool=True), of_tokens=every_token_normalised),
    row("OpenCLIP, fixed positions", config(pos_embed_type="sin_cos_2d"),
        inputs=((2, 3, 32, 32), (2, 3, 48, 48))),
    row("CLIPA", config(**CLIPA)),
    row("CLIPA, training checkpoint", config(**CLIPA), training, GELU, prefix="module.visual."),
    trunk_row("OpenCLIP SigLIP", "vit_base_patch16_siglip_224", "map", "none"),
    trunk_row("OpenCLIP SigLIP, file", "vit_base_patch16_siglip_224", "map", "none", write=training,
              prefix="module.visual."),
    trunk_row("OpenCLIP SigLIP 2 giant", "vit_giantopt_patch16_siglip_256", "map", "none"),
    trunk_row("OpenCLIP on timm's CLIP, with bias", "vit_base_patch16_clip_224", "token", None),
    trunk_row("OpenCLIP on timm's CLIP, QuickGELU", "vit_base_patch16_clip_quickgelu_224", "token", "linear"),
    trunk_row("OpenCLIP on timm's ViT", "vit_medium_patch16_gap_256", "avg", "linear"),
    trunk_row("OpenCLIP EVA01", "eva_giant_patch14_224", "token", None),
    trunk_row("OpenCLIP EVA02", "eva02_base_patch16_clip_224", "token", None, query_key=SEPARATE),
    trunk_row("OpenCLIP EVA02, file", "eva02_base_patch16_clip_224", "token", "linear", write=training,
              prefix="module.visual.", query_key=tuple(f"module.{name}" for name in SEPARATE)),
]  # fmt: skip
