"""Which back end ``auto`` takes, and why: one table of measured crossover points."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from pointvit.ops import buckets, native, numpy_backend, pytorch3d_backend, reference, triton_backend

BACKENDS: dict[str, ModuleType] = {
    "reference": reference,
    "torch": native,
    "numpy": numpy_backend,
    "buckets": buckets,
    "triton": triton_backend,
    "pytorch3d": pytorch3d_backend,
}


class Rule(NamedTuple):
    backend: str
    points: int
    """The smallest cloud that it is taken for."""
    groups: int
    """The fewest samples or queries that it is taken for."""
    why: str


# The first rule that fits is taken. CPU: measured on a Zen 5 core with torch 2.12 and numpy 2.4 on uniform
# clouds, alone and in batches of 8: below these sizes `numpy` was faster, above them `buckets`. CUDA: not
# measured, the number of kernel launches decides.
_SPARSE = "most distances are never computed"
_NUMPY = Rule("numpy", 0, 0, "small operations and argmax cost less than in torch")
_TORCH = Rule("torch", 0, 0, "runs on every device")
_TRITON = Rule("triton", 0, 0, "one kernel launch for a batch")
_CPU = {
    "farthest_point_sample": [Rule("buckets", 40_000, 256, _SPARSE), _NUMPY],
    "knn": [
        Rule("buckets", 16_384, 512, _SPARSE),
        Rule("numpy", 200, 0, "few candidates are sorted"),
        Rule("torch", 0, 0, "a batch of small clouds at once"),
    ],
    "ball_query": [_NUMPY],
}


def available_backends() -> dict[str, str | None]:
    """Back end name -> None if it can be used, else one line saying why not."""
    return {name: _why_unavailable(name) for name in BACKENDS}


def choose(operation: str, device: str, points: int, groups: int) -> str:
    """The back end that ``auto`` takes on a device type, for P points and G samples or queries."""
    rules = _rules(operation, device)
    return next(rule.backend for rule in rules if points >= rule.points and groups >= rule.groups)


def explain(device: str) -> dict[str, str]:
    """Operation -> what ``auto`` takes for it on a device type and why, in one line."""
    return {
        operation: "; ".join(_described(rule) for rule in _rules(operation, device)) for operation in _CPU
    }


def backend_module(name: str) -> ModuleType:
    if name not in BACKENDS:
        raise ValueError(f"backend must be auto, {', '.join(BACKENDS)}, got {name!r}")
    reason = _why_unavailable(name)
    if reason is not None:
        raise ValueError(f"back end {name!r} cannot be used: {reason}")
    return BACKENDS[name]


def _rules(operation: str, device: str) -> list[Rule]:
    if device == "cpu":
        return _CPU[operation]
    with_kernel = device == "cuda" and operation != "ball_query"
    return [_TRITON] if with_kernel and _why_unavailable("triton") is None else [_TORCH]


def _described(rule: Rule) -> str:
    sizes = f" from {rule.points:,} points" if rule.points else ""
    sizes += f" and {rule.groups} groups" if rule.groups else ""
    return f"{rule.backend}{sizes} ({rule.why})"


def _why_unavailable(name: str) -> str | None:
    module = BACKENDS[name]
    reason: str | None = module.why_unavailable() if hasattr(module, "why_unavailable") else None
    return reason
