"""Policies that tests build in worker processes: they need nothing but numpy, and may take their process down."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simeval.noise import StepKey, standard_normal
from simeval.policy import SNAPSHOT, Memory, Policy, PolicyStep
from simeval.types import Observation


class Seer(Policy):
    """Asks for the World's snapshot."""

    observation_keys = (SNAPSHOT,)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        raise NotImplementedError


class Doomed(Policy):
    """Counts its own steps; ends its process at the third step of an episode: once, where ``once`` is a folder."""

    observation_keys = ("proprio",)
    batch_size = 3

    def __init__(self, once: str | None = None):
        self._once = None if once is None else Path(once)

    def initial_memory(self, n: int) -> Memory:
        return {"inner": {"steps": np.zeros(n, np.int64)}}

    def due(self, memory: Memory) -> np.ndarray:
        return memory["inner"]["steps"] > 0

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        steps = memory["inner"]["steps"] + 1
        if (steps == 3).any() and not (self._once is not None and (self._once / "died").exists()):
            if self._once is not None:
                (self._once / "died").touch()
            os._exit(3)
        noise = standard_normal(keys, (4,), "act")
        action = observation["proprio"][:, :1] + steps[:, None] + noise + len(instruction[0])
        return PolicyStep(action, {"inner": {"steps": steps}}, extras={"process": np.full(len(steps), os.getpid())})
