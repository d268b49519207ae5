"""Where things begin: axis ``initial_state.layout``, and what is wrong with a beginning."""

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

from envs.perturbed.changes import Change
from envs.perturbed.parts import Parts, free_bodies

DEEPER = 0.002
"""Two bodies that are so much deeper in one another than they are without a perturbation are stuck [m]."""


def move_things(model: mujoco.MjModel, data: mujoco.MjData, parts: Parts, change: Change) -> None:
    """Move every thing that stands free on its support by ``shift``, and turn it by ``turn`` about the vertical.

    Which way is drawn for each. ``data.qpos`` alone is written.
    """
    for body, place in free_bodies(model, parts).items():
        pose = data.qpos[place : place + 7]
        offset, angle = displacement(change, body)
        turn, turned = np.empty(4), np.empty(4)
        mujoco.mju_axisAngle2Quat(turn, np.array([0.0, 0.0, 1.0]), angle)
        mujoco.mju_mulQuat(turned, turn, pose[3:].copy())
        pose[:2], pose[3:] = pose[:2] + offset, turned


def displacement(change: Change, thing: int) -> tuple[np.ndarray, float]:
    """How far thing number ``thing`` is moved, [2] m, and turned about the vertical [rad]."""
    angle, side = change.draws("thing", thing).uniform([-np.pi, -1.0], [np.pi, 1.0])
    offset = change.amounts["shift"] * np.array([np.cos(angle), np.sin(angle)])
    return offset, float(np.copysign(change.amounts["turn"], side))


@dataclass(frozen=True)
class Standing:
    """How bodies stand: how deep each pair is in one another [m], and where each thing is [m]."""

    depth: Mapping[tuple[int, int], float]
    place: Mapping[int, np.ndarray]

    @classmethod
    def of(cls, model: mujoco.MjModel, data: mujoco.MjData, parts: Parts) -> "Standing":
        """That of ``data``, whose positions and contacts are up to date."""
        depth: dict[tuple[int, int], float] = {}
        for index in range(data.ncon):
            contact = data.contact[index]
            one, other = sorted(int(model.geom_bodyid[geom]) for geom in (contact.geom1, contact.geom2))
            depth[one, other] = max(depth.get((one, other), 0.0), -float(contact.dist))
        return cls(depth, {body: data.xpos[body].copy() for body in free_bodies(model, parts)})

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
            if not _touches(self, body) and _touches(nominal, body):
                return f"{_name(model, body)} begins in the air, beside what it stood on"
        return None


def _touches(standing: Standing, body: int) -> bool:
    return any(body in pair for pair in standing.depth)


def _name(model: mujoco.MjModel, body: int) -> str:
    return mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_BODY, body) or f"body {body}"
