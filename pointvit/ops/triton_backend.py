"""Sampling and neighbours as Triton kernels: one launch for a batch, and no matrix of distances in memory.

Products and sums must be rounded one by one, as on the other back ends: a fused multiply-add would give other
last bits, hence other indices where distances tie. ``enable_fp_fusion=False`` keeps the compiler from it.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from pointvit.ops import native

ball_query = native.ball_query

_TILE = 1024
"""Points that a program looks at together."""

_QUERIES = 4
"""Queries that a program searches for together."""

_MOST = 256
"""Neighbours that are held in registers; more are found in torch."""


def why_unavailable() -> str | None:
    """One line saying why Triton cannot be used, or None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "not installed (CUDA builds of torch for Linux bring it)"
    if not (torch.cuda.is_available() or _interpreted()):
        return "no CUDA device (TRITON_INTERPRET=1 runs the kernels on the CPU, slowly)"
    return None


def farthest_point_sample(points: Tensor, num_samples: int, lengths: Tensor, start: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, G)``: see :func:`pointvit.ops.farthest_point_sample`."""
    from pointvit.ops.triton_kernels import sample

    _on_its_device(points)
    batch, size = points.shape[:2]
    planes = points.permute(2, 0, 1).contiguous()
    nearest = torch.full((batch, size), torch.inf, dtype=points.dtype, device=points.device)
    chosen = torch.empty(batch, num_samples, dtype=torch.int64, device=points.device)
    if batch:
        with _device(points):
            sample[(batch,)](
                planes, nearest, lengths, start, chosen, num_samples, size, batch * size,
                TILE=_TILE, num_warps=8, enable_fp_fusion=False,
            )  # fmt: skip
    return chosen.gather(1, torch.arange(num_samples, device=points.device) % lengths[:, None])


def knn(queries: Tensor, points: Tensor, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``; float64 and more than 256 neighbours are left to torch.

    A float32 distance and an index fit in one integer key, a float64 distance and an index do not.
    """
    from pointvit.ops.triton_kernels import neighbours, next_power_of_2

    _on_its_device(points)
    batch, groups = queries.shape[:2]
    size = points.shape[1]
    most = min(k, size)
    if points.dtype != torch.float32 or most > _MOST:
        return native.knn(queries, points, k, lengths)
    found = torch.empty(batch, groups, most, dtype=torch.int64, device=points.device)
    if found.numel():
        planes, centers = (t.permute(2, 0, 1).contiguous() for t in (points, queries))
        with _device(points):
            neighbours[(batch, -(-groups // _QUERIES))](
                planes, centers, lengths, found, groups, size, batch * groups, batch * size, most,
                QUERIES=_QUERIES, WIDTH=next_power_of_2(most), num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
    order = torch.arange(k, device=points.device) % lengths[:, None]
    return found.gather(2, order[:, None].expand(-1, groups, -1))


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _on_its_device(points: Tensor) -> None:
    if points.device.type != ("cpu" if _interpreted() else "cuda"):
        raise ValueError(
            f"the triton back end runs on CUDA, the points are on {points.device}; use backend='torch'"
        )


def _device(points: Tensor) -> Any:
    """Triton launches on the current device, which need not be that of the points."""
    return torch.cuda.device(points.device if points.is_cuda else -1)
