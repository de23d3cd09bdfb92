"""The kernels of :mod:`pointvit.ops.triton_backend`; the only module that imports Triton.

Its compiler evaluates annotations and refuses names that are not Triton's own.
"""

from __future__ import annotations

import triton
import triton.language as tl

next_power_of_2 = triton.next_power_of_2


@triton.jit
def squared_distance(
    x: tl.tensor, y: tl.tensor, z: tl.tensor, cx: tl.tensor, cy: tl.tensor, cz: tl.tensor
) -> tl.tensor:
    dx = x - cx
    dy = y - cy
    dz = z - cz
    return (dx * dx + dy * dy) + dz * dz


@triton.jit
def sample(
    planes: tl.tensor, nearest: tl.tensor, lengths: tl.tensor, start: tl.tensor, chosen: tl.tensor,
    count: tl.tensor, size: tl.tensor, stride: tl.tensor, TILE: tl.constexpr,
) -> None:  # fmt: skip
    """One program a cloud. Every lane keeps the farthest of the points it has seen; once a step the
    lanes are compared. A point is read and written by one lane only: no lane waits for another's memory."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    last = tl.load(start + row)
    planes += row * size
    nearest += row * size
    lane = tl.arange(0, TILE)
    for step in range(count):
        tl.store(chosen + row * count + step, last)
        cx = tl.load(planes + last)
        cy = tl.load(planes + stride + last)
        cz = tl.load(planes + 2 * stride + last)
        best = tl.full([TILE], -2.0, nearest.dtype.element_ty)
        where = tl.full([TILE], 0, tl.int64)
        for begin in range(0, length, TILE):
            index = begin + lane.to(tl.int64)
            real = index < length
            x = tl.load(planes + index, real, other=0.0)
            y = tl.load(planes + stride + index, real, other=0.0)
            z = tl.load(planes + 2 * stride + index, real, other=0.0)
            before = tl.load(nearest + index, real, other=-2.0)
            before = tl.where(index == last, -1.0, before).to(before.dtype)
            distance = tl.minimum(before, squared_distance(x, y, z, cx, cy, cz))
            tl.store(nearest + index, distance, real)
            farther = distance > best  # not >=: the lowest index of equals stays
            best = tl.where(farther, distance, best)
            where = tl.where(farther, index, where)
        top = tl.max(best, 0)
        last = tl.min(tl.where(best == top, where, length), 0)


@triton.jit
def neighbours(
    planes: tl.tensor, centers: tl.tensor, lengths: tl.tensor, found: tl.tensor, groups: tl.tensor,
    size: tl.tensor, center_stride: tl.tensor, stride: tl.tensor, most: tl.tensor,
    QUERIES: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """One program for a few queries of a cloud, with their WIDTH nearest so far as sorted keys in registers.

    A key holds the bits of the distance above the index. Of two sorted runs, one ascending, one descending,
    the smaller of each pair are the smallest of both (a step of bitonic merging).
    """
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    centers += row * groups + query
    cx = tl.load(centers, query < groups, other=0.0)[:, None]
    cy = tl.load(centers + center_stride, query < groups, other=0.0)[:, None]
    cz = tl.load(centers + 2 * center_stride, query < groups, other=0.0)[:, None]
    planes += row * size
    column = tl.arange(0, WIDTH).to(tl.int64)
    last = tl.full([1, 1], 0x7FFFFFFFFFFFFFFF, tl.int64)
    best = tl.broadcast_to(last, [QUERIES, WIDTH])
    for begin in range(0, length, WIDTH):
        index = begin + column
        real = index < length
        x = tl.load(planes + index, real, other=0.0)[None, :]
        y = tl.load(planes + stride + index, real, other=0.0)[None, :]
        z = tl.load(planes + 2 * stride + index, real, other=0.0)[None, :]
        distance = squared_distance(x, y, z, cx, cy, cz)
        bits = distance.to(tl.int32, bitcast=True).to(tl.int64)
        keys = tl.where(real[None, :], (bits << 32) | index[None, :], last)
        if tl.min(tl.min(keys, 1) - tl.max(best, 1), 0) < 0:  # something here is nearer
            best = tl.sort(tl.minimum(best, tl.sort(keys, descending=True)))
    place = (row * groups + query)[:, None] * most + column[None, :]
    wanted = (query < groups)[:, None] & (column < most)[None, :]
    tl.store(found + place, best & 0xFFFFFFFF, wanted)
