"""Where things begin: axis ``initial_state.layout``, and what is wrong with a beginning."""

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

from envs.perturbed.changes import Change
from envs.perturbed.parts import Parts, free_bodies, sliding_bodies

DEEPER = 0.002
"""Two bodies that are so much deeper in one another than they are without a perturbation are stuck [m]."""


def movable(model: mujoco.MjModel, parts: Parts) -> bool:
    """Whether there is a thing that :func:`move_things` moves."""
    return bool(free_bodies(model, parts) or sliding_bodies(model, parts) or parts.placed)


def move_things(model: mujoco.MjModel, data: mujoco.MjData, parts: Parts, change: Change) -> None:
    """Move every thing by ``shift``, and turn it by ``turn`` about the vertical; which way is drawn for each.

    Things are what stands free, what lies on slides, which is not turned, and what ``parts`` says is placed; written
    are ``data.qpos`` and, of what is placed, ``model.body_pos`` and ``body_quat``.
    """
    for body, place in free_bodies(model, parts).items():
        pose = data.qpos[place : place + 7]
        _move(pose[:3], pose[3:], *displacement(change, body))
    for body in parts.placed:
        _move(model.body_pos[body], model.body_quat[body], *displacement(change, body))
    for body, (places, directions) in sliding_bodies(model, parts).items():
        data.qpos[places] += np.linalg.solve(directions, displacement(change, body)[0])


def _move(position: np.ndarray, quaternion: np.ndarray, offset: np.ndarray, angle: float) -> None:
    """Move [3] m and turn [4] in place."""
    turn, turned = np.empty(4), np.empty(4)
    mujoco.mju_axisAngle2Quat(turn, np.array([0.0, 0.0, 1.0]), angle)
    mujoco.mju_mulQuat(turned, turn, quaternion.copy())
    position[:2], quaternion[:] = position[:2] + offset, turned


def displacement(change: Change, thing: int) -> tuple[np.ndarray, float]:
    """How far thing number ``thing`` is moved, [2] m, and turned about the vertical [rad]."""
    angle, side = change.draws("thing", thing).uniform([-np.pi, -1.0], [np.pi, 1.0])
    offset = change.amounts["shift"] * np.array([np.cos(angle), np.sin(angle)])
    return offset, float(np.copysign(change.amounts["turn"], side))


@dataclass(frozen=True)
class Standing:
    """How bodies stand: how deep each pair is in one another [m], where each thing is [m], and how far each slide of
    one is beyond its end [m]."""

    depth: Mapping[tuple[int, int], float]
    place: Mapping[int, np.ndarray]
    beyond: Mapping[int, float]

    @classmethod
    def of(cls, model: mujoco.MjModel, data: mujoco.MjData, parts: Parts) -> "Standing":
        """That of ``data``, whose positions and contacts are up to date."""
        depth: dict[tuple[int, int], float] = {}
        for index in range(data.ncon):
            contact = data.contact[index]
            one, other = sorted(int(model.geom_bodyid[geom]) for geom in (contact.geom1, contact.geom2))
            depth[one, other] = max(depth.get((one, other), 0.0), -float(contact.dist))
        sliding = sliding_bodies(model, parts)
        place = {body: data.xpos[body].copy() for body in (*free_bodies(model, parts), *parts.placed, *sliding)}
        return cls(depth, place, {body: _beyond(model, data, body) for body in sliding})

    def objection(self, nominal: "Standing", model: mujoco.MjModel, parts: Parts) -> str | None:
        """What is wrong with it that is not so without the perturbation; none if nothing is."""
        for (one, other), depth in self.depth.items():
            deeper = depth - max(nominal.depth.get((one, other), 0.0), 0.0)
            if deeper > DEEPER:
                return f"{_name(model, one)} is {1e3 * depth:.1f} mm deep in {_name(model, other)}"
        for body, place in self.place.items():
            before = nominal.place[body]
            if np.array_equal(place, before):
                continue
            low, high = (np.asarray(corner) for corner in parts.workspace)
            if ((place[:2] < low) | (place[:2] > high)).any() and ((before[:2] >= low) & (before[:2] <= high)).all():
                return f"{_name(model, body)} begins at x={place[0]:.3f}, y={place[1]:.3f} m, outside the workspace"
            if self.beyond.get(body, 0.0) > nominal.beyond.get(body, 0.0):
                return f"{_name(model, body)} begins {1e3 * self.beyond[body]:.1f} mm beyond the end of its slide"
            if not _touches(self, body) and _touches(nominal, body):
                return f"{_name(model, body)} begins in the air, beside what it stood on"
        return None


def _touches(standing: Standing, body: int) -> bool:
    return any(body in pair for pair in standing.depth)


def _beyond(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> float:
    own = slice(model.body_jntadr[body], model.body_jntadr[body] + model.body_jntnum[body])
    at, limited = data.qpos[model.jnt_qposadr[own]], model.jnt_limited[own].astype(bool)
    low, high = model.jnt_range[own].T
    return float(np.where(limited, np.maximum(low - at, at - high), 0.0).clip(0.0).max())


def _name(model: mujoco.MjModel, body: int) -> str:
    """Its name, or that of the first of its geoms that has one."""
    first = int(model.body_geomadr[body])
    names = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, body)]
    names += [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_GEOM, first + n) for n in range(model.body_geomnum[body])]
    return next(filter(None, names), f"body {body}")
