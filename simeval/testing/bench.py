"""The World under test and the reference episodes that the checks of the suite compare with."""

from collections.abc import Callable, Sequence

from simeval.noise import Key, StepKey
from simeval.testing.checks import Episode, Violation, random_actions, record
from simeval.types import Start
from simeval.world import World

WorldFactory = Callable[[int], World]
"""``factory(num_slots)`` builds the World; a module-level function, class or partial, so that it can be pickled."""

_WARMUP = 12
_MAX_EPISODES = 6


class Bench:
    """The World under test, with reference episodes recorded in slot 0 that every check compares with."""

    def __init__(self, factory: WorldFactory, world: World, tasks: Sequence[str], steps: int, seed: int):
        self.factory = factory
        self.world = world
        self.tasks = tasks
        self.steps = steps
        self.seed = seed
        self.episodes: list[Episode] = []

    def start(self, task: str, index: int) -> Start:
        """The ``index``-th start of a task."""
        return self.world.start(task, Key(self.seed).integer("check", index) >> 32)

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
        return f"{len(self.episodes)} episodes, {sum(e.length for e in self.episodes)} steps: {', '.join(self.tasks)}"

    def key(self, episode: Episode, step: int) -> list[StepKey]:
        """The World's key at a step of an episode, for a call that concerns one slot."""
        return [episode.stream.key(step)]


def fork_step(episode: Episode) -> int:
    """The step at which the checks fork or interrupt an episode."""
    return min(_WARMUP, episode.length // 2)


def label(episode: Episode) -> str:
    """How an episode is called in a violation."""
    return f"task {episode.start.task!r}"
