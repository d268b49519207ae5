"""A batch of MuJoCo copies stepped together by ``mujoco.rollout``: the base of native MuJoCo Worlds.

A slot is one record of a structured numpy array: physics state, controls, sensors and whatever the subclass adds. Every
control step is one rollout of a fixed number of substeps from a cold solver (zero warm start), so the record *is* the
complete state: a snapshot is a copy of it, and a result depends on nothing that a worker thread did before.
"""

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from envs.mujoco_log import log_mujoco_warnings
from envs.perturbed import Change, changes_of
from simeval.errors import ConfigError, SnapshotError
from simeval.noise import StepKey
from simeval.settings import slot_count, whole
from simeval.types import Perturbation, Snapshot, Start, TimeStep
from simeval.world import World

PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS
SPEED_LIMIT = 1e4
"""A generalised speed [m/s or rad/s] above this one is a simulation that blew up."""


class MujocoBatch(World):
    """Slots as records, stepped by a pool of C++ threads.

    A record has the fields ``physics`` (time, qpos, qvel, act: MuJoCo's full physics state), ``control`` (the actuator
    controls in force) and ``sensors`` (sensordata, which MuJoCo computes at the start of the last substep), followed by
    the subclass's ``fields``. ``models`` holds one model per slot, all of the same sizes; the same object for all slots
    until a perturbation replaces one (see :meth:`_perturb`).

    A slot whose simulation goes bad is reported in ``TimeStep.failures``, keeps its last good record and must be
    reset or restored before it is stepped again.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        *,
        num_slots: int,
        substeps: int,
        fields: Sequence[tuple[Any, ...]],
        threads: int | None = None,
    ):
        slot_count(num_slots)
        if threads is not None:
            whole("threads", threads)
        if not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_AUTORESET:
            raise ConfigError('a batched model needs <flag autoreset="disable"/>, so that a bad state is seen')
        self.num_slots = num_slots
        self.control_dt = substeps * model.opt.timestep
        self.models = [model] * num_slots
        self._substeps = substeps
        self._num_physics = mujoco.mj_stateSize(model, PHYSICS)
        self._qpos = slice(1, 1 + model.nq)
        self._qvel = slice(1 + model.nq, 1 + model.nq + model.nv)
        self.record = np.dtype(
            [
                ("physics", np.float64, (self._num_physics,)),
                ("control", np.float64, (model.nu,)),
                ("sensors", np.float64, (model.nsensordata,)),
                *fields,
            ]
        )
        self._slots = np.zeros(num_slots, dtype=self.record)
        self._bytes = _as_bytes(self._slots)
        self._running = np.zeros(num_slots, dtype=bool)
        self._in_force: list[tuple[Perturbation, ...]] = [()] * num_slots
        self.threads = min(threads or os.cpu_count() or 1, num_slots)
        self._pool: Rollout | None = None
        self._workers: list[mujoco.MjData] = []

    @abstractmethod
    def _begin(self, record: np.ndarray, start: Start, changes: Sequence[Change]) -> None:
        """Fill one zeroed ``record`` (a structured array of shape ``()``) with the beginning of an episode.

        Of ``changes``, what the perturbations of ``start`` change, those of the initial state are made here.
        """

    @abstractmethod
    def _controls(self, records: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The actuator controls ``[n, substeps, nu]`` that ``actions`` mean for ``records`` ``[n]``."""

    @abstractmethod
    def _observe(self, records: np.ndarray) -> None:
        """Update the subclass's fields of ``records`` ``[n]`` after the physics moved."""

    @abstractmethod
    def _time_step(
        self, slots: Sequence[int], records: np.ndarray, failures: dict[int, str], looks: Sequence[bool]
    ) -> TimeStep:
        """The time step that ``records`` ``[n]`` stand for; a pure function of them and of what is in force in
        ``slots``. ``records`` may be kept.

        Rows without ``looks`` need no pictures.
        """

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        self.check_slots(slots)
        for start in starts:
            self.check_task(start.task)
        found = [changes_of(self.name, self.perturbation_axes, start.perturbations) for start in starts]
        records = np.zeros(len(slots), dtype=self.record)
        for row, start in enumerate(starts):
            self._begin(records[row : row + 1].reshape(()), start, [change for _, change in found[row]])
        failures = self._settle(slots, records)
        for slot, pairs in zip(slots, found, strict=True):
            self._put_in_force(slot, tuple(perturbation for perturbation, _ in pairs))
        self._observe(records)
        return self._commit(slots, records, failures)

    def step(self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        return self.advance(slots, actions, keys, [True] * len(slots))

    def advance(
        self, slots: Sequence[int], actions: np.ndarray, keys: Sequence[StepKey], looks: Sequence[bool]
    ) -> TimeStep:
        """See ``World.advance``."""
        self._check_running(slots)
        self.check_actions(slots, actions, keys)
        records = self._records(slots)
        controls = self._controls(records, np.asarray(actions, dtype=np.float64))
        failures = self._simulate(slots, records, controls)
        self._observe(records)
        return self._commit(slots, records, failures, looks)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        self._check_running(slots)
        return [Snapshot(self.snapshot_fingerprint, self._state(slot)) for slot in slots]

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        self.check_slots(slots)
        self.check_snapshots(snapshots)
        states = [snapshot.state for snapshot in snapshots]
        data = bytearray().join(state["record"] for state in states)
        if len(data) != len(slots) * self.record.itemsize:
            raise SnapshotError(f"a snapshot of world {self.name!r} holds {self.record.itemsize} bytes a slot")
        for slot, state in zip(slots, states, strict=True):
            held = state.get("perturbations", ())
            if held or self._in_force[slot]:
                self._put_in_force(slot, tuple(Perturbation.from_json(data) for data in held))
        return self._commit(slots, np.frombuffer(data, dtype=self.record), {})

    def close(self) -> None:
        """See ``World.close``."""
        if self._pool is not None:
            self._pool.close()
        self._pool = None
        self._workers = []

    def _settle(self, slots: Sequence[int], records: np.ndarray) -> dict[int, str]:
        """Let fresh ``records`` come to rest; the default trusts ``_begin``. Returns failures by row.

        What perturbs ``slots`` is not in force yet, so that things come to rest as they do without.
        """
        return {}

    def _perturb(self, slot: int, changes: Sequence[Change]) -> None:
        """Put ``changes`` in force in a slot, in place of those that were: ``models[slot]``, and how it looks."""

    def _put_in_force(self, slot: int, perturbations: tuple[Perturbation, ...]) -> None:
        if perturbations != self._in_force[slot]:
            changes = [change for _, change in changes_of(self.name, self.perturbation_axes, perturbations)]
            self._perturb(slot, changes)
            self._in_force[slot] = perturbations

    def _state(self, slot: int) -> dict[str, Any]:
        state: dict[str, Any] = {"record": self._bytes[slot].tobytes()}
        if self._in_force[slot]:
            state["perturbations"] = [perturbation.to_json() for perturbation in self._in_force[slot]]
        return state

    def _simulate(
        self,
        slots: Sequence[int],
        records: np.ndarray,
        controls: np.ndarray,
        models: Sequence[mujoco.MjModel] | None = None,
    ) -> dict[int, str]:
        """One control step of physics, in place; rows that went bad keep their record and are returned with why.

        ``models`` are those of ``slots`` unless given.
        """
        if self._pool is None:  # not in the constructor: a pool of threads does not survive a fork
            log_mujoco_warnings()
            self._pool = Rollout(nthread=self.threads if self.threads > 1 else 0)
            self._workers = [mujoco.MjData(self.models[0]) for _ in range(self.threads)]
        count = len(slots)
        before = np.ascontiguousarray(records["physics"])
        failures = {int(row): "the physics state is not finite" for row in np.flatnonzero(~_finite(before))}
        good = [row for row in range(count) if row not in failures]
        if not good:
            return failures
        model = self.models[0]
        states = np.empty((len(good), self._substeps, self._num_physics))
        sensors = np.empty((len(good), self._substeps, model.nsensordata))
        self._pool.rollout(
            [self.models[slots[row]] if models is None else models[row] for row in good],
            self._workers,
            before[good],
            np.ascontiguousarray(controls[good]),
            skip_checks=True,
            nstep=self._substeps,
            state=states,
            sensordata=sensors,
        )
        after = states[:, -1]
        # MuJoCo stops a trajectory at its first warning (bad state, full contact buffer): its clock then lags.
        late = np.abs(after[:, 0] - before[good, 0] - self.control_dt) > 0.5 * model.opt.timestep
        unstable = ~_finite(after) | (np.abs(after[:, self._qvel]) > SPEED_LIMIT).any(axis=1)
        for index in np.flatnonzero(late | unstable):
            failures[good[index]] = (
                f"the simulation became unstable {before[good[index], 0]:.3f} s after reset "
                f"({'a MuJoCo warning ended the step' if late[index] else 'state not finite or too fast'})"
            )
        fine = np.flatnonzero(~(late | unstable))
        rows = np.asarray(good)[fine]
        records["physics"][rows] = after[fine]
        records["sensors"][rows] = sensors[fine, -1]
        records["control"][rows] = controls[rows, -1]
        return failures

    def _records(self, slots: Sequence[int]) -> np.ndarray:
        """A copy of the records of ``slots``."""
        return self._bytes[list(slots)].view(self.record)[:, 0]

    def _commit(
        self, slots: Sequence[int], records: np.ndarray, failures: dict[int, str], looks: Sequence[bool] | None = None
    ) -> TimeStep:
        index = list(slots)
        self._bytes[index] = _as_bytes(records)
        self._running[index] = True
        for row in failures:
            self._running[slots[row]] = False
        return self._time_step(slots, records, failures, [True] * len(index) if looks is None else looks)

    def _check_running(self, slots: Sequence[int]) -> None:
        self.check_slots(slots)
        for slot in slots:
            if not self._running[slot]:
                raise RuntimeError(f"world {self.name!r}: slot {slot} has no episode; reset or restore it first")


def _as_bytes(records: np.ndarray) -> np.ndarray:
    """A view of contiguous records as bytes ``[n, itemsize]``: numpy copies them whole, not field by field."""
    return records.view(np.uint8).reshape(len(records), records.dtype.itemsize)


def _finite(physics: np.ndarray) -> np.ndarray:
    return np.isfinite(physics).all(axis=1)
