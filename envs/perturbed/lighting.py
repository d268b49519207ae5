"""Axis ``lighting``: the colours and directions of a model's lamps and of its headlight."""

import mujoco
import numpy as np

from envs.perturbed.changes import Change
from envs.perturbed.parts import Parts

_LOWEST, _HIGHEST = np.deg2rad(10.0), np.deg2rad(90.0)


def light(model: mujoco.MjModel, parts: Parts, change: Change) -> None:
    """Change all light.

    All colours go up by ``exposure``; red over blue by ``warmth``, green over red and blue by ``tint``, the brightness
    about the same; the ambient colours by ``ambient`` more. Lamps that stand in the world move about the scene's focus
    by ``elevation`` and ``azimuth``. Where there is no ambient light at all, there is none to change.
    """
    amount = change.amounts
    balance = np.exp2(
        [
            amount["exposure"] + amount["warmth"] / 2 - amount["tint"] / 3,
            amount["exposure"] + amount["tint"] * 2 / 3,
            amount["exposure"] - amount["warmth"] / 2 - amount["tint"] / 3,
        ]
    )
    head = model.vis.headlight
    for colours in (model.light_diffuse, model.light_specular, head.diffuse, head.specular):
        colours[:] = colours * balance
    for colours in (model.light_ambient, head.ambient):
        colours[:] = colours * balance * np.exp2(amount["ambient"])
    if amount["elevation"] or amount["azimuth"]:
        for lamp in range(model.nlight):
            if model.light_bodyid[lamp] == 0:
                _move(model, lamp, np.asarray(parts.focus), *np.deg2rad([amount["elevation"], amount["azimuth"]]))


def _move(model: mujoco.MjModel, lamp: int, focus: np.ndarray, elevation: float, azimuth: float) -> None:
    """Move a lamp of the world, and what it shines at, about ``focus``; no light comes from below 10 degrees."""
    towards = -model.light_dir[lamp] / np.linalg.norm(model.light_dir[lamp])
    height = np.arcsin(np.clip(towards[2], -1.0, 1.0))
    bearing = np.arctan2(towards[1], towards[0]) if np.hypot(towards[0], towards[1]) > 1e-6 else 0.0
    risen = np.clip(height + elevation, min(_LOWEST, height), _HIGHEST)
    before, after = _frame(bearing, height), _frame(bearing + azimuth, risen)
    turn = after @ before.T
    model.light_dir[lamp] = turn @ model.light_dir[lamp]
    model.light_pos[lamp] = focus + turn @ (model.light_pos[lamp] - focus)


def _frame(bearing: float, height: float) -> np.ndarray:
    """A right-handed frame whose first axis points to ``bearing`` and ``height`` [rad], the second to the left."""
    cos, sin, up, along = np.cos(bearing), np.sin(bearing), np.sin(height), np.cos(height)
    first = np.array([along * cos, along * sin, up])
    second = np.array([-sin, cos, 0.0])
    return np.stack([first, second, np.cross(first, second)], axis=1)
