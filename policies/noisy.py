"""A policy disturbed by keyed Gaussian action noise."""

from collections.abc import Sequence

import numpy as np

from policies.wrapper import Wrapper
from simeval.errors import ConfigError
from simeval.noise import StepKey, standard_normal
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec


class ActionNoise(Wrapper):
    """``policy``, whose actions get Gaussian noise and are then clipped to the action space.

    ``sigma`` is the standard deviation in units of half the range of each action dimension (of 1 where it is
    unbounded), one number or one per dimension. What the inner policy says of its own density does not hold for the
    noisy action and is dropped; its chunk and extras are passed on. The undisturbed action is reported as ``intended``
    [n, A]: what a learner should do in the states that the noise leads to (Laskey et al. 2017, DART). Layers of noise
    inside one another are independent.
    """

    def __init__(self, policy: Policy, sigma: float | Sequence[float]):
        super().__init__(policy)
        self._sigma = np.asarray(sigma, dtype=np.float64)
        if not (np.isfinite(self._sigma) & (self._sigma >= 0)).all():
            raise ConfigError(f"sigma must be finite and not negative; received {sigma}")
        inside = _layers(policy)
        self._event = ("action-noise", inside) if inside else ("action-noise",)

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        shape = spec.action_space.shape
        if self._sigma.size not in (1, shape[0]):
            raise ConfigError(f"sigma has {self._sigma.size} numbers for {shape[0]} action dimensions")
        bound = ActionNoise(self._policy.bind(spec), self._sigma.tolist())
        bound._space = spec.action_space
        return bound

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"ActionNoise sigma={self._sigma.tolist()} of [{self._policy.fingerprint}]"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        space = self.action_space
        inner = self._policy.act(observation, instruction, memory, keys)
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        half_range = np.where(np.isfinite(high - low), (high - low) / 2, 1.0)
        noise = self._sigma * half_range * standard_normal(keys, space.shape, *self._event)
        action = np.clip(np.asarray(inner.action) + noise, low, high).astype(space.dtype)
        intended = inner.extras.get("intended", np.asarray(inner.action, dtype=space.dtype))
        return PolicyStep(action, inner.memory, chunk=inner.chunk, extras={**inner.extras, "intended": intended})


def _layers(policy: Policy) -> int:
    """How many layers of action noise are in ``policy``, however wrapped: each draws from an event of its own."""
    held = [_layers(value) for value in vars(policy).values() if isinstance(value, Policy)]
    return sum(held) + isinstance(policy, ActionNoise)
