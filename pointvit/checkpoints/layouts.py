"""Writing an encoder in the layout of a source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pointvit.checkpoints.folders import PREPROCESSOR
from pointvit.checkpoints.saving import CONFIG, WEIGHTS, describe, described, is_saved
from pointvit.checkpoints.sources import SOURCES, native
from pointvit.checkpoints.sources.source import Source, Tensors
from pointvit.checkpoints.writing import new_file, new_folder, write_npz, write_safetensors, write_torch
from pointvit.config import near
from pointvit.model import Pair, ViT
from pointvit.tokenizers import ImageTokenizerConfig

NPZ = ("google", "big_vision")
"""Sources that are written as ``.npz``."""
WRAPPERS = {"point_bert": "base_model", "point_mae": "base_model", "pix4point": "model"}
"""Sources that are written as ``.pth``, and what their own code has the tensors under."""


def save_checkpoint(model: ViT | Pair, path: str | os.PathLike[str], source: str = "timm") -> Path:
    """Writes an encoder in the names of a source, one tensor after the other.

    The form is ``.safetensors``, but ``.npz`` for ``google`` and ``big_vision``, and ``.pth`` for point
    models of other projects. A source whose users expect ``config.json`` is also written as a folder of both,
    where ``path`` has no ending. A file but ``.npz`` carries the model's description, so that reading it back
    gives the same model whatever the names leave unsaid (LayerNorm eps, activation, heads, another grid).

    Of a pair, the encoder is written that the source is for; ``pointvit`` takes the image encoder's.

    Raises:
        ValueError: for an unknown source, or a model that the source's layout has no place for.
        FileExistsError: if ``path`` is a folder that holds something else.
    """
    target = writable(source)
    if isinstance(model, Pair):
        model = model.points if target.modality == "points" else model.image
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return write_checkpoint(Path(path), native.decode(state), model, target)


def writable(name: str) -> Source:
    """The source of that name.

    Raises:
        ValueError: if there is none, or its checkpoints are only read.
    """
    if name not in SOURCES:
        raise ValueError(f"unknown checkpoint source {name!r}; {near(name, SOURCES)}")
    if SOURCES[name].encode is None:
        raise ValueError(f"{name} checkpoints are only read; use pointvit.save")
    return SOURCES[name]


def write_checkpoint(path: Path, tensors: Tensors, model: ViT, source: Source) -> Path:
    """Writes ``tensors``, under our names with the position table whole, in the layout of ``source``.

    Args:
        tensors: left empty, so that each can be freed once it is written.
        model: gives the configuration and the description; its own numbers are not used.

    Raises:
        ValueError, FileExistsError: as :func:`save_checkpoint`.
    """
    check_form(path, source)
    check_place(source, model)
    if any(tensor.is_meta for tensor in tensors.values()):
        raise ValueError("the model is on the meta device, which holds no numbers to write")
    assert source.encode is not None
    encoded = dict(source.encode(tensors, model.config))
    tensors.clear()
    if path.suffix:
        with new_file(path) as temporary:
            _write(temporary, encoded, model, source)
        return path
    files = {CONFIG: described(model, indent=2)}
    if source.describe is not None:
        files = {
            CONFIG: json.dumps(source.describe(model.config), indent=2),
            PREPROCESSOR: json.dumps(_preprocessing(model), indent=2),
        }
    with new_folder(path, is_saved) as temporary:
        _write(temporary / WEIGHTS, encoded, model, source)
        for name, text in files.items():
            (temporary / name).write_text(text + "\n", encoding="utf-8")
    return path


def _preprocessing(model: ViT) -> dict[str, Any]:
    """What transformers' image processor needs: size and colours."""
    tokenizer = model.config.tokenizer
    assert isinstance(tokenizer, ImageTokenizerConfig)
    height, width = tokenizer.img_size
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(model.meta.image_mean),
        "image_std": list(model.meta.image_std),
    }


def check_place(source: Source, model: ViT) -> None:
    """Raises ValueError unless the layout is for models of that modality, and the model a plain one."""
    if model.meta.transfer:
        raise ValueError(
            f"the {source.name} layout has no place for the layers of transfer mode "
            f"{model.meta.transfer.get('mode')}; call merge_transfer(model) first, or use pointvit.save"
        )
    if source.modality not in (None, model.config.modality):
        kind = "image encoders" if source.modality == "image" else "encoders of points"
        raise ValueError(
            f"only {kind} have a place in the {source.name} layout, this model encodes "
            f"{model.config.modality}; use pointvit.save"
        )


def check_form(path: Path, source: Source) -> None:
    """Raises ValueError unless ``path`` ends as the source's files do, or has no ending as its folders."""
    ending = ".npz" if source.name in NPZ else ".pth" if source.name in WRAPPERS else ".safetensors"
    as_folder = source.describe is not None or source is native.SOURCE
    if path.suffix not in ((ending, "") if as_folder else (ending,)):
        form = f"{ending} or as a folder (no ending)" if as_folder else ending
        got = path.suffix or "no ending"
        raise ValueError(f"{path}: a {source.name} checkpoint is written as {form}, got {got!r}")


def _write(path: Path, encoded: Tensors, model: ViT, source: Source) -> None:
    if path.suffix == ".npz":
        write_npz(path, encoded)
    elif path.suffix == ".pth":
        write_torch(path, {WRAPPERS[source.name]: encoded, "pointvit": describe(model)})
    else:
        write_safetensors(path, encoded, {"format": "pt", "pointvit": described(model)})
