"""The 50 Meta-World v3 tasks as a World: a Sawyer arm over a table, goals observable, one instruction for each task."""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import gymnasium
import mujoco
import numpy as np

from envs.capture import POSES, VERSION, Capture
from envs.metaworld_quick import quickened
from envs.mujoco_log import log_mujoco_warnings
from envs.perturbed import AXES, Change, Judge, Parts, Stage, StagedSimulator
from envs.perturbed.changes import changes_of
from envs.perturbed.kinematics import TOLERANCE, reach
from envs.perturbed.parts import geoms_of, named, subtrees
from envs.perturbed.placement import displacement, movable
from envs.rendering import RenderedWorld, RendererPool
from simeval.conventions import Conventions
from simeval.errors import ConfigError, MissingPackageError, unknown
from simeval.noise import Key, StepKey
from simeval.settings import image_side, names, slot_count
from simeval.simulator import SimulatorStep
from simeval.types import Start, TimeStep

HORIZON = 500
CONTROL_DT = 0.0125
STATE_SIZE = 39
CAMERAS = ("corner4", "corner", "corner2", "corner3", "topview", "behindGripper", "gripperPOV")
"""Cameras of the models, the one that ``render`` uses first."""

_UPSIDE_DOWN = frozenset({"corner", "corner2", "corner3", "corner4"})
_PICTURE_SIZE = 256
_ROUNDING = 1e-9
_LAYOUT = "initial_state.layout"
_WHOLE = frozenset({"coffee-button-v3", "peg-unplug-side-v3"})
"""Tasks about something fixed, at which a loose thing stands: a mug at its machine, a plug in its socket."""
_INFO = ("near_object", "grasp_success", "grasp_reward", "in_place_reward", "obj_to_target", "unscaled_reward")
_BROKEN = [mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC]


@cache
def instructions() -> Mapping[str, str]:
    """Task name -> its instruction sentence, for all 50 tasks."""
    return json.loads((files("assets") / "metaworld" / "instructions.json").read_text(encoding="utf-8"))


def bare_env(task: str, seed: int) -> Any:
    """The package's own environment, whose ``reset()`` gives the start that ``MetaWorld`` gives for ``seed``.

    It is ``ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task}-goal-observable"](seed=seed)``. Only the first ``reset()`` of
    an environment counts: the package carries state from one episode into the next.
    """
    return _package().ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task}-goal-observable"](seed=seed)


class MetaWorld(RenderedWorld):
    """Meta-World v3, stepped one simulator after the other by the package's own unwrapped environments.

    ``task``: ``"all"``, a task name such as ``"pick-place-v3"``, or several. Observation keys: ``state`` [39], the
    package's vector (hand, gripper opening, objects, the same one step ago, goal [m]), which its experts read;
    ``proprio`` [4], hand position [m] and gripper opening in 0..1; and ``image_<camera>`` for each of ``cameras``,
    upright. Action [4] in -1..1: hand displacement in units of 1 cm a step, and gripper effort.

    ``success`` is the package's; its convention counts an episode in which it was true at any step. ``reward`` is the
    package's, 0 to 10. ``signals``: ``object_position`` [2, 3], ``tcp_position``, ``goal_position`` [3] (m, world
    frame; rows of absent objects are 0), and the numbers of the info dictionary, which are 0 at a reset.

    A start's ``seed`` (0 .. 2**32 - 1) is the one that the package's goal-observable environments take, and gives the
    same initial state bit for bit (see :func:`bare_env`). Dynamics are deterministic; keys are not used.

    Of a perturbation of the hand's initial pose its place counts alone: it always points down. What is fixed to the
    table (a door, a drawer, a button) is moved with its goal, and not turned. ``dynamics.gain`` is that of the fingers,
    since a mocap body pulls the arm along.
    """

    def __init__(
        self,
        task: str | Sequence[str] = "all",
        num_slots: int = 1,
        cameras: str | Sequence[str] = (),
        image_size: int = 128,
        render_profile: str = "fast",
        max_simulators: int | None = None,
        name: str = "metaworld",
    ):
        log_mujoco_warnings()
        self._package = _package()
        slot_count(num_slots)
        self.cameras = names("cameras", cameras)
        self._image_size = image_size = image_side(image_size)
        for camera in self.cameras:
            if camera not in CAMERAS:
                raise unknown("Meta-World camera", camera, CAMERAS)
        self.renderers = RendererPool(render_profile, 2 * num_slots)
        self.perturbation_axes = AXES
        self._judge = Judge(lambda task: self._simulator_of(task, ()))
        spaces: dict[str, gymnasium.Space] = {
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (STATE_SIZE,), np.float64),
            "proprio": gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64),
        }
        for camera in self.cameras:
            spaces[f"image_{camera}"] = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        number = np.dtype(np.float64)
        packages = " ".join(f"{name} {version(name)}" for name in ("metaworld", "mujoco", "numpy", "scipy"))
        versions = f"capture/{VERSION} {packages}"
        super().__init__(
            name=name,
            num_slots=num_slots,
            tasks=_selection(task),
            build=lambda task: self._simulator_of(task, self.cameras),
            observation_space=gymnasium.spaces.Dict(spaces),
            action_space=gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32),
            control_dt=CONTROL_DT,
            dynamics=versions,
            fingerprint=f"{versions}; cameras {list(self.cameras)} {image_size} px {render_profile}",
            signals={
                "object_position": ((2, 3), number),
                "tcp_position": ((3,), number),
                "goal_position": ((3,), number),
                **dict.fromkeys(_INFO, ((), number)),
            },
            max_simulators=max_simulators,
        )
        self.conventions = Conventions(
            image_orientation="upright",
            proprio=("hand_position", "gripper_opening"),
            action=("hand_displacement", "gripper_effort"),
            action_frame="world",
            gripper="plus_closes",
            settings={"image_size": "world.image_size"},
        )

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return Start(task, instructions()[task], seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        self.check_task(task)
        return HORIZON

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self.check_task(start.task)
        if start.seed is None or not 0 <= start.seed < 2**32:
            raise ConfigError(f"a Meta-World start needs a seed in 0..2**32 - 1; received {start.seed}")
        changes_of(self.name, self.perturbation_axes, start.perturbations)

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        for start in starts:
            self.check_start(start)
        return super().reset(slots, starts, keys)

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        self.check_task(start.task)
        return self._judge.objection(start)

    def close(self) -> None:
        """See ``World.close``."""
        self._judge.close()
        super().close()

    def _simulator_of(self, task: str, cameras: tuple[str, ...]) -> "_MetaWorldSimulator":
        return _MetaWorldSimulator(
            task, self._package.ALL_V3_ENVIRONMENTS[task], cameras, self._image_size, self.renderers
        )


class _MetaWorldSimulator(StagedSimulator):
    def __init__(
        self, task: str, environment: type, cameras: tuple[str, ...], image_size: int, renderers: RendererPool
    ):
        self._task = task
        self._cameras = cameras
        self._image_size = image_size
        self._black = np.zeros((image_size, image_size, 3), dtype=np.uint8)
        self._renderers = renderers
        # As the package's goal-observable environments set themselves up, except for the first reset.
        self._env: Any = quickened(environment)()
        self._env._partially_observable = False
        del self._env.sawyer_observation_space
        self._env._set_task_called = True
        # The engine's horizon ends an episode, not the package's counter.
        self._env.max_path_length = sys.maxsize
        self.model, self.data = self._env.model, self._env.data
        self.stage = Stage("metaworld", self.model, _parts(self._env))
        self._fixed = task in _WHOLE or not movable(self.model, self.stage.parts)
        """Whether the task is about one thing that is fixed to the table."""
        self._fingers = [self._env.model.site(f"{side}EndEffector").id for side in ("right", "left")]
        self._warnings = [self._env.data.warning[kind] for kind in _BROKEN]
        roots = {"env": self._env}
        cold = Capture(self._env.model, self._env.data, roots, ("metaworld",))
        self._pristine = cold.save()
        self._capture = cold
        self._shown: tuple[np.ndarray, float, bool, np.ndarray]
        # States are told by their difference from a capture's beginning: small from amid an episode.
        self.reset(Start(task, seed=0), Key(0).stream("world").key(0))
        self._env.step(np.zeros(4))
        self._capture = Capture(self._env.model, self._env.data, roots, ("metaworld",), (), POSES)
        cold.load(self._pristine)
        self._pristine = self._capture.save()

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        env = self._env
        self.stage.clear()
        self._capture.load(self._pristine)
        env.do_simulation = lambda control, n_frames: mujoco.mj_kinematics(env.model, env.data)
        # The package resets twice, once in the constructor, and each time runs reset_model twice, settling the hand
        # under 250 physics steps; all but the last run only choose and place goal and objects. They are rehearsed
        # without the physics, which leaves the same state.
        env.np_random = np.random.RandomState(start.seed)
        env._freeze_rand_vec, env.seeded_rand_vec = False, True
        env.reset()
        env._freeze_rand_vec, env.seeded_rand_vec = True, False
        env.np_random = None
        env.curr_path_length = 0
        env.reset_model()
        shift = self._shift_of(start)
        if shift.any():
            self._rehearse_elsewhere(shift)
        del env.do_simulation
        mujoco.mj_resetData(env.model, env.data)
        observation = env.reset_model()
        env.__dict__.pop("_reset_hand", None)
        if self.perturb(start, done=frozenset({_LAYOUT}) if self._fixed else frozenset()):
            observation = env._get_obs()
        self.unfair = self.unfair or self._out_of_reach(shift)
        env._prev_obs = observation[:18].copy()
        observation[18:36] = env._prev_obs
        self._capture.objects.settle()
        self._shown = observation, 0.0, False, np.zeros(len(_INFO))
        return self._present()

    def _shift_of(self, start: Start) -> np.ndarray:
        """How far what is fixed is to be moved [2] m; the package puts it at the place [3] m that it draws, and derives
        goal, sites and what it rewards from that."""
        shift = np.zeros(2)
        for change in self.stage.changes(start) if self._fixed else ():
            if change.axis == _LAYOUT:
                shift += displacement(change, 0)[0]
        return shift

    def _rehearse_elsewhere(self, shift: np.ndarray) -> None:
        """Have the next ``reset_model`` put what is fixed ``shift`` [2] m farther, once the hand has settled.

        The hand settles beside it as in the nominal episode, so that both begin as they do there: a wall, or a hand on
        its way, might open a drawer that stands elsewhere.
        """
        env, model, settle = self._env, self.model, self._env._reset_hand
        nominal = model.body_pos.copy()
        env._last_rand_vec = env._last_rand_vec + np.append(shift, 0.0)
        env.reset_model()
        moved = model.body_pos.copy()
        model.body_pos[:] = nominal

        def settle_and_move() -> None:
            settle()
            model.body_pos[:] = moved
            mujoco.mj_kinematics(model, self.data)

        env._reset_hand = settle_and_move

    def _out_of_reach(self, shift: np.ndarray) -> str | None:
        """What has come to lie farther beyond the bounds of the hand's moves than it did, if anything has."""
        low, high = self._env.mocap_low[:2], self._env.mocap_high[:2]
        for what, place in (("object", self._env._get_pos_objects()[:2]), ("goal", self._env._target_pos[:2])):
            off, before = (np.maximum(low - at, at - high).clip(0.0) for at in (place, place - shift))
            if (off > before + _ROUNDING).any():
                return f"the {what} would begin at x={place[0]:.3f}, y={place[1]:.3f} m, out of the hand's reach"
        return None

    def move_robot(self, change: Change) -> str | None:
        env, hand = self._env, self.model.body("hand").id
        before = self.data.xpos[hand].copy()
        target = before + [change.amounts[axis] for axis in "xyz"]
        joints = [self.model.joint(f"right_j{index}").id for index in range(7)]
        turned = self.data.xmat[hand].reshape(3, 3).copy()
        off, _ = reach(self.model, self.data, None, hand, joints, target, turned)
        # The mocap body pulls the hand along, and is kept between these bounds.
        mocap = self.data.mocap_pos[0] + self.data.xpos[hand] - before
        self.data.mocap_pos[0] = np.clip(mocap, env.mocap_low, env.mocap_high)
        if off > TOLERANCE:
            return f"the hand cannot reach {target.round(3).tolist()} m: it is {1e3 * off:.1f} mm off"
        if (mocap != self.data.mocap_pos[0]).any():
            return f"the hand would begin at {target.round(3).tolist()} m, outside the bounds of its moves"
        return None

    def solved(self, step: SimulatorStep) -> bool:
        # The package judges steps, never a reset.
        _, info = self._env.evaluate_state(self._env._get_obs(), np.zeros(4))
        return bool(info["success"])

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        return self.advance(action, key, True)

    def advance(self, action: np.ndarray, key: StepKey, look: bool) -> SimulatorStep:
        observation, reward, _, _, info = self._env.step(action)
        if any(warning.number for warning in self._warnings):
            raise RuntimeError(f"MuJoCo's simulation of {self._task} became unstable at step {key.step}")
        numbers = np.array([info[name] for name in _INFO], dtype=np.float64)
        self._shown = observation, float(reward), bool(info["success"]), numbers
        return self._present(look)

    def snapshot(self) -> Mapping[str, Any]:
        observation, reward, success, numbers = self._shown
        return {
            "capture": self._capture.save(),
            "shown": (observation.copy(), reward, success, numbers.copy()),
            **self.stage.save(),
        }

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        self._capture.load(state["capture"])
        self.stage.resume(state)
        observation, reward, success, numbers = state["shown"]
        self._shown = observation.copy(), reward, success, numbers.copy()
        return self._present()

    def render(self) -> np.ndarray:
        return self._picture(CAMERAS[0], _PICTURE_SIZE)

    def _present(self, look: bool = True) -> SimulatorStep:
        state, reward, success, numbers = self._shown
        observation = {"state": state, "proprio": state[:4]}
        for camera in self._cameras:
            observation[f"image_{camera}"] = self._picture(camera, self._image_size) if look else self._black
        sites = self._env.data.site_xpos
        signals = {
            "object_position": state[4:18].reshape(2, 7)[:, :3],
            "tcp_position": (sites[self._fingers[0]] + sites[self._fingers[1]]) / 2,
            "goal_position": self._env._target_pos,
            **dict(zip(_INFO, numbers, strict=True)),
        }
        return SimulatorStep(observation, reward, success=success, signals=signals)

    def _picture(self, camera: str, size: int) -> np.ndarray:
        image = self._renderers.render(self._task + self.stage.token, self._env.model, self._env.data, camera, size)
        return image[::-1, ::-1] if camera in _UPSIDE_DOWN else image


def _parts(env: Any) -> Parts:
    model, body = env.model, mujoco.mjtObj.mjOBJ_BODY
    walls = geoms_of(model, named(model, body, "RetainingWall"))
    return Parts(
        focus=(0.0, 0.6, 0.1),
        robot=subtrees(model, named(model, body, "base", "mocap")),
        workspace=((-0.45, 0.4), (0.45, 0.95)),
        table=geoms_of(model, named(model, body, "tablelink")),
        background=(*named(model, mujoco.mjtObj.mjOBJ_GEOM, "floor"), *walls),
    )


def _package() -> Any:
    try:
        from metaworld import env_dict
    except ModuleNotFoundError as error:
        if error.name != "metaworld":
            raise
        raise MissingPackageError("Meta-World", "simeval[metaworld]") from error
    return env_dict


def _selection(task: str | Sequence[str]) -> tuple[str, ...]:
    known = tuple(instructions())
    chosen = known if task == "all" else names("task", task)
    for name in chosen:
        if name not in known:
            raise unknown("Meta-World task", name, ("all", *known))
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(f"world.task needs one or more different Meta-World tasks; received {list(chosen)}")
    return chosen
