"""The base of networks that checkpoints hold, and the statistics that put what they read on one scale."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

_LEAST_SCALE = 1e-6
"""Standard deviations below this are those of a constant, which is shifted and not divided."""


class Network(nn.Module):
    """A network with all it needs beside its weights: a subclass names its ``kind`` and keeps its ``settings``.

    It draws nothing by itself: noise is an argument.
    """

    kind: ClassVar[str]
    settings: Mapping[str, Any]
    """JSON data: the arguments of its constructor that a configuration gives."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What it reads and gives, as JSON data: the arguments of its constructor that come from the data."""

    @abstractmethod
    def problem(self) -> str | None:
        """What is wrong with its statistics, or none."""


class Normaliser(nn.Module):
    """``(x - mean) / scale`` per dimension; the statistics are part of the weights, and NaN until they are set."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, length: int):
        super().__init__()
        self.register_buffer("mean", torch.full((length,), torch.nan))
        self.register_buffer("scale", torch.full((length,), torch.nan))

    def fit(self, rows: np.ndarray) -> None:
        """Take the statistics of ``rows`` [n, length]; a constant dimension is only shifted."""
        mean, scale = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
        scale[scale < _LEAST_SCALE * np.maximum(1.0, np.abs(mean))] = 1.0
        self.mean.copy_(torch.from_numpy(mean))
        self.scale.copy_(torch.from_numpy(scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Raw values on the common scale."""
        return (x - self.mean) / self.scale

    def invert(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`forward`."""
        return x * self.scale + self.mean

    def problem(self) -> str | None:
        """What is wrong with the statistics, or none."""
        if not (torch.isfinite(self.mean).all() and torch.isfinite(self.scale).all()):
            return "they are missing or not finite"
        return None if (self.scale > 0).all() else "a scale is not positive"
