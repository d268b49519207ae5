"""A World whose slots live in worker processes, maybe of another Python interpreter: the host's end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from simeval.codec import pack
from simeval.errors import ConfigError, HostError, LostError, MissingPackageError
from simeval.host.description import assume, keys_to_plain
from simeval.host.interpreter import Interpreter
from simeval.host.process import Lost, WorkerProcess
from simeval.noise import StepKey
from simeval.settings import positive, slot_count, whole
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World

DEADLINE = 60.0
"""How long a worker may take for one call, unless configured [s]."""
_BUILDING = 10.0
"""Building a World may take so many times the deadline of a call, and no less than ``_LEAST_BUILDING`` seconds."""
_LEAST_BUILDING = 120.0
_STARTS_IN_VAIN = 3
"""So many processes in a row that end before their World is built are not replaced again."""

_Answer = tuple[list[int], Any, dict[str, np.ndarray]]
"""The rows that a worker was asked about, what it says, and its arrays, which are valid until it is asked again."""
_Ask = Callable[[list[int]], tuple[dict[str, Any], dict[str, np.ndarray]]]


class EncodedSnapshot(Snapshot):
    """A snapshot as a worker sent it, decoded when it is looked into: most go to another worker or into a trace."""

    __slots__ = ("_data",)
    _data: bytes

    def __init__(self, world: str, data: bytes):
        object.__setattr__(self, "world", world)
        object.__setattr__(self, "_data", data)

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedSnapshot, (self.world, self._data)

    @property
    def state(self) -> Mapping[str, Any]:
        """See ``Snapshot.state``."""
        return Snapshot.from_bytes(self._data).state

    def to_bytes(self) -> bytes:
        """See ``Snapshot.to_bytes``."""
        return self._data


class HostedWorld(World):
    """The World that ``config`` describes (``_target_`` and its arguments), its slots dealt out to worker processes.

    Every call goes to all workers concerned before the first is waited for; what comes back is, bit for bit, what the
    World gives in this process. ``python``: the interpreter of the workers, which needs numpy, gymnasium, msgpack and
    what the World itself imports, and is shown this installation of simeval and of its worlds.

    A worker that ends, or takes longer than ``deadline`` seconds for a call (as many times that as it has slots to
    reset or to restore, in which simulators are built), is killed and replaced. Its slots are in ``TimeStep.lost``;
    ``snapshot`` and ``render`` raise ``LostError``.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        processes: int = 1,
        python: str | None = None,
        deadline: float = DEADLINE,
        label: str = "",
    ):
        """``label``: what the World is called in errors."""
        what = label or "hosted world"
        if "num_slots" not in config:
            raise ConfigError(f"{what}: a World in worker processes needs num_slots in its configuration")
        self.num_slots = slot_count(config["num_slots"])
        count = min(whole("host.processes", processes), self.num_slots)
        self._what = what
        self._config = dict(config)
        self._deadline = positive("host.deadline", deadline)
        self._python = Interpreter.of(python)
        self._slots_of = [list(range(index, self.num_slots, count)) for index in range(count)]
        self._gone: dict[int, str] = {}
        self._begun: set[int] = set()
        self._in_vain = 0
        self._workers: list[WorkerProcess] = []
        self._declared: dict[str, Any] = {}
        try:
            for index in range(count):
                self._workers.append(self._new_worker(index))
            for index in range(count):
                self._wait_for(index)
        except Lost as error:
            self.close()
            raise HostError(f"{error}; its World was never built") from None
        except BaseException:
            self.close()
            raise
        assume(self, self._declared)

    @property
    def pids(self) -> list[int]:
        """The numbers of the worker processes."""
        return [worker.pid for worker in self._workers]

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return Start.from_json(self._ask_any("start", {"task": task, "seed": seed}))

    def starts(self, task: str, count: int, seed: int) -> list[Start]:
        """See ``World.starts``."""
        self.check_task(task)
        drawn = self._ask_any("starts", {"task": task, "count": count, "seed": seed})
        return [Start.from_json(start) for start in drawn]

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        self.check_task(task)
        return self._ask_any("horizon", {"task": task})

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self._ask_any("check_start", {"start": start.to_json()})

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        self.check_task(start.task)
        return self._ask_any("objection", {"start": start.to_json()}, patience=_BUILDING)

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        self.check_slots(slots)
        for start in starts:
            self.check_task(start.task)
        self._forget(slots)
        return self._advance(
            "reset",
            slots,
            lambda rows: ({"starts": [starts[r].to_json() for r in rows], "keys": _keys(keys, rows)}, {}),
            patience=1,
        )

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        self.check_slots(slots)
        self._check_begun(slots)
        if len(self._workers) > 1:  # one alone refuses before anything moves
            self.check_actions(slots, actions, keys)
        action = np.asarray(actions)
        return self._advance("step", slots, lambda rows: ({"keys": _keys(keys, rows)}, {"action": action[rows]}))

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``; ``LostError`` where a process ended."""
        self.check_slots(slots)
        self._check_begun(slots)
        snapshots: dict[int, Snapshot] = {}
        for rows, taken, _ in self._all_of("snapshot", slots):
            snapshots.update(zip(rows, (EncodedSnapshot(world, data) for world, data in taken), strict=True))
        return [snapshots[row] for row in range(len(slots))]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        self._forget(slots)
        encoded: dict[int, bytes] = {}
        for snapshot in snapshots:
            if id(snapshot) not in encoded:
                encoded[id(snapshot)] = snapshot.to_bytes()

        def ask(rows: list[int]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
            distinct = list(dict.fromkeys(id(snapshots[row]) for row in rows))
            which = [distinct.index(id(snapshots[row])) for row in rows]
            return {"snapshots": [encoded[item] for item in distinct], "which": which}, {}

        return self._advance("restore", slots, ask, patience=1)

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """See ``World.render``; ``LostError`` where a process ended."""
        self.check_slots(slots)
        self._check_begun(slots)
        pictures: np.ndarray | None = None
        for rows, _, arrays in self._all_of("render", slots):
            picture = arrays["picture"]
            if pictures is None:
                pictures = np.empty((len(slots), *picture.shape[1:]), picture.dtype)
            pictures[rows] = picture
        assert pictures is not None
        return pictures

    def close(self) -> None:
        """See ``World.close``."""
        for worker in self._workers:
            worker.leave()
        for worker in self._workers:
            worker.close()

    # Asking the workers

    def _advance(self, method: str, slots: Sequence[int], ask: _Ask, patience: int = 0) -> TimeStep:
        """A call that gives a time step."""
        answers, lost = self._ask(method, slots, ask, patience)
        failures = {row: self._gone[slot] for row, slot in enumerate(slots) if slot in self._gone}
        columns: dict[str, np.ndarray] = {}
        for rows, told, arrays in answers:
            self._begun.update(slots[row] for row in rows)
            failures.update({rows[row]: text for row, text in told})
            if len(rows) == len(slots):
                columns = {name: array.copy() for name, array in arrays.items()}
            else:
                self._merge(columns, arrays, rows, len(slots))
        return self._time_step(columns, len(slots), failures, lost)

    def _ask(
        self, method: str, slots: Sequence[int], ask: _Ask, patience: int = 0
    ) -> tuple[list[_Answer], frozenset[int]]:
        """Ask every worker that holds some of ``slots``: the answers, and all slots that were lost until now.

        Slots lost before are not asked about. A worker's own error is raised once all have answered.
        """
        rows_of: dict[int, list[int]] = {}
        lost = {slot for slot in slots if slot in self._gone}
        for row, slot in enumerate(slots):
            if slot not in self._gone:
                rows_of.setdefault(slot % len(self._workers), []).append(row)
        waiting: list[int] = []
        answers: list[_Answer] = []
        errors: list[Exception] = []
        # Workers that are being replaced come last, so that the others need not wait for them.
        for index in sorted(rows_of, key=lambda index: not self._workers[index].is_ready):
            rows = rows_of[index]
            arguments, arrays = ask(rows)
            arguments["slots"] = [slots[row] // len(self._workers) for row in rows]
            try:
                self._wait_for(index)
                seconds = self._deadline * max(1, patience * len(rows))
                self._workers[index].send(method, arguments, arrays, seconds)
                waiting.append(index)
            except Lost as error:
                lost |= self._replace(index, error, [slots[row] for row in rows])
        for index in waiting:
            try:
                answers.append((rows_of[index], *self._workers[index].collect()))
            except Lost as error:
                lost |= self._replace(index, error, [slots[row] for row in rows_of[index]])
            except Exception as error:
                errors.append(error)
        if errors:
            raise self._told(errors[0])
        return answers, frozenset(lost)

    def _all_of(self, method: str, slots: Sequence[int]) -> list[_Answer]:
        """The answers of a call that has no way to say that some of it is missing."""
        answers, lost = self._ask(method, slots, lambda rows: ({}, {}))
        if lost:
            raise LostError(next(self._gone[slot] for slot in slots if slot in self._gone), lost)
        return answers

    def _ask_any(self, method: str, arguments: dict[str, Any], patience: float = 1.0) -> Any:
        """Ask something that any worker knows; a second time where the first dies of it."""
        for _ in range(2):
            try:
                self._wait_for(0)
                return self._workers[0].call(method, arguments, seconds=patience * self._deadline)[0]
            except Lost as error:
                self._replace(0, error, [])
                last = error
            except Exception as error:
                raise self._told(error) from None
        raise HostError(f"{last}; so did the process that took its place")

    # Processes

    def _new_worker(self, index: int) -> WorkerProcess:
        config = {**self._config, "num_slots": len(self._slots_of[index])}
        seconds = max(_LEAST_BUILDING, _BUILDING * self._deadline)
        return WorkerProcess("world", {"config": config, "what": self._what}, self._what, self._python, seconds)

    def _wait_for(self, index: int) -> None:
        """Wait until a worker has built its World."""
        if self._workers[index].is_ready:
            return
        try:
            declared = self._workers[index].ready()
        except Lost:
            raise
        except Exception as error:
            raise self._told(error) from None
        self._in_vain = 0
        if not self._declared:
            self._declared = declared
        elif pack(declared) != pack(self._declared):
            differing = [name for name in declared if pack(declared[name]) != pack(self._declared[name])]
            raise HostError(
                f"{self._what}: two worker processes declare another {', '.join(differing)}: "
                f"{[declared[name] for name in differing]} and {[self._declared[name] for name in differing]}"
            )

    def _replace(self, index: int, error: Lost, asked: Iterable[int]) -> set[int]:
        """Start another process in place of one that ended; returns the slots whose state is gone."""
        if not self._workers[index].is_ready:
            self._in_vain += 1
            if self._in_vain >= _STARTS_IN_VAIN:
                raise HostError(f"{error}; {self._in_vain} processes in a row ended before their World was built")
        gone = {slot for slot in self._slots_of[index] if slot in self._begun} | set(asked)
        self._gone.update(dict.fromkeys(gone, str(error)))
        self._workers[index] = self._new_worker(index)
        return gone

    def _told(self, error: Exception) -> Exception:
        """A worker's error, told where it has to be mended."""
        if self._python.foreign and isinstance(error, MissingPackageError):
            error.args = (f"{error} (by {self._python.path} -m pip: this World runs in that interpreter)",)
        return error

    # Slots

    def _forget(self, slots: Sequence[int]) -> None:
        """Slots that begin anew: what was lost in them is lost no more."""
        for slot in slots:
            self._gone.pop(slot, None)

    def _check_begun(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot not in self._begun and slot not in self._gone:
                raise RuntimeError(f"world {self.name!r}: slot {slot} was never reset; call reset or restore first")

    # Arrays

    def _merge(
        self, columns: dict[str, np.ndarray], arrays: Mapping[str, np.ndarray], rows: list[int], count: int
    ) -> None:
        if not columns:
            columns.update({name: np.zeros((count, *a.shape[1:]), a.dtype) for name, a in arrays.items()})
        for name in columns.keys() | arrays.keys():
            here, there = columns.get(name), arrays.get(name)
            if (
                here is None
                or there is None
                or (here.dtype, here.shape[1:], len(rows))
                != (
                    there.dtype,
                    there.shape[1:],
                    len(there),
                )
            ):
                raise ConfigError(
                    f"world {self.name!r} breaks its contract (`simeval check` proves it): {name} is {_form(there)} "
                    f"for {len(rows)} slots of one worker, and {_form(here)} for {count} of all"
                )
            here[rows] = there

    def _time_step(
        self, columns: dict[str, np.ndarray], count: int, failures: Mapping[int, str], lost: frozenset[int]
    ) -> TimeStep:
        if not columns:  # all is lost: rows of the declared form, of which nothing is defined
            for key, space in self.observation_space.spaces.items():
                columns[f"observation/{key}"] = np.zeros((count, *(space.shape or ())), space.dtype)
            columns["reward"] = np.zeros(count)
            columns.update({name: np.zeros(count, bool) for name in ("terminated", "truncated", "success")})
        parts: dict[str, dict[str, Any]] = {"observation": {}, "signals": {}, "": {}}
        for name, column in columns.items():
            kind, key = _parted(name)
            parts[kind][key] = column
        return TimeStep(parts["observation"], **parts[""], signals=parts["signals"], failures=failures, lost=lost)


@lru_cache(maxsize=4096)
def _parted(name: str) -> tuple[str, str]:
    """Kind and key of an array's name: ``observation/state``, ``signals/contact``, ``reward``."""
    kind, slash, key = name.partition("/")
    return (kind, key) if slash else ("", kind)


def _keys(keys: Sequence[StepKey], rows: Sequence[int]) -> list[list[Any]]:
    return keys_to_plain([keys[row] for row in rows])


def _form(array: np.ndarray | None) -> str:
    return "absent" if array is None else f"{array.dtype}{list(array.shape)}"
