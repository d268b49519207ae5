"""Inverse kinematics by damped least squares (Wampler 1986; Nakamura and Hanafusa 1986)."""

from collections.abc import Sequence

import mujoco
import numpy as np

from envs.perturbed.changes import Change

TOLERANCE = 1e-3
"""A hand that is farther than this from where it should be [m], or turned 10 times as much [rad], has not arrived."""
_DAMPING = 1e-2
_STEPS = 200
_LONGEST = 0.2
"""The longest step of a joint [rad or m]."""
_CLOSE = 1e-7


def reach(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    site: int | None,
    body: int,
    joints: Sequence[int],
    position: np.ndarray,
    rotation: np.ndarray,
) -> tuple[float, float]:
    """Bring a site (or, without one, a body) to ``position`` [3] m and ``rotation`` [3, 3] in the world.

    ``joints`` (hinges and slides), in ``data.qpos``, are what moves, within their ranges; derived positions are left as
    of the last step. Returns how far it still is: [m], [rad]. Where it cannot arrive, it ends as near as the steps go.
    """
    dofs, places = model.jnt_dofadr[list(joints)], model.jnt_qposadr[list(joints)]
    limited = model.jnt_limited[list(joints)].astype(bool)
    low, high = np.where(limited[:, None], model.jnt_range[list(joints)], (-np.inf, np.inf)).T
    jacobian = np.zeros((6, model.nv))
    best = (np.inf, np.inf)
    kept = data.qpos[places].copy()
    for _ in range(_STEPS):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        at = data.xpos[body] if site is None else data.site_xpos[site]
        turned = (data.xmat[body] if site is None else data.site_xmat[site]).reshape(3, 3)
        error = np.concatenate([position - at, _turn(rotation @ turned.T)])
        distance = float(np.linalg.norm(error[:3])), float(np.linalg.norm(error[3:]))
        if sum(distance) < sum(best):
            best, kept = distance, data.qpos[places].copy()
        if sum(distance) < _CLOSE:
            break
        if site is None:
            mujoco.mj_jacBody(model, data, jacobian[:3], jacobian[3:], body)
        else:
            mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], site)
        own = jacobian[:, dofs]
        damping = _DAMPING * min(1.0, sum(distance))
        step = own.T @ np.linalg.solve(own @ own.T + damping**2 * np.eye(6), error)
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), _LONGEST))
        data.qpos[places] = np.clip(data.qpos[places] + step, low, high)
    data.qpos[places] = kept
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    return best


def displace(
    model: mujoco.MjModel, data: mujoco.MjData, site: int, joints: Sequence[int], change: Change
) -> str | None:
    """Move a hand's site as a change of axis ``initial_state.robot`` says; why that failed, if it did."""
    amount = change.amounts
    position = data.site_xpos[site] + [amount["x"], amount["y"], amount["z"]]
    rotation = rotation_of(amount["roll"], amount["pitch"], amount["yaw"]) @ data.site_xmat[site].reshape(3, 3)
    off, turned = reach(model, data, site, int(model.site_bodyid[site]), joints, position, rotation)
    if off > TOLERANCE or turned > 10 * TOLERANCE:
        return (
            f"the hand cannot begin at {position.round(3).tolist()} m, so turned: "
            f"it is {1e3 * off:.1f} mm and {turned:.3f} rad off"
        )
    return None


def rotation_of(roll: float, pitch: float, yaw: float) -> np.ndarray:
    """The rotation matrix whose axis times angle is ``(roll, pitch, yaw)`` [rad], about the world's axes."""
    vector = np.array([roll, pitch, yaw])
    angle = float(np.linalg.norm(vector))
    quaternion, matrix = np.empty(4), np.empty(9)
    mujoco.mju_axisAngle2Quat(quaternion, vector / angle if angle else np.array([1.0, 0.0, 0.0]), angle)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


def _turn(rotation: np.ndarray) -> np.ndarray:
    """Axis times angle [rad] of a rotation matrix."""
    quaternion, vector = np.empty(4), np.empty(3)
    mujoco.mju_mat2Quat(quaternion, np.ascontiguousarray(rotation).reshape(9))
    mujoco.mju_quat2Vel(vector, quaternion, 1.0)
    return vector
