"""Exporting: what is asked for is checked, files are written, and their answers compared with the model's."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from pointvit.checkpoints.writing import check_place, new_file
from pointvit.config import near
from pointvit.model import Pair, ViT
from pointvit.tokenizers import ImageTokenizerConfig

if TYPE_CHECKING:
    from pointvit.export.parts import Request

TOLERANCE = 1e-4
"""Largest difference that float32 may make, as a share of the largest number in the model's answer."""
INT8_TOLERANCE = 0.5
"""Beyond this share, nothing of the answer is left in int8; what is lost below it, only data can tell."""
LIMIT = 2**31 - 2**24
"""Bytes of weights: a protobuf message, which an ONNX file is, ends at 2 GiB."""


class Target(NamedTuple):
    ending: str
    packages: tuple[str, ...]
    """What writing it needs beside torch."""


TARGETS = {"onnx": Target(".onnx", ("onnx", "onnxscript")), "torch.export": Target(".pt2", ())}


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far its answers are from the model's."""

    files: tuple[Path, ...]
    inputs: str
    """The sizes that are taken."""
    difference: float | None
    """Largest difference of a number in the answer, in float32; None if there was nothing to run it with."""
    largest: float | None
    """Largest number in the model's answer."""
    checked: str
    """The sizes that were compared."""
    int8_difference: float | None = None

    def rows(self) -> list[tuple[str, str]]:
        """``(what, value)`` as text, one fact each."""
        compared = (
            "not compared with the model: onnxruntime is not installed"
            if self.difference is None
            else f"max |difference| {self.difference:.2g} of {self.largest:.3g}, on {self.checked}"
        )
        rows = [("written", f"{file} ({file.stat().st_size:,} bytes)") for file in self.files]
        rows += [("takes", self.inputs), ("logits", compared)]
        if self.int8_difference is not None:
            rows.append(("int8", f"max |difference| {self.int8_difference:.2g} of {self.largest:.3g}"))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name:<8} {value}" for name, value in self.rows())


def export(
    model: ViT,
    path: str | os.PathLike[str],
    target: str = "onnx",
    num_points: int | None = None,
    batch_size: int | None = None,
    split: bool = False,
    int8: bool = False,
    tokens: bool = False,
) -> ExportReport:
    """Writes an encoder, its tokenizer included, as a file that runs without this library.

    The file computes what the model does in eval mode; the model stays in the mode it is in. Before the file
    is put in place it is run on random inputs of several sizes that it was not made with, and its answers
    have to be the model's.

    Args:
        path: the file to write, ending in ``.onnx`` or ``.pt2``.
        target: ``onnx``, or ``torch.export`` for a program that torch alone runs.
        num_points: P, if the file is to take clouds of this size alone; None for any.
        batch_size: B, likewise.
        split: two ONNX files, ``x.tokenizer.onnx`` and ``x.trunk.onnx``, instead of ``x.onnx``.
        int8: the trunk's linear layers with weights of eight bits (ONNX).
        tokens: a second output ``tokens`` (B, T, D), after the final norm.

    Raises:
        ValueError: for a model or options that cannot be exported, or answers that differ from the model's.
        ImportError: if a package that the target needs is not installed.
        OSError: if the folder cannot be written to.
    """
    path = Path(path)
    _check_request(path, target, num_points, batch_size, split, int8)
    _check_model(model, num_points)
    _check_folder(path)
    # Here, as they import torch's exporter.
    from pointvit.export import onnx_files, programs
    from pointvit.export.parts import Request, fewest_points, in_eval, parts_of

    writer = onnx_files if target == "onnx" else programs
    request, fewest = Request(batch_size, num_points), fewest_points(model)
    metadata = described(model) | ({"quantization": "int8"} if int8 else {})
    with in_eval(model), ExitStack() as files:
        parts = parts_of(model, request, split, tokens)
        paths = [path.with_suffix(f".{part.name}{path.suffix}") if part.name else path for part in parts]
        made = [files.enter_context(new_file(name)) for name in paths]
        writer.write(parts, made, metadata, fewest)
        difference, largest, rounded = None, None, None
        if target != "onnx" or _is_installed("onnxruntime"):
            difference, largest = _compared(model, request, writer.opened(made), path, TOLERANCE)
        if int8:
            onnx_files.quantise(made[-1])
            rounded, _ = _compared(model, request, onnx_files.opened(made), path, INT8_TOLERANCE)
    taken = _taken(model, request, 1 if target == "onnx" else fewest)
    return ExportReport(tuple(paths), taken, difference, largest, _sizes(model, request), rounded)


def described(model: ViT) -> dict[str, str]:
    """What has to travel with a model, as text: names and the like as they are, everything else as JSON."""
    from pointvit import __version__

    meta, config = model.meta, model.config
    facts: dict[str, object] = {
        "pointvit": __version__,
        "modality": config.modality,
        "class_names": meta.class_names,
        "source": meta.source.get("file"),
        "source_sha256": meta.source.get("sha256"),
        "model": config.to_dict(),
    }
    if config.modality == "points":
        facts |= {"up_axis": meta.up_axis, "num_points": meta.num_points, "normalization": meta.normalization}
    else:
        facts |= {"image_mean": meta.image_mean, "image_std": meta.image_std}
    known = {name: value for name, value in facts.items() if value is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}


def _check_request(
    path: Path, target: str, num_points: int | None, batch_size: int | None, split: bool, int8: bool
) -> None:
    if target not in TARGETS:
        raise ValueError(f"unknown export target {target!r}; {near(target, TARGETS)}")
    ending, packages = TARGETS[target]
    if path.suffix != ending:
        raise ValueError(f"{path}: a file for {target} ends in {ending}")
    if target != "onnx" and (split or int8):
        raise ValueError("split and int8 are for ONNX files; use target='onnx'")
    for name, size in (("num_points", num_points), ("batch_size", batch_size)):
        if size is not None and not (type(size) is int and size >= 1):
            raise ValueError(f"{name} must be a whole number of at least 1, or None for any, got {size!r}")
    missing = [name for name in (*packages, *(("onnxruntime",) if int8 else ())) if not _is_installed(name)]
    if missing:
        raise ImportError(
            f"exporting to {target}{' with int8' if int8 else ''} needs {' and '.join(missing)}: "
            "pip install 'pointvit[export]'"
        )


def _check_model(model: ViT, num_points: int | None) -> None:
    if isinstance(model, Pair):
        raise ValueError("a pair holds two encoders; export one of them, pair.points or pair.image")
    if not isinstance(model, ViT):
        raise ValueError(f"only an encoder of pointvit (ViT) can be exported, got {type(model).__name__}")
    if num_points is not None and model.config.modality != "points":
        raise ValueError("num_points is for point encoders, and this model encodes images")
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        raise ValueError("the model is on the meta device and has no weights; load them before exporting")
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ValueError(
                f"files are written in float32, the model has {tensor.dtype}; call model.float()"
            )
    size = sum(tensor.nbytes for tensor in tensors)
    if size > LIMIT:
        raise ValueError(f"an exported file holds at most {LIMIT:,} bytes, the model's weights are {size:,}")


def _check_folder(path: Path) -> None:
    """As far as can be told before minutes are spent."""
    check_place(path)
    if path.is_dir():
        raise FileExistsError(f"{path}: is a folder, expected the name of a file")


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _compared(
    model: ViT, request: Request, run: Callable[[Tensor], Tensor], path: Path, tolerance: float
) -> tuple[float, float]:
    """The largest difference between the model's answers and a file's, and the largest of the former.

    Raises:
        ValueError: if the difference is a larger share than ``tolerance``, or not a number.
    """
    from pointvit.export.parts import checked_sizes, made_inputs

    differences, largest = [], []
    for seed, sizes in enumerate(checked_sizes(model, request), start=1):
        x = made_inputs(model, sizes, seed)
        expected, got = model(x).cpu(), run(x).cpu()
        differences.append((got - expected).abs().max())
        largest.append(expected.abs().max())
    difference, size = (torch.stack(values).max().item() for values in (differences, largest))
    if not difference <= tolerance * size:
        raise ValueError(
            f"{path}: not written, as its answers differ from the model's by {difference:.2g} (the largest "
            f"number is {size:.2g}); expected at most a share of {tolerance:g}"
        )
    return difference, size


def _sizes(model: ViT, request: Request) -> str:
    """The sizes that :func:`_compared` takes, in words."""
    from pointvit.export.parts import checked_sizes

    sizes = checked_sizes(model, request)
    if model.config.modality == "points":
        return f"batches of {', '.join(f'{batch} x {points:,}' for batch, points in sizes)} random points"
    return f"batches of {', '.join(str(batch) for batch, _ in sizes)} random images"


def _taken(model: ViT, request: Request, fewest: int) -> str:
    batch = "any batch" if request.batch_size is None else f"batches of {request.batch_size}"
    tokenizer = model.tokenizer.config
    if isinstance(tokenizer, ImageTokenizerConfig):
        return f"images ({batch}, {tokenizer.in_chans}, {tokenizer.img_size[0]}, {tokenizer.img_size[1]})"
    points = f"{fewest} points or more" if request.num_points is None else f"{request.num_points} points"
    return f"points ({batch}, {points}, {tokenizer.in_chans})"
