"""OGBench's manipulation environments as Worlds: cubes, a scene with a drawer and a window, button puzzles."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.spaces import Box

from envs.captured import Views
from envs.gymnasium_simulator import MujocoSimulator
from envs.rendering import RenderedWorld, RendererPool
from simeval.conventions import Conventions
from simeval.errors import ConfigError, MissingPackageError, unknown
from simeval.noise import StepKey
from simeval.settings import image_side, names, slot_count
from simeval.simulator import SimulatorStep
from simeval.types import Start, TimeStep

ENVIRONMENTS = (
    *(f"cube-{count}" for count in ("single", "double", "triple", "quadruple", "octuple")),
    "scene",
    *(f"puzzle-{size}" for size in ("3x3", "4x4", "4x5", "4x6")),
)
"""The environments, without OGBench's ``-v0``."""
TASKS = 5
"""Evaluation tasks of each environment."""
PROPRIO_SIZE = 19
_CAMERA = "front"


@cache
def instructions() -> Mapping[str, str]:
    """Task name, ``environment-task<n>`` -> its instruction sentence."""
    return json.loads((files("assets") / "ogbench" / "instructions.json").read_text(encoding="utf-8"))


class OGBench(RenderedWorld):
    """The evaluation tasks of one of ``ENVIRONMENTS``, a UR5e arm with a gripper over a table.

    ``env`` is one of them; ``task`` is ``"all"``, or one or several of ``<env>-task1`` .. ``-task5``. Observation keys:
    ``state``, the package's vector (arm, gripper, then objects, scaled as there), ``goal``, the same of the state to be
    reached, ``proprio`` [19], the first part of ``state``, and ``image_<camera>`` for each of ``cameras``. Action [5]
    in -1..1: hand displacement in units of 5 cm, yaw in units of 0.3 rad, gripper in units of its whole opening.

    ``success``, the package's, holds where every object is at its goal, and ends the episode. ``signals`` are ``qpos``
    and ``qvel``. A start's ``seed`` goes to ``env.reset(seed=..., options={"task_id": ...})``. The package settles the
    goal state by two unseeded random actions, which reach the goal's observation and, through the solver's warm start,
    the episode: here they are always the same two.
    """

    def __init__(
        self,
        env: str,
        task: str | Sequence[str] = "all",
        num_slots: int = 1,
        cameras: str | Sequence[str] = (),
        image_size: int = 128,
        render_profile: str = "fast",
        max_simulators: int | None = None,
        name: str = "ogbench",
    ):
        if env not in ENVIRONMENTS:
            raise unknown("OGBench environment", env, ENVIRONMENTS)
        self._spec = _registered(f"{env}-v0")
        slot_count(num_slots)
        known = [f"{env}-task{number}" for number in range(1, TASKS + 1)]
        tasks = tuple(known) if task == "all" else names("task", task)
        for chosen in tasks:
            if chosen not in known:
                raise unknown(f"OGBench task of {env!r}", chosen, ("all", *known))
        if not tasks or len(set(tasks)) != len(tasks):
            raise ConfigError(f"world.task needs one or more different OGBench tasks; received {list(tasks)}")
        self.renderers = RendererPool(render_profile, 2 * num_slots)
        self._views = views = Views(names("cameras", cameras), image_side(image_size), self.renderers)
        self.cameras = views.cameras
        probe = self._simulator_of(tasks[0])
        bare: Any = probe.env
        state = Box(-np.inf, np.inf, bare.observation_space.shape, np.float64)
        spaces: dict[str, gymnasium.Space] = {
            "state": state,
            "goal": state,
            "proprio": Box(-np.inf, np.inf, (PROPRIO_SIZE,), np.float64),
        }
        picture = Box(0, 255, (views.size, views.size, 3), np.uint8)
        spaces |= {f"image_{camera}": picture for camera in views.cameras}
        packages = ("ogbench", "dm_control", "gymnasium", "mujoco", "numpy")
        dynamics = " ".join(f"{name} {version(name)}" for name in packages) + f"; {env}"
        super().__init__(
            name=name,
            num_slots=num_slots,
            tasks=tasks,
            build=self._simulator_of,
            observation_space=gymnasium.spaces.Dict(spaces),
            action_space=_actions(),
            control_dt=float(bare.control_timestep()),
            dynamics=dynamics,
            fingerprint=f"{dynamics}; cameras {list(views.cameras)} {views.size} px {render_profile}",
            signals={key: (value.shape, value.dtype) for key, value in probe.signals().items()},
            max_simulators=max_simulators,
        )
        self.conventions = Conventions(
            image_orientation="upright",
            action=("dx", "dy", "dz", "dyaw", "gripper_change"),
            action_frame="world",
            gripper="plus_closes",
            settings={"image_size": "world.image_size"},
        )

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return Start(task, instructions()[task], seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``: the package's, 200 for one cube to 1500 for eight."""
        self.check_task(task)
        assert self._spec.max_episode_steps is not None
        return self._spec.max_episode_steps

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self.check_task(start.task)
        if start.seed is None or start.seed < 0:
            raise ConfigError(f"a start of OGBench needs a seed of 0 or more; received {start.seed}")

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        for start in starts:
            self.check_start(start)
        return super().reset(slots, starts, keys)

    def _simulator_of(self, task: str) -> "_OGBenchSimulator":
        assert isinstance(self._spec.entry_point, str)
        cls: Any = load_env_creator(self._spec.entry_point)
        settled: Any = type(cls.__name__, (_Settled, cls), {"__module__": cls.__module__})
        env = settled(**self._spec.kwargs)
        env.reset(seed=0, options={"task_id": 1})  # compiles the model
        return _OGBenchSimulator(task, env, True, self._views)


def _actions() -> Box:
    return Box(-1.0, 1.0, (5,), np.float32, seed=0)


class _Settled:
    """Every ``sample()`` of the action space gives the same action; the package makes a new space for each."""

    @property
    def action_space(self) -> Box:
        return _actions()


class _OGBenchSimulator(MujocoSimulator):
    def options(self, start: Start) -> dict[str, Any]:
        return {"task_id": int(start.task.rpartition("-task")[2])}

    def present(self, step: SimulatorStep) -> SimulatorStep:
        bare: Any = self.env
        state = step.observation["state"]
        shown = {"state": state, "goal": bare._cur_goal_ob.copy(), "proprio": state[:PROPRIO_SIZE].copy()}
        return self.show(
            SimulatorStep(shown, step.reward, step.terminated, step.truncated, step.success, self.signals())
        )

    def picture_camera(self) -> str | mujoco.MjvCamera:
        return _CAMERA


def _registered(id: str) -> EnvSpec:
    try:
        import ogbench  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "ogbench":
            raise
        raise MissingPackageError("OGBench", "simeval[ogbench]") from error
    return gymnasium.spec(id)
