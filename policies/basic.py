"""The simplest policies: uniform draws from the action space, and one constant action."""

from collections.abc import Sequence

import gymnasium
import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey, uniform
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec


class Uniform(Policy):
    """Actions drawn evenly from the action space; reads nothing, remembers nothing. Reports log_prob and entropy."""

    def __init__(self, space: gymnasium.spaces.Box | None = None):
        self._space = space

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``; the action space must be bounded."""
        if not spec.action_space.is_bounded():
            raise ConfigError(f"world {spec.name!r} has an unbounded action space, from which nothing is drawn evenly")
        return Uniform(spec.action_space)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        if self._space is None:
            raise ConfigError("policy Uniform acts in no space yet; call bind(world.spec)")
        low, high = self._space.low.astype(np.float64), self._space.high.astype(np.float64)
        draw = low + (high - low) * uniform(keys, self._space.shape, "action")
        action = np.clip(draw, low, high).astype(self._space.dtype)
        entropy = np.full(len(keys), np.log((high - low)[high > low]).sum())
        return PolicyStep(action, {}, log_prob=-entropy, entropy=entropy)


class Constant(Policy):
    """The same action at every step: ``value``, one number for all dimensions or one for each."""

    def __init__(self, value: float | Sequence[float] = 0.0):
        self._value = np.asarray(value, dtype=np.float64)
        self._action: np.ndarray | None = None

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``; the value must lie in the action space."""
        space = spec.action_space
        if self._value.size not in (1, space.shape[0]):
            raise ConfigError(
                f"a constant of {self._value.size} numbers does not fit {space.shape[0]} action dimensions"
            )
        action = np.broadcast_to(self._value, space.shape).astype(space.dtype)
        if not space.contains(action):
            raise ConfigError(f"the constant {self._value.tolist()} is outside the action space {space}")
        bound = Constant(self._value.tolist())
        bound._action = action
        return bound

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"Constant {self._value.tolist()}"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        if self._action is None:
            raise ConfigError("policy Constant acts in no space yet; call bind(world.spec)")
        return PolicyStep(np.repeat(self._action[None], len(keys), axis=0), {})
