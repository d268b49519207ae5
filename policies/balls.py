"""The scripted expert of the bouncing balls."""

from collections.abc import Sequence

import numpy as np

from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation

_PUSH = 10.0
"""Acceleration [m/s²] that an action of 1 gives the first ball."""
_STIFFNESS, _DAMPING = 30.0, 9.0


class BallsExpert(Policy):
    """Carries the first ball to the middle of the ring by a damped spring, and its weight by what ``gravity`` says.

    It reads ``state`` and ``gravity``, remembers nothing and draws nothing. Actions [n, 2] float32 in -1..1.
    """

    observation_keys = ("state", "gravity")

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"BallsExpert/1 {_STIFFNESS:g} {_DAMPING:g}"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        state = np.asarray(observation["state"], dtype=np.float64)
        balls = (state.shape[1] - 2) // 4
        place, speed, ring = state[:, :2], state[:, 2 * balls : 2 * balls + 2], state[:, -2:]
        wanted = _STIFFNESS * (ring - place) - _DAMPING * speed
        wanted[:, 1] += np.asarray(observation["gravity"], dtype=np.float64)[:, 0]
        return PolicyStep((wanted / _PUSH).clip(-1.0, 1.0).astype(np.float32), memory)
