"""One row of the tabletop's ``state`` observation, by name; the names come from the assets that the World shares."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np


@cache
def shared(name: str) -> Mapping[str, Any]:
    """One JSON file of ``assets/tabletop``."""
    return json.loads((files("assets") / "tabletop" / name).read_text())


class Scene:
    """One row of the ``state`` observation by name. Objects, zones, buttons and drawers are numbered."""

    def __init__(self, state: np.ndarray):
        self._state = state.astype(np.float64)

    def __getitem__(self, name: str) -> np.ndarray:
        place, shape = _places()[name]
        return self._state[place].reshape(shape)

    def thing(self, colour: str | None, shape: str | None) -> int | None:
        """The object of this colour and shape (any, where none), if there is one."""
        match = self["object_present"] > 0.5
        if shape is not None:
            match &= self["object_shape"][:, shared("layout.json")["shapes"].index(shape)] > 0.5
        if colour is not None:
            match &= self["object_colour"][:, _colour(colour)] > 0.5
        return _first(match)

    def zone(self, colour: str | None) -> int | None:
        """The zone of this colour."""
        return _first(self["zone_colour"][:, _colour(colour)] > 0.5)

    def button(self, colour: str | None) -> int | None:
        """The button of this colour."""
        return _first(self["button_colour"][:, _colour(colour)] > 0.5)

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
    for name, shape in shared("layout.json")["state"]:
        size = int(np.prod(shape))
        places[name] = slice(offset, offset + size), tuple(shape)
        offset += size
    return places


def _colour(name: str | None) -> int:
    return list(shared("layout.json")["colours"]).index(name)


def _first(match: np.ndarray) -> int | None:
    found = np.flatnonzero(match)
    return int(found[0]) if found.size else None
