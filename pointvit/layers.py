"""Layers that the trunk and the tokenizers are made of; nothing here knows of either."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pointvit import lean


class Linear(nn.Linear):
    """``(*, in) -> (*, out)``: torch's linear layer, in the form that is fastest here (:func:`linear`)."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``(*, in), (out, in), (out,) -> (*, out)``: x W^T + b, equal to torch's up to rounding.

    In float32 on an AMD processor with AVX-512, MKL's matrix products reach half the rate of oneDNN's
    convolutions (docs/performance.md), so that tokens (B, T, in) go through a convolution of width 1. Its
    result has its channels apart in memory: what follows must not expect it to be contiguous.
    """
    if x.ndim == 3 and x.device.type == "cpu" and _convolution_is_faster(x):
        return F.conv1d(x.mT, weight[..., None], bias).mT
    return F.linear(x, weight, bias)


def _convolution_is_faster(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_autocast_enabled("cpu"):
        return False
    return x.dtype == torch.float32 and x.numel() > 0 and _amd_with_avx512()


@functools.cache
def _amd_with_avx512() -> bool:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return "AuthenticAMD" in platform.processor()


class QuickGELU(nn.Module):
    """``(*) -> (*)``: x * sigmoid(1.702 x), the approximation OpenAI's CLIP was trained with."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "quick_gelu": QuickGELU,
}


class Mlp(nn.Module):
    """``(B, T, in) -> (B, T, in)``: two layers with a GELU between (the MLP of eq. 3)."""

    def __init__(self, dim: int, hidden: int, activation: str = "gelu", drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden)
        self.act = ACTIVATIONS[activation]()
        self.drop1 = nn.Dropout(drop_rate)
        self.fc2 = Linear(hidden, dim)
        self.drop2 = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self._is_lean and lean.applies(x):
            return self.drop2(lean.gelu_linear(x, self.fc2))
        return self.drop2(self.fc2(self.drop1(self.act(x))))

    @property
    def _is_lean(self) -> bool:
        exact = isinstance(self.act, nn.GELU) and self.act.approximate == "none"
        return exact and type(self.fc2) is Linear and not (self.training and self.drop1.p > 0)


class LayerScale(nn.Module):
    """``(B, T, D) -> (B, T, D)``: a learned factor per channel."""

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """``(B, ...) -> (B, ...)``: drops a residual branch for whole samples in training, keeping its mean."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        mask = x.new_empty(x.shape[0], *(1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * (mask / keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate:g}"
