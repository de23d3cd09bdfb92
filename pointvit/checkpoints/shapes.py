"""Shapes without numbers: tensors on the meta device, with little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class ShapesAlone(TorchFunctionMode):
    """Joins tensors on the meta device, and leaves out what would fill them, in the ``with`` block.

    PyTorch does both in Python code whose import alone takes over 100 MB, more than the headers of any file.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        first: Any = args[0] if args else given.get("tensor")
        if func is torch.cat and first[0].is_meta:
            return _joined(*args, **given)
        if name.endswith("_") and not name.endswith("__") and isinstance(first, Tensor) and first.is_meta:
            return first
        return func(*args, **given)


def _joined(tensors: list[Tensor], dim: int = 0) -> Tensor:
    shape = list(tensors[0].shape)
    if any(t.ndim != len(shape) or _without(t.shape, dim) != _without(shape, dim) for t in tensors):
        raise ValueError(f"shapes that cannot be joined: {', '.join(str(tuple(t.shape)) for t in tensors)}")
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return torch.empty(shape, dtype=tensors[0].dtype, device="meta")


def _without(shape: Iterable[int], dim: int) -> list[int]:
    rest = list(shape)
    del rest[dim]
    return rest
