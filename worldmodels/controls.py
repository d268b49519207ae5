"""Worlds that a model must beat: one that does not hear what is done, and one where nothing moves."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from simeval.noise import StepKey
from simeval.types import Array, TimeStep
from simeval.wrappers import Delegate
from worldmodels.world import LearnedWorld


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
