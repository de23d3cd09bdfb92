"""Hugging Face's ViT, DeiT, ViT-MAE, ViT-MSN, I-JEPA and Dinov2: folders, single files and state dicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn

from parity import Row

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 32,
    "patch_size": 8,
}
DECODER: dict[str, Any] = {
    "decoder_hidden_size": 32,
    "decoder_num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_intermediate_size": 64,
}
Write = Callable[[nn.Module, Path], Path]
Run = Callable[[nn.Module, Tensor], Tensor]


def folder(model: nn.Module, path: Path) -> Path:
    """``model.safetensors`` and ``config.json``."""
    model.save_pretrained(path)
    return path


def indexed(model: nn.Module, path: Path) -> Path:
    """As large models are written: shards and their index, here of one."""
    model.save_pretrained(path)
    weights = (path / "model.safetensors").rename(path / "model-00001-of-00001.safetensors")
    names = ", ".join(f'"{name}": "{weights.name}"' for name in names_in(weights))
    (path / "model.safetensors.index.json").write_text(f'{{"metadata": {{}}, "weight_map": {{{names}}}}}')
    return path


def alone(model: nn.Module, path: Path) -> Path:
    """The weights without ``config.json``."""
    model.save_pretrained(path)
    return (path / "model.safetensors").rename(path / "alone.safetensors")


def in_memory(model: nn.Module, path: Path) -> Path:
    """A state dict with the names that transformers has in memory, among a training script's things."""
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, path / "model.pth")
    return path / "model.pth"


def names_in(path: Path) -> list[str]:
    with safe_open(path, "pt") as file:
        return list(file.keys())


def vit(model: nn.Module, x: Tensor) -> Tensor:
    return model.base_model(x, interpolate_pos_encoding=True).last_hidden_state


def mae(model: nn.Module, x: Tensor) -> Tensor:
    """Noise that grows leaves the patches in their order, and a mask ratio of 0 leaves none out."""
    noise = torch.arange(float(x.shape[2] * x.shape[3] // 64)).expand(len(x), -1)
    return model.base_model(x, noise=noise, interpolate_pos_encoding=True).last_hidden_state


def dinov2(model: nn.Module, x: Tensor) -> Tensor:
    return model.base_model(x).last_hidden_state


def vit_logits(model: nn.Module, x: Tensor) -> Tensor:
    return model(x, interpolate_pos_encoding=True).logits


def dinov2_logits(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).logits


def dinov2_pooled(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).pooler_output


def row(
    name: str,
    model: str,
    features: Run,
    logits: Run | None = None,
    write: Write = folder,
    blocks: str = "encoder.layer",
    **own: Any,
) -> Row:
    """``model`` is the name of transformers' class, ``blocks`` where its blocks are in the file."""
    kind = model.split("For")[0].removesuffix("Model")
    sizes = SMALL if kind.startswith("Dinov2") else {**SMALL, "intermediate_size": 96}

    def build() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**{**sizes, **own})
        return getattr(transformers, model)(config)

    parts = ("attention.q_proj", "attention.k_proj", "attention.o_proj")
    if write is not in_memory:
        parts = ("attention.attention.query", "attention.attention.key", "attention.output.dense")
    query, key, out = (f"{blocks}.1.{part}.weight" for part in parts)
    norm = "norm2" if kind.startswith("Dinov2") else "layernorm_after"
    return Row(
        name,
        "huggingface",
        build,
        write,
        features,
        logits=logits,
        settings={} if write in (folder, indexed) else {"num_heads": 3},
        query_key=(query, key),
        kernel=out,
        dropped=f"{blocks}.1.{norm}.bias",
    )


VIT, DEIT, DINOV2, REGISTERS = "vit.", "deit.", "dinov2.", "dinov2_with_registers."
LAYER = "encoder.layer"
in_vit, in_deit = partial(row, blocks=VIT + LAYER), partial(row, blocks=DEIT + LAYER)
ROWS = [
    row("HF ViT", "ViTModel", vit),
    row("HF ViT, weights alone", "ViTModel", vit, write=alone),
    row("HF ViT, shards", "ViTModel", vit, write=indexed),
    row("HF ViT, GELU by tanh", "ViTModel", vit, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-5),
    in_vit("HF ViT, classifier", "ViTForImageClassification", vit, vit_logits, num_labels=6),
    in_vit("HF ViT, masked images", "ViTForMaskedImageModeling", vit, encoder_stride=8),
    row("HF ViT in memory", "ViTForImageClassification", vit, vit_logits, in_memory, "vit.layers",
        layer_norm_eps=1e-12),
    row("HF DeiT", "DeiTModel", vit),
    in_deit("HF DeiT, classifier", "DeiTForImageClassification", vit, vit_logits),
    in_deit("HF DeiT, two classifiers", "DeiTForImageClassificationWithTeacher", vit, vit_logits),
    row("HF MAE", "ViTMAEModel", mae, mask_ratio=0.0),
    in_vit("HF MAE, decoder", "ViTMAEForPreTraining", mae, mask_ratio=0.0, **DECODER),
    in_vit("HF MAE, decoder, weights alone", "ViTMAEForPreTraining", mae, write=alone, mask_ratio=0.0,
           **DECODER),
    row("HF MSN", "ViTMSNModel", vit),
    row("HF MSN, classifier", "ViTMSNForImageClassification", vit, vit_logits),
    row("HF I-JEPA", "IJepaModel", vit),
    row("HF I-JEPA, classifier", "IJepaForImageClassification", vit, vit_logits, blocks="ijepa." + LAYER),
    row("HF Dinov2", "Dinov2Model", dinov2, dinov2_pooled),
    row("HF Dinov2, weights alone", "Dinov2Model", dinov2, dinov2_pooled, alone),
    row("HF Dinov2, SwiGLU", "Dinov2Model", dinov2, dinov2_pooled, use_swiglu_ffn=True),
    row("HF Dinov2, classifier", "Dinov2ForImageClassification", dinov2, dinov2_logits,
        blocks=DINOV2 + LAYER),
    row("HF Dinov2 in memory", "Dinov2ForImageClassification", dinov2, dinov2_logits, in_memory,
        DINOV2 + LAYER, use_swiglu_ffn=True),
    row("HF Dinov2 with registers", "Dinov2WithRegistersModel", dinov2, dinov2_pooled),
    row("HF Dinov2 with registers, weights alone", "Dinov2WithRegistersModel", dinov2, dinov2_pooled, alone,
        num_register_tokens=1),
    row("HF Dinov2 with registers, SwiGLU", "Dinov2WithRegistersModel", dinov2, dinov2_pooled,
        use_swiglu_ffn=True),
    row("HF Dinov2 with registers, classifier", "Dinov2WithRegistersForImageClassification", dinov2,
        dinov2_logits, blocks=REGISTERS + LAYER),
]  # fmt: skip
