"""robosuite 1.5 tasks as a World: default composite controllers, proprioception, object state and cameras."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gymnasium
import mujoco
import numpy as np

from envs.capture import POSES, VERSION, Capture
from envs.mujoco_log import log_mujoco_warnings
from envs.perturbed import AXES, Change, Judge, Parts, Stage, StagedSimulator, changes_of
from envs.perturbed.kinematics import displace
from envs.perturbed.parts import geoms_of, named, subtrees
from envs.rendering import RendererPool
from envs.robosuite_repairs import draw_in_order, read_again
from envs.robosuite_speed import compile_once, quicken
from simeval.conventions import Conventions
from simeval.errors import ConfigError, MissingPackageError, unknown
from simeval.noise import Key, StepKey
from simeval.settings import image_side, names, slot_count, truth, whole
from simeval.simulator import Simulator, SimulatorStep, SimulatorWorld
from simeval.types import Start, TimeStep

INSTRUCTIONS: Mapping[str, str] = {
    "Lift": "lift the red cube from the table",
    "Stack": "stack the red cube on the green cube",
    "Door": "turn the handle and open the door",
    "Wipe": "wipe the dirt off the table",
    "ToolHang": "put the hook into the stand and hang the tool on it",
    "NutAssembly": "put the square nut on the square peg and the round nut on the round peg",
    "NutAssemblySingle": "put the nut on the peg of its shape",
    "NutAssemblySquare": "put the square nut on the square peg",
    "NutAssemblyRound": "put the round nut on the round peg",
    "PickPlace": "put each object in its own bin",
    "PickPlaceSingle": "put the object in its own bin",
    "PickPlaceMilk": "put the milk carton in its bin",
    "PickPlaceBread": "put the bread in its bin",
    "PickPlaceCereal": "put the cereal box in its bin",
    "PickPlaceCan": "put the can in its bin",
    "TwoArmLift": "lift the pot by its two handles and keep it level",
    "TwoArmPegInHole": "put the peg into the hole",
    "TwoArmHandover": "pick up the hammer and hand it over to the other arm",
    "TwoArmTransport": "take the hammer out of the bin and put it into the other bin, and the trash into the trash bin",
}
"""Task (a registered robosuite environment) -> instruction."""

HORIZON = 500
_PICTURE_CAMERAS, _PICTURE_SIZE = ("frontview", "agentview"), 256
_NOT_STATE = (
    "robosuite.utils.binding_utils",
    "robosuite.models.objects.primitive",
    "robosuite.models.objects.xml_objects",
    "robosuite.models.robots",
    "robosuite.models.bases",
    "robosuite.models.tasks",
)
"""Thin covers of the engine's model and data, and names looked up; descriptions of objects, of robots (not of their
grippers, which hold what they were last told) and of scenes (not of their arenas, some of which draw), done with once
compiled."""
_UNSTABLE = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


@dataclass(frozen=True)
class _Settings:
    robots: tuple[str, ...] | None
    cameras: tuple[str, ...]
    image_size: int
    control_freq: int
    horizon: int
    reward_shaping: bool | None
    model_seed: int
    controller: str | None

    def robots_for(self, task: str) -> list[str]:
        if self.robots is not None:
            return list(self.robots)
        return ["Panda", "Panda"] if task.startswith("TwoArm") else ["Panda"]


class Robosuite(SimulatorWorld):
    """Registered robosuite environments by name, several at once where their spaces agree.

    Observations, as robosuite itself gives them (sampled one physics step after the action begins): ``proprio`` (all
    robots), ``state`` (``proprio`` and the objects, privileged), ``image_<camera>`` (``agentview``,
    ``robot0_eye_in_hand``, ...). Signals: ``object_<name>`` and ``eef_<robot>_<arm>``, poses ``[x, y, z, w, i, j, k]``
    ([m], quaternion wxyz; NaN for an object of another task), and ``contacts``, their number.

    Actions are those of robosuite's default controller of each robot, in -1..1; or those of ``controller``, by
    robosuite's name: one for the arms (``OSC_POSE``, ``OSC_POSITION``, ``JOINT_POSITION``, ``JOINT_TORQUE``,
    ``IK_POSE``), with its default gains, or one for the whole robot (``BASIC``, ``WHOLE_BODY_IK``). ``robots`` defaults
    to one Panda, two for ``TwoArm`` tasks; ``reward_shaping`` to robosuite's own default for the task. ``horizon`` caps
    an episode and scales the rewards of Wipe; only Wipe ends episodes itself. Sizes that robosuite draws when it builds
    a model (Lift's cube, Handover's hammer, PegInHole's peg) are those of ``model_seed``, in every episode; all else of
    a layout is drawn by the start's seed.
    """

    def __init__(
        self,
        task: str | Sequence[str] = "Lift",
        num_slots: int = 1,
        robots: str | Sequence[str] | None = None,
        cameras: str | Sequence[str] = (),
        image_size: int = 128,
        render_profile: str = "fast",
        control_freq: int = 20,
        horizon: int = HORIZON,
        reward_shaping: bool | None = None,
        model_seed: int = 0,
        controller: str | None = None,
        max_simulators: int | None = None,
        name: str = "robosuite",
    ):
        log_mujoco_warnings()
        suite = _load_robosuite()
        tasks = names("task", task)
        robots = None if robots is None else names("robots", robots)
        settings = _Settings(
            robots,
            names("cameras", cameras),
            image_side(image_size),
            whole("control_freq", control_freq),
            whole("horizon", horizon),
            None if reward_shaping is None else truth("reward_shaping", reward_shaping),
            whole("model_seed", model_seed, least=0),
            controller,
        )
        slot_count(num_slots)
        for each in tasks:
            if each not in suite.ALL_ENVIRONMENTS:
                raise unknown("robosuite task", each, sorted(suite.ALL_ENVIRONMENTS))
        for robot in robots or ():
            if robot not in suite.ALL_ROBOTS:
                raise unknown("robot", robot, sorted(suite.ALL_ROBOTS))
        offered = [*suite.ALL_PART_CONTROLLERS, *suite.ALL_COMPOSITE_CONTROLLERS]
        if controller is not None and controller not in offered:
            raise unknown("robosuite controller", controller, offered)
        if not tasks:
            raise ConfigError("a robosuite world needs at least one task; received none")
        self._horizon = horizon
        self._settings = settings
        self.perturbation_axes = AXES
        blind = replace(settings, cameras=())
        self._judge = Judge(lambda each: _RobosuiteSimulator(each, blind, self._renderers))
        self._renderers = RendererPool(render_profile, capacity=4)
        self._spare = {
            each: _RobosuiteSimulator(each, self._settings, self._renderers) for each in dict.fromkeys(tasks)
        }
        first = self._spare[tasks[0]]
        for each, simulator in self._spare.items():
            if simulator.spaces != first.spaces:
                raise ConfigError(
                    f"tasks {tasks[0]!r} and {each!r} differ in their observation or action spaces "
                    f"({_shapes(first)}; {_shapes(simulator)}) and cannot share a world; use one world for each"
                )
        signals = {key: value for simulator in self._spare.values() for key, value in simulator.signals().items()}
        packages = " ".join(f"{p}={version(p)}" for p in ("robosuite", "mujoco", "numpy"))
        super().__init__(
            name=name,
            num_slots=num_slots,
            tasks=tasks,
            build=self._build_simulator,
            observation_space=first.spaces[0],
            action_space=first.spaces[1],
            control_dt=1.0 / control_freq,
            fingerprint=f"robosuite/2 capture/{VERSION} {packages} render_profile={render_profile} {self._settings}",
            signals={key: (value.shape, value.dtype) for key, value in signals.items()},
            max_simulators=max_simulators,
        )
        parts, frame = first.action_parts()
        self.conventions = Conventions(
            image_orientation="upright",
            rotation="xyzw",
            action=parts,
            action_frame=frame,
            gripper="plus_closes" if parts is not None and "gripper" in parts else None,
            settings={"image_size": "world.image_size"},
        )

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return Start(task, INSTRUCTIONS.get(task, f"complete the task {task}"), seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        self.check_task(task)
        return self._horizon

    def check_start(self, start: Start) -> None:
        """See ``World.check_start``."""
        self.check_task(start.task)
        if start.seed is None:
            raise ConfigError(f"a robosuite episode is drawn by a seed; received {start}; use World.start(task, seed)")
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
        super().close()
        self._judge.close()
        for simulator in self._spare.values():
            simulator.close()
        self._spare = {}
        self._renderers.close()

    def _build_simulator(self, task: str) -> Simulator:
        spare = self._spare.pop(task, None)
        simulator = _RobosuiteSimulator(task, self._settings, self._renderers) if spare is None else spare
        simulator.declare(self._signals)
        return simulator


class _RobosuiteSimulator(StagedSimulator):
    def __init__(self, task: str, settings: _Settings, renderers: RendererPool):
        self._task, self._size, self._renderers = task, settings.image_size, renderers
        self._cameras = settings.cameras
        self._env = env = _make(task, settings)
        self._data = self.data = env.sim.data._data
        self._model = self.model = env.sim.model._model
        self.stage = Stage("robosuite", self.model, _parts(self.model))
        # robosuite draws with group 0, the collision shapes, switched off; groups from 3 on are not drawn by default.
        self._model.geom_group[self._model.geom_group == 0] = 3
        existing = [self._model.camera(index).name for index in range(self._model.ncam)]
        for camera in self._cameras:
            if camera not in existing:
                raise unknown(f"camera of robosuite task {task!r}", camera, existing)
            env.add_observable(self._camera_observable(camera, settings.control_freq))
        self._picture_camera = next(camera for camera in (*_PICTURE_CAMERAS, *existing) if camera in existing)
        self._poses = {f"object_{o.name}": ("body", env.sim.model.body_name2id(o.root_body)) for o in _objects(env)}
        for robot in env.robots:
            for arm in robot.arms:
                self._poses[f"eef_robot{robot.idn}_{arm}"] = ("site", robot.eef_site_id[arm])
        self._absent: dict[str, np.ndarray] = {}
        self._observe(env.reset())
        self.spaces = self._spaces()
        roots = {"env": env, "arena": env.model.mujoco_arena}
        cold = Capture(self._model, self._data, roots, ("robosuite",), _NOT_STATE)
        pristine = cold.save()
        # States are told by their difference from a capture's beginning: small from amid an episode.
        env.reset()
        env.step(np.zeros(self.spaces[1].shape))
        self._capture = Capture(self._model, self._data, roots, ("robosuite",), _NOT_STATE, POSES)
        cold.load(pristine)
        self._pristine = self._capture.save()

    def declare(self, signals: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> None:
        """Give NaN for those signals of the World that this task does not have."""
        own = self.signals()
        self._absent = {n: np.full(shape, np.nan) for n, (shape, _) in signals.items() if n not in own}

    def reset(self, start: Start, key: StepKey) -> SimulatorStep:
        assert start.seed is not None
        self.stage.clear()
        self._capture.load(self._pristine)
        stream = Key(start.seed).stream("start")
        for number, generator in enumerate(self._capture.objects.generators):
            seed = int(stream.event("robosuite", number).integers(2**63))
            generator.bit_generator.state = np.random.PCG64(seed).state
        self._observe(self._env.reset())
        moved = self.perturb(start)
        if self.stage.in_force:
            read_again(self._env, "" if moved else "image")
            self._observe(self._env._get_observations())
        self._capture.objects.settle()
        self._reward, self._terminated, self._success = 0.0, False, bool(self._env._check_success())
        return self._present()

    def move_robot(self, change: Change) -> str | None:
        """Every arm's hand is moved alike."""
        failed = None
        for robot in self._env.robots:
            parts = robot.composite_controller.part_controllers
            for arm in robot.arms:
                joints = [int(joint) for joint in parts[arm].joint_index]
                failed = displace(self.model, self.data, robot.eef_site_id[arm], joints, change) or failed
            mujoco.mj_forward(self.model, self.data)
            for arm in robot.arms:
                parts[arm].update_initial_joints(self.data.qpos[parts[arm].qpos_index])
            robot.composite_controller.update_state()
            robot.composite_controller.reset()
        return failed

    def step(self, action: np.ndarray, key: StepKey) -> SimulatorStep:
        observation, reward, done, _ = self._env.step(np.array(action, dtype=np.float64))
        if any(self._data.warning[kind].number for kind in _UNSTABLE) or not np.isfinite(self._data.qacc).all():
            raise RuntimeError(f"the simulation of robosuite {self._task} became unstable at step {key.step}")
        self._observe(observation)
        self._reward, self._terminated, self._success = float(reward), bool(done), bool(self._env._check_success())
        return self._present()

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "capture": self._capture.save(),
            "shown": (self._reward, self._terminated, self._success),
            **self.stage.save(),
        }

    def restore(self, state: Mapping[str, Any]) -> SimulatorStep:
        self._capture.load(state["capture"])
        self.stage.resume(state)
        for kind in _UNSTABLE:
            self._data.warning[kind].number = 0
        self._observe(self._env._get_observations())
        self._reward, self._terminated, self._success = state["shown"]
        return self._present()

    def render(self) -> np.ndarray:
        return self._draw(self._picture_camera, _PICTURE_SIZE)

    def close(self) -> None:
        self._env.close()

    def action_parts(self) -> tuple[tuple[str, ...] | None, str | None]:
        """What an action consists of and the frame of its displacement, where it moves one hand; otherwise nothing."""
        robots = self._env.robots
        parts = robots[0].composite_controller.part_controllers
        arm = parts.get(robots[0].arms[0])
        frame = getattr(arm, "input_ref_frame", None)
        moves = getattr(arm, "input_type", None) == "delta" and getattr(arm, "control_dim", 0) == 6
        if len(robots) > 1 or len(robots[0].arms) > 1 or not moves or frame not in ("base", "world"):
            return None, None
        grips = self.spaces[1].shape[0] - 6
        if grips not in (0, 1):
            return None, None
        return ("hand_displacement", "hand_turn", *(("gripper",) * grips)), frame

    def signals(self) -> dict[str, np.ndarray]:
        """The simulator's truth now, name -> fresh array."""
        found: dict[str, np.ndarray] = {}
        for name, (kind, index) in self._poses.items():
            if kind == "body":
                found[name] = np.concatenate([self._data.xpos[index], self._data.xquat[index]])
            else:
                found[name] = np.empty(7)
                found[name][:3] = self._data.site_xpos[index]
                mujoco.mju_mat2Quat(found[name][3:], self._data.site_xmat[index])
        found["contacts"] = np.array(self._data.ncon, dtype=np.int64)
        return found

    def _observe(self, given: Mapping[str, np.ndarray]) -> None:
        proprio = np.concatenate(
            [given[f"{robot.robot_model.naming_prefix}proprio-state"] for robot in self._env.robots]
        )
        images = {f"image_{camera}": given[_image_name(camera)] for camera in self._cameras}
        self._observation = {"proprio": proprio, "state": np.concatenate([proprio, given["object-state"]]), **images}

    def _present(self) -> SimulatorStep:
        return SimulatorStep(
            observation=self._observation,
            reward=self._reward,
            terminated=self._terminated,
            success=self._success,
            signals={**self._absent, **self.signals()},
        )

    def _spaces(self) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.Box]:
        spaces: dict[str, gymnasium.Space] = {
            key: gymnasium.spaces.Box(0, 255, value.shape, np.uint8)
            if key.startswith("image_")
            else gymnasium.spaces.Box(-np.inf, np.inf, value.shape, np.float64)
            for key, value in self._observation.items()
        }
        low, high = (np.asarray(bound, dtype=np.float32) for bound in self._env.action_spec)
        return gymnasium.spaces.Dict(spaces), gymnasium.spaces.Box(low, high, dtype=np.float32)

    def _camera_observable(self, camera: str, rate: float) -> Any:
        from robosuite.utils.observables import Observable, sensor

        @sensor(modality="image")
        def picture(cache: Mapping[str, Any]) -> np.ndarray:
            if not cache:  # robosuite tries the sensor before the simulation has begun
                return np.zeros((self._size, self._size, 3), dtype=np.uint8)
            return self._draw(camera, self._size)

        return Observable(name=_image_name(camera), sensor=picture, sampling_rate=rate)

    def _draw(self, camera: str, size: int) -> np.ndarray:
        return self._renderers.render(self._task + self.stage.token, self._model, self._data, camera, size)


def _parts(model: mujoco.MjModel) -> Parts:
    body = mujoco.mjtObj.mjOBJ_BODY
    return Parts(
        focus=(0.0, 0.0, 0.85),
        robot=subtrees(model, named(model, body, "robot", "left_eef_target", "right_eef_target")),
        workspace=((-0.5, -0.6), (0.5, 0.6)),
        table=geoms_of(model, named(model, body, "table", "bin")),
        background=tuple(named(model, mujoco.mjtObj.mjOBJ_GEOM, "floor", "wall_")),
        placed=tuple(named(model, body, "Door_main")),
    )


def _image_name(camera: str) -> str:
    return f"{camera}_image"


def _objects(env: Any) -> list[Any]:
    return list(env.model.mujoco_objects)


def _shapes(simulator: _RobosuiteSimulator) -> str:
    observation, action = simulator.spaces
    return ", ".join(f"{key} {space.shape}" for key, space in observation.spaces.items()) + f", action {action.shape}"


def _make(task: str, settings: _Settings) -> Any:
    robots = settings.robots_for(task)
    shaping = {} if settings.reward_shaping is None else {"reward_shaping": settings.reward_shaping}
    try:
        env = _load_robosuite().make(
            task,
            robots=robots,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            use_object_obs=True,
            hard_reset=False,
            ignore_done=True,
            horizon=settings.horizon,
            control_freq=settings.control_freq,
            seed=settings.model_seed,
            controller_configs=_controllers(settings.controller, robots),
            **shaping,
        )
    except (AssertionError, AttributeError, ValueError, KeyError) as error:
        controller = "" if settings.controller is None else f" and controller {settings.controller}"
        raise ConfigError(f"robosuite cannot build {task!r} with robots {robots}{controller}: {error}") from error
    quicken(env)
    draw_in_order(env)
    return env


def _controllers(name: str | None, robots: Sequence[str]) -> list[Any] | None:
    """One configuration for each robot; with a controller for arms, the robot's own default in all else."""
    suite = _load_robosuite()
    if name is None:
        return None
    if name in suite.ALL_COMPOSITE_CONTROLLERS:
        return [suite.load_composite_controller_config(controller=name) for _ in robots]
    configurations = [suite.load_composite_controller_config(robot=robot) for robot in robots]
    for configuration in configurations:
        parts = configuration["body_parts"]
        for arm in {"right", "left"} & parts.keys():
            chosen = suite.load_part_controller_config(default_controller=name)
            parts[arm] = {**chosen, "gripper": parts[arm]["gripper"]}
    return configurations


@cache
def _load_robosuite() -> Any:
    """The package, imported without its advice on macros, robots and joints at their limits; its errors show."""
    pip = '"robosuite>=1.5.2,<1.6" "mujoco>=3.3,<3.10"'
    try:
        found = version("robosuite")
    except PackageNotFoundError:
        raise MissingPackageError("robosuite", pip) from None
    if not found.startswith("1.5."):
        raise MissingPackageError(f"robosuite 1.5 (found is {found})", pip)
    if tuple(int(part) for part in version("mujoco").split(".")[:2]) >= (3, 10):
        raise MissingPackageError(f"a MuJoCo that robosuite {found} runs on (found is {version('mujoco')})", pip)
    # A filter, since the import sets the logger's level.
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    try:
        import robosuite
    except ImportError as error:
        raise MissingPackageError(f"a part of robosuite ({error})", pip) from error
    compile_once()
    return robosuite
