"""One row for each kind of public checkpoint: the implementation it belongs to, and its file.

Each module beside this one has a list ``ROWS``; ``checkpoints/test_parity.py`` runs them all: parity at the
native and at another resolution, and mutations of the file that must not go unnoticed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Row:
    """A public implementation with random weights, and a file of it."""

    name: str
    source: str
    """As in ``pointvit.checkpoints.SOURCES``; the file's own names must lead to it."""
    build: Callable[[], nn.Module]
    """The public model, small, with its default initialisation; the test makes every number random."""
    write: Callable[[nn.Module, Path], Path]
    """Writes the model into a folder in the form its users have; returns the file or folder to open."""
    features: Callable[[nn.Module, Tensor], Tensor]
    """What ``ours`` gives below, from the public model."""
    ours: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model.forward_features(x)
    logits: Callable[[nn.Module, Tensor], Tensor] | None = lambda model, x: model(x)
    """The output with the head, or None where the public model has none."""
    inputs: tuple[tuple[int, ...], ...] = ((2, 3, 32, 32), (2, 3, 48, 40))
    """Shapes of inputs: the native one first, then those for which positions are resampled."""
    at: Callable[[nn.Module, tuple[int, ...]], nn.Module] = lambda model, shape: model
    """The public model as its own code prepares it for inputs of another shape."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What such files leave open (heads of an unusual width, GELU or QuickGELU)."""
    query_key: tuple[str, ...] = ()
    """Names in the file of a query and a key weight, or of one tensor that holds query, key and value."""
    kernel: str = ""
    """Name in the file of a weight as high as wide, so that shapes do not betray that it is transposed."""
    dropped: str = ""
    """Name in the file of a tensor that is needed."""
    tolerance: float = 1e-5


def sampled_rows() -> list[ParameterSet]:
    """All rows as parameters of a test: the first of every source, and the others where slow tests run."""
    seen: set[str] = set()
    parameters = []
    for module in pkgutil.iter_modules(__path__):
        for row in importlib.import_module(f"{__name__}.{module.name}").ROWS:
            marks = pytest.mark.slow if row.source in seen else ()
            parameters.append(pytest.param(row, id=row.name, marks=marks))
            seen.add(row.source)
    return parameters


def read(path: Path) -> Tensors:
    """All tensors of a file, or of the weights in a folder, by the names they have there."""
    path = weights_in(path)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    if path.suffix == ".safetensors":
        return load_file(path)
    content = torch.load(path, weights_only=True)
    return {name: tensor.clone() for name, tensor in _innermost(content).items()}


def rewrite(path: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Changes the tensors of a file in place, and nothing else of it."""
    path = weights_in(path)
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in change(read(path)).items()})
    elif path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        save_file({n: t.contiguous() for n, t in change(load_file(path)).items()}, path, metadata)
    else:
        content = torch.load(path, weights_only=True)
        inner = _innermost(content)
        changed = change(dict(inner))
        inner.clear()
        inner.update(changed)
        torch.save(content, path)


def weights_in(path: Path) -> Path:
    """The file itself, or the one file of weights in a folder."""
    if not path.is_dir():
        return path
    (file,) = [p for p in path.iterdir() if p.suffix in (".safetensors", ".bin", ".npz", ".pth")]
    return file


def _innermost(content: Any) -> dict[str, Any]:
    for wrapper in ("model", "state_dict", "base_model", "module", "teacher"):
        if isinstance(content.get(wrapper), dict):
            return _innermost(content[wrapper])
    return content
