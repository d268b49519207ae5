"""What learns from recorded runs: policies and world models, behind one interface that knows neither."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from simeval.errors import UnsupportedError
from simeval.policy import Policy
from simeval.reader import Run
from simeval.types import WorldSpec

Log = Callable[[int, Mapping[str, float]], None]
"""Told a step of a training, counted from 1, and what was measured at it."""


class Trainer(ABC):
    """A configured training. What it makes is a checkpoint folder that a configuration can name."""

    steps: int
    """Training steps in all."""
    learns_policy: bool = False
    """Whether what it makes acts in a World, so that a judge can run it."""

    @abstractmethod
    def train(
        self,
        runs: Sequence[Run],
        folder: Path,
        spec: WorldSpec,
        log: Log,
        resume: bool = False,
        judge: Callable[[Path], Mapping[str, float]] | None = None,
    ) -> None:
        """Learn from ``runs`` into ``folder``, or go on with what is there.

        ``spec`` is that of the runs' World; ``judge`` is given every checkpoint as it is saved, and what it
        finds is logged.
        """

    def policy(self, folder: Path) -> Policy:
        """The policy of a checkpoint; ``UnsupportedError`` if what is learned is no policy."""
        raise UnsupportedError(f"{type(self).__name__} learns no policy")
