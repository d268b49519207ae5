"""Pictures of recorded episodes, made by replaying them: exact forks make a trace re-renderable."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simeval.episode import Episode
from simeval.errors import TraceError
from simeval.noise import StepKey
from simeval.perturbation import Effects, split
from simeval.policy import Memory, Policy, PolicyStep
from simeval.protocols import together
from simeval.rollout import Engine
from simeval.types import Array, Observation, Snapshot, Start, TimeStep
from simeval.world import World
from simeval.wrappers import Delegate


class Filmed(Delegate):
    """``world``, drawn after every ``every``-th call for a slot; ``frames`` gives an episode's pictures."""

    def __init__(self, world: World, every: int = 1):
        super().__init__(world)
        self._every = every
        self._frames: list[list[np.ndarray]] = [[] for _ in range(world.num_slots)]
        self._calls = [0] * world.num_slots

    def frames(self, slot: int) -> np.ndarray:
        """Pictures uint8 ``[T', H, W, 3]`` of the episode in ``slot``, from its reset on."""
        return np.stack(self._frames[slot])

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        result = self.world.reset(slots, starts, keys)
        self._begin(slots)
        return result

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        result = self.world.restore(slots, snapshots)
        self._begin(slots)
        return result

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        result = self.world.step(slots, actions, keys)
        self._draw(slots)
        return result

    def _begin(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._frames[slot] = []
            self._calls[slot] = 0
        self._draw(slots)

    def _draw(self, slots: Sequence[int]) -> None:
        due = [slot for slot in slots if self._calls[slot] % self._every == 0]
        for slot in slots:
            self._calls[slot] += 1
        if due:
            for slot, frame in zip(due, self.world.render(due), strict=True):
                self._frames[slot].append(frame)


class _Recorded(Policy):
    """Does again what one episode did."""

    def __init__(self, actions: np.ndarray):
        self._actions = actions

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        return PolicyStep(np.stack([self._actions[key.step] for key in keys]), {})


def film(episode: Episode, world: World, every: int = 1) -> np.ndarray:
    """Pictures uint8 ``[T', H, W, 3]`` of a recorded root episode: every ``every`` steps from reset on, and the last.

    ``world`` is one like that which made the episode. The replay must give the recorded observations and rewards bit
    for bit, but for observations that an effect around the World had changed; ``TraceError`` names the first that
    differs.
    """
    if episode.rollout.parent is not None:
        raise ValueError(f"{episode.id} is a branch; film its whole, from Run.whole")
    if episode.length == 0:
        raise ValueError(f"{episode.id} has no steps to film")
    own, around = split(world, episode.rollout.perturbations)
    changed = {f"observation/{key}" for key in Effects(episode.rollout, around, world.spec).observation_keys}
    rollout = replace(
        episode.rollout,
        policy="recorded",
        horizon=episode.length,
        perturbations=tuple(own),
        snapshot_steps=(),
        stop_on_success=False,
    )
    filmed = Filmed(world, every)
    policies: Mapping[str, Policy] = {"recorded": _Recorded(episode.action)}
    with Engine({rollout.world: filmed}, {rollout.world: policies}) as engine:
        (again,) = engine.run(together([rollout]))
    if again.status == "error":
        raise TraceError(f"replaying {episode.id} failed: {again.error}")
    for path in ("reward", "success", *(f"observation/{key}" for key in again.observation)):
        if (
            path not in changed
            and path in episode.source.paths()
            and not np.array_equal(episode.source.read(path), again.source.read(path))
        ):
            raise TraceError(
                f"replaying {episode.id} gave another {path} than was recorded; this World or these package versions "
                "are not those that made the run"
            )
    frames = filmed.frames(0)
    return frames if episode.length % every == 0 else np.concatenate([frames, world.render([0])])
