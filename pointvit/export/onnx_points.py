# mypy: ignore-errors
"""Sampling and neighbour search as functions of ONNX (opset 18), which take the place of our operators.

Both do what :mod:`pointvit.ops` says for clouds without ``lengths``, in the same order of operations, so that
in float32 they give the same indices: sampling is one Loop over G, whatever the cloud; TopK and ArgMax give
ties to the lower index, as their specification says. Clouds smaller than G or K repeat, as they do there.

onnxscript translates the source of these functions, and its types for them are not those of Python.
"""

import onnxscript
from onnxscript import FLOAT, INT64
from onnxscript import opset18 as op

_DOMAIN = onnxscript.values.Opset("pointvit", 1)


@onnxscript.script(_DOMAIN)
def sample(points: FLOAT[...], num_samples: int) -> INT64[...]:
    """``(B, P, 3) -> (B, G)``"""
    batch = op.Shape(points, start=0, end=1)
    size = op.Shape(points, start=1, end=2)
    column = op.Concat(batch, op.Constant(value_ints=[1]), axis=0)
    row = op.Range(
        op.Constant(value_int=0), op.Constant(value_int=num_samples), op.Constant(value_int=1)
    )  # 0 ... G - 1
    planes = op.Transpose(points, perm=[2, 0, 1])  # (3, B, P)
    of_planes = op.Concat(op.Constant(value_ints=[3]), column, axis=0)
    taken = op.Expand(op.Constant(value_floats=[-1.0]), column)
    nearest = op.Expand(op.Constant(value_float=float("inf")), op.Concat(batch, size, axis=0))
    last = op.Expand(op.Constant(value_ints=[0]), column)
    chosen = op.Expand(op.Constant(value_ints=[0]), op.Concat(batch, op.Shape(row), axis=0))
    for i in range(num_samples):
        chosen = op.Where(op.Equal(row, i), last, chosen)
        nearest = op.ScatterElements(nearest, last, taken, axis=1)
        center = op.GatherElements(planes, op.Expand(last, of_planes), axis=2)
        offset = op.Sub(planes, center)
        dx, dy, dz = op.Split(op.Mul(offset, offset), num_outputs=3, axis=0)
        distance = op.Squeeze(op.Add(op.Add(dx, dy), dz), op.Constant(value_ints=[0]))
        nearest = op.Min(nearest, distance)
        last = op.ArgMax(nearest, axis=1, keepdims=1)
    return op.Gather(chosen, op.Mod(row, size), axis=1)


@onnxscript.script(_DOMAIN)
def neighbours(queries: FLOAT[...], points: FLOAT[...], k: int) -> INT64[...]:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``"""
    size = op.Shape(points, start=1, end=2)
    row = op.Range(op.Constant(value_int=0), op.Constant(value_int=k), op.Constant(value_int=1))
    of_queries = op.Unsqueeze(op.Transpose(queries, perm=[2, 0, 1]), op.Constant(value_ints=[3]))
    of_points = op.Unsqueeze(op.Transpose(points, perm=[2, 0, 1]), op.Constant(value_ints=[2]))
    offset = op.Sub(of_queries, of_points)
    dx, dy, dz = op.Split(op.Mul(offset, offset), num_outputs=3, axis=0)
    distance = op.Squeeze(op.Add(op.Add(dx, dy), dz), op.Constant(value_ints=[0]))
    _distances, index = op.TopK(distance, op.Min(op.Shape(row), size), axis=-1, largest=0, sorted=1)
    return op.Gather(index, op.Mod(row, size), axis=2)


def translate_sample(points, num_samples: int, lengths=None, start=None, backend: str = "auto"):
    return sample(points, num_samples=num_samples)


def translate_neighbours(queries, points, k: int, lengths=None, backend: str = "auto"):
    return neighbours(queries, points, k=k)
