"""Image encoders beside timm's and beside their bare matrix products: python benchmarks/image_encoder.py

Same weights, 16 images of 224 pixels, inference mode, float32 and weights and images in bfloat16, eager and
compiled. The bare products are those that the model consists of, with its weights and the same shapes, and
nothing else: what an encoder takes at least. They go once through torch's linear layer and once through
pointvit's, which in float32 takes another kernel on some processors (pointvit/layers.py). Writes
benchmarks/results/image_encoder.json.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from common import interleaved_seconds, is_quick, relative_difference, surroundings, write
from safetensors.torch import save_file
from torch import Tensor, nn

import pointvit
from pointvit.layers import linear
from pointvit.tokenizers import ImageTokenizer
from pointvit.training.memory import keep_freed_memory

REPEATS = {"tiny": 11, "small": 9, "base": 5}
DTYPES = (torch.float32, torch.bfloat16)
Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def encoders(name: str, settings: dict[str, int], dtype: torch.dtype) -> tuple[pointvit.ViT, nn.Module]:
    """Ours with timm's weights, and timm's."""
    theirs = timm.create_model(name, **settings).eval()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timm.safetensors"
        save_file(theirs.state_dict(), file)
        ours = pointvit.create_model(name, file, **settings).eval()
    return ours.to(dtype), theirs.to(dtype)


def bare_products(model: pointvit.ViT, images: Tensor, multiply: Multiply) -> Callable[[], None]:
    """The matrix products of a forward pass, with every result thrown away."""
    assert isinstance(model.tokenizer, ImageTokenizer)
    (height, width), (rows, columns) = model.tokenizer.config.patch_size, model.tokenizer.config.grid
    batch, dim, heads = len(images), model.embed_dim, model.config.trunk.num_heads
    tokens = 1 + rows * columns

    def made(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, dtype=images.dtype)

    patches, x, hidden = made(rows * columns, 3 * height * width), made(tokens, dim), made(tokens, 4 * dim)
    q, k, v = (made(heads, tokens, dim // heads) for _ in range(3))
    weights = made(heads, tokens, tokens)
    proj, head = model.tokenizer.proj, model.head

    def run() -> None:
        multiply(patches, proj.weight.flatten(1), proj.bias)
        for block in model.trunk.blocks:
            multiply(x, block.attn.qkv.weight, block.attn.qkv.bias)
            q @ k.mT
            weights @ v
            multiply(x, block.attn.proj.weight, block.attn.proj.bias)
            multiply(x, block.mlp.fc1.weight, block.mlp.fc1.bias)
            multiply(hidden, block.mlp.fc2.weight, block.mlp.fc2.bias)
        F.linear(x[:, 0], head.weight, head.bias)

    return run


@torch.inference_mode()
def compared(size: str, batch: int, settings: dict[str, int], dtype: torch.dtype, repeats: int) -> dict:
    """Milliseconds of all that one size in one precision is compared with."""
    ours, theirs = encoders(f"vit_{size}_patch16_224", settings, dtype)
    images = torch.randn(batch, 3, 224, 224, dtype=dtype)
    eager = {
        "pointvit": lambda: ours(images),
        "timm": lambda: theirs(images),
        "products": bare_products(ours, images, F.linear),
        "own products": bare_products(ours, images, linear),
    }
    seconds = interleaved_seconds(eager, repeats)
    compiled = {name: torch.compile(model) for name, model in (("pointvit", ours), ("timm", theirs))}
    compiled_seconds = interleaved_seconds(
        {name: lambda m=model: m(images) for name, model in compiled.items()}, repeats
    )
    torch.compiler.reset()
    return {
        "size": size,
        "dtype": str(dtype).removeprefix("torch."),
        "difference": relative_difference(ours(images), theirs(images)),
        "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
        "ratio": seconds["timm"] / seconds["pointvit"],
        "share_of_products": seconds["products"] / seconds["pointvit"],
        "share_of_own_products": seconds["own products"] / seconds["pointvit"],
        "compiled_milliseconds": {name: 1e3 * value for name, value in compiled_seconds.items()},
        "compiled_ratio": compiled_seconds["timm"] / compiled_seconds["pointvit"],
    }


def main() -> None:
    quick = is_quick(__doc__)
    keep_freed_memory()
    torch.manual_seed(0)
    sizes, batch, settings = (["tiny"], 1, {"depth": 1}) if quick else (list(REPEATS), 16, {})
    rows = []
    for dtype in DTYPES:
        for size in sizes:
            rows.append(compared(size, batch, settings, dtype, 1 if quick else REPEATS[size]))
            print(rows[-1], flush=True)
    if not quick:
        write("image_encoder", {**surroundings(["timm"]), "batch": batch, "pixels": 224, "rows": rows})


if __name__ == "__main__":
    main()
