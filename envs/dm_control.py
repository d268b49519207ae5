"""The dm_control suite as a World, through the suite's own API."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.spaces import Box

from envs.capture import POSES
from envs.captured import CapturedSimulator, Views, camera_names
from envs.rendering import RenderedWorld, RendererPool
from simeval.conventions import Conventions
from simeval.errors import ConfigError, MissingPackageError, UnsupportedError, unknown
from simeval.noise import StepKey
from simeval.settings import image_side, names, slot_count
from simeval.simulator import SimulatorStep
from simeval.types import Start, TimeStep

_HORIZON = 1000
_NO_LIMIT = 1e10
_MODULES = ("dm_control.suite", "dm_control.rl.control")


@cache
def instructions() -> Mapping[str, str]:
    """Task name, ``domain-task`` -> its instruction sentence."""
    return json.loads((files("assets") / "dm_control" / "instructions.json").read_text(encoding="utf-8"))


class DmControl(RenderedWorld):
    """Tasks of ``dm_control.suite``, stepped one after the other.

    ``task``: a name such as ``"cartpole-swingup"``, or several of the same spaces (``["walker-stand", "walker-run"]``).
    Observations are the task's own, float64 under their own keys, with ``image_<camera>`` for each of ``cameras``.
    Actions are float64 in the suite's bounds; the ``lqr`` tasks have none. ``signals`` are ``qpos`` and ``qvel``.

    The suite defines rewards in 0..1 and no success, so ``success_hold`` is 0 and returns are what is compared. The
    time limit is lifted: it is ``horizon``, and the engine's to apply; ``lqr`` has none of its own, and 1000 here.

    A start's ``seed`` (0 .. 2**32 - 1) gives the initial state of the first ``reset()`` of ``suite.load(domain, task,
    task_kwargs={"random": seed})``, except for ``lqr``, where the suite also draws the springs of the model: they are
    those of seed 0. Dynamics are deterministic; keys are not used.
    """

    def __init__(
        self,
        task: str | Sequence[str],
        num_slots: int = 1,
        cameras: str | Sequence[str] = (),
        image_size: int = 128,
        render_profile: str = "fast",
        max_simulators: int | None = None,
        name: str = "dm_control",
    ):
        self._suite = _package()
        slot_count(num_slots)
        tasks = _selection(task, [f"{domain}-{name}" for domain, name in self._suite.ALL_TASKS])
        self.renderers = RendererPool(render_profile, 2 * num_slots)
        self._views = views = Views(names("cameras", cameras), image_side(image_size), self.renderers)
        self.cameras = views.cameras
        probes = {name: self._simulator_of(name) for name in tasks}
        self._horizons = {name: probe.horizon for name, probe in probes.items()}
        first = probes[tasks[0]]
        for other, probe in probes.items():
            for part in ("observations", "actions", "control_dt"):
                if getattr(probe, part) != getattr(first, part):
                    raise ConfigError(
                        f"the tasks of one world share their spaces and time step; the {part} of {other!r} are "
                        f"{getattr(probe, part)}, those of {tasks[0]!r} {getattr(first, part)}"
                    )
        spaces: dict[str, gymnasium.Space] = dict(first.observations)
        picture = Box(0, 255, (views.size, views.size, 3), np.uint8)
        spaces |= {f"image_{camera}": picture for camera in views.cameras}
        dynamics = " ".join(f"{name} {version(name)}" for name in ("dm_control", "mujoco", "numpy")) + f"; {tasks}"
        super().__init__(
            name=name,
            num_slots=num_slots,
            tasks=tasks,
            build=self._simulator_of,
            observation_space=gymnasium.spaces.Dict(spaces),
            action_space=first.actions,
            control_dt=first.control_dt,
            dynamics=dynamics,
            fingerprint=f"{dynamics}; cameras {list(views.cameras)} {views.size} px {render_profile}",
            signals={key: (value.shape, value.dtype) for key, value in first.signals().items()},
            max_simulators=max_simulators,
        )
        self.conventions = Conventions(image_orientation="upright", settings={"image_size": "world.image_size"})
        self.success_hold = 0

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return Start(task, instructions().get(task, f"Maximise the return of {task}."), seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``: the suite's time limit, in control steps."""
        self.check_task(task)
        return self._horizons[task]

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self.check_task(start.task)
        if start.seed is None or not 0 <= start.seed < 2**32:
            raise ConfigError(f"a start of dm_control needs a seed in 0..2**32 - 1; received {start.seed}")

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        for start in starts:
            self.check_start(start)
        return super().reset(slots, starts, keys)

    def _simulator_of(self, task: str) -> "_DmControlSimulator":
        return _DmControlSimulator(task, self._suite.load(*task.split("-"), task_kwargs={"random": 0}), self._views)


class _DmControlSimulator(CapturedSimulator):
    def __init__(self, name: str, env: Any, views: Views):
        self._env = env
        limit = env._step_limit
        self.horizon = _HORIZON if np.isinf(limit) else round(limit)
        env._step_limit = np.inf
        # The suite opens a rendering context for a terrain even where nothing is drawn; pictures are drawn elsewhere.
        env.physics._make_rendering_contexts = _no_contexts
        self.control_dt = float(env.control_timestep())
        spec = env.action_spec()
        low, high = (np.where(np.abs(b) < _NO_LIMIT, b, np.copysign(np.inf, b)) for b in (spec.minimum, spec.maximum))
        self.actions = Box(low, high, shape=spec.shape, dtype=np.float64)
        self.observations = {
            key: Box(-np.inf, np.inf, value.shape, np.float64) for key, value in env.observation_spec().items()
        }
        super().__init__(name, env.physics.model.ptr, env.physics.data.ptr, {"env": env}, _MODULES, (), views, POSES)

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        self.rewind()
        self._env.task._random = np.random.RandomState(start.seed)
        step = self._env.reset()
        self.resume()
        return self._present(step)

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        return self._present(self._env.step(action))

    def resume(self) -> None:
        self._env.task._random = _NO_DRAWS
        # The suite's steps end with MuJoCo's first half of the next one; it derives again what the capture leaves out.
        mujoco.mj_step1(self.model, self.data)

    def picture_camera(self) -> str | mujoco.MjvCamera:
        existing = camera_names(self.model)
        return existing[0] if existing else super().picture_camera()

    def _present(self, step: Any) -> SimulatorStep:
        over = step.last()
        return self.show(
            SimulatorStep(
                {key: np.array(value, dtype=np.float64) for key, value in step.observation.items()},
                0.0 if step.reward is None else float(step.reward),
                terminated=over and step.discount == 0.0,
                truncated=over and step.discount != 0.0,
                signals=self.signals(),
            )
        )


def _no_contexts() -> None:
    pass


class _NoDraws:
    """Stands for a task's generator between resets: none of the suite's tasks draws there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError("this dm_control task draws random numbers while it steps, which is not repeatable")


_NO_DRAWS = _NoDraws()


def _package() -> Any:
    try:
        from dm_control import suite
    except ModuleNotFoundError as error:
        if error.name != "dm_control":
            raise
        raise MissingPackageError("dm_control", "simeval[dm_control]") from error
    return suite


def _selection(task: str | Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    chosen = names("task", task)
    for name in chosen:
        if name not in known:
            raise unknown("dm_control task", name, known)
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(f"world.task needs one or more different dm_control tasks; received {list(chosen)}")
    return chosen
