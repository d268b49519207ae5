"""Meta-World's environments with less Python in a step: the same numbers, bit for bit, by the same operations."""

import inspect
import math
from functools import cached_property
from types import FunctionType
from typing import Any

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

_CAN_SKIP_CHECKS = "assume_valid" in inspect.signature(Rotation.from_matrix).parameters
_ROUNDING = 1e-13
"""Well within what scipy takes for a rotation as it is, without making it orthogonal first."""
_IDENTITY = np.eye(3)
_DOWNWARD_QUATERNION = (1.0, 0.0, 1.0, 0.0)


def quickened(environment: type) -> type:
    """The package's environment class with the helpers of its ``step`` replaced; actions are taken to be in bounds."""
    members: dict[str, Any] = {"__module__": environment.__module__}
    orientation = environment._get_quat_objects  # type: ignore[attr-defined]
    if _CAN_SKIP_CHECKS and "Rotation" in orientation.__code__.co_names:
        names = {**orientation.__globals__, "Rotation": _QuickRotation}
        members["_get_quat_objects"] = FunctionType(orientation.__code__, names, closure=orientation.__closure__)
    return type(environment.__name__, (_Quick, environment), members)


class _QuickRotation:
    """Stands in for scipy's ``Rotation``, whose checks of a matrix take longer than all else it does."""

    @staticmethod
    def from_matrix(matrix: np.ndarray) -> Rotation:
        sound = bool(np.linalg.det(matrix) > 0 and (abs(matrix @ matrix.T - _IDENTITY) < _ROUNDING).all())
        return Rotation.from_matrix(matrix, assume_valid=True) if sound else Rotation.from_matrix(matrix)


class _Quick:
    data: mujoco.MjData
    action_scale: float
    mocap_low: np.ndarray
    mocap_high: np.ndarray
    _get_pos_objects: Any
    _get_quat_objects: Any
    _step_mujoco_simulation: Any

    @cached_property
    def _hand_and_claws(self) -> tuple[int, int, int]:
        body = self.data.body
        return body("hand").id, body("rightclaw").id, body("leftclaw").id

    @cached_property
    def _pads(self) -> tuple[int, int]:
        return self.data.geom("leftpad_geom").id, self.data.geom("rightpad_geom").id

    def set_xyz_action(self, action: np.ndarray) -> None:
        """Move the mocap body, within its bounds."""
        position = self.data.mocap_pos + action * self.action_scale
        position[0] = position[0].clip(self.mocap_low, self.mocap_high)
        self.data.mocap_pos[:] = position
        self.data.mocap_quat[:] = _DOWNWARD_QUATERNION

    def do_simulation(self, ctrl: Any, n_frames: int) -> None:
        """Physics substeps under constant controls."""
        self._step_mujoco_simulation(ctrl, n_frames)

    def touching_object(self, object_geom_id: int) -> bool:
        """Whether both finger pads push on the geom."""
        contact, force = self.data.contact, self.data.efc_force
        geoms = contact.geom
        rows = np.flatnonzero((geoms == object_geom_id).any(axis=1))
        if not rows.size:
            return False
        address = contact.efc_address
        return all(sum(force[address[row]] for row in rows if pad in geoms[row]) > 0 for pad in self._pads)

    def _get_curr_obs_combined_no_goal(self) -> np.ndarray:
        hand, right, left = self._hand_and_claws
        positions = self.data.xpos
        gap = positions[right] - positions[left]
        observation = np.zeros(18)
        observation[:3] = positions[hand]
        observation[3] = min(max(math.sqrt(gap.dot(gap)) / 0.1, 0.0), 1.0)
        position, quaternion = self._get_pos_objects(), self._get_quat_objects()
        count = len(position) // 3
        objects = observation[4 : 4 + 7 * count].reshape(count, 7)
        objects[:, :3] = position.reshape(count, 3)
        objects[:, 3:] = quaternion.reshape(count, 4)
        return observation
