"""Evaluation designs: which rollouts are run, as generators over rounds of rollouts.

A :class:`Study` is what a configuration builds; its ``protocol`` is what the engine runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from simeval.errors import ConfigError
from simeval.noise import Key
from simeval.perturbation import effect_of, split
from simeval.policy import Policy
from simeval.schedule import Drop, Protocol, parallel_iter
from simeval.settings import names, truth, whole
from simeval.types import Perturbation, Rollout, Start
from simeval.world import World

AT_ONCE = 10_000
"""The most of what is asked of one start together: draws, configurations, replications."""
_LONGEST = 1_000_000
"""Steps of the longest episode; one is kept in memory until it ends."""
_FIRST = 64
"""Starts that are drawn at first; then as many again as there are."""


@dataclass(frozen=True)
class Setting:
    """What a study is run on: Worlds by name, the names of the policies in each, and the seed of all its draws."""

    worlds: Mapping[str, World]
    policies: Mapping[str, Sequence[str]]
    seed: int


class Study(ABC):
    """A configured protocol."""

    @abstractmethod
    def protocol(self, setting: Setting) -> Protocol:
        """The generator that the engine runs."""

    def size(self, setting: Setting) -> int | None:
        """How many rollouts it asks for, where that is known beforehand."""
        return None

    def policies(self, setting: Setting) -> Mapping[str, Mapping[str, Policy]]:
        """World -> name -> a policy that the protocol itself brings, beside those of the setting."""
        return {}


def together(rollouts: Sequence[Rollout | Drop]) -> Protocol:
    """One round: all ``rollouts`` at once; returns their episodes."""
    return (yield list(rollouts))


@dataclass(frozen=True)
class Design(Study):
    """``episodes`` starts of each task of each World, and what is asked of each start together.

    ``tasks``: all of a World's by default. ``horizon``: the task's own by default. ``stop_on_success``: end an episode
    once success has held; otherwise it runs to its horizon. ``snapshot_every``: keep a checkpoint every so many steps
    (0: none), to branch from later.
    """

    episodes: int
    tasks: Sequence[str] | None = None
    horizon: int | None = None
    stop_on_success: bool = True
    snapshot_every: int = 0

    def __post_init__(self) -> None:
        check_whole("episodes", self.episodes, 1, "a study needs at least one episode per task")
        check_whole("snapshot_every", self.snapshot_every, 0, "0 keeps no checkpoints")
        truth("protocol.stop_on_success", self.stop_on_success)
        if self.tasks is not None:
            object.__setattr__(self, "tasks", names("protocol.tasks", self.tasks))
        if self.tasks is not None and not self.tasks:
            raise ConfigError("protocol.tasks=[]: a study needs at least one task; null means all of the world's")
        if self.tasks is not None and len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(f"protocol.tasks={list(self.tasks)} names a task twice; name each once")
        if self.horizon is not None:
            check_whole("horizon", self.horizon, 1, "an episode needs at least one step", _LONGEST)

    def protocol(self, setting: Setting) -> Protocol:
        """See ``Study.protocol``; returns the episodes."""
        rounds = yield from parallel_iter(together(one) for one in self.rounds(setting))
        return [episode for episodes in rounds for episode in episodes if episode is not None]

    def rounds(self, setting: Setting) -> Iterator[Sequence[Rollout | Drop]]:
        """What is asked together."""
        raise NotImplementedError

    def check(self, setting: Setting) -> None:
        """Raise ``ConfigError`` or ``UnsupportedError`` where the design cannot be had in this setting."""

    def tasks_of(self, world: World) -> tuple[str, ...]:
        """The tasks of a World that the study has; ``ConfigError`` for one that the World has not."""
        if self.tasks is None:
            return world.tasks
        for task in self.tasks:
            world.check_task(task)
        return tuple(self.tasks)

    def cells(self, setting: Setting) -> Iterator[tuple[str, int, str]]:
        """World, number and task of every start, in the order in which they are run."""
        self.check(setting)
        for index in range(self.episodes):
            for name, world in setting.worlds.items():
                for task in self.tasks_of(world):
                    yield name, index, task

    def rollout(self, starts: "Starts", name: str, policy: str, task: str, index: int, seed: int) -> Rollout:
        """The rollout of a policy from the ``index``-th start of a task that ``seed`` draws, with noise of its own."""
        world = starts.setting.worlds[name]
        own = whole(f"horizon of task {task!r} in world {name!r}", world.horizon(task))
        horizon = own if self.horizon is None else self.horizon
        every = self.snapshot_every
        return Rollout(
            start=starts.at(name, task, seed, index),
            seed=Key(seed).integer("noise", task, index) >> 32,
            horizon=horizon,
            world=name,
            policy=policy,
            snapshot_steps=tuple(range(0, horizon, every)) if every else (),
            stop_on_success=self.stop_on_success,
        )


@dataclass(frozen=True)
class MonteCarlo(Design):
    """``episodes`` rollouts of each policy on each task, from independently drawn starts.

    The first policy's starts depend on the seed alone, so that two runs with one policy each and the same seed are
    paired; further policies in one run get starts and noise of their own. ``perturbations`` hold in every rollout; the
    other settings are those of :class:`Design`.
    """

    perturbations: Sequence[Perturbation | Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        given = tuple(p if isinstance(p, Perturbation) else _perturbation(p) for p in self.perturbations)
        object.__setattr__(self, "perturbations", given)

    def size(self, setting: Setting) -> int | None:
        """See ``Study.size``."""
        self.check(setting)
        return sum(
            self.episodes * len(self.tasks_of(world)) * len(setting.policies[name])
            for name, world in setting.worlds.items()
        )

    def rounds(self, setting: Setting) -> Iterator[Sequence[Rollout | Drop]]:
        """What is asked together: here, one rollout each."""
        starts = Starts(setting)
        for name, index, task in self.cells(setting):
            for number, policy in enumerate(setting.policies[name]):
                seed = Key(setting.seed).integer("monte_carlo", number) if number else setting.seed
                yield [self._perturbed(self.rollout(starts, name, policy, task, index, seed))]

    def check(self, setting: Setting) -> None:
        """See ``Design.check``."""
        for world in setting.worlds.values():
            for perturbation in split(world, self._applied)[1]:
                effect_of(perturbation, world.spec)

    @property
    def _applied(self) -> tuple[Perturbation, ...]:
        return cast(tuple[Perturbation, ...], self.perturbations)

    def _perturbed(self, rollout: Rollout) -> Rollout:
        return replace(rollout, perturbations=self._applied) if self._applied else rollout


@dataclass(frozen=True)
class Paired(MonteCarlo):
    """Every policy on the same starts and the same noise: what differs between them is the policy alone."""

    def rounds(self, setting: Setting) -> Iterator[Sequence[Rollout | Drop]]:
        """What is asked together: one start, all policies."""
        starts = Starts(setting)
        for name, index, task in self.cells(setting):
            yield [
                self._perturbed(self.rollout(starts, name, policy, task, index, setting.seed))
                for policy in setting.policies[name]
            ]

    def check(self, setting: Setting) -> None:
        """See ``Design.check``."""
        super().check(setting)
        for name, policies in setting.policies.items():
            if len(policies) < 2:
                raise ConfigError(
                    f"a paired comparison needs at least two policies, e.g. policy=expert,uniform; world {name!r} has "
                    f"{', '.join(policies)}"
                )


class Starts:
    """The starts of each World, task and seed, drawn as far as they are asked for."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self._starts: dict[tuple[str, str, int], list[Start]] = {}

    def at(self, name: str, task: str, seed: int, index: int) -> Start:
        """Start ``index`` of one World and task."""
        key = (name, task, seed)
        if index >= len(self._starts.get(key, ())):  # a longer list begins with the shorter one
            self._starts[key] = self._drawn(name, task, seed, max(_FIRST, 2 * index))
        return self._starts[key][index]

    def _drawn(self, name: str, task: str, seed: int, count: int) -> list[Start]:
        drawn = self.setting.worlds[name].starts(task, count, seed)
        listed = isinstance(drawn, list | tuple) and len(drawn) >= count
        if not listed or not all(isinstance(start, Start) and start.task == task for start in drawn):
            raise ConfigError(
                f"world {name!r} breaks its contract (`simeval check` proves it): for {count} starts of "
                f"task {task!r} it gives {drawn!r:.200}"
            )
        return list(drawn)


def _perturbation(data: Any) -> Perturbation:
    try:
        return Perturbation.from_json(data)
    except TypeError as error:
        raise ConfigError(
            f"protocol.perturbations: {data} is no perturbation ({error}); give axis, level, params"
        ) from None


def check_whole(name: str, value: object, least: int, meaning: str, most: int | None = None) -> None:
    """Raise ``ConfigError`` unless a protocol's setting is a whole number of at least ``least``, at most ``most``."""
    if most is not None and isinstance(value, int) and value > most:
        raise ConfigError(f"protocol.{name}={value}: expected a whole number of at most {most}")
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"protocol.{name}={value}: expected a whole number of at least {least} ({meaning})")
