"""The interface of a world model: pure functions over rows of state, whose noise is an argument."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from learning.network import Network
from worldmodels.interface import Interface

State = Mapping[str, torch.Tensor]
"""Everything that the next step of n imagined episodes depends on: name -> [n, …]."""


@dataclass(frozen=True, slots=True)
class Imagined:
    """What a model says of n rows.

    ``numbers`` [n, P] raw; ``reward`` [n]; ``success`` and ``terminated`` [n] bool; ``disagreement`` [n], in standard
    deviations of a step's change, where the model has several opinions.
    """

    numbers: torch.Tensor
    reward: torch.Tensor
    success: torch.Tensor
    terminated: torch.Tensor
    disagreement: torch.Tensor | None = None


class WorldModel(Network):
    """A learned model of a World. Row i of every result is a function of row i of the arguments alone."""

    interface: Interface
    start_draws: int = 0
    """Uniform draws in [0, 1) that an episode's beginning takes."""
    step_draws: int = 0
    """Standard normal draws that a step takes."""

    def description(self) -> dict[str, Any]:
        """See ``Network.description``."""
        return {"interface": self.interface.to_json()}

    @property
    def trusted(self) -> float | None:
        """The largest disagreement in the training data; none for a model of one opinion."""
        return None

    @abstractmethod
    def encode(self, numbers: torch.Tensor, task: torch.Tensor, draws: torch.Tensor) -> State:
        """The state of n episodes from ``numbers`` [n, P] in ``task`` [n] int64 on; ``draws`` [n, start_draws]."""

    @abstractmethod
    def step(self, state: State, action: torch.Tensor, noise: torch.Tensor) -> tuple[State, Imagined]:
        """What follows ``action`` [n, A] under ``noise`` [n, step_draws]."""
