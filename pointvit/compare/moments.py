"""Mean and spread over objects that pass by, in constant memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over ``count`` objects; both have the shape of what was measured."""

    mean: Tensor
    std: Tensor
    count: int


class Moments:
    """Running mean and spread of numbers of any shape, one row an object, in float64 on the CPU.

    Batches are merged as Chan, Golub and LeVeque have it (1979), which does not cancel where the spread is
    small beside the mean.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def update(self, values: Tensor) -> None:
        """``(B, *)``: the numbers of B more objects."""
        values = values.detach().cpu().double()  # in this order: not every device has float64
        if not len(values):
            return
        mean, count = values.mean(dim=0), len(values)
        squares = (values - mean).square().sum(dim=0)
        if self._mean is None or self._squares is None:
            self._count, self._mean, self._squares = count, mean, squares
            return
        total = self._count + count
        apart = mean - self._mean
        self._mean = self._mean + apart * (count / total)
        self._squares = self._squares + squares + apart.square() * (self._count * count / total)
        self._count = total

    def result(self) -> Spread:
        """The standard deviation is the sample's (n - 1), and 0 for a single object.

        Raises:
            ValueError: if there was no object.
        """
        if self._mean is None or self._squares is None:
            raise ValueError("there is nothing to summarise: no object has been measured")
        return Spread(self._mean, (self._squares / max(1, self._count - 1)).sqrt(), self._count)


class LayerMoments:
    """:class:`Moments` of every layer, by the layer's number."""

    def __init__(self) -> None:
        self._layers: dict[int, Moments] = {}

    def update(self, layer: int, values: Tensor) -> None:
        """``(B, *)``: the numbers of B more objects in this layer."""
        self._layers.setdefault(layer, Moments()).update(values)

    def result(self) -> Spread:
        """``(L, *)`` for the layers in order."""
        if not self._layers:
            return Moments().result()
        found = [self._layers[layer].result() for layer in sorted(self._layers)]
        return Spread(
            torch.stack([f.mean for f in found]), torch.stack([f.std for f in found]), found[0].count
        )
