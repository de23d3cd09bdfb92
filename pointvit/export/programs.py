"""Exported programs of torch, which run where torch alone is installed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

from pointvit.export.parts import Part, dimensions
from pointvit.ops import native

METADATA = "pointvit.json"
"""Name of the file with the metadata inside the archive."""


def trace(part: Part, fewest: int) -> ExportedProgram:
    """The operations of a part, with the point operations of this library as single, opaque ones."""
    free: Any = dimensions(part, fewest)
    if len(part.inputs) > 1 or part.name == "trunk":
        free = (free,)  # the inputs of a trunk are one variadic argument
    with quiet():
        return torch.export.export(part.module, part.example, dynamic_shapes=free)


def write(parts: Sequence[Part], files: Sequence[Path], metadata: Mapping[str, str], fewest: int) -> None:
    """``torch.export.save`` of every part, with the point operations spelled out in those of torch."""
    for part, file in zip(parts, files, strict=True):
        with PlainPoints():
            program = trace(part, fewest)
        _forget_source(program)
        with file.open("wb") as stream:  # by its name, the archive would be called as the temporary file is
            torch.export.save(program, stream, extra_files={METADATA: json.dumps(dict(metadata))})


def opened(files: Sequence[Path]) -> Callable[[Tensor], Tensor]:
    """``(B, P, C) | (B, C, H, W) -> (B, K)``, as whoever loads the file calls it."""
    with quiet():
        program = torch.export.load(files[0]).module()

    def run(x: Tensor) -> Tensor:
        logits: Tensor = program(x)[0]
        return logits

    return run


def _forget_source(program: ExportedProgram) -> None:
    """Takes names of files on this machine out of a program."""
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)


class PlainPoints(TorchFunctionMode):
    """Point operations called inside are plain ones of torch, which a trace records one by one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        plain = {
            torch.ops.pointvit.farthest_point_sample.default: _sample,
            torch.ops.pointvit.knn.default: _nearest,
        }
        return plain.get(func, func)(*args, **(kwargs or {}))


def _sample(points: Tensor, num_samples: int, lengths: None, start: None, backend: str) -> Tensor:
    sizes = _sizes(points)
    return native.farthest_point_sample(points, num_samples, sizes, torch.zeros_like(sizes))


def _nearest(queries: Tensor, points: Tensor, k: int, lengths: None, backend: str) -> Tensor:
    return native.knn_at_once(queries, points, _sizes(points), k)


def _sizes(points: Tensor) -> Tensor:
    return torch.full((points.shape[0],), points.shape[1], dtype=torch.int64, device=points.device)


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's warnings about its own code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        yield
