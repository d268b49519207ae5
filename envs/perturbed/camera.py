"""Axis ``camera``: the cameras of the scene move about the point that they look at, and turn to another."""

import mujoco
import numpy as np

from envs.perturbed.changes import Change
from envs.perturbed.parts import Parts, static_pose

_NEAREST = 0.05
"""A camera comes no nearer to what it looks at [m]."""
_STEEPEST = np.deg2rad(89.0)
_FIELD = (5.0, 150.0)


def move_cameras(model: mujoco.MjModel, parts: Parts, change: Change) -> None:
    """Move every camera that is fixed in the world, and those on the robot where ``wrist`` says so.

    What a camera looks at is the point on its axis that is nearest to the scene's focus (of a camera that moves along:
    10 cm ahead). About it the camera moves by ``azimuth`` (seen from above, anticlockwise) and ``elevation``, and away
    from it by ``distance``; then it turns to look ``look_right`` and ``look_up`` of it, as its picture has them when it
    is shown upright (some models hang their cameras upside down, and their pictures are turned).
    """
    for camera in range(model.ncam):
        body = int(model.cam_bodyid[camera])
        if model.cam_mode[camera] != mujoco.mjtCamLight.mjCAMLIGHT_FIXED:
            continue
        if model.body_weldid[body] == 0:
            origin, frame = static_pose(model, body)
            _move(model, camera, change, origin, frame, np.asarray(parts.focus))
        elif change.amounts["wrist"] and body in parts.robot:
            _move(model, camera, change, np.zeros(3), np.eye(3), None)


def _move(
    model: mujoco.MjModel,
    camera: int,
    change: Change,
    origin: np.ndarray,
    frame: np.ndarray,
    focus: np.ndarray | None,
) -> None:
    """Move one camera whose body stands at ``origin`` and ``frame`` in the world."""
    amount = change.amounts
    local = np.empty(9)
    mujoco.mju_quat2Mat(local, model.cam_quat[camera])
    position, axes = origin + frame @ model.cam_pos[camera], frame @ local.reshape(3, 3)
    ahead = -axes[:, 2]
    reach = 0.1 if focus is None else max(float((focus - position) @ ahead), _NEAREST)
    target = position + reach * ahead
    turn = _about(np.array([0.0, 0.0, 1.0]), np.deg2rad(amount["azimuth"]))
    axes = turn @ axes
    height = np.arcsin(np.clip(axes[2, 2], -1.0, 1.0))
    rise = np.clip(height + np.deg2rad(amount["elevation"]), min(-_STEEPEST, height), max(_STEEPEST, height)) - height
    aside = np.array([-axes[1, 2], axes[0, 2], 0.0])
    level = float(np.linalg.norm(aside))
    axes = _about(aside / level if level > 1e-6 else axes[:, 0], -rise) @ axes
    reach = max(reach + amount["distance"], _NEAREST)
    position = target + reach * axes[:, 2]
    upright = -1.0 if axes[2, 1] < -1e-6 else 1.0
    axes = axes @ _about(np.array([0.0, 1.0, 0.0]), -upright * np.arctan2(amount["look_right"], reach))
    axes = axes @ _about(np.array([1.0, 0.0, 0.0]), upright * np.arctan2(amount["look_up"], reach))
    model.cam_pos[camera] = frame.T @ (position - origin)
    quaternion = np.empty(4)
    mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(frame.T @ axes).reshape(9))
    model.cam_quat[camera] = quaternion
    model.cam_fovy[camera] = np.clip(model.cam_fovy[camera] + amount["fov"], *_FIELD)


def _about(axis: np.ndarray, angle: float) -> np.ndarray:
    """The rotation matrix by ``angle`` [rad] about a unit ``axis``."""
    quaternion, matrix = np.empty(4), np.empty(9)
    mujoco.mju_axisAngle2Quat(quaternion, np.ascontiguousarray(axis), angle)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)
