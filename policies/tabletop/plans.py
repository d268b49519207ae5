"""What the expert does for each task: a plan, made of moves."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policies.tabletop.scene import Scene

OPEN, CLOSE, CRADLE = -1.0, 1.0, -0.2
"""Gripper actions; the cradle leaves the fingers half open, two points of contact to push a puck with."""
TRAVEL = 0.12
"""Height of the tip when it moves across the table [m]."""
GRASP_DEPTH = 0.014
"""Least height of the tip [m]."""

Target = tuple[float, float, float, float]
"""Where the tip should be: x, y, z [m] and yaw [rad]."""


@dataclass(frozen=True)
class Move:
    """One move: where to go, the gripper, and when it is over.

    It ends once the tip is within ``tolerance`` [m] of the target and ``steps`` have passed, or ``done`` says so. Then
    ``back`` moves of the plan are repeated unless ``check`` holds.
    """

    target: Callable[[Scene], Target]
    grip: float
    tolerance: float = 0.006
    steps: int = 0
    done: Callable[[Scene], bool] | None = None
    check: Callable[[Scene], bool] | None = None
    back: int = 0
    speed: float = 1.0

    def is_over(self, scene: Scene, steps: int) -> bool:
        """Whether the plan goes on after this move."""
        if self.done is not None:
            return self.done(scene)
        target = self.target(scene)
        near = float(np.abs(scene.tip - target[:3]).max()) < self.tolerance
        turned = abs(float(scene["yaw"][0]) - target[3]) < 0.08
        return near and turned and steps >= self.steps


Plan = tuple[Move, ...]


def _reach(zone: int) -> Plan:
    def over(scene: Scene) -> Target:
        x, y, z = scene["zone_position"][zone]
        return x, y, z + 0.04, 0.0

    return (Move(over, OPEN, done=lambda scene: False),)


def _pick(thing: int) -> Plan:
    def at(height: float | None) -> Callable[[Scene], Target]:
        def target(scene: Scene) -> Target:
            x, y, z = scene["object_position"][thing]
            return x, y, max(z - 0.004, GRASP_DEPTH) if height is None else max(z, height), scene.yaw_of(thing)

        return target

    def lift(scene: Scene) -> Target:
        x, y, _ = scene["tip_target"]
        return x, y, TRAVEL, float(scene["yaw_target"][0])

    def held(scene: Scene) -> bool:
        return bool(np.abs(scene["object_position"][thing] - scene.tip).max() < 0.03)

    return (
        Move(at(0.1), OPEN, tolerance=0.012),
        Move(at(None), OPEN, tolerance=0.005),
        Move(lambda scene: (*scene["tip_target"], float(scene["yaw_target"][0])), CLOSE, tolerance=1.0, steps=3),
        Move(lift, CLOSE, tolerance=0.02, check=held, back=3),
    )


def _release(place: Callable[[Scene], Target], height: float, check: Callable[[Scene], bool], back: int) -> Plan:
    """Carry what is held over ``place``, let it go ``height`` [m] above the least height, and leave upwards."""

    def above(scene: Scene) -> Target:
        x, y, _, yaw = place(scene)
        return x, y, max(TRAVEL, height + 0.06), yaw

    def down(scene: Scene) -> Target:
        x, y, _, yaw = place(scene)
        return x, y, height, yaw

    def stay(scene: Scene) -> Target:
        return (*scene["tip_target"], float(scene["yaw_target"][0]))

    def leave(scene: Scene) -> Target:
        x, y, _ = scene["tip_target"]
        return x, y, max(TRAVEL - 0.02, height + 0.06), float(scene["yaw_target"][0])

    return (
        Move(above, CLOSE, tolerance=0.012),
        Move(down, CLOSE, tolerance=0.005),
        Move(stay, OPEN, tolerance=1.0, steps=2),
        Move(leave, OPEN, tolerance=0.02, check=check, back=back),
    )


def _place_on_zone(thing: int, zone: int) -> Plan:
    def place(scene: Scene) -> Target:
        return (*scene["zone_position"][zone], 0.0)

    def placed(scene: Scene) -> bool:
        return bool(np.hypot(*(scene["object_position"][thing] - scene["zone_position"][zone])[:2]) < 0.04)

    return _pick(thing) + _release(place, GRASP_DEPTH + 0.003, placed, 7)


def _stack(top: int, bottom: int, height: float) -> Plan:
    def place(scene: Scene) -> Target:
        return (*scene["object_position"][bottom], scene.yaw_of(bottom))

    def placed(scene: Scene) -> bool:
        offset = scene["object_position"][top] - scene["object_position"][bottom]
        return bool(np.hypot(*offset[:2]) < 0.02 and offset[2] > 0.03)

    return _pick(top) + _release(place, height + 0.016, placed, 7)


def _push(thing: int, zone: int) -> Plan:
    def direction(scene: Scene) -> np.ndarray:
        way = (scene["zone_position"][zone] - scene["object_position"][thing])[:2]
        return way / max(float(np.hypot(*way)), 1e-6)

    def behind(distance: float, height: float) -> Callable[[Scene], Target]:
        def target(scene: Scene) -> Target:
            x, y = scene["object_position"][thing][:2] - distance * direction(scene)
            dx, dy = direction(scene)
            yaw = (np.arctan2(dy, dx) + np.pi / 2) % np.pi - np.pi / 2
            return float(x), float(y), height, float(yaw)

        return target

    def remaining(scene: Scene) -> float:
        return float(np.hypot(*(scene["zone_position"][zone] - scene["object_position"][thing])[:2]))

    def slipping(scene: Scene) -> bool:
        x, y = (scene["object_position"][thing] - scene.tip)[:2]
        dx, dy = direction(scene)
        return abs(x * dy - y * dx) > 0.025

    def leave(scene: Scene) -> Target:
        x, y, _ = scene["tip_target"]
        return x, y, TRAVEL, float(scene["yaw_target"][0])

    return (
        Move(behind(0.085, 0.1), CRADLE, tolerance=0.015),
        Move(behind(0.085, 0.02), CRADLE, tolerance=0.01),
        Move(behind(0.035, 0.02), CRADLE, speed=0.4, done=lambda scene: remaining(scene) < 0.012 or slipping(scene)),
        Move(leave, CRADLE, tolerance=0.02, check=lambda scene: remaining(scene) < 0.035, back=3),
    )


def _press(button: int) -> Plan:
    def over(height: float) -> Callable[[Scene], Target]:
        def target(scene: Scene) -> Target:
            x, y, z = scene["button_position"][button]
            return x, y, z + height, 0.0

        return target

    return (
        Move(over(0.05), CLOSE, tolerance=0.015),
        Move(over(0.0), CLOSE, done=lambda scene: scene["button_depth"][button] > 0.007),
        Move(over(0.0), CLOSE, tolerance=1.0, steps=3),
        Move(over(0.05), CLOSE, tolerance=0.02),
    )


def _open_drawer(drawer: int) -> Plan:
    def handle(height: float, ahead: float = 0.0) -> Callable[[Scene], Target]:
        def target(scene: Scene) -> Target:
            x, y, _ = scene["drawer_handle"][drawer]
            return x - ahead, y, height, 0.0

        return target

    def is_open(scene: Scene) -> bool:
        return bool(scene["drawer_opening"][drawer] > 0.11)

    return (
        Move(handle(0.1), OPEN, tolerance=0.012),
        Move(handle(0.028), OPEN, tolerance=0.008),
        Move(handle(0.028), CLOSE, tolerance=1.0, steps=3),
        Move(
            handle(0.028, 0.025),
            CLOSE,
            speed=0.8,
            done=lambda scene: is_open(scene) or abs(scene.tip[0] - scene["drawer_handle"][drawer][0]) > 0.04,
        ),
        Move(handle(0.028), OPEN, tolerance=1.0, steps=2),
        Move(handle(0.12), OPEN, tolerance=0.03, check=is_open, back=5),
    )


def _close_drawer(drawer: int) -> Plan:
    def handle(height: float, ahead: float) -> Callable[[Scene], Target]:
        def target(scene: Scene) -> Target:
            x, y, _ = scene["drawer_handle"][drawer]
            return x - ahead, y, height, 0.0

        return target

    def is_closed(scene: Scene) -> bool:
        return bool(scene["drawer_opening"][drawer] < 0.005)

    return (
        Move(handle(0.12, 0.045), CLOSE, tolerance=0.015),
        Move(handle(0.035, 0.045), CLOSE, tolerance=0.012),
        Move(handle(0.035, -0.01), CLOSE, done=is_closed),
        Move(handle(0.035, 0.05), CLOSE, tolerance=0.015, check=is_closed, back=3),
    )


def _put_in_drawer(thing: int, drawer: int) -> Plan:
    def place(scene: Scene) -> Target:
        x, y, _ = scene["drawer_handle"][drawer]
        return x + 0.09, y, 0.0, 0.0

    def placed(scene: Scene) -> bool:
        x, y, _, _ = place(scene)
        return bool(np.abs(scene["object_position"][thing][:2] - (x, y)).max() < 0.05)

    return _pick(thing) + _release(place, 0.045, placed, 7)


PLANS: dict[str, Callable[..., Plan]] = {
    "reach": lambda zone: _reach(zone),
    "push": lambda object, zone: _push(object, zone),
    "pick_place_colour": lambda object, zone: _place_on_zone(object, zone),
    "pick_place_shape": lambda shape, zone: _place_on_zone(shape, zone),
    "stack": lambda object1, object2: _stack(object1, object2, 0.04),
    "tower": lambda object1, object2, object3: _stack(object2, object1, 0.04) + _stack(object3, object2, 0.08),
    "sort": lambda object1, zone1, object2, zone2: _place_on_zone(object1, zone1) + _place_on_zone(object2, zone2),
    "press_button": lambda button: _press(button),
    "press_sequence": lambda button1, button2, button3: _press(button1) + _press(button2) + _press(button3),
    "open_drawer": lambda drawer: _open_drawer(drawer),
    "close_drawer": lambda drawer: _close_drawer(drawer),
    "put_in_drawer": lambda object, drawer: _open_drawer(drawer) + _put_in_drawer(object, drawer),
    "stow": lambda object, drawer: _put_in_drawer(object, drawer) + _close_drawer(drawer),
}
