"""What a perturbation of a MuJoCo World may say: the components of each axis, with their units."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from simeval.errors import ConfigError, UnsupportedError, unknown
from simeval.noise import Key
from simeval.types import Perturbation

COMPONENTS: Mapping[str, Mapping[str, str]] = {
    "camera": {
        "azimuth": "deg",
        "elevation": "deg",
        "distance": "m",
        "look_right": "m",
        "look_up": "m",
        "fov": "deg",
        "wrist": "0 or 1: whether the cameras on the robot move too",
    },
    "lighting": {
        "exposure": "EV",
        "warmth": "log2 of red over blue",
        "tint": "log2 of green over magenta",
        "ambient": "EV",
        "elevation": "deg",
        "azimuth": "deg",
    },
    "appearance": {
        "object_colour": "0..1",
        "object_hue": "turns",
        "object_texture": "0..1",
        "table_colour": "0..1",
        "table_texture": "0..1",
        "background_colour": "0..1",
        "background_texture": "0..1",
    },
    "appearance.distractors": {"count": "objects"},
    "initial_state.robot": {"x": "m", "y": "m", "z": "m", "roll": "rad", "pitch": "rad", "yaw": "rad"},
    "initial_state.layout": {"shift": "m", "turn": "rad"},
    "dynamics": {"mass": "log2", "friction": "log2", "gain": "log2"},
}
"""Axis -> its components -> their units."""

SEEDED = frozenset({"appearance", "appearance.distractors", "initial_state.layout"})
"""Axes whose ``params.seed`` settles what has no size: which colours, which way."""

_IGNORED = frozenset({"redraws"})


@dataclass(frozen=True)
class Change:
    """A perturbation that changes something: the amount of every component of its axis, 0 where it names none."""

    axis: str
    amounts: Mapping[str, float]
    seed: int = 0

    def draws(self, *event: int | str) -> np.random.Generator:
        """What ``seed`` settles of one thing, whatever other things there are."""
        return Key(self.seed).stream(self.axis).event(*event)


def changes_of(
    world: str, axes: frozenset[str], perturbations: Iterable[Perturbation]
) -> tuple[tuple[Perturbation, Change], ...]:
    """Those ``perturbations`` that change something, in order, each with what it does.

    One of an axis that is not among ``axes``, or that begins or ends amid the episode, raises ``UnsupportedError``; an
    unknown component or an amount that is no number ``ConfigError``.
    """
    found = []
    for perturbation in perturbations:
        if perturbation.axis not in axes:
            raise UnsupportedError(
                f"world {world!r} cannot apply perturbation {perturbation.axis!r}; it applies: "
                f"{', '.join(sorted(axes)) or 'none'}"
            )
        if perturbation.from_step != 0 or perturbation.to_step is not None:
            raise UnsupportedError(
                f"world {world!r} applies perturbation {perturbation.axis!r} from an episode's reset to its end; "
                f"received from_step={perturbation.from_step}, to_step={perturbation.to_step}: leave them out"
            )
        change = _change(perturbation)
        if any(change.amounts.values()):
            found.append((perturbation, change))
    return tuple(found)


def _change(perturbation: Perturbation) -> Change:
    axis, components = perturbation.axis, COMPONENTS[perturbation.axis]
    amounts = dict.fromkeys(components, 0.0)
    seed = 0
    for name, value in perturbation.params.items():
        if name in _IGNORED:
            continue
        if name == "seed" and axis in SEEDED:
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"params.seed of perturbation {axis!r} is an integer; received {value!r}")
            seed = value
            continue
        if name not in components:
            raise unknown(f"component of perturbation axis {axis!r}", name, components)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(
                f"params.{name} of perturbation {axis!r} is a number [{components[name]}]; received {value!r}"
            )
        amounts[name] = float(value)
    return Change(axis, amounts, seed)
