"""Any Gymnasium environment by id, with actions in a Box, as a World."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

from envs.captured import Views
from envs.gymnasium_registry import instruction, make, register, spec_of, versions
from envs.gymnasium_simulator import (
    SUCCESS_KEYS,
    MujocoSimulator,
    ReplayedSimulator,
    engine_of,
    environments,
    observation_boxes,
)
from envs.rendering import RenderedWorld, RendererPool
from simeval.conventions import Conventions
from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import StepKey
from simeval.settings import image_side, names, positive, slot_count, truth
from simeval.types import Start, TimeStep

_DEFAULT_HORIZON = 1000


class GymnasiumWorld(RenderedWorld):
    """Environments of the Gymnasium registry, stepped one after the other; the tasks are their ids.

    ``id``: one id such as ``"HalfCheetah-v5"`` (or ``"module:Name-v0"``), or several of the same spaces. ``module``
    is imported first: one that registers the ids, such as ``"gymnasium_robotics"``. ``kwargs`` go to
    ``gymnasium.make``. Actions must be a ``Box``: a ``Discrete`` space is refused. A ``Box`` observation is given as
    ``state``, a ``Dict`` of boxes under its own keys (``observation``, ``achieved_goal``, ``desired_goal``), pictures
    among them as ``image_<key>``; with ``image_<camera>`` for each of ``cameras`` (MuJoCo only).

    A start's ``seed`` goes to ``env.reset(seed=...)``, so a bare loop finds the same initial state. Draws from the
    environment's ``np_random`` while it steps come from the step's key. The time limit is lifted: it is ``horizon``,
    and the engine's to apply.

    ``TimeStep.success`` is ``info["is_success"]`` or ``info["success"]``. Whether the environment gives one of them is
    found out by a reset and a step when the World is built; where it gives neither, ``success_hold`` is 0: no success
    is defined, and returns are what is compared. ``success`` overrides what was found: true for an environment that
    speaks of success only later in an episode, false to go by returns all the same.

    A snapshot of an environment that shows MuJoCo's ``model`` and ``data`` is its complete state; ``signals`` are then
    ``qpos`` and ``qvel``, and an episode begins from the environment as it was built, so that nothing is left over
    from the one before. Of any other environment a snapshot is the start, the actions and the keys of the steps since
    the reset (``restores_by_replay``): restoring takes as long as they did, and is exact if the environment's reset and
    step are functions of seed, action and ``np_random`` (``simeval check`` proves it or says no). ``control_dt`` [s] is
    MuJoCo's; of others it is the argument, or else one over their ``render_fps``, or else 1.
    """

    def __init__(
        self,
        id: str | Sequence[str],
        num_slots: int = 1,
        kwargs: Mapping[str, Any] | None = None,
        control_dt: float | None = None,
        success: bool | None = None,
        cameras: str | Sequence[str] = (),
        image_size: int = 128,
        render_profile: str = "fast",
        max_simulators: int | None = None,
        module: str = "",
        name: str = "gymnasium",
    ):
        ids = names("id", id)
        slot_count(num_slots)
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ConfigError(f"kwargs are named arguments of gymnasium.make; received {kwargs!r}")
        if not ids or len(set(ids)) != len(ids):
            raise ConfigError(f"world.id needs one or more different Gymnasium ids; received {list(ids)}")
        self._kwargs = dict(kwargs or {})
        if module:
            register(module)
        self.renderers = RendererPool(render_profile, 2 * num_slots)
        self._views = views = Views(names("cameras", cameras), image_side(image_size), self.renderers)
        self.cameras = views.cameras
        self._success = False
        self._horizons = {task: spec_of(task).max_episode_steps or _DEFAULT_HORIZON for task in ids}
        probes = [(task, self._simulator_of(task)) for task in ids]
        first = probes[0][1].env
        for task, probe in probes[1:]:
            for space in ("observation_space", "action_space"):
                if getattr(probe.env, space) != getattr(first, space):
                    raise ConfigError(
                        f"the environments of one world share their spaces; the {space} of {task!r} is "
                        f"{getattr(probe.env, space)}, that of {ids[0]!r} {getattr(first, space)}"
                    )
        exact = [probe for _, probe in probes if isinstance(probe, MujocoSimulator)]
        signals = {key: (value.shape, value.dtype) for probe in exact for key, value in probe.signals().items()}
        spaces: dict[str, gymnasium.Space] = dict(observation_boxes(first.observation_space).values())
        picture = Box(0, 255, (views.size, views.size, 3), np.uint8)
        spaces |= {f"image_{camera}": picture for camera in views.cameras}
        dt = _control_dt(first) if control_dt is None else positive("control_dt", control_dt)
        action_space = first.action_space
        assert isinstance(action_space, Box)
        self._success = (
            _common_success({task: probe.env for task, probe in probes})
            if success is None
            else truth("success", success)
        )
        for _, probe in probes:
            probe.close()
        packages = versions(type(layer) for _, probe in probes for layer in environments(probe.env))
        settings = f"{json.dumps(self._kwargs, sort_keys=True, default=str)} success={self._success}"
        dynamics = f"{packages}; {ids} {settings}"
        super().__init__(
            name=name,
            num_slots=num_slots,
            tasks=ids,
            build=self._simulator_of,
            observation_space=Dict(spaces),
            action_space=action_space,
            control_dt=dt,
            dynamics=dynamics,
            fingerprint=f"{dynamics}; cameras {list(views.cameras)} {views.size} px {render_profile}",
            signals=signals,
            max_simulators=max_simulators,
        )
        own = [key for key in spaces if key.startswith("image_") and key.removeprefix("image_") not in views.cameras]
        self.conventions = Conventions(
            image_orientation="upright" if not own else None, settings={"image_size": "world.image_size"}
        )
        self.success_hold = int(self._success)
        self.restores_by_replay = len(exact) < len(probes)

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``; where no instruction is known, it is to maximise the return."""
        self.check_task(task)
        return Start(task, instruction(task), seed=seed)

    def horizon(self, task: str) -> int:
        """The registered ``max_episode_steps``, or 1000 where there is none."""
        self.check_task(task)
        return self._horizons[task]

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self.check_task(start.task)
        if start.seed is None or start.seed < 0:
            raise ConfigError(f"a start of a Gymnasium environment needs a seed of 0 or more; received {start.seed}")

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        for start in starts:
            self.check_start(start)
        return super().reset(slots, starts, keys)

    def _simulator_of(self, task: str) -> MujocoSimulator | ReplayedSimulator:
        env = make(task, self._kwargs)
        if not isinstance(env.action_space, Box):
            raise UnsupportedError(
                f"environment {task!r} has actions {env.action_space}; a World's actions are a Box of numbers: wrap it "
                "in a gymnasium.ActionWrapper with a Box, register that, and use its id"
            )
        if engine_of(env) is not None:
            return MujocoSimulator(task, env, self._success, self._views)
        if self._views.cameras:
            raise UnsupportedError(f"environment {task!r} shows no MuJoCo model: leave world.cameras empty")
        return ReplayedSimulator(env, self._success)


def _common_success(envs: Mapping[str, gymnasium.Env]) -> bool:
    """Whether the environments report success; ``ConfigError`` where some do and others do not."""
    reporting = [task for task, env in envs.items() if _reports_success(task, env)]
    if reporting and len(reporting) < len(envs):
        silent = [task for task in envs if task not in reporting]
        raise ConfigError(
            f"of the environments of one world, {', '.join(reporting)} report success and {', '.join(silent)} do not; "
            "put them in worlds of their own, or say world.success=true or false"
        )
    return bool(reporting)


def _reports_success(task: str, env: gymnasium.Env) -> bool:
    space = env.action_space
    assert isinstance(space, Box)
    still = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    try:
        infos = [env.reset(seed=0)[1], env.step(still)[4]]
    except Exception as error:
        raise ConfigError(f"environment {task!r} cannot be reset and stepped: {error}") from error
    return any(key in info for info in infos for key in SUCCESS_KEYS)


def _control_dt(env: gymnasium.Env) -> float:
    steps = [getattr(layer, "dt", None) for layer in environments(env)] if engine_of(env) else []
    return float(next((dt for dt in steps if dt is not None), 1.0 / env.metadata.get("render_fps", 1)))
