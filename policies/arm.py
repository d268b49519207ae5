"""The scripted expert of the two-link arm: computed torque, by the model that ships."""

import math
from collections.abc import Sequence
from importlib.resources import files

import mujoco
import numpy as np

from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation

_STIFFNESS, _DAMPING = 36.0, 12.0


class ArmExpert(Policy):
    """Turns the joints to where the tip is at the target, by inverse dynamics under the gravity that it is told.

    It reads ``state`` and ``gravity``, remembers nothing and draws nothing. Actions [n, 2] float32 in -1..1.
    """

    observation_keys = ("state", "gravity")

    def __init__(self) -> None:
        self._model = mujoco.MjModel.from_xml_string((files("assets") / "arm" / "arm.xml").read_text())
        self._data = mujoco.MjData(self._model)
        self._upper, self._lower = (-float(self._model.body(name).pos[2]) for name in ("lower", "tip"))

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"ArmExpert/1 {_STIFFNESS:g} {_DAMPING:g} mujoco={mujoco.__version__}"

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        rows = zip(observation["state"].tolist(), observation["gravity"].tolist(), strict=True)
        actions = [self._action(state, gravity) for state, (gravity,) in rows]
        return PolicyStep(np.array(actions, dtype=np.float32).reshape(-1, 2).clip(-1.0, 1.0), memory)

    def _action(self, state: list[float], gravity: float) -> np.ndarray:
        angles = [math.atan2(sine, cosine) for cosine, sine in zip(state[:2], state[2:4], strict=True)]
        velocity = np.array(state[4:6])
        wanted = self._angles(state[8], state[9], math.copysign(1.0, angles[1]))
        error = np.array([wanted[0] - angles[0], wanted[1] - angles[1]])
        error[0] = math.remainder(error[0], 2 * math.pi)
        model, data = self._model, self._data
        model.opt.gravity[2] = -gravity
        data.qpos, data.qvel = angles, velocity
        data.qacc = _STIFFNESS * error - _DAMPING * velocity
        mujoco.mj_inverse(model, data)
        return data.qfrc_inverse / model.actuator_gear[:, 0]

    def _angles(self, x: float, z: float, bend: float) -> tuple[float, float]:
        """Angles of shoulder and elbow [rad] that put the tip at x, z [m], the elbow bent to the side of ``bend``."""
        upper, lower = self._upper, self._lower
        cosine = (x * x + z * z - upper * upper - lower * lower) / (2 * upper * lower)
        elbow = bend * math.acos(min(max(cosine, -1.0), 1.0))
        inside = math.atan2(lower * math.sin(elbow), upper + lower * math.cos(elbow))
        return math.atan2(x, -z) - inside, elbow
