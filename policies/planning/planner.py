"""Model-predictive control: act on the best plan that is found from here, and plan again at the next step."""

import copy
from collections.abc import Sequence

import gymnasium
import numpy as np

from policies.planning.imagination import Imagination, Origin, TrueState
from policies.planning.optimisers import Optimiser
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec
from simeval.world import World


class Planner(Policy):
    """Plans with ``optimiser`` in ``world``, a simulator or a learned model, and executes the first action of the plan.

    ``world`` is the planner's own, closed with it; candidates run in its slots, whose number changes nothing but the
    speed. ``origin`` says where planning starts: by default the true state, for a ``world`` of the same dynamics as the
    one that is acted in. Reports the plan as ``chunk``, and what it is ``worth`` [n]: the sum of rewards imagined.
    """

    def __init__(self, world: World, optimiser: Optimiser, origin: Origin | None = None):
        self._imagination = Imagination(world)
        self._optimiser = optimiser
        self._origin = TrueState() if origin is None else origin
        self._space: gymnasium.spaces.Box | None = None
        self.observation_keys = self._origin.observation_keys

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``; the two Worlds take the same actions, real numbers within bounds."""
        super().bind(spec)
        own, space = self._imagination.world.action_space, spec.action_space
        if own.shape != space.shape or not (
            np.array_equal(own.low, space.low) and np.array_equal(own.high, space.high)
        ):
            raise ConfigError(f"world {spec.name!r} takes actions of {space}; the one that is planned in, of {own}")
        if not space.is_bounded() or space.dtype.kind != "f" or len(space.shape) != 1:
            raise ConfigError(f"world {spec.name!r} takes actions of {space}; plans are made of real numbers in bounds")
        bound = copy.copy(self)
        bound._space = space
        return bound

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        origin, world = type(self._origin).__name__, self._imagination.world
        return f"Planner {self._optimiser.fingerprint} from {origin} in [{world.snapshot_fingerprint}]"

    def initial_memory(self, n: int) -> Memory:
        """The optimiser's."""
        return self._optimiser.initial_memory(n, self._action_space.shape[0])

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        origins = self._origin.snapshots(observation, instruction)

        def values(candidates: Sequence[np.ndarray]) -> list[np.ndarray]:
            return self._imagination.values(origins, keys, [self._actions(tried) for tried in candidates])

        found = self._optimiser.search(values, memory, keys)
        chunk = self._actions(found.plan)
        return PolicyStep(chunk[:, 0].copy(), found.memory, chunk=chunk, extras={"worth": found.worth})

    def close(self) -> None:
        """Close the World that is planned in."""
        self._imagination.world.close()

    @property
    def _action_space(self) -> gymnasium.spaces.Box:
        if self._space is None:
            raise ConfigError("policy Planner acts in no space yet; call bind(world.spec)")
        return self._space

    def _actions(self, plan: np.ndarray) -> np.ndarray:
        """Actions [..., A] of a plan in -1..1."""
        space = self._action_space
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        return np.clip(low + (plan + 1) / 2 * (high - low), low, high).astype(space.dtype)
