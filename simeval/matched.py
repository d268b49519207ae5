"""Matched perturbations: every condition on the same starts and the same noise (LIBERO-CTRL, 2609.15940).

Each start is run as it is, under each perturbation alone, and under several at once, which are the very perturbations
that were run alone; ``simeval.matched_analysis`` finds them by that.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, partial
from typing import Any

from simeval.allocation import Adaptive, Cell, adaptive
from simeval.axes import PerturbationAxis
from simeval.errors import ConfigError, UnsupportedError, unknown
from simeval.noise import Key
from simeval.perturbation import effect_of, split
from simeval.protocols import AT_ONCE, Design, Setting, Starts, check_whole
from simeval.schedule import Drop, Protocol
from simeval.settings import names, positive, truth
from simeval.types import Perturbation, Rollout, Start
from simeval.world import World

REDRAWN = ("initial_state", "appearance.distractors")
"""Axes whose draws may make a start that no episode can fairly begin from."""
_REDRAWS = 20
REPLICATED = ("policy", "world")
"""The noise streams that replications draw anew, one at a time."""

Condition = tuple[str, ...]
"""Names of the axes that act at once; none of them: as it is."""


@dataclass(frozen=True)
class Matched(Design):
    """Every start under every condition: as it is, each axis alone, and all axes at once, at every severity.

    ``axes`` by name (on the command line: ``perturbation=…``), of which ``only`` names those to use. ``severities``:
    whitened norms; each axis' own by default. ``configurations``: how many perturbations are drawn of each axis and
    severity, the same for all starts; number j of several axes at once is number j of each. ``combined``: all axes at
    once; ``pairs``: every two. ``replications``: how often the start is run as it is once more with fresh policy noise,
    and with fresh World noise: what of a change happens by itself. ``allocation``: instead of everything, a budget
    spent where the intervals are widest (``simeval.allocation.Adaptive``).

    Where the World objects to a perturbed start (``World.objection``), the perturbation is drawn again for that start,
    at most 20 times; ``params["redraws"]`` says how often. What it goes on to object to is dropped from the study.
    """

    axes: Mapping[str, PerturbationAxis] | None = None
    only: Sequence[str] | None = None
    severities: Sequence[float] | None = None
    configurations: int = 1
    combined: bool = True
    pairs: bool = False
    replications: int = 1
    allocation: Adaptive | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("configurations", self.configurations, 1, "perturbations drawn of each axis and severity", AT_ONCE)
        check_whole("replications", self.replications, 0, "0 runs none", AT_ONCE)
        for name in ("combined", "pairs"):
            truth(f"protocol.{name}", getattr(self, name))
        if not self.axes:
            raise ConfigError("a matched study needs axes: choose them by perturbation=libero-ctrl, or camera,lighting")
        for name, axis in self.axes.items():
            if not isinstance(axis, PerturbationAxis):
                raise ConfigError(f"protocol.axes.{name} is no perturbation axis; received {type(axis).__name__}")
        if self.only is not None:
            chosen = names("protocol.only", self.only)
            if not chosen:
                raise ConfigError(f"protocol.only=[]: a study needs an axis, of {', '.join(self.axes)}; null means all")
            for name in chosen:
                if name not in self.axes:
                    raise unknown("axis of this study", name, self.axes)
            object.__setattr__(self, "axes", {name: axis for name, axis in self.axes.items() if name in chosen})
        if self.severities is not None:
            levels = tuple(sorted({positive("protocol.severities", level) for level in self.severities}))
            if not levels:
                raise ConfigError("protocol.severities=[]: a study needs one; null means those of each axis")
            object.__setattr__(self, "severities", levels)
        if isinstance(self.allocation, Mapping):
            object.__setattr__(self, "allocation", _adaptive(self.allocation))
        if len({len(levels) for levels in self.levels.values()}) > 1:
            told = ", ".join(f"{name} {list(levels)}" for name, levels in self.levels.items())
            raise ConfigError(f"the axes have severities of different numbers ({told}); set protocol.severities=[…]")

    @cached_property
    def levels(self) -> dict[str, tuple[float, ...]]:
        """Axis -> its severities, ascending."""
        return {name: tuple(self.severities or axis.severities) for name, axis in (self.axes or {}).items()}

    @cached_property
    def conditions(self) -> list[Condition]:
        """Which axes act, of every condition but the one without."""
        every = tuple(self.levels)
        found: list[Condition] = [(name,) for name in every]
        if self.pairs:
            found += itertools.combinations(every, 2)
        if self.combined and len(every) > 1:
            found.append(every)
        return list(dict.fromkeys(found))

    @property
    def _draws(self) -> Iterator[tuple[int, int]]:
        """Number of the severity, and of the configuration."""
        return itertools.product(range(len(next(iter(self.levels.values())))), range(self.configurations))

    def size(self, setting: Setting) -> int | None:
        """See ``Study.size``; what a World objects to is counted as if it were run."""
        self.check(setting)
        if isinstance(self.allocation, Adaptive):
            return self.allocation.budget
        perturbed = {
            tuple(self._draw(setting.seed, name, level, number) for name in condition)
            for level, number in self._draws
            for condition in self.conditions
        }
        each = 1 + 2 * self.replications + len(perturbed)
        return each * sum(
            self.episodes * len(self.tasks_of(world)) * len(setting.policies[name])
            for name, world in setting.worlds.items()
        )

    def check(self, setting: Setting) -> None:
        """See ``Design.check``: every World applies every axis. All that one cannot is said at once."""
        assert self.axes is not None
        for world in setting.worlds.values():
            lacking, reasons, can = [], [], []
            for name in self.axes:
                perturbation = self._draw(setting.seed, name, 0, 0)
                told = name if name == perturbation.axis else f"{name} ({perturbation.axis})"
                try:
                    _, around = split(world, [perturbation])
                except UnsupportedError:
                    lacking.append(told)
                    continue
                try:
                    for effect in around:
                        effect_of(effect, world.spec)
                except UnsupportedError as error:
                    lacking.append(told)
                    reasons.append(str(error))
                else:
                    can.append(name)
            if lacking:
                kept = f"keep those that it can: protocol.only=[{','.join(can)}]" if can else "choose others"
                raise UnsupportedError(
                    "; ".join([f"world {world.name!r} cannot apply {', '.join(lacking)}", kept, *reasons])
                )

    def protocol(self, setting: Setting) -> Protocol:
        """See ``Study.protocol``; returns the episodes."""
        if isinstance(self.allocation, Adaptive):
            return (yield from adaptive(list(self._cells(setting)), self.allocation))
        return (yield from super().protocol(setting))

    def rounds(self, setting: Setting) -> Iterator[Sequence[Rollout | Drop]]:
        """What is asked together: one start, all policies and conditions."""
        starts = Starts(setting)
        for name, index, task in self.cells(setting):
            start = starts.at(name, task, setting.seed, index)
            drawn = [self._fair(setting, name, start, *draw) for draw in self._draws]
            asked: dict[str, Rollout | Drop] = {}
            for policy in setting.policies[name]:
                nominal = self.rollout(starts, name, policy, task, index, setting.seed)
                asked[nominal.id] = nominal
                for fair in drawn:
                    for condition in self.conditions:
                        asked |= fair.asked(nominal, condition)
                asked |= {again.id: again for again in _replications(nominal, self.replications)}
            yield list(asked.values())

    def _draw(self, seed: int, name: str, level: int, number: int, attempt: int = 0) -> Perturbation:
        """Perturbation ``number`` of an axis at a severity: a function of these and of the study's seed."""
        assert self.axes is not None
        severity = self.levels[name][level]
        event = (name, f"{severity:g}", number, *((attempt,) if attempt else ()))
        drawn = self.axes[name].draw(severity, Key(seed).stream("matched").event(*event))
        return replace(drawn, params={**drawn.params, "redraws": attempt}) if attempt else drawn

    def _fair(self, setting: Setting, world_name: str, start: Start, level: int, number: int) -> "_Drawn":
        """The perturbations of one configuration, those drawn again that the World objects to for this start."""
        world, chosen, rejected = setting.worlds[world_name], {}, {}
        for name in self.levels:
            for attempt in range(_REDRAWS + 1):
                chosen[name] = self._draw(setting.seed, name, level, number, attempt)
                rejected[name] = self._objection(world, start, name, chosen)
                if not rejected[name]:
                    break
        return _Drawn(chosen, rejected)

    def _objection(self, world: World, start: Start, name: str, chosen: Mapping[str, Perturbation]) -> str:
        """Why the World objects to what was drawn last, alone or with what was drawn before; empty if it does not."""
        if not chosen[name].axis.startswith(REDRAWN) or chosen[name].axis not in world.perturbation_axes:
            return ""
        moved = [other for other, p in chosen.items() if p.axis.startswith(REDRAWN)]
        together = {tuple(other for other in condition if other in moved): None for condition in self.conditions}
        for condition in together:
            if name in condition:
                acting = tuple(chosen[other] for other in condition)
                objection = world.objection(replace(start, perturbations=start.perturbations + acting))
                if objection is not None:
                    return objection
        return ""

    def _cells(self, setting: Setting) -> Iterator[Cell]:
        """What an adaptive study allocates to: every severity and condition of each World, task and policy."""
        self.check(setting)
        starts = Starts(setting)
        fair = lru_cache(None)(partial(self._fair, setting))
        levels = sorted({level for level, _ in self._draws})
        for name, world in setting.worlds.items():
            for task in self.tasks_of(world):
                for policy in setting.policies[name]:
                    for level, condition in itertools.product(levels, self.conditions):

                        def instance(
                            m: int,
                            name: str = name,
                            policy: str = policy,
                            task: str = task,
                            level: int = level,
                            condition: Condition = condition,
                        ) -> Mapping[str, Rollout | Drop]:
                            """Start m, and all starts again with the next configuration: what its instance takes."""
                            number, index = divmod(m, self.episodes)
                            nominal = self.rollout(starts, name, policy, task, index, setting.seed)
                            drawn = fair(name, starts.at(name, task, setting.seed, index), level, number)
                            parts = dict.fromkeys((*((axis,) for axis in condition), condition))
                            return {nominal.id: nominal, **{k: v for p in parts for k, v in drawn.asked(nominal, p)}}

                        yield Cell(instance, self.episodes * self.configurations)


@dataclass(frozen=True)
class _Drawn:
    """The perturbations of one configuration for one start, by axis, and why the World objects to some of them."""

    chosen: Mapping[str, Perturbation]
    rejected: Mapping[str, str]

    def asked(self, nominal: Rollout, condition: Condition) -> Iterator[tuple[str, Rollout | Drop]]:
        """The rollout of one condition, or its drop, with its id."""
        rollout = replace(nominal, perturbations=tuple(self.chosen[name] for name in condition))
        reasons = [f"{name}: {self.rejected[name]}" for name in condition if self.rejected[name]]
        told = f"the world objects to {_REDRAWS + 1} draws of {'; '.join(reasons)}"
        yield rollout.id, Drop(rollout, told) if reasons else rollout


def _replications(nominal: Rollout, count: int) -> Iterator[Rollout]:
    """The same start again with one stream of noise drawn anew, ``count`` times each."""
    for stream, number in itertools.product(REPLICATED, range(count)):
        seed = Key(nominal.seed).integer("replication", stream, number) >> 32
        yield replace(nominal, streams=((stream, seed),))


def _adaptive(settings: Mapping[str, Any]) -> Adaptive:
    known = [field.name for field in fields(Adaptive)]
    for name in settings:
        if name not in known:
            raise unknown("setting of protocol.allocation", name, known)
    if "budget" not in settings:
        raise ConfigError("protocol.allocation.budget must be given: it has no default")
    return Adaptive(**settings)
