"""The World under test and the reference episodes that the checks of the suite compare with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simeval.noise import Key, StepKey
from simeval.policy import Policy
from simeval.testing.checks import Episode, Row, Violation, drive, random_actions, record
from simeval.types import Perturbation, Start
from simeval.world import World

WorldFactory = Callable[[int], World]
"""``factory(num_slots)`` builds the World; a module-level function, class or partial, so that it can be pickled."""

_WARMUP = 12
_MAX_EPISODES = 6
_POLICY_TRIES = 3
_BEYOND_GOAL = 10


@dataclass(frozen=True)
class Abroad:
    """What a World gives in a fresh process: starts, the beginnings of the episodes, and their ends from snapshots."""

    starts: Sequence[Start]
    beginnings: Sequence[Sequence[Row]]
    tails: Sequence[Sequence[Row]] | str
    """Or what went wrong."""
    snapshot_size: int
    """[bytes]."""


@dataclass(frozen=True)
class Witness:
    """An episode, the same one under a perturbation, and whether the two differ in a bit."""

    perturbation: Perturbation
    plain: Episode
    perturbed: Episode
    visible: bool


class Bench:
    """The World under test, with reference episodes recorded in slot 0 that every check compares with."""

    def __init__(
        self,
        factory: WorldFactory,
        world: World,
        tasks: Sequence[str],
        steps: int,
        seed: int,
        policy: Callable[[], Policy] | None = None,
        perturbations: Sequence[Perturbation] = (),
    ):
        self.factory = factory
        self.world = world
        self.tasks = tasks
        self.steps = steps
        self.seed = seed
        self.policy = policy
        self.perturbations = perturbations
        self.episodes: list[Episode] = []
        self.held_episodes: list[Episode] = []
        self.abroad: Abroad | None = None
        self.witnesses: dict[str, Witness | str] = {}

    def start(self, task: str, index: int) -> Start:
        """The ``index``-th start of a task."""
        return self.world.start(task, self._start_seed(index))

    def starts(self) -> list[tuple[str, int]]:
        """Task and seed of some starts."""
        return [(task, self._start_seed(index)) for task in self.tasks for index in range(3)]

    def _start_seed(self, index: int) -> int:
        return Key(self.seed).integer("check", index) >> 32

    def record_all(self) -> str:
        """An episode per task, or several where they end before ``steps`` steps have followed the fork."""
        for task in self.tasks:
            followed = 0
            for index in range(_MAX_EPISODES):
                actions = random_actions(self.world.action_space, _WARMUP + self.steps - followed, task, index)
                episode = record(self.world, 0, self.start(task, index), actions)
                if episode.length:
                    self.episodes.append(episode)
                followed += max(episode.length - fork_step(episode), 0)
                if followed >= self.steps:
                    break
        if not self.episodes:
            raise Violation("every episode is over at its reset")
        reached = self._record_policy() if self.policy is not None else ""
        steps = sum(episode.length for episode in self.episodes)
        return f"{len(self.episodes)} episodes, {steps} steps: {', '.join(self.tasks)}{reached}"

    def _record_policy(self) -> str:
        """An episode per task under the policy, to the goal and some steps beyond."""
        assert self.policy is not None
        policy = self.policy().bind(self.world.spec)
        reached = 0
        try:
            for task in self.tasks:
                for index in range(_POLICY_TRIES):
                    episode = drive(self.world, policy, self.start(task, index), self.world.horizon(task), _BEYOND_GOAL)
                    if at_goal := any(row["success"] for row in episode.rows):
                        break
                reached += at_goal
                if episode.length:
                    self.episodes.append(episode)
        finally:
            policy.close()
        return f"; the policy reached the goal in {reached} of {len(self.tasks)} tasks"

    def key(self, episode: Episode, step: int) -> list[StepKey]:
        """The World's key at a step of an episode, for a call that concerns one slot."""
        return [episode.stream.key(step)]


def fork_step(episode: Episode) -> int:
    """The step at which the checks fork or interrupt an episode."""
    return min(_WARMUP, episode.length // 2)


def label(episode: Episode) -> str:
    """How an episode is called in a violation."""
    return f"task {episode.start.task!r}"
