"""Hugging Face's CLIP and SigLIP vision models: folders as transformers writes them, and single files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from parity import Row

VISION: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 32,
    "patch_size": 8,
}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
Write = Callable[[nn.Module, Path], Path]


def folder(model: nn.Module, path: Path) -> Path:
    model.save_pretrained(path)
    return path


def file(model: nn.Module, path: Path) -> Path:
    """The weights alone, without ``config.json``."""
    return (folder(model, path) / "model.safetensors").rename(path / "alone.safetensors")


def as_before_5(model: nn.Module, path: Path) -> Path:
    """The tower alone as transformers wrote it before version 5: prefixed, with numbers of the positions."""
    weights = folder(model, path) / "model.safetensors"
    state = {f"vision_model.{name}": tensor for name, tensor in load_file(weights).items()}
    state["vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    save_file(state, weights, {"format": "pt"})
    return path


def old_bin(model: nn.Module, path: Path) -> Path:
    """``pytorch_model.bin``, as the first repositories have it."""
    weights = folder(model, path) / "model.safetensors"
    torch.save(load_file(weights), path / "pytorch_model.bin")
    weights.unlink()
    return path


def tower(model: nn.Module) -> nn.Module:
    return getattr(model, "vision_model", model)


def run(model: nn.Module, x: Tensor) -> Any:
    return model(x, interpolate_pos_encoding=True)


def features(model: nn.Module, x: Tensor) -> Tensor:
    """Tokens behind the last norm; CLIP's model itself applies it to the class token alone."""
    tokens, own = run(tower(model), x).last_hidden_state, tower(model)
    if isinstance(model, transformers.CLIPForImageClassification):
        return tokens
    return own.post_layernorm(tokens) if hasattr(own, "pre_layrnorm") else tokens


def pooled(model: nn.Module, x: Tensor) -> Tensor:
    return run(tower(model), x).pooler_output


def image_features(model: nn.Module, x: Tensor) -> Tensor:
    output = model.get_image_features(pixel_values=x, interpolate_pos_encoding=True)
    return output.pooler_output


def embeds(model: nn.Module, x: Tensor) -> Tensor:
    return run(model, x).image_embeds


def classified(model: nn.Module, x: Tensor) -> Tensor:
    return run(model, x).logits


def vision(kind: str, **settings: Any) -> Callable[[], nn.Module]:
    config = "SiglipVisionConfig" if kind.startswith("Siglip") else "CLIPVisionConfig"
    return lambda: getattr(transformers, kind)(getattr(transformers, config)(**VISION | settings))


def whole(kind: str, **settings: Any) -> Callable[[], nn.Module]:
    config = "SiglipConfig" if kind.startswith("Siglip") else "CLIPConfig"
    return lambda: getattr(transformers, kind)(
        getattr(transformers, config)(vision_config=VISION | settings, text_config=TEXT, num_labels=5)
    )


def row(
    name: str,
    build: Callable[[], nn.Module],
    logits: Callable[[nn.Module, Tensor], Tensor] = pooled,
    write: Write = folder,
    prefix: str = "vision_model.",
    **settings: Any,
) -> Row:
    block = f"{prefix}encoder.layers."
    return Row(
        name,
        "huggingface_clip",
        build,
        write,
        features,
        logits=logits,
        settings=settings,
        query_key=(f"{block}1.self_attn.q_proj.weight", f"{block}1.self_attn.k_proj.weight"),
        kernel=f"{block}0.self_attn.out_proj.weight",
        dropped=f"{block}1.layer_norm2.bias",
    )


ROWS = [
    row("CLIPVisionModel", vision("CLIPVisionModel"), prefix=""),
    row("CLIPVisionModel, heads and eps", vision("CLIPVisionModel", num_attention_heads=6,
        layer_norm_eps=1e-3, hidden_act="gelu"), prefix=""),
    row("CLIPVisionModel, before 5", vision("CLIPVisionModel"), write=as_before_5),
    row("CLIPVisionModel, .bin", vision("CLIPVisionModel"), write=old_bin, prefix=""),
    row("CLIPVisionModel, file", vision("CLIPVisionModel"), write=file, prefix="", activation="quick_gelu"),
    row("CLIPVisionModelWithProjection", vision("CLIPVisionModelWithProjection", projection_dim=16), embeds),
    row("CLIPModel", whole("CLIPModel"), image_features),
    row("CLIPModel, file", whole("CLIPModel", hidden_act="gelu"), image_features, file, activation="gelu"),
    row("CLIPForImageClassification", whole("CLIPForImageClassification"), classified),
    row("SiglipVisionModel", vision("SiglipVisionModel"), prefix=""),
    row("SiglipVisionModel, file", vision("SiglipVisionModel"), write=file, prefix=""),
    row("SiglipVisionModel, before 5", vision("SiglipVisionModel"), write=as_before_5),
    row("SiglipModel", whole("SiglipModel"), image_features),
    row("SiglipForImageClassification", whole("SiglipForImageClassification"), classified),
]  # fmt: skip
