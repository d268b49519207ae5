"""A policy held within the action space."""

from collections.abc import Sequence
from dataclasses import replace

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
    clipping infinity would hide a broken policy. ``log_prob`` and ``entropy`` are the inner policy's, of what it drew:
    where an action was ``clipped``, ``log_prob`` is the log-density of the draw before that, not of the action. Its
    chunk and extras are passed on.
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
        return replace(inner, action=action.astype(space.dtype), extras=extras)
