"""The base of Worlds that wrap another one: wrap to change."""

from collections.abc import Sequence

import numpy as np

from simeval.noise import StepKey
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World


class Delegate(World):
    """A World that passes every call on to another; the base of wrappers that change one thing."""

    def __init__(self, world: World):
        self.world = world
        self.name = world.name
        self.num_slots = world.num_slots
        self.tasks = world.tasks
        self.observation_space = world.observation_space
        self.action_space = world.action_space
        self.control_dt = world.control_dt
        self.fingerprint = world.fingerprint
        self.dynamics = world.dynamics
        self.success_hold = world.success_hold
        self.restores_by_replay = world.restores_by_replay
        self.perturbation_axes = world.perturbation_axes
        self.conventions = world.conventions

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        return self.world.start(task, seed)

    def starts(self, task: str, count: int, seed: int) -> list[Start]:
        """See ``World.starts``."""
        return self.world.starts(task, count, seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        return self.world.horizon(task)

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self.world.check_start(start)

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        return self.world.objection(start)

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        return self.world.reset(slots, starts, keys)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        return self.world.step(slots, actions, keys)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        return self.world.snapshot(slots)

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        return self.world.restore(slots, snapshots)

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """See ``World.render``."""
        return self.world.render(slots)

    def close(self) -> None:
        """See ``World.close``."""
        self.world.close()
