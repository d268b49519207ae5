"""Worlds that break on purpose, at a chosen episode and step, to test what stands around a World."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from simeval.noise import StepKey
from simeval.types import Array, Snapshot, Start, TimeStep
from simeval.world import World
from simeval.wrappers import Delegate

Fault = Literal["raise", "crash", "report", "nan"]
"""``raise``: the call raises before anything moves. ``crash``: it raises after the whole batch has moved.
``report``: the row is in ``TimeStep.failures``. ``nan``: the row's floating-point observations are not a number."""


class Faulty(Delegate):
    """``world``, which breaks where ``faults`` says: (seed of the start, step) -> what happens.

    The step is the index of the observation that the call would give: 0 is the reset, t + 1 the step that follows
    action t. A restored slot knows which episode it is in.
    """

    def __init__(self, world: World, faults: Mapping[tuple[int, int], Fault]):
        super().__init__(world)
        self.fingerprint = f"faulty {world.fingerprint}"
        self.dynamics = f"faulty {world.snapshot_fingerprint}"
        self._faults = dict(faults)
        self._seeds: list[int | None] = [None] * world.num_slots

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        for slot, start in zip(slots, starts, strict=True):
            self._seeds[slot] = start.seed
        due = self._due(slots, keys)
        self._raise("raise", due)
        return self._break(self.world.reset(slots, starts, keys), due)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        due = self._due(slots, keys)
        self._raise("raise", due)
        return self._break(self.world.step(slots, actions, keys), due)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        inner = self.world.snapshot(slots)
        return [
            Snapshot(self.snapshot_fingerprint, {"seed": self._seeds[slot], "state": snapshot.state})
            for slot, snapshot in zip(slots, inner, strict=True)
        ]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_snapshots(snapshots)
        for slot, snapshot in zip(slots, snapshots, strict=True):
            self._seeds[slot] = snapshot.state["seed"]
        own = self.world.snapshot_fingerprint
        return self.world.restore(slots, [Snapshot(own, snapshot.state["state"]) for snapshot in snapshots])

    def _due(self, slots: Sequence[int], keys: Sequence[StepKey]) -> dict[int, Fault]:
        due = {}
        for row, (slot, key) in enumerate(zip(slots, keys, strict=True)):
            seed = self._seeds[slot]
            if seed is not None and (seed, key.step) in self._faults:
                due[row] = self._faults[seed, key.step]
        return due

    def _raise(self, kind: Fault, due: Mapping[int, Fault]) -> None:
        for row, fault in due.items():
            if fault == kind:
                raise RuntimeError(f"a fault was asked for: {kind} in row {row}")

    def _break(self, step: TimeStep, due: Mapping[int, Fault]) -> TimeStep:
        self._raise("crash", due)
        observation = {key: np.array(value) for key, value in step.observation.items()}
        failures = dict(step.failures)
        for row, fault in due.items():
            if fault == "report":
                failures[row] = f"Traceback: a fault was asked for in row {row}"
            for value in observation.values():
                if fault == "nan" and value.dtype.kind == "f":
                    value[row] = np.nan
        return replace(step, observation=observation, failures=failures)
