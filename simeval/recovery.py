"""Recovery from faults: what a policy does when something goes wrong in the middle of an episode.

After FRBench (RePO-VLA, 2605.09410): premature closing, a grasp that slips, the gripper held open, the hand displaced
and turned, at a random time. Each faulty run is forked from the run without the fault, at the step where it begins: all
before is shared, and all noise after.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simeval.episode import Episode
from simeval.errors import ConfigError, UnsupportedError, unknown
from simeval.noise import Key
from simeval.perturbation import effect_of
from simeval.perturbation.injection import Gripper, shifts, turns
from simeval.protocols import AT_ONCE, Design, Setting, Starts, check_whole
from simeval.schedule import Drop, Protocol, parallel_iter
from simeval.settings import names
from simeval.types import Perturbation, Rollout, WorldSpec

_SETTLED = 0.25
"""How long a gripper has been told to close when it is taken to hold something [s]."""


@dataclass(frozen=True, slots=True)
class _Injection:
    """A fault: how long it lasts [s], when it may begin, and what it changes by how much."""

    duration: float
    window: Callable[[Episode, WorldSpec], np.ndarray]
    numbers: Callable[[WorldSpec], Mapping[str, int]] = lambda spec: {}


def _always(episode: Episode, spec: WorldSpec) -> np.ndarray:
    return np.arange(episode.length)


def _closed(episode: Episode, spec: WorldSpec) -> np.ndarray:
    """``[T]``: whether the gripper is told to close."""
    gripper = Gripper.of(spec)
    command = episode.action.reshape(episode.length, -1)[:, gripper.number]
    return np.abs(command - gripper.closed) < np.abs(command - gripper.opened)


def _before_closing(episode: Episode, spec: WorldSpec) -> np.ndarray:
    closed = _closed(episode, spec)
    return np.arange(int(closed.argmax())) if closed.any() else np.arange(0)


def _while_holding(episode: Episode, spec: WorldSpec) -> np.ndarray:
    """Steps at which the gripper, once open, has been told to close for a while and still is."""
    closed = _closed(episode, spec)
    settled = max(1, round(_SETTLED / spec.control_dt))
    opened = np.maximum.accumulate(~closed) if len(closed) else closed
    held = [step for step in range(settled, len(closed)) if closed[step - settled : step + 1].all() and opened[step]]
    return np.array(held, dtype=int)


INJECTIONS: Mapping[str, _Injection] = {
    "premature_close": _Injection(0.5, _before_closing),
    "grasp_slip": _Injection(0.25, _while_holding),
    "hold_open": _Injection(1.0, _while_holding),
    "position_offset": _Injection(0.25, _always, shifts),
    "orientation_mismatch": _Injection(0.25, _always, turns),
}
"""Fault -> what it is."""
_NEVER = {
    "premature_close": "the gripper is never told to close, or from the first step on",
    "grasp_slip": "the gripper is never told to close and hold",
    "hold_open": "the gripper is never told to close and hold",
}


@dataclass(frozen=True)
class Recovery(Design):
    """Every start without a fault, and from that run one fork for each fault and each of ``draws`` random times.

    ``injections``: names of ``INJECTIONS``; all by default. The times of one fault are drawn from equal parts of the
    steps at which it makes sense: a slip while the gripper holds, a premature closing before it closes. Where there are
    none, the fault is dropped with the reason. ``amount``: by how much the hand is displaced and turned, as the root
    mean square of half ranges of the action, for a quarter of a second. A fork keeps its parent's horizon.
    """

    snapshot_every: int = 20
    injections: Sequence[str] | None = None
    draws: int = 3
    amount: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("draws", self.draws, 1, "times at which each fault is injected", AT_ONCE)
        chosen = names("protocol.injections", INJECTIONS if self.injections is None else self.injections)
        for name in chosen:
            if name not in INJECTIONS:
                raise unknown("injection", name, INJECTIONS)
        if not chosen:
            raise ConfigError("protocol.injections=[]: name at least one, or null for all")
        object.__setattr__(self, "injections", chosen)
        if not 0 < self.amount <= 1:
            raise ConfigError(f"protocol.amount={self.amount}: expected a part of the action's half range, in (0, 1]")

    def size(self, setting: Setting) -> int | None:
        """See ``Study.size``; faults that make no sense in an episode are counted as if they were run."""
        self.check(setting)
        assert self.injections is not None
        each = 1 + len(self.injections) * self.draws
        return each * sum(
            self.episodes * len(self.tasks_of(world)) * len(setting.policies[name])
            for name, world in setting.worlds.items()
        )

    def check(self, setting: Setting) -> None:
        """See ``Design.check``: every World can have every fault."""
        assert self.injections is not None
        for world in setting.worlds.values():
            lacking: dict[str, str] = {}
            for name in self.injections:
                try:
                    INJECTIONS[name].numbers(world.spec)
                    effect_of(Perturbation(f"injection.{name}"), world.spec)
                except UnsupportedError as error:
                    lacking[name] = str(error)
            if lacking:
                can = [name for name in self.injections if name not in lacking]
                raise UnsupportedError(
                    f"{next(iter(lacking.values()))}, which {', '.join(lacking)} need"
                    + (f"; keep protocol.injections=[{','.join(can)}]" if can else "")
                )

    def protocol(self, setting: Setting) -> Protocol:
        """See ``Study.protocol``; returns the episodes."""
        starts = Starts(setting)
        runs = yield from parallel_iter(
            self._faulty(self.rollout(starts, name, policy, task, index, setting.seed), setting)
            for name, index, task in self.cells(setting)
            for policy in setting.policies[name]
        )
        return [episode for episodes in runs for episode in episodes if episode is not None]

    def _faulty(self, rollout: Rollout, setting: Setting) -> Protocol:
        """One run, and its forks."""
        (plain,) = yield [rollout]
        spec = setting.worlds[rollout.world].spec
        forks = yield list(self._forks(plain, spec)) if plain.status == "done" and plain.length else []
        return [plain, *forks]

    def _forks(self, plain: Episode, spec: WorldSpec) -> Iterator[Rollout | Drop]:
        assert self.injections is not None
        for name in self.injections:
            injection = INJECTIONS[name]
            window = injection.window(plain, spec)
            for number, part in enumerate(np.array_split(window, self.draws)):
                generator = Key(plain.rollout.seed).stream("injection").event(name, number)
                chosen = part if len(part) else window
                if not len(chosen):
                    yield Drop(self._fork(plain, name, 0, spec, {}), _NEVER[name])
                    continue
                step = int(chosen[generator.integers(len(chosen))])
                yield self._fork(plain, name, step, spec, self._amounts(injection, spec, generator))

    def _fork(self, plain: Episode, name: str, step: int, spec: WorldSpec, params: Mapping[str, Any]) -> Rollout:
        until = step + max(1, round(INJECTIONS[name].duration / spec.control_dt))
        fault = Perturbation(f"injection.{name}", params=params, from_step=step, to_step=until)
        return plain.rollout.branch(step, perturbations=(fault,))

    def _amounts(self, injection: _Injection, spec: WorldSpec, generator: np.random.Generator) -> dict[str, float]:
        """Half ranges along a random direction, of root mean square ``amount``."""
        numbers = list(injection.numbers(spec))
        if not numbers:
            return {}
        direction = generator.standard_normal(len(numbers))
        direction *= self.amount * np.sqrt(len(numbers)) / np.linalg.norm(direction)
        return dict(zip(numbers, np.clip(direction, -1, 1).tolist(), strict=True))
