"""LIBERO as a World: a suite's tasks, their fixed initial states and fresh ones, under a declared convention."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from envs.libero.conventions import resolve
from envs.libero.simulator import CAMERAS, CONTROL_FREQ, STATE_SIZE, LiberoSimulator, View
from envs.libero.suites import base_of, load_libero, select_tasks
from envs.mujoco_log import log_mujoco_warnings
from envs.perturbed import AXES, Judge, changes_of
from envs.rendering import RendererPool
from simeval.errors import ConfigError, unknown
from simeval.noise import StepKey
from simeval.settings import image_side, names, slot_count
from simeval.simulator import Simulator, SimulatorWorld
from simeval.types import Start, TimeStep


class Libero(SimulatorWorld):
    """Tasks of one LIBERO or LIBERO-PRO suite.

    ``task`` is ``all``, a task's name, its index in the suite, or a list of these. ``convention`` is a preset's name
    (``openpi``, ``openvla``, ``lerobot``) or a mapping of ``preset`` and the fields that differ; see ``Convention``.
    ``starts()`` gives the suite's fixed initial states in order and then fresh ones, or with ``initial_states="fresh"``
    fresh ones alone; ``Start.index`` is a fixed state, ``Start.seed`` draws one from the task's own regions.

    Observations: ``state`` (privileged; ``[37]``: the gripper's pose, its two fingers [m], and up to four poses of what
    the task's goal names, in its order, the rest 0; poses are ``[x, y, z, w, i, j, k]``, [m] and quaternion wxyz);
    ``proprio`` (``[8]``, as the convention has it) and ``image_agentview``, ``image_wrist`` as LIBERO samples them,
    one physics step before or after the control step's end. Signals: ``object_<name>`` (poses of all objects and
    fixtures, NaN for those of another task), ``eef`` (pose) and ``contacts`` (their number).

    Actions ``[7]`` are LIBERO's: changes of the gripper's position and rotation in -1..1, and the fingers. An episode
    goes on after success; the engine ends it. ``max_simulators`` loaded scenes are kept, one per slot by default (each
    takes half a gigabyte, and some seconds to load).
    """

    def __init__(
        self,
        suite: str = "libero_spatial",
        task: str | int | Sequence[str | int] = "all",
        num_slots: int = 1,
        convention: str | Mapping[str, Any] = "openpi",
        initial_states: str = "fixed",
        cameras: str | Sequence[str] = (),
        image_size: int | None = None,
        render_profile: str = "faithful",
        max_simulators: int | None = None,
        name: str = "libero",
    ):
        log_mujoco_warnings()
        chosen = resolve(convention)
        if image_size is not None:
            chosen = resolve({**_as_mapping(convention), "image_size": image_side(image_size)})
        shown = names("cameras", cameras)
        for camera in shown:
            if camera not in CAMERAS:
                raise unknown("camera of LIBERO", camera, CAMERAS)
            if camera not in chosen.cameras:
                raise ConfigError(f"convention {chosen.name!r} shows {', '.join(chosen.cameras)}; received {camera!r}")
        if initial_states not in ("fixed", "fresh"):
            raise unknown("initial_states", initial_states, ("fixed", "fresh"))
        versions = load_libero()
        self._tasks = {each.name: each for each in select_tasks(suite, task)}
        self._convention = chosen
        self._cap = chosen.caps[base_of(suite)]
        self._fixed = initial_states == "fixed"
        self._fixed_counts: dict[str, int] = {}
        self._renderers = RendererPool(render_profile, capacity=2)
        self._film = RendererPool("fast", capacity=1)
        objects = tuple(sorted({item for each in self._tasks.values() for item in each.objects}))
        self._view = View(chosen, shown, objects)
        self.perturbation_axes = AXES
        blind = View(chosen, (), objects)
        self._judge = Judge(lambda each: LiberoSimulator(self._tasks[each], blind, self._renderers, self._film))
        poses = {key: ((7,), np.dtype(np.float64)) for key in (*(f"object_{item}" for item in objects), "eef")}
        low, high = chosen.bounds()
        slot_count(num_slots)
        packages = " ".join(f"{package}={number}" for package, number in versions.items())
        dynamics = (
            f"libero/1 {packages} suite={suite} {chosen.describe()} cameras={shown} render_profile={render_profile}"
        )
        super().__init__(
            name=name,
            num_slots=num_slots,
            tasks=tuple(self._tasks),
            build=self._build_simulator,
            observation_space=self._observation_space(),
            action_space=gymnasium.spaces.Box(low, high, dtype=np.float32),
            control_dt=1.0 / CONTROL_FREQ,
            fingerprint=f"{dynamics} objects={','.join(objects)}",
            dynamics=dynamics,
            signals={**poses, "contacts": ((), np.dtype(np.int64))},
            max_simulators=num_slots if max_simulators is None else max_simulators,
        )
        self.conventions = chosen.declared()

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``: a fresh placement."""
        self.check_task(task)
        return Start(task, self._tasks[task].instruction, seed=seed)

    def starts(self, task: str, count: int, seed: int) -> list[Start]:
        """See ``World.starts``: the fixed initial states in order, then fresh ones."""
        fresh = super().starts(task, count, seed)
        if not self._fixed:
            return fresh
        fixed = min(count, self._fixed_count(task))
        return [Start(task, self._tasks[task].instruction, index=index) for index in range(fixed)] + fresh[fixed:]

    def horizon(self, task: str) -> int:
        """See ``World.horizon``: the convention's cap for the suite."""
        self.check_task(task)
        return self._cap

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self.check_task(start.task)
        if (start.index is None) == (start.seed is None):
            raise ConfigError(
                f"a LIBERO episode begins from a fixed state's index or from a seed; received {start}; "
                "use World.starts(task, count, seed) or World.start(task, seed)"
            )
        changes_of(self.name, self.perturbation_axes, start.perturbations)
        if start.index is not None and not 0 <= start.index < self._fixed_count(start.task):
            raise ConfigError(
                f"LIBERO task {start.task!r} has the fixed initial states 0..{self._fixed_count(start.task) - 1}; "
                f"received index {start.index}"
            )

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        for start in starts:
            self.check_start(start)
        return super().reset(slots, starts, keys)

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``; it loads a scene of its own."""
        self.check_task(start.task)
        return self._judge.objection(start)

    def close(self) -> None:
        """See ``World.close``."""
        super().close()
        self._judge.close()
        self._renderers.close()
        self._film.close()

    def _fixed_count(self, task: str) -> int:
        if task not in self._fixed_counts:
            self._fixed_counts[task] = len(self._tasks[task].initial_states())
        return self._fixed_counts[task]

    def _build_simulator(self, task: str) -> Simulator:
        return LiberoSimulator(self._tasks[task], self._view, self._renderers, self._film)

    def _observation_space(self) -> gymnasium.spaces.Dict:
        side = self._convention.image_size
        spaces: dict[str, gymnasium.Space] = {"state": gymnasium.spaces.Box(-np.inf, np.inf, (STATE_SIZE,), np.float64)}
        if self._convention.proprio == "axis_angle":
            spaces["proprio"] = gymnasium.spaces.Box(-np.inf, np.inf, (8,), np.float64)
        for camera in self._view.cameras:
            spaces[f"image_{camera}"] = gymnasium.spaces.Box(0, 255, (side, side, 3), np.uint8)
        return gymnasium.spaces.Dict(spaces)


def _as_mapping(convention: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"preset": convention} if isinstance(convention, str) else dict(convention)
