"""The tasks: how each draws its layout, goal and sentence. A task is one function and one line in ``TASKS``."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from envs.tabletop.conditions import ZONE_RADIUS, Kind
from envs.tabletop.scene import asset, layout

MAX_STAGES = 4
BLOCKS = (0, 1, 2)
CYLINDER, BALL = 3, 4
PUCKS = (5, 6)

AREA = ((-0.19, 0.11), (-0.25, 0.25))
AREA_BEFORE_DRAWERS = ((-0.2, -0.03), (-0.24, 0.24))
_AREA_TO_PUSH_IN = ((-0.11, 0.06), (-0.18, 0.18))
CLEARANCE = {"block": 0.05, "cylinder": 0.05, "ball": 0.05, "puck": 0.075}
ZONE_CLEARANCE = ZONE_RADIUS + 0.01

Area = tuple[tuple[float, float], tuple[float, float]]


@cache
def _grammar() -> dict[str, Any]:
    return json.loads(asset("grammar.json"))


@dataclass
class Draft:
    """The beginning of one episode, as a task draws it; positions [m] on the table, drawer openings [m]."""

    rng: np.random.Generator
    area: Area = AREA
    objects: dict[int, tuple[str, np.ndarray, float]] = field(default_factory=dict)
    """Object -> colour, place [2], yaw."""
    zones: dict[int, tuple[str, np.ndarray]] = field(default_factory=dict)
    buttons: list[str] = field(default_factory=list)
    drawers: np.ndarray = field(default_factory=lambda: np.zeros(2))
    conditions: list[tuple[Kind, int, int]] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)

    def choose(self, options: Any, count: int) -> list[Any]:
        """``count`` distinct options in random order."""
        return [options[index] for index in self.rng.permutation(len(options))[:count]]

    def put(self, objects: tuple[int, ...], num_zones: int = 0) -> None:
        """Place ``objects`` and zones, each kind in colours of its own, where none is in another's way."""
        colours = list(layout()["colours"])
        items: list[tuple[str, int, float, str]] = []
        for index, colour in enumerate(self.choose(colours, num_zones)):
            items.append(("zone", index, ZONE_CLEARANCE, colour))
        for index, colour in zip(objects, self.choose(colours, len(objects)), strict=True):
            items.append(("object", index, CLEARANCE[layout()["object_shapes"][index]], colour))
        places = self._places([clearance for _, _, clearance, _ in items])
        for (what, index, _, colour), place in zip(items, places, strict=True):
            if what == "zone":
                self.zones[index] = colour, place
            else:
                self.objects[index] = colour, place, float(self.rng.uniform(-np.pi, np.pi))

    def _places(self, clearances: list[float]) -> list[np.ndarray]:
        low, high = np.array(self.area).T
        while True:
            places: list[np.ndarray] = []
            for _ in range(200):
                place = self.rng.uniform(low, high)
                needed = clearances[len(places)]
                if all(np.hypot(*(place - p)) >= needed + c for p, c in zip(places, clearances, strict=False)):
                    places.append(place)
                    if len(places) == len(clearances):
                        return places

    def stage(self, kind: Kind, a: int, b: int = 0, final: bool = False) -> None:
        """Add a stage; the ``final`` ones must hold together for success."""
        self.conditions.append((kind, a, b))
        self.final.append(final)

    def say(self, name: str, kind: str, index: int) -> None:
        """Fill the placeholder ``name`` of the sentence with a phrase for object, zone, button or drawer ``index``."""
        phrase = str(self.rng.choice(_grammar()["phrases"][kind]))
        values = {}
        if kind in ("object", "shape"):
            shape = layout()["object_shapes"][index]
            values = {"colour": self.objects[index][0], "shape": str(self.rng.choice(_grammar()["shapes"][shape]))}
        elif kind == "zone":
            values = {"colour": self.zones[index][0]}
        elif kind == "button":
            values = {"colour": self.buttons[index]}
        elif kind == "drawer":
            values = {"side": layout()["drawers"][index]}
        self.words[name] = phrase.format(**values)


@dataclass(frozen=True)
class Task:
    """One task: ``draw`` fills a draft; ``ordered`` stages count in turn only, and a wrong button starts over."""

    name: str
    horizon: int
    draw: Callable[[Draft], None]
    ordered: bool = False

    def begin(self, rng: np.random.Generator) -> tuple[Draft, str]:
        """A draft of an episode and its instruction."""
        draft = Draft(rng)
        draft.buttons = draft.choose(list(layout()["colours"]), 3)
        self.draw(draft)
        template = str(rng.choice(_grammar()["templates"][self.name]))
        return draft, template.format(**draft.words)


def _reach(draft: Draft) -> None:
    draft.put((), num_zones=3)
    (zone,) = draft.choose(list(draft.zones), 1)
    draft.say("zone", "zone", zone)
    draft.stage(Kind.REACHED, zone, final=True)


def _push(draft: Draft) -> None:
    draft.area = _AREA_TO_PUSH_IN
    puck, zone = draft.choose(PUCKS, 1)[0], int(draft.rng.integers(2))
    while True:
        draft.put(PUCKS, num_zones=2)
        start, end = draft.objects[puck][1], draft.zones[zone][1]
        other = draft.objects[PUCKS[0] if puck == PUCKS[1] else PUCKS[1]][1]
        if distance_to_segment(other, start - 0.11 * _unit(end - start), end) > 0.105:
            break
    draft.say("object", "object", puck)
    draft.say("zone", "zone", zone)
    draft.stage(Kind.IN_ZONE, puck, zone, final=True)


def _place(objects: tuple[int, ...], name: str) -> Callable[[Draft], None]:
    def draw(draft: Draft) -> None:
        draft.put(objects, num_zones=2)
        thing, zone = draft.choose(objects, 1)[0], int(draft.rng.integers(2))
        draft.say(name, name, thing)
        draft.say("zone", "zone", zone)
        draft.stage(Kind.HELD, thing)
        draft.stage(Kind.IN_ZONE, thing, zone, final=True)

    return draw


def _stack(draft: Draft) -> None:
    draft.put(BLOCKS)
    top, bottom = draft.choose(BLOCKS, 2)
    draft.say("object1", "object", top)
    draft.say("object2", "object", bottom)
    draft.stage(Kind.HELD, top)
    draft.stage(Kind.STACKED, top, bottom, final=True)


def _tower(draft: Draft) -> None:
    draft.put(BLOCKS)
    bottom, middle, top = draft.choose(BLOCKS, 3)
    for name, thing in (("object1", bottom), ("object2", middle), ("object3", top)):
        draft.say(name, "object", thing)
    draft.stage(Kind.HELD, middle)
    draft.stage(Kind.STACKED, middle, bottom, final=True)
    draft.stage(Kind.HELD, top)
    draft.stage(Kind.STACKED, top, middle, final=True)


def _sort(draft: Draft) -> None:
    things = (BLOCKS[0], BLOCKS[1], CYLINDER)
    draft.put(things, num_zones=3)
    pairs = list(zip(draft.choose(things, 2), draft.choose(list(draft.zones), 2), strict=True))
    for number, (thing, zone) in enumerate(pairs, start=1):
        draft.say(f"object{number}", "object", thing)
        draft.say(f"zone{number}", "zone", zone)
        draft.stage(Kind.HELD, thing)
        draft.stage(Kind.IN_ZONE, thing, zone, final=True)


def _press_button(draft: Draft) -> None:
    button = int(draft.rng.integers(3))
    draft.say("button", "button", button)
    draft.stage(Kind.PRESSED, button, final=True)


def _press_sequence(draft: Draft) -> None:
    for number, button in enumerate(draft.choose((0, 1, 2), 3), start=1):
        draft.say(f"button{number}", "button", button)
        draft.stage(Kind.PRESSED, button)


def _open_drawer(draft: Draft) -> None:
    drawer = int(draft.rng.integers(2))
    draft.drawers[:] = draft.rng.uniform(0.0, 0.02, size=2)
    draft.say("drawer", "drawer", drawer)
    draft.stage(Kind.OPEN, drawer, final=True)


def _close_drawer(draft: Draft) -> None:
    drawer = int(draft.rng.integers(2))
    draft.drawers[:] = draft.rng.uniform(0.09, 0.12, size=2)
    draft.say("drawer", "drawer", drawer)
    draft.stage(Kind.CLOSED, drawer, final=True)


def _put_in_drawer(draft: Draft) -> None:
    draft.area = AREA_BEFORE_DRAWERS
    draft.put(BLOCKS[:2])
    thing, drawer = draft.choose(BLOCKS[:2], 1)[0], int(draft.rng.integers(2))
    draft.say("object", "object", thing)
    draft.say("drawer", "drawer", drawer)
    draft.stage(Kind.OPEN, drawer)
    draft.stage(Kind.HELD, thing)
    draft.stage(Kind.IN_DRAWER, thing, drawer, final=True)


def _stow(draft: Draft) -> None:
    draft.area = AREA_BEFORE_DRAWERS
    draft.put(BLOCKS[:2])
    draft.drawers[:] = draft.rng.uniform(0.11, 0.12, size=2)
    thing, drawer = draft.choose(BLOCKS[:2], 1)[0], int(draft.rng.integers(2))
    draft.say("object", "object", thing)
    draft.say("drawer", "drawer", drawer)
    draft.stage(Kind.HELD, thing)
    draft.stage(Kind.IN_DRAWER, thing, drawer, final=True)
    draft.stage(Kind.CLOSED, drawer, final=True)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.hypot(*vector)


def distance_to_segment(point: np.ndarray, start: np.ndarray, end: np.ndarray) -> float:
    """How far ``point`` is from the way from ``start`` to ``end`` [m]."""
    along = np.clip((point - start) @ (end - start) / ((end - start) @ (end - start)), 0.0, 1.0)
    return float(np.hypot(*(point - start - along * (end - start))))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("reach", 50, _reach),
        Task("push", 150, _push),
        Task("pick_place_colour", 130, _place(BLOCKS, "object")),
        Task("pick_place_shape", 130, _place((BLOCKS[0], CYLINDER, BALL), "shape")),
        Task("stack", 130, _stack),
        Task("tower", 260, _tower),
        Task("sort", 250, _sort),
        Task("press_button", 60, _press_button),
        Task("press_sequence", 140, _press_sequence, ordered=True),
        Task("open_drawer", 70, _open_drawer),
        Task("close_drawer", 60, _close_drawer),
        Task("put_in_drawer", 200, _put_in_drawer),
        Task("stow", 180, _stow),
    )
}
