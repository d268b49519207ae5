"""What the parts of a World's MuJoCo model are: declared by each World, read by what changes them."""

from collections.abc import Iterable
from dataclasses import dataclass

import mujoco
import numpy as np

_LEVEL = 1e-6


@dataclass(frozen=True)
class Parts:
    """Roles in one model, by number.

    ``focus``: the point that the scene is about [m], in the world. ``robot``: its bodies, tools and all.
    ``workspace``: the lowest and the highest x and y at which a thing may begin [m]. ``table`` and ``background``:
    geoms of what things stand on, and of what is behind them. ``placed``: bodies fixed to the world that the suite puts
    elsewhere in each episode by ``body_pos`` and ``body_quat`` alone.
    """

    focus: tuple[float, float, float]
    robot: frozenset[int]
    workspace: tuple[tuple[float, float], tuple[float, float]]
    table: tuple[int, ...] = ()
    background: tuple[int, ...] = ()
    placed: tuple[int, ...] = ()


def named(model: mujoco.MjModel, kind: mujoco.mjtObj, *prefixes: str) -> list[int]:
    """The objects of a kind whose name begins with one of ``prefixes``."""
    count = {mujoco.mjtObj.mjOBJ_BODY: model.nbody, mujoco.mjtObj.mjOBJ_GEOM: model.ngeom}[kind]
    return [index for index in range(count) if (mujoco.mj_id2name(model, kind, index) or "").startswith(prefixes)]


def subtrees(model: mujoco.MjModel, roots: Iterable[int]) -> frozenset[int]:
    """``roots`` and all bodies that hang on them."""
    found = set(roots)
    for body in range(1, model.nbody):  # parents come first
        if model.body_parentid[body] in found:
            found.add(body)
    return frozenset(found)


def geoms_of(model: mujoco.MjModel, bodies: Iterable[int]) -> tuple[int, ...]:
    """The geoms of ``bodies``."""
    return tuple(np.flatnonzero(np.isin(model.geom_bodyid, list(bodies))).tolist())


def things(model: mujoco.MjModel, parts: Parts) -> list[int]:
    """Bodies that can move and are no part of the robot: objects, doors, drawers, buttons."""
    return [body for body in range(1, model.nbody) if model.body_weldid[body] != 0 and body not in parts.robot]


def free_bodies(model: mujoco.MjModel, parts: Parts) -> dict[int, int]:
    """Bodies that are no part of the robot and stand free -> the address of their pose in ``qpos``."""
    return {
        int(model.jnt_bodyid[joint]): int(model.jnt_qposadr[joint])
        for joint in range(model.njnt)
        if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE and int(model.jnt_bodyid[joint]) not in parts.robot
    }


def sliding_bodies(model: mujoco.MjModel, parts: Parts) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Bodies that are no part of the robot and lie on what they slide over, along two level directions.

    Body -> the addresses [2] of its slides in ``qpos``, and the matrix [2, 2] from them to x and y in the world.
    """
    found = {}
    for body in things(model, parts):
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        slides = model.jnt_type[first : first + count] == mujoco.mjtJoint.mjJNT_SLIDE
        if count != 2 or not slides.all() or model.body_weldid[model.body_parentid[body]] != 0:
            continue
        _, frame = static_pose(model, body)
        directions = frame @ model.jnt_axis[first : first + count].T
        if np.abs(directions[2]).max() < _LEVEL and abs(np.linalg.det(directions[:2])) > _LEVEL:
            found[body] = model.jnt_qposadr[first : first + count].copy(), directions[:2]
    return found


def static_pose(model: mujoco.MjModel, body: int) -> tuple[np.ndarray, np.ndarray]:
    """Position [3] m and rotation matrix [3, 3] in the world of a body that never moves."""
    position, rotation = np.zeros(3), np.eye(3)
    matrix = np.empty(9)
    while body:
        mujoco.mju_quat2Mat(matrix, model.body_quat[body])
        local = matrix.reshape(3, 3)
        position, rotation = model.body_pos[body] + local @ position, local @ rotation
        body = int(model.body_parentid[body])
    return position, rotation
