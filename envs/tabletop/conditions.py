"""What can be true of the scene: the conditions that stages and goals of tasks are made of, over a batch of slots.

A condition is three integers ``(kind, a, b)``, so that the goals of slots with different tasks are one array and are
checked together, kind by kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from envs.tabletop.scene import Scene, View

ZONE_RADIUS = 0.055
PRESSED_DEPTH = 0.006
OPEN_AT = 0.09
CLOSED_AT = 0.01
REST_SPEED = 0.03


class Kind(IntEnum):
    """Kinds of condition, with the meaning of their arguments."""

    NONE = 0
    REACHED = 1
    """The tip is low over zone a."""
    HELD = 2
    """Object a is between the fingers, off the ground."""
    IN_ZONE = 3
    """Object a lies on the table with its middle in zone b, at rest and released."""
    STACKED = 4
    """Object a lies on object b, both at rest and released."""
    IN_DRAWER = 5
    """Object a lies in drawer b, at rest and released."""
    OPEN = 6
    """Drawer a is open."""
    CLOSED = 7
    """Drawer a is closed."""
    PRESSED = 8
    """Button a is down."""


@dataclass(frozen=True)
class Facts:
    """All that conditions are judged by."""

    scene: Scene
    view: View
    zone_position: np.ndarray
    """[n, 3, 3] m."""


Check = Callable[[Facts, np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def evaluate(conditions: np.ndarray, facts: Facts) -> tuple[np.ndarray, np.ndarray]:
    """For ``conditions`` ``[n, K, 3]``: which hold ``[n, K]`` bool, and how close each is, in [0, 1], ``[n, K]``."""
    holds = np.zeros(conditions.shape[:2], dtype=bool)
    closeness = np.zeros(conditions.shape[:2])
    kinds = conditions[..., 0]
    for kind, check in _CHECKS.items():
        rows, places = np.nonzero(kinds == kind)
        if rows.size:
            _, a, b = conditions[rows, places].T
            holds[rows, places], closeness[rows, places] = check(facts, rows, a, b)
    return holds, closeness


def _near(distance: np.ndarray) -> np.ndarray:
    return 1.0 - np.tanh(6.0 * distance)


def _norm(vector: np.ndarray) -> np.ndarray:
    return np.sqrt((vector * vector).sum(axis=-1))


def _resting(facts: Facts, rows: np.ndarray, a: np.ndarray) -> np.ndarray:
    return (_norm(facts.view.velocity[rows, a]) < REST_SPEED) & ~facts.view.contact[rows, a]


def _reached(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    offset = facts.view.tip[rows] - facts.zone_position[rows, a] - [0, 0, 0.04]
    slow = _norm(facts.view.tip_velocity[rows]) < 0.1
    return (_norm(offset[:, :2]) < 0.02) & (np.abs(offset[:, 2]) < 0.025) & slow, _near(_norm(offset))


def _held(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    position = facts.view.position[rows, a]
    squeezed = (facts.view.touch[rows] > 0.2).all(axis=1) & facts.view.contact[rows, a]
    lifted = position[:, 2] > facts.scene.half_height[a] + 0.015
    return squeezed & lifted, _near(_norm(position - facts.view.tip[rows]))


def _in_zone(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    position = facts.view.position[rows, a]
    distance = _norm(position[:, :2] - facts.zone_position[rows, b, :2])
    on_table = position[:, 2] < facts.scene.half_height[a] + 0.008
    return (distance < ZONE_RADIUS - 0.01) & on_table & _resting(facts, rows, a), _near(distance)


def _stacked(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    offset = facts.view.position[rows, a] - facts.view.position[rows, b]
    offset[:, 2] -= facts.scene.half_height[a] + facts.scene.half_height[b]
    on_top = (_norm(offset[:, :2]) < 0.022) & (np.abs(offset[:, 2]) < 0.006)
    return on_top & _resting(facts, rows, a) & _resting(facts, rows, b), _near(_norm(offset))


def _in_drawer(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    drawer = facts.scene.drawer_closed[b].copy()
    drawer[:, 0] -= facts.view.drawer_opening[rows, b]
    offset = facts.view.position[rows, a] - drawer
    inside = (np.abs(offset[:, 0]) < 0.06) & (np.abs(offset[:, 1]) < 0.064) & (offset[:, 2] < 0.05)
    # Relative to the drawer, which may be on its way: what lies in it is released, not still.
    return inside & ~facts.view.contact[rows, a], _near(_norm(offset))


def _open(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    opening = facts.view.drawer_opening[rows, a]
    return opening > OPEN_AT, np.clip(opening / OPEN_AT, 0.0, 1.0)


def _closed(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    opening = facts.view.drawer_opening[rows, a]
    return opening < CLOSED_AT, 1.0 - np.clip(opening / OPEN_AT, 0.0, 1.0)


def _pressed(facts: Facts, rows: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distance = _norm(facts.scene.button_top[a] - facts.view.tip[rows])
    return facts.view.button_depth[rows, a] > PRESSED_DEPTH, _near(distance)


_CHECKS: dict[Kind, Check] = {
    Kind.REACHED: _reached,
    Kind.HELD: _held,
    Kind.IN_ZONE: _in_zone,
    Kind.STACKED: _stacked,
    Kind.IN_DRAWER: _in_drawer,
    Kind.OPEN: _open,
    Kind.CLOSED: _closed,
    Kind.PRESSED: _pressed,
}
