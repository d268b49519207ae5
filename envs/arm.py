"""A two-link arm in a vertical plane under torque control, whose gravity differs from start to start."""

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files

import gymnasium
import mujoco
import numpy as np

from envs.gravities import Gravities
from envs.mujoco_batch import MujocoBatch
from envs.perturbed import Change
from envs.rendering import RendererPool
from simeval.conventions import Conventions
from simeval.errors import ConfigError, unknown
from simeval.noise import Key
from simeval.settings import image_side, names, whole
from simeval.types import Start, TimeStep

VERSION = 1
SUBSTEPS = 10
TOLERANCE = 0.05
"""How near the tip has to be to the target [m]."""
INSTRUCTION = "bring the tip of the arm to the green ball and keep it there"
_CAMERAS = ("side",)
_PICTURE_SIZE = 256
_NEAR, _FAR = 0.3, 0.8
"""Distance of a target from the shoulder [m]."""
_STRENGTH = 15.0
"""Of the shoulder [N m], as the model says."""


class Arm(MujocoBatch):
    """Two links of 0.5 and 0.4 m that swing in the plane of x and z; 20 control steps a second.

    An action is two numbers in [-1, 1]: the torques of shoulder and elbow, in 15 and 5 N m. The gravity of a start is
    drawn from ``gravities`` (see ``Gravities``) by its seed, and the rest of it independently of that.

    Observations: ``state`` [10], the cosines and the sines of both angles (0 hangs straight down, the elbow's counts
    from the upper link), their velocities [rad/s], the tip and the target [x, z] m; ``gravity`` [1] m/s²; and
    ``image_side``, with ``cameras=["side"]``. The task ``reach``: the tip within 5 cm of the target, for
    ``success_hold`` steps. ``reward`` is 1 there and falls by 1 a metre outside. ``signals``: ``angle``,
    ``velocity``, ``tip`` and ``target`` [2], and ``gravity``, in float64. Nothing is terminal: the horizon ends an
    episode.
    """

    name = "arm"
    tasks = ("reach",)

    def __init__(
        self,
        num_slots: int = 1,
        *,
        gravities: float | Iterable[float] = (5.0, 12.0),
        cameras: str | Sequence[str] = (),
        image_size: int = 64,
        render_profile: str = "fast",
        threads: int | None = None,
        success_hold: int = 5,
    ):
        self._gravities = Gravities.of(gravities)
        self._cameras = names("cameras", cameras)
        for camera in self._cameras:
            if camera not in _CAMERAS:
                raise unknown("camera of world 'arm'", camera, _CAMERAS)
        self._size = image_side(image_size, least=8)
        self.success_hold = whole("success_hold", success_hold)
        text = (files("assets") / "arm" / "arm.xml").read_text()
        model = mujoco.MjModel.from_xml_string(text)
        super().__init__(
            model,
            num_slots=num_slots,
            substeps=SUBSTEPS,
            threads=threads,
            fields=[("gravity", np.float64), ("tip", np.float64, (2,)), ("target", np.float64, (2,))],
        )
        self.models = [copy.copy(model) for _ in range(num_slots)]
        self._in_models = np.full(num_slots, np.nan)
        self._links = -float(model.body("lower").pos[2]), -float(model.body("tip").pos[2])
        self._canvas = model
        self._canvas_data = mujoco.MjData(model)
        self._renderers = RendererPool(render_profile, 2)
        shape = (self._size, self._size, 3)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "state": gymnasium.spaces.Box(-np.inf, np.inf, (10,), np.float32),
                "gravity": gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32),
                **{f"image_{camera}": gymnasium.spaces.Box(0, 255, shape, np.uint8) for camera in self._cameras},
            }
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.conventions = Conventions(
            image_orientation="upright",
            action=("torque_shoulder", "torque_elbow"),
            settings={"image_size": "world.image_size"},
        )
        scene = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        self.dynamics = f"arm/{VERSION} scene={scene} mujoco={mujoco.__version__} substeps={SUBSTEPS}"
        shown = f"cameras={','.join(self._cameras)} size={self._size} profile={render_profile}" if self._cameras else ""
        self.fingerprint = f"{self.dynamics} gravities={self._gravities} hold={success_hold} {shown}".strip()

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        self.check_task(task)
        return Start(task, INSTRUCTION, seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        self.check_task(task)
        return 150

    def objection(self, start: Start) -> str | None:
        """See ``World.objection``."""
        self.check_task(start.task)
        record = np.zeros((), dtype=self.record)
        self._begin(record, start, ())
        gravity, weight = float(record["gravity"]), self._weight()
        if gravity * weight >= _STRENGTH:
            return f"the shoulder cannot hold the arm out against a gravity of {gravity:.3g} m/s²"
        return None

    def render(self, slots: Sequence[int]) -> np.ndarray:
        """The arm of each slot from the side, uint8 ``[len(slots), H, W, 3]``."""
        self._check_running(slots)
        return self._draw(self._records(slots), max(self._size, _PICTURE_SIZE))

    def close(self) -> None:
        """See ``World.close``."""
        self._renderers.close()
        super().close()

    def _weight(self) -> float:
        """Gravity's torque about the shoulder when the arm is stretched out level, for each m/s² of it [kg m]."""
        model, (upper, lower) = self._canvas, self._links
        masses = model.body("upper").mass[0], model.body("lower").mass[0]
        return float(masses[0] * upper / 2 + masses[1] * (upper + lower / 2))

    def _begin(self, record: np.ndarray, start: Start, changes: Sequence[Change]) -> None:
        if start.seed is None:
            raise ConfigError("a start of world 'arm' has a seed (it has no numbered initial states)")
        rng = Key(start.seed).stream("start").event("arm", start.task)
        angles = rng.uniform([-math.pi, -2.5], [math.pi, 2.5])
        record["gravity"] = self._gravities.of_start("arm", start.seed)
        record["physics"][self._qpos], record["physics"][self._qvel] = angles, rng.uniform(-1.0, 1.0, 2)
        radius, turn = rng.uniform(_NEAR, _FAR), rng.uniform(-math.pi, math.pi)
        target = np.array([radius * math.cos(turn), radius * math.sin(turn)])
        away = target - self._tips(angles[None])[0]
        if math.hypot(*away) < 3 * TOLERANCE:
            target = -target  # the other side of the shoulder is far enough
        record["target"] = target

    def _controls(self, records: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.repeat(actions[:, None], SUBSTEPS, axis=1)

    def _observe(self, records: np.ndarray) -> None:
        records["tip"] = self._tips(records["physics"][:, self._qpos])

    def _commit(
        self, slots: Sequence[int], records: np.ndarray, failures: dict[int, str], looks: Sequence[bool] | None = None
    ) -> TimeStep:
        index = np.asarray(slots, dtype=int)
        for row in np.flatnonzero(self._in_models[index] != records["gravity"]):
            self.models[index[row]].opt.gravity[2] = -records["gravity"][row]
        self._in_models[index] = records["gravity"]
        return super()._commit(slots, records, failures, looks)

    def _time_step(
        self, slots: Sequence[int], records: np.ndarray, failures: dict[int, str], looks: Sequence[bool]
    ) -> TimeStep:
        count, tip, target = len(records), records["tip"], records["target"]
        angles, velocity = records["physics"][:, self._qpos], records["physics"][:, self._qvel]
        offset = tip - target
        away = np.sqrt(offset[:, 0] ** 2 + offset[:, 1] ** 2)
        state = np.concatenate([_each(math.cos, angles), _each(math.sin, angles), velocity, tip, target], axis=1)
        images = {}
        for camera in self._cameras:
            images[f"image_{camera}"] = np.zeros((count, self._size, self._size, 3), np.uint8)
            rows = np.flatnonzero(looks)
            images[f"image_{camera}"][rows] = self._draw(records[rows], self._size)
        return TimeStep(
            {"state": state.astype(np.float32), "gravity": records["gravity"][:, None].astype(np.float32), **images},
            reward=1.0 - np.maximum(away - TOLERANCE, 0.0),
            terminated=np.zeros(count, dtype=bool),
            truncated=np.zeros(count, dtype=bool),
            success=away <= TOLERANCE,
            signals={
                "angle": angles.copy(),
                "velocity": velocity.copy(),
                **{name: records[name].copy() for name in ("tip", "target", "gravity")},
            },
            failures=failures,
        )

    def _tips(self, angles: np.ndarray) -> np.ndarray:
        """Where the tip is, x and z [n, 2] m, at ``angles`` [n, 2]."""
        along = np.stack([angles[:, 0], angles[:, 0] + angles[:, 1]], axis=1)
        upper, lower = self._links
        x, z = _each(math.sin, along), -_each(math.cos, along)
        return np.stack([upper * x[:, 0] + lower * x[:, 1], upper * z[:, 0] + lower * z[:, 1]], axis=1)

    def _draw(self, records: np.ndarray, size: int) -> np.ndarray:
        pictures = np.zeros((len(records), size, size, 3), np.uint8)
        canvas, data = self._canvas, self._canvas_data
        target = canvas.body("target").id
        for row, record in enumerate(records):
            canvas.body_pos[target] = record["target"][0], 0.0, record["target"][1]
            data.qpos = record["physics"][self._qpos]
            mujoco.mj_kinematics(canvas, data)
            mujoco.mj_camlight(canvas, data)
            pictures[row] = self._renderers.render("arm", canvas, data, _CAMERAS[0], size)
        return pictures


def _each(function: Callable[[float], float], values: np.ndarray) -> np.ndarray:
    """``function`` of every number: numpy's own may round otherwise for another layout of the batch."""
    return np.array([function(value) for value in values.ravel().tolist()]).reshape(values.shape)
