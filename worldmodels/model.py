"""The interface of a world model: pure functions over rows of state, whose noise is an argument.

A model imagines frames, ``Interface.frame_skip`` control steps apart; an action to it is that many actions, one after
the other.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from learning.network import Network
from learning.optimisation import Recipe
from worldmodels.interface import Interface

State = Mapping[str, torch.Tensor]
"""Everything that the next step of n imagined episodes depends on: name -> [n, …]."""


@dataclass(frozen=True, slots=True)
class Imagined:
    """What a model says of n rows.

    ``seen``: raw, see ``Interface``; ``reward`` [n], of a frame's steps; ``success`` and ``terminated`` [n] bool;
    ``disagreement`` [n], in standard deviations of a step's change, where the model has several opinions.
    """

    seen: Mapping[str, torch.Tensor]
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
    learns_pictures: ClassVar[bool] = False
    recipe: ClassVar[type[Recipe]] = Recipe

    def __init__(self, interface: Interface, **settings: Any):
        super().__init__()
        self.interface = interface

    def description(self) -> dict[str, Any]:
        """See ``Network.description``."""
        return {"interface": self.interface.to_json()}

    @property
    def trusted(self) -> float | None:
        """The largest disagreement in the training data; none for a model of one opinion."""
        return None

    @abstractmethod
    def encode(self, seen: Mapping[str, torch.Tensor], task: torch.Tensor, draws: torch.Tensor) -> State:
        """The state of n episodes that begin with ``seen`` in ``task`` [n] int64; ``draws`` [n, start_draws]."""

    @abstractmethod
    def step(self, state: State, action: torch.Tensor, noise: torch.Tensor) -> tuple[State, Imagined]:
        """The frame that follows ``action`` [n, frame_skip * A] under ``noise`` [n, step_draws]."""

    @abstractmethod
    def observe(
        self, state: State, action: torch.Tensor, seen: Mapping[str, torch.Tensor], noise: torch.Tensor
    ) -> State:
        """The state after ``seen``, a frame that really followed ``action`` [n, frame_skip * A]."""
