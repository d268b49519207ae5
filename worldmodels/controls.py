"""What a model is held against: one that does not hear what is done, one where nothing moves, one told the truth."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.types import Array, TimeStep
from simeval.world import World
from simeval.wrappers import Delegate
from worldmodels.world import LearnedWorld

_SHOWN = ("seen", "reward", "terminated", "truncated", "success", "disagreement")


class Blind(Delegate):
    """A model that is told at every step that no action was done (zero, or what the space has nearest).

    Arguments are those of ``LearnedWorld``. Policies that act well and badly cannot differ in it by what they do.
    """

    def __init__(self, checkpoint: str, **settings: Any):
        super().__init__(LearnedWorld(checkpoint, **settings))
        self.name = "blind"
        self.fingerprint = f"blind to actions: {self.world.fingerprint}"

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        self.check_actions(slots, actions, keys)
        space = self.action_space
        still = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
        return self.world.step(slots, np.broadcast_to(still, (len(slots), *still.shape)).copy(), keys)


class Persistence(Delegate):
    """A model's starts, at which everything stays as it is: no episode succeeds.

    Arguments are those of ``LearnedWorld``.
    """

    def __init__(self, checkpoint: str, **settings: Any):
        super().__init__(LearnedWorld(checkpoint, **settings))
        self.name = "persistence"
        self.fingerprint = f"persistence of the starts of: {self.world.fingerprint}"

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        self.check_slots(slots)
        self.check_actions(slots, actions, keys)
        return self.world.restore(slots, self.world.snapshot(slots))


class Corrected(LearnedWorld):
    """A model that is shown the truth after every frame (teacher forcing): each is foreseen from true ones alone.

    ``simulator`` goes along and is asked for the truth, and what is shown is what the model had foreseen of it; other
    arguments are those of ``LearnedWorld``. The error of a step, without those that came before it.
    """

    name = "corrected"

    def __init__(self, checkpoint: str, simulator: World, **settings: Any):
        if simulator is None:
            raise ConfigError("world 'corrected' is told the truth by a simulator; name it: +world@world.simulator=…")
        super().__init__(checkpoint, simulator=simulator, **{**settings, "context": sys.maxsize})
        self.fingerprint = f"corrected: {self.fingerprint}"

    def _look(self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey]) -> None:
        due = self._due(slots)
        foreseen = self._foreseen(due, [key for slot, key in zip(slots, keys, strict=True) if slot in due])
        shown = {slot: {name: self._running(slot)[name] for name in _SHOWN} for slot in slots}
        shown |= {slot: {name: said[name] for name in _SHOWN} for slot, said in zip(due, foreseen, strict=True)}
        super()._look(slots, actions, keys)
        for slot in slots:
            self._running(slot).update(shown[slot])
