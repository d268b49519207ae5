"""The Policy contract: a function of observation, instruction, explicit memory and keys."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.types import Array, Observation, Snapshot, WorldSpec

Memory = Mapping[str, Any]
"""A policy's memory: name -> array ``[n, ...]`` or a nested mapping of such. A plain value; forks copy it."""

SNAPSHOT = "snapshot"
"""The observation key that every World answers to: its complete state, as an object array ``[n]`` of ``Snapshot``.

It is privileged, shown only to a policy that names it among its ``observation_keys`` (a planner that restores it into a
World of its own), and not recorded. No perturbation of a sensor reaches it.
"""


REPLANNED = "replanned"
"""The name among ``PolicyStep.extras`` [n] bool by which a policy says in which rows it has predicted a chunk at this
step; one that does not say it has predicted in all."""


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """What a policy returns for ``n`` observations: ``action`` [n, A], its new memory, and what it knows of itself.

    ``log_prob`` [n] (of the action, nats), ``entropy`` [n] (nats), ``chunk`` [n, H, A] (all that was predicted) and
    ``extras`` (name -> array [n, ...]) are recorded in the trace under ``policy/``.
    """

    action: Array
    memory: Memory
    log_prob: Array | None = None
    entropy: Array | None = None
    chunk: Array | None = None
    extras: Mapping[str, Array] = field(default_factory=dict)


class Policy(ABC):
    """A robot policy. Row i of a result depends on row i of the arguments alone, never on who shares the batch."""

    observation_keys: tuple[str, ...] = ()
    """The observation keys it reads; it is shown no others."""
    batch_size: int = 1
    """Rows that it predicts at once: the engine lets episodes that are :meth:`due` wait until there are so many."""
    conventions: Conventions = UNDECLARED
    """What it takes the World's pictures and numbers to mean, and its own; ``simeval.matching.fit`` compares them."""

    def bind(self, spec: WorldSpec) -> "Policy":
        """This policy made ready for a World; raises ``ConfigError`` where the two do not fit.

        The default checks ``observation_keys`` and returns ``self``; a policy that needs the spaces returns a copy
        that has them.
        """
        missing = [key for key in self.observation_keys if key not in {SNAPSHOT, *spec.observation_space.spaces}]
        if missing:
            raise ConfigError(
                f"policy {type(self).__name__} reads observation {', '.join(map(repr, missing))}, which world "
                f"{spec.name!r} does not give; it gives: {', '.join(spec.observation_space.spaces)}"
            )
        return self

    @property
    def fingerprint(self) -> str:
        """Everything that its actions depend on, in one line: a recorded run is gone on with under no other.

        The default is the class's name with the attributes that are numbers, text or policies; a policy with weights
        gives their content's hash.
        """
        names = [item.name for item in fields(self)] if is_dataclass(self) else sorted(vars(self))
        values = {name: getattr(self, name) for name in names}
        shown = [
            f"{name}={value.fingerprint if isinstance(value, Policy) else repr(value)}"
            for name, value in values.items()
            if isinstance(value, bool | int | float | str | Policy)
        ]
        return " ".join([type(self).__name__, *shown]).replace("\n", " ")

    def initial_memory(self, n: int) -> Memory:
        """The memory of ``n`` episodes about to begin; the default policy remembers nothing."""
        return {}

    def due(self, memory: Memory) -> np.ndarray | None:
        """The rows, ``[n]`` bool, whose next ``act`` reads its observation; none: all of them (the default).

        The others go on with what ``memory`` holds, whatever they are shown: they are stepped while those that are due
        wait for one another, and no picture is drawn for them that is not recorded.
        """
        return None

    @abstractmethod
    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """Act on ``n`` observations. Arguments are not modified; the memory returned is a new value."""

    def close(self) -> None:  # noqa: B027
        """Release connections and devices; closing twice is harmless."""


def itself(policy: Policy) -> Policy:
    """``policy``: lets a configuration name one that is defined elsewhere, such as ``${world.expert}``."""
    return policy


def snapshot_column(snapshots: Sequence[Snapshot]) -> np.ndarray:
    """Snapshots as what a policy is shown under ``SNAPSHOT``."""
    column = np.empty(len(snapshots), dtype=object)
    column[:] = snapshots
    return column


def take_memory(memory: Memory, rows: np.ndarray) -> Memory:
    """The memory of the episodes in ``rows``, as a value of its own."""
    return {
        name: take_memory(value, rows) if isinstance(value, Mapping) else value[rows] for name, value in memory.items()
    }


def put_memory(memory: Memory, rows: np.ndarray, values: Memory) -> None:
    """Write ``values`` into ``rows`` of ``memory``, in place; names, shapes and dtypes must agree."""
    if memory.keys() != values.keys():
        raise ValueError(f"a policy's memory changed its parts from {sorted(memory)} to {sorted(values)}")
    for name, value in values.items():
        held = memory[name]
        if isinstance(value, Mapping):
            put_memory(held, rows, value)
            continue
        if tuple(value.shape[1:]) != tuple(held.shape[1:]) or value.dtype != held.dtype:
            raise ValueError(
                f"a policy's memory {name!r} changed from {held.dtype} {list(held.shape[1:])} to {value.dtype} "
                f"{list(value.shape[1:])} (per episode); it keeps the shape and dtype of initial_memory"
            )
        held[rows] = value


def stack_memory(memories: Sequence[Memory]) -> Memory:
    """Memories of one episode each (no batch dimension) as one memory with the batch dimension first."""
    first = memories[0]
    return {
        name: stack_memory([memory[name] for memory in memories])
        if isinstance(value, Mapping)
        else np.stack([memory[name] for memory in memories])
        for name, value in first.items()
    }


def memory_row(memory: Memory, row: int) -> Memory:
    """The memory of one episode, without the batch dimension, as a value of its own."""
    return {
        name: memory_row(value, row) if isinstance(value, Mapping) else np.array(value[row])
        for name, value in memory.items()
    }
