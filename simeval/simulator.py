"""A World made of single simulators stepped one after the other: the adapter for suites that know no batch."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from simeval.errors import SnapshotError, UnsupportedError
from simeval.noise import StepKey
from simeval.settings import slot_count, whole
from simeval.types import Snapshot, Start, TimeStep
from simeval.world import World


@dataclass(frozen=True, slots=True)
class SimulatorStep:
    """One simulator's part of a ``TimeStep``: unbatched arrays and plain flags.

    Every observation key and signal that the World declares is there, and no other, in the declared shape. A dtype of
    the same kind is converted (float64 to float32) where no value is lost by it; nothing is rounded or broadcast.
    """

    observation: Mapping[str, np.ndarray]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    signals: Mapping[str, np.ndarray] = field(default_factory=dict)


class Simulator(ABC):
    """One copy of a simulator, built for one task, reset many times. The contract is the World's, for one slot."""

    @abstractmethod
    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        """Begin an episode: a function of ``start`` and ``key``, whatever ran before."""

    @abstractmethod
    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        """Advance by one control step with an action that fits the space."""

    def advance(self, action: np.ndarray, key: StepKey, look: bool) -> SimulatorStep:
        """:meth:`step`; without ``look`` its pictures may be left black. The default draws them."""
        return self.step(action, key)

    @abstractmethod
    def snapshot(self) -> Mapping[str, Any]:
        """The complete state as plain nested data that shares no memory with the simulator."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        """Return to a snapshot's state, and give the step that was given when it was taken."""

    def render(self) -> np.ndarray:
        """A picture for people, uint8 ``[H, W, 3]``; the default says that there is none."""
        raise UnsupportedError(f"{type(self).__name__} draws no pictures")

    def close(self) -> None:  # noqa: B027
        """Release what the simulator holds."""


class SimulatorWorld(World):
    """A World over simulators that ``build(task)`` makes, kept and re-used across episodes.

    At most ``max_simulators`` exist at once (default: one per slot and a few spare), so a suite of fifty tasks does not
    build fifty simulators. A simulator that raises is discarded with the episode's traceback in ``TimeStep.failures``.
    """

    def __init__(
        self,
        *,
        name: str,
        num_slots: int,
        tasks: tuple[str, ...],
        build: Callable[[str], Simulator],
        observation_space: gymnasium.spaces.Dict,
        action_space: gymnasium.spaces.Box,
        control_dt: float,
        fingerprint: str,
        signals: Mapping[str, tuple[tuple[int, ...], np.dtype]],
        dynamics: str = "",
        max_simulators: int | None = None,
    ):
        self.name = name
        self.num_slots = slot_count(num_slots)
        self.tasks = tasks
        self.observation_space = observation_space
        self.action_space = action_space
        self.control_dt = control_dt
        self.fingerprint = fingerprint
        self.dynamics = dynamics
        self._build = build
        self._signals = dict(signals)
        self._max_simulators = num_slots + 8
        if max_simulators is not None:
            self._max_simulators = max(whole("max_simulators", max_simulators), num_slots)
        self._current: list[tuple[str, Simulator] | None] = [None] * num_slots
        self._idle: list[tuple[str, Simulator]] = []

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        self.check_slots(slots)
        for start in starts:
            self.check_task(start.task)
        return self._gather(
            slots, lambda row: self._simulator(slots[row], starts[row].task).reset(starts[row], keys[row])
        )

    def step(self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        return self.advance(slots, actions, keys, [True] * len(slots))

    def advance(
        self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey], looks: Sequence[bool]
    ) -> TimeStep:
        """See ``World.advance``."""
        self.check_slots(slots)
        self.check_actions(slots, actions, keys)
        return self._gather(
            slots, lambda row: self._running(slots[row])[1].advance(actions[row], keys[row], looks[row])
        )

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        self.check_slots(slots)
        snapshots = []
        for slot in slots:
            task, simulator = self._running(slot)
            snapshots.append(Snapshot(self.snapshot_fingerprint, {"task": task, "simulator": simulator.snapshot()}))
        return snapshots

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        for snapshot in snapshots:
            if snapshot.state["task"] not in self.tasks:
                raise SnapshotError(
                    f"this snapshot was taken in task {snapshot.state['task']!r}, which world {self.name!r} does not "
                    f"have among its {len(self.tasks)}; add it to the World's tasks"
                )

        def restore(row: int) -> SimulatorStep:
            state = snapshots[row].state
            return self._simulator(slots[row], state["task"]).restore(state["simulator"])

        return self._gather(slots, restore)

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """See ``World.render``."""
        return np.stack([self._running(slot)[1].render() for slot in slots])

    def close(self) -> None:
        """See ``World.close``."""
        for pair in [*self._idle, *(pair for pair in self._current if pair is not None)]:
            pair[1].close()
        self._idle = []
        self._current = [None] * self.num_slots

    def _running(self, slot: int) -> tuple[str, Simulator]:
        pair = self._current[slot]
        if pair is None:
            raise RuntimeError(f"world {self.name!r}: slot {slot} was never reset; call reset or restore first")
        return pair

    def _simulator(self, slot: int, task: str) -> Simulator:
        pair = self._current[slot]
        if pair is not None:
            if pair[0] == task:
                return pair[1]
            self._idle.append(pair)
            self._current[slot] = None
        for index, (idle_task, simulator) in enumerate(self._idle):
            if idle_task == task:
                del self._idle[index]
                self._current[slot] = (task, simulator)
                return simulator
        alive = len(self._idle) + sum(pair is not None for pair in self._current)
        if self._idle and alive >= self._max_simulators:
            self._idle.pop(0)[1].close()
        simulator = self._build(task)
        self._current[slot] = (task, simulator)
        return simulator

    def _gather(self, slots: Sequence[int], call: Callable[[int], SimulatorStep]) -> TimeStep:
        count = len(slots)
        observation = {
            key: np.zeros((count, *(space.shape or ())), dtype=space.dtype)
            for key, space in self.observation_space.spaces.items()
        }
        signals = {key: np.zeros((count, *shape), dtype=dtype) for key, (shape, dtype) in self._signals.items()}
        flags: dict[str, Any] = {name: np.zeros(count, dtype) for name, dtype in _FLAGS}
        failures: dict[int, str] = {}
        for row in range(count):
            try:
                result = call(row)
                outcome = (result.reward, result.terminated, result.truncated, result.success)
                problems = [
                    *_fill(observation, row, result.observation, "observation"),
                    *_fill(signals, row, result.signals, "signal"),
                    *_fill(flags, row, dict(zip(flags, outcome, strict=True)), "value"),
                ]
                if problems:
                    raise ValueError("; ".join(problems))
            except (Exception, SystemExit):  # a call of sys.exit ends an episode, and no run
                failures[row] = traceback.format_exc()
                self._discard(slots[row])
        return TimeStep(observation, **flags, signals=signals, failures=failures)

    def _discard(self, slot: int) -> None:
        pair = self._current[slot]
        self._current[slot] = None
        if pair is not None:
            try:
                pair[1].close()
            except Exception:  # a broken simulator may break again on closing; its first traceback is what is reported
                return


_FLAGS = (("reward", np.float64), ("terminated", np.bool_), ("truncated", np.bool_), ("success", np.bool_))
_FITTING: dict[type, str] = {float: "d", bool: "?", np.float64: "d", np.bool_: "?", np.float32: "f", np.int64: "l"}
"""Scalar type -> the dtype character of a column that takes it as it is."""


def _fill(columns: Mapping[str, np.ndarray], row: int, values: Mapping[str, Any], kind: str) -> list[str]:
    """Write ``values`` into ``row`` of ``columns``, which say what was declared; returns all that does not fit."""
    problems = []
    if values.keys() != columns.keys():
        problems = [f"the simulator gave {kind}s {sorted(values)}; its World declares {sorted(columns)}"]
    for key, column in columns.items():
        if key not in values:
            continue
        value = values[key]
        kind_of = value.__class__
        if kind_of is np.ndarray:
            fits = value.dtype == column.dtype and value.shape == column.shape[1:]
        else:
            fits = column.ndim == 1 and column.dtype.char in _FITTING.get(kind_of, "")
        try:
            column[row] = value if fits else _converted(value, column, f"{kind} {key!r}")
        except ValueError as error:
            problems.append(str(error))
    return problems


def _converted(value: Any, column: np.ndarray, name: str) -> np.ndarray:
    given, declared = np.asanyarray(value), column.dtype
    if (
        given.shape != column.shape[1:]
        or not np.can_cast(given.dtype, declared, "same_kind")
        or isinstance(given, np.ma.MaskedArray)
    ):
        raise ValueError(
            f"{name} is {type(value).__name__} {given.dtype}{list(given.shape)}; "
            f"its World declares {declared}{list(column.shape[1:])}"
        )
    if np.can_cast(given.dtype, declared, "safe"):
        return given
    with np.errstate(over="ignore"):
        converted = np.asarray(given).astype(declared)
    kept = np.isfinite(converted) | ~np.isfinite(given) if declared.kind == "f" else converted == given
    if not np.all(kept):
        raise ValueError(f"{name} has values that its declared dtype {declared} cannot hold: {given[~kept].flat[0]}")
    return converted
