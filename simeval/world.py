"""The World contract: reset, step, snapshot, restore, fork, with keyed noise, over a batch of slots."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import gymnasium
import numpy as np

from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ActionError, ConfigError, SnapshotError, UnsupportedError, unknown
from simeval.noise import Key, StepKey
from simeval.settings import names, positive, whole
from simeval.types import Array, Snapshot, Start, TimeStep, WorldSpec


class World(ABC):
    """``num_slots`` independent copies of a simulator or learned model, stepped together or one at a time.

    Call order: ``reset`` (or ``restore``) a slot before ``step``; after an episode ends, ``reset`` it again. A World
    never resets itself, holds no random generator and draws from no global one: all its noise comes through
    ``keys``. The result of every call for a slot is a function of that slot's own history of calls alone, whatever
    the other slots do, and is bit-identical in any slot. Returned arrays are fresh: they share memory with nothing.

    An implementation sets the attributes below and is proved by ``simeval.testing.check_world``.
    """

    name: str
    """Short name, e.g. ``"tabletop"``."""
    num_slots: int
    tasks: tuple[str, ...]
    observation_space: gymnasium.spaces.Dict
    """Space of one slot's observation."""
    action_space: gymnasium.spaces.Box
    """Space of one slot's action."""
    control_dt: float
    """Time between two ``step`` calls [s]."""
    fingerprint: str
    """Everything that a snapshot or a number depends on, in one line: name, versions, model, settings."""
    dynamics: str = ""
    """The part of ``fingerprint`` that a state and its continuation depend on, not what is shown of it (cameras, image
    size): Worlds that agree in it exchange snapshots. Empty: all of it."""
    success_hold: int = 1
    """For how many consecutive steps ``TimeStep.success`` must be true for the episode to count as a success.

    0: this World defines no success. ``TimeStep.success`` is then never true, no success rate is made of its episodes,
    and their returns are what is compared.
    """
    restores_by_replay: bool = False
    """Whether ``restore`` plays the steps since the reset again, and so takes as long as they did, because some of the
    state cannot be reached."""
    perturbation_axes: frozenset[str] = frozenset()
    """Axes of ``Start.perturbations`` that this World applies itself."""
    conventions: Conventions = UNDECLARED
    """What its pictures and numbers mean, beside what its spaces say; compared with what a policy declares."""

    @abstractmethod
    def start(self, task: str, seed: int) -> Start:
        """The episode start that ``seed`` draws for ``task``, with its instruction; a pure function."""

    def starts(self, task: str, count: int, seed: int) -> list[Start]:
        """The first ``count`` evaluation starts of ``task``; a longer list begins with the shorter one."""
        self.check_task(task)
        return [self.start(task, Key(seed).integer("start", task, index) >> 32) for index in range(count)]

    @abstractmethod
    def horizon(self, task: str) -> int:
        """The usual cap on the length of an episode of ``task``, in control steps."""

    def check_start(self, start: Start) -> None:
        """Raise ``ConfigError`` or ``UnsupportedError`` unless ``start`` is one that this World has, without a reset.

        The default asks for the task alone. Starts that the World itself gives always are.
        """
        self.check_task(start.task)

    def objection(self, start: Start) -> str | None:
        """Why an episode cannot fairly begin at ``start``; none where it can, which is all that the default says.

        Fair is a start, perturbations and all, that is not solved already and is solvable as far as can be seen:
        nothing is stuck in anything else, and all that matters is within reach. A pure function of ``start``, apart
        from the slots, which are left alone.
        """
        self.check_task(start.task)
        return None

    @abstractmethod
    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """Begin an episode in each of ``slots``: a function of its start and key alone."""

    @abstractmethod
    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """Advance each of ``slots`` by one control step with ``actions`` ``[len(slots), A]``.

        Raises ``ActionError``, before anything moves, for actions of another shape, not finite, or out of bounds.
        """

    def advance(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey], looks: Sequence[bool]) -> TimeStep:
        """:meth:`step` for a caller who looks at the pictures of some rows only; those of others may be left black.

        The default draws them all.
        """
        return self.step(slots, actions, keys)

    @abstractmethod
    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """The complete state of each of ``slots``, as values independent of the World."""

    @abstractmethod
    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """Put each slot in a snapshot's state, and return the time step that was returned when it was taken.

        Raises ``SnapshotError`` for a snapshot of a World with another ``snapshot_fingerprint``.
        """

    def fork(self, source: int, targets: Sequence[int]) -> TimeStep:
        """Copy the state of slot ``source`` into each of ``targets``; the source is left alone."""
        (snapshot,) = self.snapshot([source])
        return self.restore(targets, [snapshot] * len(targets))

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """Pictures for people, uint8 ``[len(slots), H, W, 3]``, upright RGB; no part of the observation."""
        raise UnsupportedError(f"world {self.name!r} draws no pictures")

    def close(self) -> None:  # noqa: B027
        """Release simulators and rendering contexts. The World is unusable afterwards; closing twice is harmless."""

    @property
    def spec(self) -> WorldSpec:
        """What a policy may know of this World; ``ConfigError`` for an attribute that is not what it should be."""
        self._check_declared()
        conventions = self.conventions.of_spaces(self.observation_space, self.action_space, self.control_dt)
        return WorldSpec(self.name, self.observation_space, self.action_space, self.control_dt, self.tasks, conventions)

    @property
    def snapshot_fingerprint(self) -> str:
        """What ``Snapshot.world`` says of the snapshots that this World takes and restores."""
        return self.dynamics or self.fingerprint

    def check_task(self, task: str) -> None:
        """Raise ``ConfigError`` with the nearest names unless ``task`` exists."""
        if task not in self.tasks:
            raise unknown(f"task of world {self.name!r}", task, self.tasks)

    def _check_declared(self) -> None:
        what = f"{name!r}" if isinstance(name := getattr(self, "name", None), str) else type(self).__name__
        for attribute, kind in _DECLARED:
            value = getattr(self, attribute, None)
            if not isinstance(value, kind):
                raise ConfigError(f"world {what}: {attribute} is {value!r:.60}, expected a {kind.__name__}")
        whole(f"num_slots of world {what}", self.num_slots)
        whole(f"success_hold of world {what}", self.success_hold, 0)
        positive(f"control_dt of world {what}", self.control_dt)
        tasks = self.tasks
        if isinstance(tasks, str) or not names(f"tasks of world {what}", tasks) or len(set(tasks)) < len(tasks):
            raise ConfigError(f"world {what}: tasks is {tasks!r:.60}, expected a tuple of different names")

    def check_slots(self, slots: Sequence[int]) -> None:
        """Raise ``IndexError`` unless ``slots`` are distinct and exist."""
        if len(set(slots)) != len(slots) or any(not 0 <= slot < self.num_slots for slot in slots):
            raise IndexError(f"slots must be distinct and in 0..{self.num_slots - 1}; received {list(slots)}")

    def check_actions(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> None:
        """Raise ``ActionError`` naming slot and step unless ``actions`` fit the action space."""
        problems = action_problems(self.action_space, actions, len(slots))
        for row, problem in problems.items():
            raise ActionError(f"world {self.name!r}, slot {slots[row]}, step {keys[row].step - 1}: {problem}")

    def check_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        """Raise ``SnapshotError`` for a snapshot that another World took."""
        own = self.snapshot_fingerprint
        for snapshot in snapshots:
            if snapshot.world != own:
                raise SnapshotError(
                    f"this snapshot was taken in [{snapshot.world}] and cannot be restored in [{own}]; "
                    "use the same world settings and package versions"
                )


_DECLARED: tuple[tuple[str, type], ...] = (
    ("name", str),
    ("fingerprint", str),
    ("dynamics", str),
    ("observation_space", gymnasium.spaces.Dict),
    ("action_space", gymnasium.spaces.Box),
    ("conventions", Conventions),
)
"""Attribute of a World -> what it is."""


def action_problems(space: gymnasium.spaces.Box, actions: Array, count: int) -> dict[int, str]:
    """Row -> what is wrong with its action, for a batch of ``count`` actions; a wrong batch shape is every row's."""
    expected = (count, *space.shape)
    if tuple(actions.shape) != expected:
        text = f"actions have shape {tuple(actions.shape)}, expected {expected} (one row of {space.shape} per slot)"
        return dict.fromkeys(range(count), text)
    if not isinstance(actions, np.ndarray):
        actions = np.asarray(actions)
    inside = np.isfinite(actions) & (actions >= space.low) & (actions <= space.high)
    if inside.all():
        return {}
    problems = {}
    for row in np.flatnonzero(~inside.reshape(count, -1).all(axis=1)):
        flat = actions[row].reshape(-1)
        index = int(np.flatnonzero(~inside[row].reshape(-1))[0])
        low, high = space.low.reshape(-1)[index], space.high.reshape(-1)[index]
        problems[int(row)] = (
            f"action[{index}] is {flat[index]}"
            + ("" if np.isfinite(flat[index]) else ", which is not finite")
            + f"; expected {low} <= action[{index}] <= {high}"
        )
    return problems
