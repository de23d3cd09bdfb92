"""Point operations on the CPU in numpy: its argmax and its small operations cost a fraction of torch's there.

Everything is done on x, y and z as separate contiguous planes, in pieces that stay in a core's cache. numpy
lets go of the interpreter while it calculates, so pieces run in as many threads as torch would use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Coordinates that are not finite have no order to speak of; torch says nothing about them either.
_QUIET = np.errstate(invalid="ignore", over="ignore", under="ignore")

Array = NDArray[Any]
Part = TypeVar("Part")
Result = TypeVar("Result")

_CACHED = 1 << 18
"""Distances in one piece of a neighbour search (1 MB in float32): smaller ones leave a second-level cache
less, but threads then wait for each other to start the next operation."""

_BLOCK = 256
"""Queries whose candidates are sorted together."""

_WORTH_A_THREAD = 1 << 17
"""Coordinates below which one thread samples a batch faster than two."""

_SEARCH_WORTH_A_THREAD = 1 << 23
"""Distances below which one thread finds neighbours faster than two."""


def farthest_point_sample(points: Tensor, num_samples: int, lengths: Tensor, start: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, G)``: see :func:`pointvit.ops.farthest_point_sample`."""
    on_cpu(points)
    clouds, sizes, first = points.numpy(), lengths.numpy(), start.numpy()
    threads = torch.get_num_threads() if clouds[..., 0].size >= _WORTH_A_THREAD else 1
    rows = np.array_split(np.arange(len(clouds)), max(1, min(threads, len(clouds))))
    parts = in_threads(lambda row: _sample(clouds[row], num_samples, sizes[row], first[row]), rows)
    chosen = np.concatenate(parts)
    order = np.arange(num_samples) % sizes[:, None]
    return torch.from_numpy(np.take_along_axis(chosen, order, axis=1))


@_QUIET
def _sample(points: Array, count: int, sizes: Array, start: Array) -> Array:
    batch, size = points.shape[:2]
    planes = np.stack([points[..., axis] for axis in range(3)])
    every = planes.reshape(3, -1)
    nearest = np.where(np.arange(size) < sizes[:, None], np.inf, -np.inf).astype(points.dtype)
    distance, square = np.empty_like(nearest), np.empty_like(nearest)
    chosen = np.empty((count, batch), np.int64)
    offsets = np.arange(batch) * size
    last = start
    for i in range(count):
        chosen[i] = last
        flat = offsets + last
        nearest.reshape(-1)[flat] = -1.0  # below every distance: duplicates of a chosen point come first
        squared_distances(planes, every[:, flat, None], distance, square)
        np.minimum(nearest, distance, out=nearest)
        last = nearest.argmax(axis=1)
    return chosen.T


def knn(queries: Tensor, points: Tensor, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``: see :func:`pointvit.ops.knn`."""

    def nearest(planes: Array, centers: Array, buffers: Array) -> Array:
        size = planes.shape[1]
        rows, found, columns = [], [], []
        for begin, distances in _pieces(planes, centers, buffers):
            flat = _candidates(distances, k)
            row, column = np.divmod(flat, size)
            rows.append(row + begin)
            found.append(distances.reshape(-1)[flat])
            columns.append(column)
        row, distance, column = (np.concatenate(part) for part in (rows, found, columns))
        chosen = smallest(row, distance, column, centers.shape[1], min(k, size))
        return chosen[:, np.arange(k) % size]

    return _search(nearest, queries, points, k, lengths)


def ball_query(queries: Tensor, points: Tensor, radius: float, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``: see :func:`pointvit.ops.ball_query`."""

    def first_inside(planes: Array, centers: Array, buffers: Array) -> Array:
        found = []
        for _, distances in _pieces(planes, centers, buffers):
            inside = distances <= radius * radius
            counts = np.count_nonzero(inside, axis=1)
            none = np.flatnonzero(counts == 0)
            inside[none, distances[none].argmin(axis=1)] = True
            counts[none] = 1
            columns = np.flatnonzero(inside) % planes.shape[1]
            starts = np.cumsum(counts) - counts
            found.append(columns[starts[:, None] + np.arange(k) % counts[:, None]])
        return np.concatenate(found)

    return _search(first_inside, queries, points, k, lengths)


def smallest(row: Array, distance: Array, index: Array, rows: int, k: int) -> Array:
    """``3 x (N,) -> (rows, k)``: the indices with the k smallest distances of each row, ties by lowest index.

    Candidates come with their rows ascending and at least k in each. Non-negative float32 numbers order like
    their bit patterns, so bits and index together make one integer that sorts by both.
    """
    counts = np.bincount(row, minlength=rows)
    starts = np.cumsum(counts) - counts
    width = int(counts.max(initial=0))
    if distance.dtype != np.float32 or rows * width > 8 * len(row):  # one crowded row must not widen all
        order = np.lexsort((index, distance, row))
        return index[order[starts[:, None] + np.arange(k)]]
    keys = np.full((rows, width), np.iinfo(np.int64).max)
    bits = (
        np.abs(distance).view(np.int32).astype(np.int64)
    )  # -0.0 and NaN may have the bits of a negative number
    keys[row, np.arange(len(row)) - starts[row]] = bits << 32 | index
    keys.sort(axis=1)
    return keys[:, :k] & 0xFFFFFFFF


def in_threads(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """``work`` on every part, in as many threads as torch would use here."""
    threads = min(torch.get_num_threads(), len(parts))
    if threads < 2:
        return [work(part) for part in parts]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, parts))


def on_cpu(points: Tensor) -> None:
    if points.device.type != "cpu":
        raise ValueError(
            f"this back end runs on the CPU, the points are on {points.device}; use backend='torch'"
        )


def _search(
    found: Callable[[Array, Array, Array], Array], queries: Tensor, points: Tensor, k: int, lengths: Tensor
) -> Tensor:
    """Runs ``found``, ``(3, n), (3, R, 1) -> (R, k)``, on blocks of queries; each thread has its buffers."""
    on_cpu(points)
    batch, groups = queries.shape[:2]
    result = np.empty((batch, groups, k), np.int64)
    clouds, centers, sizes = points.numpy(), queries.numpy(), lengths.tolist()
    threads = torch.get_num_threads() if batch * groups * points.shape[1] >= _SEARCH_WORTH_A_THREAD else 1
    block = min(_BLOCK, -(-groups // threads)) if batch < threads else _BLOCK
    blocks = [(row, begin) for row in range(batch) for begin in range(0, groups, max(1, block))]

    @_QUIET
    def search(part: Array) -> None:
        buffers = np.empty((2, max(_CACHED, points.shape[1])), clouds.dtype)
        for row, begin in part:
            planes = np.stack([clouds[row, : sizes[row], axis] for axis in range(3)])
            some = centers[row, begin : begin + block].T[..., None]
            result[row, begin : begin + block] = found(planes, some, buffers)

    if blocks:
        in_threads(search, np.array_split(np.array(blocks), min(threads, len(blocks))))
    return torch.from_numpy(result)


def _pieces(planes: Array, centers: Array, buffers: Array) -> Iterator[tuple[int, Array]]:
    """``(3, n), (3, R, 1)``: (first query, (r, n) distances) for as many queries as the buffers hold."""
    size = planes.shape[1]
    width = buffers.shape[1] // size
    for begin in range(0, centers.shape[1], width):
        some = centers[:, begin : begin + width]
        distances, square = buffers[:, : some.shape[1] * size].reshape(2, -1, size)
        squared_distances(planes, some, distances, square)
        yield begin, distances


def squared_distances(planes: Sequence[Array] | Array, center: Array, out: Array, square: Array) -> None:
    """Fills ``out`` with (x - cx)² + (y - cy)² + (z - cz)², rounded after each operation in this order."""
    np.subtract(planes[0], center[0], out=out)
    np.multiply(out, out, out=out)
    for axis in (1, 2):
        np.subtract(planes[axis], center[axis], out=square)
        np.multiply(square, square, out=square)
        np.add(out, square, out=out)


def _candidates(distances: Array, k: int) -> Array:
    """``(R, n) -> (N,)``: flat places that hold the k nearest of each row, all ties, and few others.

    The k-th smallest among the minima of groups of points bounds the k-th smallest of all, because k groups
    have a point as near as that.
    """
    minima = distances
    while minima.shape[1] >= 8 * k:
        half = minima.shape[1] // 2
        minima = np.minimum(minima[:, :half], minima[:, half : 2 * half])
    if minima is distances:
        return np.arange(distances.size)
    farther = distances > np.partition(minima, k - 1, axis=1)[:, k - 1 : k]
    return np.flatnonzero(
        np.logical_not(farther, out=farther)
    )  # NaN is not farther: every row keeps at least k
