"""A model of a World against the World itself: same starts, same noise, same policies, and the same actions.

Closed loop, every policy acts in the World and in each model of it. Open loop, what it did in the World is done again
in the models, as it was, with its actions in another order, and with none: ``simeval.fidelity_analysis`` compares.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import gymnasium
import numpy as np

from simeval.episode import Episode
from simeval.errors import ConfigError, SimevalError, unknown
from simeval.noise import Key, StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.protocols import Design, Setting, Starts, check_whole
from simeval.schedule import Protocol, parallel_iter
from simeval.settings import truth
from simeval.types import Observation, Rollout
from simeval.versions import RECORDED, SHUFFLED, STILL, VERSIONS, player

_TRIED = 64
"""Starts of each task that every World is asked about beforehand."""


class Player(Policy):
    """Plays ``actions``: seed of a rollout's policy stream -> actions [T, A], the last of which is repeated."""

    def __init__(self, kind: str, actions: Mapping[int, np.ndarray]):
        self._kind, self._actions = kind, actions

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``: what is played is a function of the rollout, once the World has run it."""
        return f"Player of {self._kind} actions"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        played = [self._actions[key.stream.seed] for key in keys]
        return PolicyStep(np.stack([a[min(key.step, len(a) - 1)] for a, key in zip(played, keys, strict=True)]), {})


@dataclass(frozen=True)
class Fidelity(Design):
    """Every policy from the same starts in the World ``truth`` and in all other Worlds, which are models of it.

    ``truth``: the first World by default. ``open_loop``: do what was done in truth again in the models, as it was,
    shuffled, and not at all. ``imagined``: further starts of each task in the models alone, which make the estimate in
    truth more precise (``simeval.agreement.control_variate``). Starts are those that the first model offers; the World
    must be able to begin there too.
    """

    truth: str | None = None
    open_loop: bool = True
    imagined: int = 0
    _played: dict[str, dict[int, np.ndarray]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("imagined", self.imagined, 0, "further starts in the models alone")
        truth("protocol.open_loop", self.open_loop)

    def sides(self, setting: Setting) -> tuple[str, list[str]]:
        """The name of the World, and those of its models."""
        names = list(setting.worlds)
        truth = names[0] if self.truth is None else self.truth
        if truth not in names:
            raise unknown("world protocol.truth", truth, names)
        if len(names) < 2:
            raise ConfigError(
                f"a model is held against a World; only {truth!r} is here: name both under worlds "
                "(see configs/experiment/worldgym.yaml)"
            )
        return truth, [name for name in names if name != truth]

    def check(self, setting: Setting) -> None:
        """See ``Design.check``: models know the actions and the starts of the World, all policies act in all."""
        truth, models = self.sides(setting)
        world = setting.worlds[truth]
        for name in models:
            if setting.worlds[name].action_space != world.action_space:
                raise ConfigError(
                    f"model {name!r} takes actions {setting.worlds[name].action_space}, world {truth!r} takes "
                    f"{world.action_space}; a model is of one World"
                )
            if list(setting.policies[name]) != list(setting.policies[truth]):
                raise ConfigError(
                    f"policies act in all worlds of a fidelity study; in {truth!r}: "
                    f"{', '.join(setting.policies[truth])}; in {name!r}: {', '.join(setting.policies[name])}"
                )
        origin = setting.worlds[models[0]]
        starts = [
            start
            for task in self._tasks(setting)
            for start in origin.starts(task, min(self.episodes + self.imagined, _TRIED), setting.seed)
        ]
        for name in (truth, *models[1:]):
            for start in starts:
                try:
                    setting.worlds[name].check_start(start)
                except SimevalError as error:
                    raise ConfigError(
                        f"episodes cannot begin in world {name!r} where they do in {models[0]!r} ({error}); here "
                        f"protocol.truth={truth} is the World, and {', '.join(models)} are held to be models of it"
                    ) from None

    def policies(self, setting: Setting) -> Mapping[str, Mapping[str, Policy]]:
        """See ``Study.policies``: those that do again what was done."""
        self.check(setting)
        if not self.open_loop:
            return {}
        truth, models = self.sides(setting)
        names = {player(p, kind): kind for p in setting.policies[truth] for kind in VERSIONS}
        return {
            model: {name: Player(kind, self._played.setdefault(name, {})) for name, kind in names.items()}
            for model in models
        }

    def size(self, setting: Setting) -> int | None:
        """See ``Study.size``; an error in the World leaves its repetitions out."""
        self.check(setting)
        truth, models = self.sides(setting)
        each = 1 + len(models) * (4 if self.open_loop else 1)
        tasks = len(self._tasks(setting))
        return tasks * len(setting.policies[truth]) * (self.episodes * each + self.imagined * len(models))

    def protocol(self, setting: Setting) -> Protocol:
        """See ``Study.protocol``; returns the episodes."""
        self.check(setting)
        found = yield from parallel_iter(self._chains(setting))
        return [episode for episodes in found for episode in episodes]

    def _tasks(self, setting: Setting) -> tuple[str, ...]:
        truth, models = self.sides(setting)
        if self.tasks is not None:
            return self.tasks_of(setting.worlds[models[0]])
        there = setting.worlds[truth].tasks
        common = tuple(task for task in setting.worlds[models[0]].tasks if task in there)
        if not common:
            raise ConfigError(
                f"{models[0]!r} models {', '.join(setting.worlds[models[0]].tasks)}; world {truth!r} has "
                f"{', '.join(there)}: none in common"
            )
        return common

    def _chains(self, setting: Setting) -> Iterator[Protocol]:
        truth, models = self.sides(setting)
        starts = Starts(setting)
        for index in range(self.episodes + self.imagined):
            for task in self._tasks(setting):
                for policy in setting.policies[truth]:
                    imagined = self.rollout(starts, models[0], policy, task, index, setting.seed)
                    if self.horizon is None:
                        imagined = replace(imagined, horizon=setting.worlds[truth].horizon(task))
                    there = [replace(imagined, world=name) for name in models]
                    if index < self.episodes:
                        space = setting.worlds[truth].action_space
                        yield self._against(replace(imagined, world=truth), there, space)
                    else:
                        yield _alone(there)

    def _against(self, rollout: Rollout, imagined: Sequence[Rollout], space: gymnasium.spaces.Box) -> Protocol:
        episodes = yield [rollout, *imagined]
        truth = episodes[0]
        if not self.open_loop or truth.status != "done" or not truth.length:
            return episodes
        for kind, actions in _versions(truth, rollout, space).items():
            self._played[player(rollout.policy, kind)][rollout.key("policy").seed] = actions
        repeated = yield [
            replace(
                each,
                policy=player(rollout.policy, kind),
                horizon=truth.length,
                stop_on_success=False,
            )
            for each in imagined
            for kind in VERSIONS
        ]
        return [*episodes, *repeated]


def _versions(episode: Episode, rollout: Rollout, space: gymnasium.spaces.Box) -> dict[str, np.ndarray]:
    actions = np.asarray(episode.action)
    order = Key(rollout.seed).stream("fidelity").event("shuffle").permutation(len(actions))
    return {
        RECORDED: actions,
        SHUFFLED: actions[order],
        STILL: np.clip(np.zeros_like(actions[:1]), space.low, space.high),
    }


def _alone(rollouts: Sequence[Rollout]) -> Protocol:
    return (yield list(rollouts))
