"""A policy held within the action space."""

from collections.abc import Sequence

import numpy as np

from policies.wrapper import Wrapper
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec


class Clipped(Wrapper):
    """``policy``, whose actions are clipped to the action space, where a World would refuse them.

    Learned policies and the wrappers over chunk models give what the network gives, which may be out of bounds::

        policy = Clipped(Chunked(model, execute=8, batch_size=16))

    The extra ``clipped`` [n] says which actions were altered. An action that is not finite stays so, and is refused:
    clipping infinity would hide a broken policy. What the inner policy says of its own density does not hold at the
    bounds and is dropped; its chunk and extras are passed on.
    """

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        bound = Clipped(self._policy.bind(spec))
        bound._space = spec.action_space
        return bound

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"Clipped [{self._policy.fingerprint}]"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        space = self.action_space
        inner = self._policy.act(observation, instruction, memory, keys)
        given = np.asarray(inner.action)
        action = np.where(np.isfinite(given), np.clip(given, space.low, space.high), given)
        altered = (action != given) & np.isfinite(given)
        extras = {**inner.extras, "clipped": altered.reshape(len(given), -1).any(axis=1)}
        return PolicyStep(action.astype(space.dtype), inner.memory, chunk=inner.chunk, extras=extras)
