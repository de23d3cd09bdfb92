"""Point operations for one large cloud at a time on the CPU: exact, but most distances are never computed.

The points are put in order along a Morton curve and cut into buckets of equal size, each with its bounding
box. A box tells how near its points can be to a position. Rounding is monotone: when its distance is computed
by the same operations in the same order as those of the points, none of theirs is rounded to less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pointvit.ops import numpy_backend
from pointvit.ops.numpy_backend import Array, on_cpu, smallest

_SIZE = 256
"""Points in a bucket."""

_ONE_BY_ONE = 8
"""First samples, each of which changes nearly every bucket: no box is looked at."""

_CANDIDATES = 600
"""Candidates aimed at in a round of sampling."""

_TOGETHER = 1 << 13
"""Distances computed in one operation when samples are applied, if as many are needed."""

_BITS = 10
_CACHED = 1 << 18
"""Distances computed at a time."""


@dataclass
class Buckets:
    codes: Array
    """(P,): the points' Morton codes, ascending."""
    origin: Tensor
    """(3, 1): where the cells of the codes begin, and over which length they reach."""
    extent: Tensor
    index: Array
    """(N * S,): the points' indices in the cloud; copies of the last point fill up the last bucket."""
    planes: Tensor
    """(3, N, S): the coordinates."""
    low: Tensor
    """(3, N, 1): the corners of the boxes."""
    high: Tensor

    def box_distances(self, positions: Tensor) -> Tensor:
        """``(3, M) -> (N, M)``: squared distances from the boxes, 0 inside."""
        total: Tensor | None = None
        for low, high, position in zip(self.low, self.high, positions, strict=True):
            gap = torch.maximum(low - position, position - high).clamp_min_(0.0)
            total = gap.mul_(gap) if total is None else total.add_(gap.mul_(gap))
        assert total is not None
        return total


class Scratch(NamedTuple):
    """Memory that is used again and again, because fresh memory has to be mapped first."""

    differences: Tensor
    planes: Tensor
    nearest: Tensor


def farthest_point_sample(points: Tensor, num_samples: int, lengths: Tensor, start: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, G)``: see :func:`pointvit.ops.farthest_point_sample`."""
    on_cpu(points)
    rows = []
    for cloud, n, first in zip(points, lengths.tolist(), start.tolist(), strict=True):
        if can_be_cut(cloud[:n]):
            chosen = _sample(cloud[:n], min(num_samples, n), first)
            rows.append(torch.from_numpy(chosen[np.arange(num_samples) % n]))
        else:
            one = torch.tensor([n]), torch.tensor([first])
            rows.append(numpy_backend.farthest_point_sample(cloud[None, :n], num_samples, *one)[0])
    return torch.stack(rows) if rows else torch.empty(0, num_samples, dtype=torch.int64)


def knn(queries: Tensor, points: Tensor, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``: see :func:`pointvit.ops.knn`."""
    on_cpu(points)
    rows = []
    for query, cloud, n, size in zip(queries, points, lengths.tolist(), lengths, strict=True):
        if k <= n and can_be_cut(cloud[:n]) and bool(query.isfinite().all()):
            rows.append(_neighbours(query, cut(cloud[:n]), k))
        else:
            rows.append(numpy_backend.knn(query[None], cloud[None], k, size[None])[0])
    return torch.stack(rows) if rows else torch.empty(*queries.shape[:2], k, dtype=torch.int64)


ball_query = numpy_backend.ball_query


def can_be_cut(cloud: Tensor) -> bool:
    """Whether all coordinates, and the squared distances between them, are finite."""
    extent = cloud.amax(dim=0) - cloud.amin(dim=0)
    return bool(extent.square().sum().isfinite())


def cut(cloud: Tensor) -> Buckets:
    """``(P, 3)`` to buckets along the Morton curve through its bounding box."""
    planes = torch.stack([cloud[:, axis] for axis in range(3)])
    origin, opposite = planes.amin(dim=1, keepdim=True), planes.amax(dim=1, keepdim=True)
    extent = (opposite - origin).clamp_min(torch.finfo(planes.dtype).tiny)
    bits = planes.shape[1].bit_length()
    keys = _morton_codes(planes, origin, extent) << bits | np.arange(planes.shape[1])
    keys.sort()  # one sort of code and index in one integer
    index = keys & (1 << bits) - 1
    index = np.concatenate([index, np.full(-len(index) % _SIZE, index[-1])])
    planes = planes.index_select(1, torch.from_numpy(index)).view(3, -1, _SIZE)
    low, high = planes.amin(dim=2, keepdim=True), planes.amax(dim=2, keepdim=True)
    return Buckets(keys >> bits, origin, extent, index, planes, low, high)


def _morton_codes(planes: Tensor, origin: Tensor, extent: Tensor) -> Array:
    """``(3, N) -> (N,)``: the bits of the cells in x, y and z in turn."""
    cells = 1 << _BITS
    cell = (planes - origin).div_(extent).mul_(cells).clamp_(0, cells - 1).to(torch.int32).numpy()
    spread = np.zeros(cells, np.int64)
    for bit in range(_BITS):
        spread |= (np.arange(cells) >> bit & 1) << 3 * bit
    x, y, z = (spread[place] for place in cell)
    codes: Array = x | y << 1 | z << 2
    return codes


def _sample(cloud: Tensor, count: int, first: int) -> Array:
    """``(P, 3) -> (G,)``, G <= P.

    Distances to the nearest sample only fall. So while the farthest of the *candidates*, the points farther
    than some limit, is still beyond that limit, it is the farthest of all: no other has to be looked at.
    Afterwards all samples of the round are applied to the buckets that they can change.
    """
    buckets = cut(cloud)
    nearest = torch.full(buckets.planes.shape[1:], torch.inf, dtype=cloud.dtype)
    numbers = buckets.planes.numel()
    sizes = max(numbers, 3 * _TOGETHER), numbers, nearest.shape
    scratch = Scratch(*(cloud.new_empty(size) for size in sizes))
    flat = nearest.view(-1).numpy()
    flat[len(cloud) :] = -1.0  # below every distance: neither copies nor chosen points are chosen again
    place = np.empty(len(cloud), np.int64)
    place[buckets.index[: len(cloud)]] = np.arange(len(cloud))
    planes = np.stack([cloud.numpy()[:, axis] for axis in range(3)])
    chosen, new, share = np.empty(count, np.int64), np.array([first]), 0.8
    done = 0
    while True:
        flat[place[new]] = -1.0
        chosen[done : done + len(new)] = new
        done += len(new)
        if done == count:
            return chosen
        positions = torch.from_numpy(planes[:, new])
        if done <= _ONE_BY_ONE:
            _apply_everywhere(buckets.planes, positions, nearest, scratch.differences)
            farthest = nearest.amax(dim=1)
        else:
            _apply(buckets, positions, nearest, farthest, scratch)
        top = farthest.max().numpy()
        if done < _ONE_BY_ONE:
            new = buckets.index[np.flatnonzero(flat == top)].min(keepdims=True)
            continue
        limit = top * top.dtype.type(share)
        if not limit < top:  # only duplicates of samples are left, or distances too small to be divided
            limit = top.dtype.type(-0.5)
        candidates = np.sort(buckets.index[np.flatnonzero(flat > limit)])
        share = min(0.98, max(0.3, share * (len(candidates) / _CANDIDATES) ** 0.1))
        new = _round(planes, candidates, flat[place[candidates]], limit, count - done)


def _round(planes: Array, candidates: Array, nearest: Array, limit: float, most: int) -> Array:
    """``(3, P), (T,), (T,) -> (m,)``: samples among the candidates while one is farther than the limit."""
    position = planes[:, candidates]
    difference = np.empty_like(position)
    picked: list[int] = []
    while len(picked) < most:
        last = nearest.argmax()
        if not nearest[last] > limit:
            break
        picked.append(candidates[last])
        nearest[last] = -1.0
        np.subtract(position, position[:, last, None], out=difference)
        np.multiply(difference, difference, out=difference)
        distance = difference[0]
        np.add(distance, difference[1], out=distance)
        np.add(distance, difference[2], out=distance)
        np.minimum(nearest, distance, out=nearest)
        if len(picked) % 64 == 0:
            left = np.flatnonzero(nearest > limit)
            candidates, nearest, position = candidates[left], nearest[left], position[:, left]
            difference = np.empty_like(position)
            if not len(left):
                break
    return np.array(picked)


def _apply_everywhere(planes: Tensor, positions: Tensor, nearest: Tensor, memory: Tensor) -> None:
    """``(3, N, S), (3, m)``: lowers ``nearest`` (N, S) to the distances from the positions."""
    for position in positions.T:
        x, y, z = torch.sub(planes, position[:, None, None], out=_cut_off(memory, planes.shape)).square_()
        torch.minimum(nearest, x.add_(y).add_(z), out=nearest)


def _cut_off(memory: Tensor, shape: Sequence[int]) -> Tensor:
    return memory[: math.prod(shape)].view(shape)


def _apply(buckets: Buckets, positions: Tensor, nearest: Tensor, farthest: Tensor, scratch: Scratch) -> None:
    """Lowers ``nearest`` (N, S), and its maxima ``farthest`` (N,), where a box is nearer than its maximum.

    The buckets are taken with the most positions first, so that their i-th positions go to the first few.
    """
    near = (buckets.box_distances(positions) < farthest[:, None]).numpy()
    counts = np.count_nonzero(near, axis=1)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    if not len(order):
        return
    counts = counts[order]
    which = np.flatnonzero(near[order]) % near.shape[1]
    starts = np.cumsum(counts) - counts
    layers = np.arange(counts[0])
    widths = np.searchsorted(-counts, -layers, side="left").tolist()  # buckets with more positions than that
    rows = torch.from_numpy(order)
    planes = _cut_off(scratch.planes, (3, len(rows), _SIZE))
    planes = torch.index_select(buckets.planes, 1, rows, out=planes)[:, None]
    lowered = torch.index_select(nearest, 0, rows, out=scratch.nearest[: len(rows)])
    layer = 0
    while layer < len(layers):
        width = widths[layer]
        several = layers[layer : layer + max(1, _TOGETHER // (width * _SIZE)), None]
        # Buckets with fewer positions than others are given their last one again, which changes nothing.
        of_bucket = which[starts[:width] + np.minimum(several, counts[:width] - 1)]
        some = positions.index_select(1, torch.from_numpy(of_bucket).view(-1)).view(3, len(several), -1, 1)
        difference = _cut_off(scratch.differences, (3, len(several), width, _SIZE))
        x, y, z = torch.sub(planes[:, :, :width], some, out=difference).square_().unbind()
        distance = x.add_(y).add_(z)
        closest = distance.amin(dim=0) if len(several) > 1 else distance[0]
        torch.minimum(lowered[:width], closest, out=lowered[:width])
        layer += len(several)
    nearest.index_copy_(0, rows, lowered)
    farthest.index_copy_(0, rows, lowered.amax(dim=1))


def _neighbours(queries: Tensor, buckets: Buckets, k: int) -> Tensor:
    """``(G, 3) -> (G, k)``: among points next to a query on the curve, the k-th nearest bounds the search."""
    size = len(buckets.codes)
    window = min(4 * k, size)
    ordered = buckets.planes.view(3, -1)
    result = []
    for some in queries.split(max(1, _CACHED // len(buckets.low[0]))):
        codes = _morton_codes(some.T, buckets.origin, buckets.extent)
        begin = (np.searchsorted(buckets.codes, codes) - window // 2).clip(0, size - window)
        beside = torch.from_numpy(begin[:, None] + np.arange(window))
        limit = _distances(ordered[:, beside], some).kthvalue(k, dim=1, keepdim=True).values
        boxes = buckets.box_distances(some.T).T
        query, bucket = (boxes <= limit).nonzero(as_tuple=True)
        rows, distances, indices = [], [], []
        for q, b in zip(query.split(_CACHED // _SIZE), bucket.split(_CACHED // _SIZE), strict=True):
            distance = _distances(buckets.planes.index_select(1, b), some[q])
            pair, column = np.divmod(np.flatnonzero(distance <= limit[q]), _SIZE)
            place = b.numpy()[pair] * _SIZE + column
            real = place < size
            rows.append(q.numpy()[pair[real]])
            distances.append(distance.numpy()[pair[real], column[real]])
            indices.append(buckets.index[place[real]])
        row, near, index = (np.concatenate(part) for part in (rows, distances, indices))
        result.append(smallest(row, near, index, len(some), k))
    return torch.from_numpy(np.concatenate(result))


def _distances(planes: Tensor, centers: Tensor) -> Tensor:
    """``(3, M, S), (M, 3) -> (M, S)``: squared distances."""
    x, y, z = (planes - centers.T[..., None]).square_()
    return x.add_(y).add_(z)
