"""One LIBERO scene: robosuite 1.4's environment of one task, reset purely and captured completely."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mujoco
import numpy as np

from envs.capture import Capture
from envs.libero.conventions import Convention, axis_angle
from envs.libero.suites import Task, load_libero, quiet
from envs.perturbed import Change, Parts, Stage, StagedSimulator
from envs.perturbed.kinematics import displace
from envs.perturbed.parts import geoms_of, named, subtrees
from envs.rendering import RendererPool
from envs.robosuite_repairs import read_again
from simeval.noise import Key, StepKey
from simeval.simulator import SimulatorStep
from simeval.types import Start

CAMERAS: Mapping[str, str] = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""The World's camera names -> LIBERO's."""

CONTROL_FREQ = 20
MAX_GOALS = 4
STATE_SIZE = 9 + 7 * MAX_GOALS

_READ = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
_PICTURE_SIZE = 256
_PLACEMENT_TRIES = 100
_UNSTABLE = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


@dataclass(frozen=True)
class View:
    """What of a scene is shown: the convention, its cameras in use, and the signals that the World declares."""

    convention: Convention
    cameras: tuple[str, ...]
    objects: tuple[str, ...]


class LiberoSimulator(StagedSimulator):
    """A scene kept over many episodes. Everything but the constructor works on one loaded model."""

    def __init__(self, task: Task, view: View, renderers: RendererPool, film: RendererPool):
        """``renderers`` draw what policies see, ``film`` what people do."""
        self._task, self._view, self._renderers, self._film = task, view, renderers, film
        self._drawing = False
        with quiet(), global_draws(0):
            self._env = env = _build(task)
            for name, observable in env._observables.items():
                observable.set_enabled(name in _READ)
            for camera in view.cameras:
                env.add_observable(self._camera_observable(camera))
        # The reference loops load the model twice before the first episode; the list of what draws the fixtures' joints
        # is then twice as long, and takes twice the draws.
        env.object_property_initializers.extend(tuple(env.object_property_initializers))
        self._data = self.data = env.sim.data._data
        self._model = self.model = env.sim.model._model
        self.stage = Stage("libero", self.model, _parts(self.model))
        # LIBERO draws without group 0, the collision shapes; groups from 3 on are not drawn by default.
        self._model.geom_group[self._model.geom_group == 0] = 3
        self._goals = [self._place_of(name) for name in task.goals]
        self._eef = env.robots[0].eef_site_id
        self._states = task.initial_states()
        self._capture = Capture(self._model, self._data, {"env": env}, ("robosuite", "libero"))
        self._pristine = self._capture.save()

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        """See ``Simulator.reset``."""
        convention = self._view.convention
        self.stage.clear()
        self._capture.load(self._pristine)
        self._drawing = convention.settle_steps == 0
        with quiet(), global_draws(self._placement_seed(start)):
            given = self._place()
            if start.index is not None:
                given = self._set_state(self._states[start.index])
            for remaining in reversed(range(convention.settle_steps)):
                self._drawing = remaining == 0
                given, _, _, _ = self._env.step(np.array(convention.settle_action))
        self._drawing = True
        moved = self.perturb(start)
        if self.stage.in_force:
            read_again(self._env, "" if moved else "image")
            given = self._env._get_observations()
        self._observe(given)
        self._capture.objects.settle()
        self._reward, self._success = 0.0, bool(self._env._check_success())
        return self._present()

    def move_robot(self, change: Change) -> str | None:
        """See ``StagedSimulator.move_robot``."""
        robot = self._env.robots[0]
        joints = [self.model.joint(name).id for name in robot.robot_joints]
        failed = displace(self.model, self.data, self._eef, joints, change)
        mujoco.mj_forward(self.model, self.data)
        robot.controller.update_initial_joints(self.data.qpos[robot._ref_joint_pos_indexes])
        return failed

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        """See ``Simulator.step``."""
        given, reward, success, _ = self._env.step(self._view.convention.action(action))
        if any(self._data.warning[kind].number for kind in _UNSTABLE) or not np.isfinite(self._data.qacc).all():
            raise RuntimeError(f"the simulation of LIBERO {self._task.name} became unstable at step {key.step}")
        self._observe(given)
        self._reward, self._success = float(reward), bool(success)
        return self._present()

    def snapshot(self) -> Mapping[str, Any]:
        """See ``Simulator.snapshot``."""
        return {
            "capture": self._capture.save(),
            "reward": self._reward,
            "success": self._success,
            **self.stage.save(),
        }

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        """See ``Simulator.restore``."""
        self._capture.load(state["capture"])
        self.stage.resume(state)
        for kind in _UNSTABLE:
            self._data.warning[kind].number = 0
        self._drawing = True
        self._observe(self._env._get_observations())
        self._reward, self._success = state["reward"], state["success"]
        return self._present()

    def render(self) -> np.ndarray:
        """See ``Simulator.render``."""
        return self._film.render(
            self._task.name + self.stage.token, self._model, self._data, "agentview", _PICTURE_SIZE
        )

    def close(self) -> None:
        """See ``Simulator.close``."""
        self._env.close()

    def _placement_seed(self, start: Start) -> int:
        if start.index is None:
            assert start.seed is not None
            return int(Key(start.seed).stream("start").event("libero").integers(2**32))
        return self._view.convention.placement(start.index)

    def _place(self) -> Mapping[str, np.ndarray]:
        failure = import_module("robosuite.utils.errors").RandomizationError
        for _ in range(_PLACEMENT_TRIES):
            try:
                return self._env.reset()
            except failure:  # the objects did not fit: LIBERO too draws on until they do
                continue
        raise RuntimeError(f"LIBERO {self._task.name}: {_PLACEMENT_TRIES} placements of its objects did not fit")

    def _set_state(self, state: np.ndarray) -> Mapping[str, np.ndarray]:
        env = self._env
        env.sim.set_state_from_flattened(state)
        env.sim.forward()
        env._check_success()
        env._post_process()
        env._update_observables(force=True)
        return env._get_observations()

    def _observe(self, given: Mapping[str, np.ndarray]) -> None:
        self._observation: dict[str, np.ndarray] = {
            f"image_{camera}": self._view.convention.picture(given[_image_name(camera)])
            for camera in self._view.cameras
        }
        if self._view.convention.proprio == "axis_angle":
            position, rotation, fingers = (given[name] for name in _READ)
            self._observation["proprio"] = np.concatenate([position, axis_angle(rotation), fingers])

    def _present(self) -> SimulatorStep:
        eef = self._pose("site", self._eef)
        state = np.zeros(STATE_SIZE)
        state[:7] = eef
        state[7:9] = self._data.qpos[self._env.robots[0]._ref_gripper_joint_pos_indexes]
        for number, (kind, index) in enumerate(self._goals):
            state[9 + 7 * number : 16 + 7 * number] = self._pose(kind, index)
        bodies = self._env.obj_body_id
        signals = {
            f"object_{name}": self._pose("body", bodies[name]) if name in bodies else np.full(7, np.nan)
            for name in self._view.objects
        }
        return SimulatorStep(
            observation={**self._observation, "state": state},
            reward=self._reward,
            success=self._success,
            signals={**signals, "eef": eef, "contacts": np.array(self._data.ncon, dtype=np.int64)},
        )

    def _pose(self, kind: str, index: int) -> np.ndarray:
        if kind == "body":
            return np.concatenate([self._data.xpos[index], self._data.xquat[index]])
        pose = np.empty(7)
        pose[:3] = self._data.site_xpos[index]
        mujoco.mju_mat2Quat(pose[3:], self._data.site_xmat[index])
        return pose

    def _place_of(self, name: str) -> tuple[str, int]:
        if name in self._env.obj_body_id:
            return "body", self._env.obj_body_id[name]
        return "site", self._env.sim.model.site_name2id(name)

    def _camera_observable(self, camera: str) -> Any:
        observables = import_module("robosuite.utils.observables")
        size = self._view.convention.render_size

        def picture(cache: Mapping[str, Any]) -> np.ndarray:
            if not self._drawing:  # nobody sees what happens before the episode
                return np.zeros((size, size, 3), dtype=np.uint8)
            return self._renderers.render(
                self._task.name + self.stage.token, self._model, self._data, CAMERAS[camera], size
            )

        sensor = observables.sensor(modality="image")(picture)
        return observables.Observable(name=_image_name(camera), sensor=sensor, sampling_rate=CONTROL_FREQ)


@contextlib.contextmanager
def global_draws(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, from which LIBERO draws its placements, and put it back afterwards."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _build(task: Task) -> Any:
    load_libero()
    wrapper = import_module("libero.libero.envs.env_wrapper").ControlEnv(
        str(task.problem),
        use_camera_obs=False,
        has_offscreen_renderer=False,
        hard_reset=False,
        ignore_done=True,
        control_freq=CONTROL_FREQ,
    )
    return wrapper.env


def _parts(model: mujoco.MjModel) -> Parts:
    body, geom = mujoco.mjtObj.mjOBJ_BODY, mujoco.mjtObj.mjOBJ_GEOM
    base = model.body("robot0_base").id
    x, y, z = model.body_pos[base]
    return Parts(
        focus=(x + 0.66, y, z),
        robot=subtrees(model, [base]),
        workspace=((x + 0.2, y - 0.55), (x + 1.0, y + 0.55)),
        table=geoms_of(
            model, named(model, body, "table", "kitchen_table", "living_room_table", "study_table", "coffee_table")
        ),
        background=tuple(named(model, geom, "floor", "wall")),
    )


def _image_name(camera: str) -> str:
    return f"{camera}_image"
