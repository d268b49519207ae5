"""A policy held within the action space."""

from collections.abc import Sequence

import gymnasium
import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec


class Clipped(Policy):
    """``policy``, whose actions are clipped to the action space, where a World would refuse them.

    Learned policies and the wrappers over chunk models give what the network gives, which may be out of bounds::

        policy = Clipped(Chunked(model, execute=8, batch_size=16))

    The extra ``clipped`` [n] says which actions were altered. An action that is not finite stays so, and is refused:
    clipping infinity would hide a broken policy. What the inner policy says of its own density does not hold at the
    bounds and is dropped; its chunk and extras are passed on.
    """

    def __init__(self, policy: Policy):
        self._policy = policy
        self._space: gymnasium.spaces.Box | None = None
        self.observation_keys = policy.observation_keys

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        bound = Clipped(self._policy.bind(spec))
        bound._space = spec.action_space
        return bound

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"Clipped [{self._policy.fingerprint}]"

    def initial_memory(self, n: int) -> Memory:
        """The inner policy's memory."""
        return self._policy.initial_memory(n)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        if self._space is None:
            raise ConfigError("policy Clipped acts in no space yet; call bind(world.spec)")
        inner = self._policy.act(observation, instruction, memory, keys)
        given = np.asarray(inner.action)
        action = np.where(np.isfinite(given), np.clip(given, self._space.low, self._space.high), given)
        altered = (action != given) & np.isfinite(given)
        extras = {**inner.extras, "clipped": altered.reshape(len(given), -1).any(axis=1)}
        return PolicyStep(action.astype(self._space.dtype), inner.memory, chunk=inner.chunk, extras=extras)

    def close(self) -> None:
        """Close the inner policy."""
        self._policy.close()
