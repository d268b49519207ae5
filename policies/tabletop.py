"""The scripted expert of the tabletop: it reads the sentence and the privileged ``state``, and follows a plan of moves.

A sentence becomes a plan: a tuple of ``Move``s. The memory is the place in the plan and the steps spent there, so a
forked episode goes on as its parent would. What a move needs is read from the current state alone, which makes the
expert robust to noise and to being interrupted; a move whose outcome is wrong sends it back to where the attempt began.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation

OPEN, CLOSE, CRADLE = -1.0, 1.0, -0.2
"""Gripper actions; the cradle leaves the fingers half open, two points of contact to push a puck with."""
TRAVEL = 0.12
"""Height of the tip when it moves across the table [m]."""
GRASP_DEPTH = 0.014
"""Least height of the tip [m]."""

Target = tuple[float, float, float, float]
"""Where the tip should be: x, y, z [m] and yaw [rad]."""


@cache
def _data(name: str) -> Mapping[str, Any]:
    return json.loads((files("assets") / "tabletop" / name).read_text())


class Scene:
    """One row of the ``state`` observation by name. Objects, zones, buttons and drawers are numbered."""

    def __init__(self, state: np.ndarray):
        self._state = state.astype(np.float64)

    def __getitem__(self, name: str) -> np.ndarray:
        place, shape = _places()[name]
        return self._state[place].reshape(shape)

    def thing(self, color: str | None, shape: str | None) -> int | None:
        """The object of this colour and shape (any, where none), if there is one."""
        match = self["object_present"] > 0.5
        if shape is not None:
            match &= self["object_shape"][:, _data("layout.json")["shapes"].index(shape)] > 0.5
        if color is not None:
            match &= self["object_color"][:, _color(color)] > 0.5
        return _first(match)

    def zone(self, color: str | None) -> int | None:
        """The zone of this colour."""
        return _first(self["zone_color"][:, _color(color)] > 0.5)

    def button(self, color: str | None) -> int | None:
        """The button of this colour."""
        return _first(self["button_color"][:, _color(color)] > 0.5)

    @property
    def tip(self) -> np.ndarray:
        """The tip [3] m."""
        return self["tip_position"]

    def yaw_of(self, thing: int) -> float:
        """The smallest turn of the gripper that lines up its fingers with the sides of an object [rad]."""
        w, x, y, z = self["object_quaternion"][thing]
        yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
        return float((yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4)


@cache
def _places() -> dict[str, tuple[slice, tuple[int, ...]]]:
    places, offset = {}, 0
    for name, shape in _data("layout.json")["state"]:
        size = int(np.prod(shape))
        places[name] = slice(offset, offset + size), tuple(shape)
        offset += size
    return places


def _color(name: str | None) -> int:
    return list(_data("layout.json")["colors"]).index(name)


def _first(match: np.ndarray) -> int | None:
    found = np.flatnonzero(match)
    return int(found[0]) if found.size else None


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

    def leave(scene: Scene) -> Target:
        x, y, _ = scene["tip_target"]
        return x, y, TRAVEL, float(scene["yaw_target"][0])

    return (
        Move(behind(0.085, 0.1), CRADLE, tolerance=0.015),
        Move(behind(0.085, 0.02), CRADLE, tolerance=0.01),
        Move(behind(0.035, 0.02), CRADLE, speed=0.4, done=lambda scene: remaining(scene) < 0.012),
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


@dataclass(frozen=True)
class Reference:
    """How a sentence names a thing: ``role`` is its placeholder (``object1``, ``zone``), the rest the words used."""

    role: str
    color: str | None = None
    shape: str | None = None
    side: str | None = None

    def find(self, scene: Scene) -> int | None:
        """The number of the thing in the scene, if it is there."""
        kind = self.role.rstrip("0123456789")
        if kind == "zone":
            return scene.zone(self.color)
        if kind == "button":
            return scene.button(self.color)
        if kind == "drawer":
            return _data("layout.json")["drawers"].index(self.side)
        return scene.thing(self.color, self.shape)


@dataclass(frozen=True)
class Sentence:
    """What an instruction asks for: a task and the things that it is about."""

    task: str
    references: tuple[Reference, ...]


_PLANS: dict[str, Callable[..., Plan]] = {
    "reach": lambda zone: _reach(zone),
    "push": lambda object, zone: _push(object, zone),
    "place_by_color": lambda object, zone: _place_on_zone(object, zone),
    "place_by_shape": lambda shape, zone: _place_on_zone(shape, zone),
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


@lru_cache(maxsize=4096)
def parse(instruction: str) -> Sentence:
    """What ``instruction`` asks for; ``ConfigError`` if it is no sentence of the tabletop's grammar."""
    for task, pattern in _patterns():
        match = pattern.fullmatch(instruction)
        if match:
            words: dict[str, dict[str, str]] = {}
            for group, value in match.groupdict().items():
                role, *word = group.split("__")
                if word and value is not None:
                    words.setdefault(role, {})[word[0]] = _shape_names().get(value, value)
            return Sentence(task, tuple(Reference(role, **said) for role, said in words.items()))
    examples = "; ".join(templates[0] for templates in list(_data("grammar.json")["templates"].values())[:4])
    raise ConfigError(
        f"the tabletop expert cannot read the instruction {instruction!r}; it knows sentences such as: {examples} "
        "(assets/tabletop/grammar.json)"
    )


@cache
def _shape_names() -> dict[str, str]:
    return {word: shape for shape, words in _data("grammar.json")["shapes"].items() for word in words}


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Task and regular expression of each template; its groups are ``role`` and ``role__word__alternative``."""
    grammar, layout = _data("grammar.json"), _data("layout.json")
    vocabulary = {
        "color": list(layout["colors"]),
        "shape": list(_shape_names()),
        "side": list(layout["drawers"]),
    }

    def phrase(role: str) -> str:
        options = [
            re.sub(r"\{(\w+)\}", lambda m: f"(?P<{role}__{m[1]}__{number}>{'|'.join(vocabulary[m[1]])})", text)  # noqa: B023
            for number, text in enumerate(grammar["phrases"][role.rstrip("0123456789")])
        ]
        return f"(?P<{role}>{'|'.join(options)})"

    def pattern(template: str) -> str:
        said: set[str] = set()

        def once(match: re.Match[str]) -> str:
            role = match[1]
            if role in said:
                return f"(?P={role})"
            said.add(role)
            return phrase(role)

        return re.sub(r"\{(\w+)\}", once, template)

    return [
        (task, re.compile(pattern(template)))
        for task, templates in grammar["templates"].items()
        for template in templates
    ]


@lru_cache(maxsize=4096)
def _plan(task: str, things: tuple[tuple[str, int], ...]) -> Plan:
    return _PLANS[task](**dict(things))


class TabletopExpert(Policy):
    """Solves every tabletop task from the privileged state and the sentence. Success is measured in docs/tabletop.md.

    It acts on what the sentence says, not on what the World judges. A sentence about a thing that is not there leaves it
    waiting; a sentence outside the grammar raises ``ConfigError``.
    """

    observation_keys = ("state",)

    def initial_memory(self, n: int) -> Memory:
        """``move`` [n], the place in the plan, and ``steps`` [n], control steps spent in that move."""
        return {"move": np.zeros(n, dtype=np.int64), "steps": np.zeros(n, dtype=np.int64)}

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``; deterministic, ``keys`` are not used."""
        states = np.asarray(observation["state"])
        move, steps = memory["move"].copy(), memory["steps"].copy()
        action = np.zeros((len(states), 5), dtype=np.float32)
        for row, state in enumerate(states):
            scene, sentence = Scene(state), parse(instruction[row])
            things = tuple((reference.role, reference.find(scene)) for reference in sentence.references)
            found = tuple((role, thing) for role, thing in things if thing is not None)
            if len(found) < len(things):
                continue
            plan = _plan(sentence.task, found)
            move[row], steps[row] = _follow(plan, scene, int(move[row]), int(steps[row]))
            action[row] = _action(plan, scene, int(move[row]))
        return PolicyStep(action, {"move": move, "steps": steps})


def _follow(plan: Plan, scene: Scene, place: int, steps: int) -> tuple[int, int]:
    """Place in the plan and steps spent there, for the step about to be taken; a finished plan stays at its end."""
    if place >= len(plan):
        return place, steps
    move = plan[place]
    if not move.is_over(scene, steps):
        return place, steps + 1
    if move.check is not None and not move.check(scene):
        return place - move.back, 1
    return place + 1, 1


def _action(plan: Plan, scene: Scene, place: int) -> np.ndarray:
    move = plan[min(place, len(plan) - 1)]
    scale = np.array(_data("layout.json")["action"]["scale"])
    if place >= len(plan):
        return np.array([0, 0, 0, 0, move.grip], dtype=np.float32)
    target = np.array(move.target(scene))
    before = np.append(scene["tip_target"], scene["yaw_target"])
    change = np.clip((target - before) / scale[:4], -move.speed, move.speed)
    return np.append(change, move.grip).astype(np.float32)
