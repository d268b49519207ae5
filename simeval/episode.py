"""A finished episode: its rollout, how it ended, and its arrays, read from memory or lazily from the trace."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from simeval.codec import pack, unpack
from simeval.content import Content
from simeval.errors import TraceError
from simeval.latency import Counts, counts_from_json, counts_to_json
from simeval.metrics import EpisodeSummary
from simeval.tape import Recorded
from simeval.types import Rollout, Snapshot


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended, and what the run knows of it beside its arrays.

    ``status`` is ``"done"`` or ``"error"`` (``error`` then holds the traceback or reason, and ``blame`` says whose it
    is: ``"policy"`` or ``"world"``). ``solved_at_reset``: success
    held before the first action. ``success_hold``: see ``World.success_hold``. ``held``: the number of successful
    steps in a row just before a child's first step. ``wall_s``: seconds from its first step to its last, other slots'
    work included. ``inference``: how long the policy took for each of its predictions. No result depends on these two.
    ``told``: the instruction that the policy was given, where a perturbation made it another than the start's.
    """

    status: str
    summary: EpisodeSummary
    success_hold: int = 1
    held: int = 0
    solved_at_reset: bool = False
    error: str = ""
    blame: str = ""
    told: str = ""
    wall_s: float = 0.0
    inference: Counts = field(default_factory=dict, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        summary = {item.name: getattr(self.summary, item.name) for item in fields(self.summary)}
        return data | {"summary": summary, "inference": counts_to_json(self.inference)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Ending":
        """The inverse of :meth:`to_json`."""
        given = {"inference": [], **data}
        inference = counts_from_json(given["inference"])
        return cls(**{**given, "summary": EpisodeSummary(**given["summary"]), "inference": inference})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a branch needs at one step: the World's snapshot, the policy's memory of this episode, ``held``, and
    what the effects around the World remember before they are shown this step's observation."""

    step: int
    snapshot: Snapshot
    memory: Mapping[str, Any]
    held: int
    effects: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """A self-contained encoding."""
        return pack(
            {
                "format": "simeval-checkpoint/1",
                "step": self.step,
                "snapshot": self.snapshot.to_bytes(),
                "memory": dict(self.memory),
                "held": self.held,
                **({"effects": dict(self.effects)} if self.effects else {}),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Checkpoint":
        """The inverse of :meth:`to_bytes`."""
        content = unpack(data)
        if not isinstance(content, dict) or content.get("format") != "simeval-checkpoint/1":
            raise TraceError("these bytes are not a simeval checkpoint; the trace is damaged or foreign")
        return cls(
            content["step"],
            Snapshot.from_bytes(content["snapshot"]),
            content["memory"],
            content["held"],
            content.get("effects", {}),
        )


def window(path: str, rows: int, begin: int, end: int | None) -> slice:
    """Rows ``begin:end`` (to the last without ``end``) of an array of ``rows``; ``IndexError`` if it has not all."""
    stop = rows if end is None else end
    if not 0 <= begin <= stop <= rows:
        raise IndexError(f"{path} has {rows} rows; rows {begin} to {stop} were asked for")
    return slice(begin, stop)


class ArraySource:
    """Where an episode's arrays are: in memory. ``simeval.shard_source`` reads them from a file."""

    def __init__(self, arrays: Recorded, checkpoints: Mapping[int, bytes] | None = None):
        self.arrays = arrays
        self.checkpoints = dict(checkpoints or {})

    def paths(self) -> list[str]:
        """Paths of the arrays."""
        return list(self.arrays)

    def read(self, path: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Rows ``begin:end`` of one array, all by default; ``KeyError`` where there is none."""
        array = self.arrays[path]
        return array[window(path, array.shape[0], begin, end)]

    def checkpoint_steps(self) -> list[int]:
        """Steps at which a checkpoint was kept."""
        return sorted(self.checkpoints)

    def checkpoint(self, step: int) -> Checkpoint:
        """The checkpoint kept at ``step``."""
        return Checkpoint.from_bytes(self.checkpoints[step])


class Columns(Mapping[str, np.ndarray]):
    """The arrays of an episode under one prefix, read when asked for."""

    def __init__(self, source: ArraySource, prefix: str, owner: str):
        self._source = source
        self._prefix = prefix
        self._owner = owner

    def __getitem__(self, key: str) -> np.ndarray:
        try:
            return self._source.read(self._prefix + key)
        except KeyError:
            raise KeyError(f"{self._owner} has no {self._prefix}{key}; it has: {', '.join(self) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return (path[len(self._prefix) :] for path in self._source.paths() if path.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Episode:
    """One finished rollout. Observations and signals have T + 1 rows, everything else T, T being :attr:`length`.

    A child's arrays begin at its ``branch_step``; ``Run.whole`` puts its ancestors' steps before them.
    """

    def __init__(self, rollout: Rollout, ending: Ending, source: ArraySource, content: Content | None = None):
        """``content``: the digests of what was recorded, once it is in a trace."""
        self.rollout = rollout
        self.ending = ending
        self.source = source
        self.content: Content = content or {}

    def __repr__(self) -> str:
        return (
            f"Episode({self.id}, task={self.rollout.start.task!r}, policy={self.rollout.policy!r}, "
            f"status={self.status!r}, succeeded={self.succeeded}, length={self.length})"
        )

    @property
    def id(self) -> str:
        """The rollout's id."""
        return self.rollout.id

    @property
    def status(self) -> str:
        """``"done"`` or ``"error"``."""
        return self.ending.status

    @property
    def error(self) -> str:
        """Why it is an error, with the traceback; empty when done."""
        return self.ending.error

    @property
    def summary(self) -> EpisodeSummary:
        """Success, its step, length and return."""
        return self.ending.summary

    @property
    def succeeded(self) -> bool:
        """Whether the task was solved (an episode with an error was not)."""
        return self.ending.summary.success

    @property
    def instruction(self) -> str:
        """The instruction as the policy was told it."""
        return self.ending.told or self.rollout.start.instruction

    @property
    def length(self) -> int:
        """Number of actions, T."""
        return self.ending.summary.length

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return self.ending.summary.total_reward

    def window(self, path: str, begin: int, end: int) -> np.ndarray:
        """Rows ``begin:end`` of one array (``"action"``, ``"observation/state"``, …), no others being read.

        ``IndexError`` where it has fewer, ``KeyError`` where there is no such array.
        """
        return self.source.read(path, begin, end)

    @property
    def observation(self) -> Mapping[str, np.ndarray]:
        """Observation key -> ``[T + 1, …]``."""
        return Columns(self.source, "observation/", f"episode {self.id}")

    @property
    def signals(self) -> Mapping[str, np.ndarray]:
        """Signal -> ``[T + 1, …]``: the simulator's truth."""
        return Columns(self.source, "signals/", f"episode {self.id}")

    @property
    def policy(self) -> Mapping[str, np.ndarray]:
        """What the policy said of its actions -> ``[T, …]``: ``log_prob``, ``entropy``, ``chunk``, …."""
        return Columns(self.source, "policy/", f"episode {self.id}")

    @property
    def action(self) -> np.ndarray:
        """Actions ``[T, A]`` as the World received them."""
        return self.source.read("action")

    @property
    def reward(self) -> np.ndarray:
        """Rewards ``[T]``."""
        return self.source.read("reward")

    @property
    def terminated(self) -> np.ndarray:
        """``[T]`` bool: the task itself ended the episode."""
        return self.source.read("terminated")

    @property
    def truncated(self) -> np.ndarray:
        """``[T]`` bool: the World or the harness (horizon, success reached) cut the episode."""
        return self.source.read("truncated")

    @property
    def success(self) -> np.ndarray:
        """``[T]`` bool: the goal holds after the step."""
        return self.source.read("success")
