"""ONNX files: written, shrunk to int8 and run by onnxruntime."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pointvit.export.parts import Part
from pointvit.export.programs import quiet, trace
from pointvit.trunk import Trunk

OPSET = 18
TRUNK = "trunk/"
"""How the names of nodes begin that are linear layers of the trunk."""
_TRUNK = f"{Trunk.__module__}.{Trunk.__qualname__}"
_CLASSES = "pkg.torch.onnx.class_hierarchy"


def write(parts: Sequence[Part], files: Sequence[Path], metadata: Mapping[str, str], fewest: int) -> None:
    """One file for each part, with the metadata in every one."""
    import onnx

    for part, file in zip(parts, files, strict=True):
        proto = _translated(part, fewest)
        onnx.helper.set_model_props(proto, dict(metadata))
        onnx.save(proto, str(file))


def _translated(part: Part, fewest: int) -> Any:
    """A part as an ONNX model, with nothing in it that is about this machine."""
    from pointvit.export import onnx_points

    operators = torch.ops.pointvit
    program = trace(part, fewest)
    with quiet(), _only_errors("onnxscript", "onnx_ir", "torch.onnx"):
        translated = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=list(part.inputs),
            output_names=list(part.outputs),
            custom_translation_table={
                operators.farthest_point_sample.default: onnx_points.translate_sample,
                operators.knn.default: onnx_points.translate_neighbours,
            },
        )
    assert translated is not None
    proto = translated.model_proto
    _mark_trunk(proto.graph)
    _name_dimensions(part, proto.graph)
    for message in _messages(proto.graph):
        del message.metadata_props[:]
    return proto


def quantise(file: Path) -> None:
    """A trunk's linear layers in int8: weights with a scale per output channel, inputs as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(str(file)).graph
    nodes = [node.name for node in graph.node if node.name.startswith(TRUNK)]
    smaller = file.with_name(f"{file.stem}-int8{file.suffix}")
    try:
        with _only_errors(""):
            quantize_dynamic(
                file,
                smaller,
                op_types_to_quantize=["MatMul"],
                nodes_to_quantize=nodes,
                per_channel=True,
                weight_type=QuantType.QInt8,
            )
        proto = onnx.load(str(smaller))
        kept = {entry.key: entry.value for entry in proto.metadata_props if "onnx.infer" not in entry.key}
        onnx.helper.set_model_props(proto, kept)
        onnx.save(proto, str(file))
    finally:
        smaller.unlink(missing_ok=True)


def opened(files: Sequence[Path]) -> Callable[[Tensor], Tensor]:
    """``(B, P, C) | (B, C, H, W) -> (B, K)`` through one file after the other, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    providers = ["CPUExecutionProvider"]
    sessions = [onnxruntime.InferenceSession(file, options, providers=providers) for file in files]

    def run(x: Tensor) -> Tensor:
        values = {sessions[0].get_inputs()[0].name: x.cpu().numpy()}
        for session in sessions:
            names = [output.name for output in session.get_outputs()]
            values = dict(zip(names, session.run(names, values), strict=True))
        return torch.from_numpy(values[names[0]])

    return run


def _mark_trunk(graph: Any) -> None:
    """Names of nodes say which are a trunk's linear layers."""
    constants = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        inside = any(entry.key == _CLASSES and _TRUNK in entry.value for entry in node.metadata_props)
        if inside and node.op_type == "MatMul" and node.input[1] in constants:
            node.name = TRUNK + node.name


def _messages(graph: Any) -> Iterator[Any]:
    """Every part of a graph that carries metadata, those of loops inside it included."""
    yield graph
    yield from _flat((graph.value_info, graph.input, graph.output, graph.initializer))
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _messages(attribute.g)


def _flat(groups: Iterable[Iterable[Any]]) -> Iterator[Any]:
    for group in groups:
        yield from group


def _name_dimensions(part: Part, graph: Any) -> None:
    """Calls free dimensions by their names, where the trace has symbols of its own."""
    names = {}
    for given, free in zip(graph.input, part.free, strict=True):
        for axis, name in free.items():
            names[given.type.tensor_type.shape.dim[axis].dim_param] = name
    for value in _flat((graph.input, graph.output)):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]
    del graph.value_info[:]  # shapes in between, which runtimes infer, in terms of those symbols


@contextlib.contextmanager
def _only_errors(*names: str) -> Iterator[None]:
    """These loggers without advice that is for whoever wrote the exporter."""
    loggers = [logging.getLogger(name or None) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
