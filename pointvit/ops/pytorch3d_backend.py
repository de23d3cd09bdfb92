"""PyTorch3D's operations behind our contract; the only module that imports it."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from pointvit.ops import native


def why_unavailable() -> str | None:
    """One line saying why PyTorch3D cannot be used, or None if it can."""
    if importlib.util.find_spec("pytorch3d") is None:
        return "not installed (pip install 'pointvit[pytorch3d]')"
    try:
        import pytorch3d.ops  # noqa: F401
    except (ImportError, OSError) as error:
        # Its wheels are tied to the ABI of one torch release; a mismatch shows up as a loader error.
        return f"installed, but its import fails ({error}); its wheel must match this torch"
    return None


def farthest_point_sample(points: Tensor, num_samples: int, lengths: Tensor, start: Tensor) -> Tensor:
    """``(B, P, 3) -> (B, G)``; PyTorch3D starts at index 0 and pads with -1 beyond a cloud's length.

    Once only duplicates of chosen points are left it gives index 0 again and again: such clouds are redone.
    """
    from pytorch3d.ops import sample_farthest_points

    if bool((start != 0).any()):
        raise ValueError(
            "the pytorch3d back end starts farthest point sampling at index 0; use backend='torch'"
        )
    _, chosen = sample_farthest_points(points, lengths=lengths, K=num_samples)
    ordered = chosen.sort(dim=1).values
    again = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(dim=1)
    chosen = chosen.gather(1, _wrap(num_samples, lengths))
    if bool(again.any()):
        chosen[again] = native.farthest_point_sample(points[again], num_samples, lengths[again], start[again])
    return chosen


def knn(queries: Tensor, points: Tensor, k: int, lengths: Tensor) -> Tensor:
    """``(B, G, 3), (B, P, 3) -> (B, G, K)``; PyTorch3D sorts unstably and pads beyond a cloud's length."""
    from pytorch3d.ops import knn_points

    if points.dtype == torch.float64 and points.device.type == "cpu":
        raise ValueError(
            "the pytorch3d back end finds neighbours in float32 on the CPU, got float64; use backend='torch'"
        )
    most = min(k, points.shape[1])
    found = knn_points(queries, points, lengths2=lengths, K=most)
    behind = (torch.arange(most, device=lengths.device) >= lengths[:, None])[:, None]
    by_index = found.idx.masked_fill(behind, points.shape[1]).sort(dim=2)
    distances = found.dists.masked_fill(behind, torch.inf).gather(2, by_index.indices)
    order = by_index.values.gather(2, distances.argsort(dim=2, stable=True))
    return order.gather(2, _wrap(k, lengths)[:, None].expand(-1, order.shape[1], -1))


def _wrap(count: int, lengths: Tensor) -> Tensor:
    return torch.arange(count, device=lengths.device) % lengths[:, None]
