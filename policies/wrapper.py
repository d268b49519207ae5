"""The base of policies that change what another one does: wrap to change."""

import gymnasium
import numpy as np

from simeval.errors import ConfigError
from simeval.policy import Memory, Policy


class Wrapper(Policy):
    """Reads and remembers what ``policy`` does, and closes it. A subclass gives ``bind`` and ``act``."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self._space: gymnasium.spaces.Box | None = None
        self.observation_keys = policy.observation_keys
        self.batch_size = policy.batch_size
        self.conventions = policy.conventions

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        """The space that ``bind`` was given; ``ConfigError`` before that."""
        if self._space is None:
            raise ConfigError(f"policy {type(self).__name__} acts in no space yet; call bind(world.spec)")
        return self._space

    def initial_memory(self, n: int) -> Memory:
        """The inner policy's memory."""
        return self._policy.initial_memory(n)

    def due(self, memory: Memory) -> np.ndarray | None:
        """The inner policy's; one that reads observations itself overrides this."""
        return self._policy.due(memory)

    def close(self) -> None:
        """Close the inner policy."""
        self._policy.close()
