"""The certificate of a World's forks: which tasks are exact, how a state is put back, and what a fork costs."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simeval.policy import Policy
from simeval.testing import world_exactness as exactness
from simeval.testing import world_process as process
from simeval.testing.bench import WorldFactory
from simeval.testing.checks import Check, random_actions, record, sentence
from simeval.testing.world_suite import check_world
from simeval.world import World

CERTIFYING = tuple(
    sentence(check)
    for check in (
        exactness.repeats,
        exactness.any_slot,
        exactness.fork_continues,
        exactness.fork_leaves_parent,
        process.fresh_process,
        exactness.restore_returns_step,
    )
)
"""The sentences that make forks exact and resets pure."""

_REPEATS = 30
_AT_STEP = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """Median times to snapshot a slot and to restore it into another one [µs], and a persisted snapshot's size [B]."""

    snapshot_us: float
    restore_us: float
    size: int

    @property
    def fork_us(self) -> float:
        """Both together [µs]."""
        return self.snapshot_us + self.restore_us


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was proved of a World's forks, and what they cost.

    ``steps``: for how many steps each fork was followed. ``broken``: task -> the sentences that do not hold for it.
    ``dynamics`` is what snapshots are bound to: versions, model, settings. ``costs``: exact task -> of a fork after 50
    steps, or as many as the episode has (which matters where it is a replay).
    """

    world: str
    tasks: tuple[str, ...]
    steps: int
    by_replay: bool
    broken: dict[str, tuple[Check, ...]]
    costs: dict[str, Cost]
    dynamics: str

    @property
    def exact(self) -> bool:
        """Whether every task's forks are."""
        return not self.broken

    @property
    def fork_us(self) -> float:
        """The median over tasks of a fork's cost [µs]."""
        return statistics.median([cost.fork_us for cost in self.costs.values()] or [math.nan])

    @property
    def size(self) -> int:
        """The largest persisted snapshot [B]."""
        return max((cost.size for cost in self.costs.values()), default=0)

    def __str__(self) -> str:
        good = len(self.tasks) - len(self.broken)
        how = "replay" if self.by_replay else "state"
        return (
            f"{self.world}: forks of {good} of {len(self.tasks)} tasks are exact over {self.steps} steps, by {how}; "
            f"{_time(self.fork_us)} a fork, {_size(self.size)} a snapshot ({self.dynamics})"
        )


def certify(
    factory: WorldFactory,
    *,
    tasks: Sequence[str] | None = None,
    steps: int = 500,
    seed: int = 0,
    policy: Callable[[], Policy] | None = None,
    progress: Callable[[str], None] = lambda task: None,
) -> Certificate:
    """Certify a World's forks task by task (all of them by default), for ``steps`` steps after each fork.

    The episodes are those of :func:`simeval.testing.check_world`: random actions, and with ``policy`` an episode under
    it as well. ``progress`` is told each task before it is tried.
    """
    world = factory(1)
    try:
        chosen = world.tasks if tasks is None else tuple(tasks)
    finally:
        world.close()
    broken: dict[str, tuple[Check, ...]] = {}
    for task in chosen:
        progress(task)
        checks = check_world(factory, tasks=[task], steps=steps, seed=seed, policy=policy, only=CERTIFYING)
        if failed := tuple(check for check in checks if not check.passed):
            broken[task] = failed
    return certificate(factory, chosen, steps, broken)


def certificate(
    factory: WorldFactory, tasks: Sequence[str], steps: int, broken: Mapping[str, tuple[Check, ...]] | None = None
) -> Certificate:
    """The certificate of what ``check_world`` found, with the costs measured now."""
    world = factory(2)
    try:
        broken = dict(broken or {})
        costs = {task: cost(world, task) for task in tasks if task not in broken}
        return Certificate(
            world.name, tuple(tasks), steps, world.restores_by_replay, broken, costs, world.snapshot_fingerprint
        )
    finally:
        world.close()


def cost(world: World, task: str, repeats: int = _REPEATS) -> Cost:
    """What a fork from slot 0 into slot 1 of ``world`` costs in the middle of an episode of random actions."""
    record(world, 0, world.start(task, 0), random_actions(world.action_space, _AT_STEP, "cost", task))
    taken, put = np.empty(repeats), np.empty(repeats)
    for index in range(repeats):
        began = time.perf_counter()
        snapshots = world.snapshot([0])
        middle = time.perf_counter()
        world.restore([1], snapshots)
        taken[index], put[index] = middle - began, time.perf_counter() - middle
    return Cost(1e6 * float(np.median(taken)), 1e6 * float(np.median(put)), len(snapshots[0].to_bytes()))


def _time(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def _size(size: int) -> str:
    return f"{size} B" if size < 1000 else f"{size / 1000:.1f} kB"
