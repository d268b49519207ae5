"""A policy disturbed by keyed Gaussian action noise."""

from collections.abc import Sequence

import gymnasium
import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey, standard_normal
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec


class ActionNoise(Policy):
    """``policy``, whose actions get Gaussian noise and are then clipped to the action space.

    ``sigma`` is the standard deviation in units of half the range of each action dimension (of 1 where it is
    unbounded), one number or one per dimension. What the inner policy says of its own density does not hold for the
    noisy action and is dropped; its chunk and extras are passed on. Layers of noise inside one another are independent.
    """

    def __init__(self, policy: Policy, sigma: float | Sequence[float]):
        self._policy = policy
        self._sigma = np.asarray(sigma, dtype=np.float64)
        if not (np.isfinite(self._sigma) & (self._sigma >= 0)).all():
            raise ConfigError(f"sigma must be finite and not negative; received {sigma}")
        self._space: gymnasium.spaces.Box | None = None
        inside = _layers(policy)
        self._event = ("action-noise", inside) if inside else ("action-noise",)
        self.observation_keys = policy.observation_keys

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

    def initial_memory(self, n: int) -> Memory:
        """The inner policy's memory."""
        return self._policy.initial_memory(n)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        if self._space is None:
            raise ConfigError("policy ActionNoise acts in no space yet; call bind(world.spec)")
        inner = self._policy.act(observation, instruction, memory, keys)
        low, high = self._space.low.astype(np.float64), self._space.high.astype(np.float64)
        half_range = np.where(np.isfinite(high - low), (high - low) / 2, 1.0)
        noise = self._sigma * half_range * standard_normal(keys, self._space.shape, *self._event)
        action = np.clip(np.asarray(inner.action) + noise, low, high).astype(self._space.dtype)
        return PolicyStep(action, inner.memory, chunk=inner.chunk, extras=inner.extras)

    def close(self) -> None:
        """Close the inner policy."""
        self._policy.close()


def _layers(policy: Policy) -> int:
    """How many layers of action noise are in ``policy``, however wrapped: each draws from an event of its own."""
    held = [_layers(value) for value in vars(policy).values() if isinstance(value, Policy)]
    return sum(held) + isinstance(policy, ActionNoise)
