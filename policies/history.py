"""A policy that is shown the last few observations instead of one."""

from collections.abc import Sequence

import numpy as np

from policies.wrapper import Wrapper
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.settings import whole
from simeval.types import Observation, WorldSpec


class History(Wrapper):
    """Shows ``policy`` the last ``steps`` observations, ``[n, steps, …]`` each, the newest last.

    They live in memory. Before an episode has had so many, its first one stands for those that are missing.
    """

    def __init__(self, policy: Policy, steps: int):
        super().__init__(policy)
        self._steps = whole("steps", steps)
        self._spec: WorldSpec | None = None

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        bound = History(self._policy.bind(spec), self._steps)
        bound._space, bound._spec = spec.action_space, spec
        return bound

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"History steps={self._steps} of [{self._policy.fingerprint}]"

    def initial_memory(self, n: int) -> Memory:
        """The inner policy's, the ``past`` observations [n, steps - 1, …], and whether there have been any [n]."""
        if self._spec is None:
            raise ConfigError("policy History knows no observations yet; call bind(world.spec)")
        spaces = {key: self._spec.observation_space[key] for key in self.observation_keys}
        past = {
            key: np.zeros((n, self._steps - 1, *(space.shape or ())), dtype=space.dtype)
            for key, space in spaces.items()
        }
        return {"inner": self._policy.initial_memory(n), "past": past, "begun": np.zeros(n, dtype=bool)}

    def due(self, memory: Memory) -> None:
        """Every row: each observation is remembered."""
        return None

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        fresh = ~memory["begun"]
        shown = {}
        for key in self.observation_keys:
            newest = np.asarray(observation[key])[:, None]
            shown[key] = np.concatenate([memory["past"][key], newest.astype(memory["past"][key].dtype)], axis=1)
            shown[key][fresh] = newest[fresh]
        inner = self._policy.act(shown, instruction, memory["inner"], keys)
        later = {
            "inner": inner.memory,
            "past": {key: window[:, 1:] for key, window in shown.items()},
            "begun": np.ones_like(fresh),
        }
        return PolicyStep(
            inner.action, later, log_prob=inner.log_prob, entropy=inner.entropy, chunk=inner.chunk, extras=inner.extras
        )
