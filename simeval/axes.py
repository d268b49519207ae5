"""Perturbation axes: how a severity becomes a :class:`~simeval.types.Perturbation`, comparable from axis to axis.

A severity is the whitened norm of a change, ||change / scale||: how far it goes in units of what is little
(LIBERO-CTRL, 2609.15940). What is drawn is physical (degrees, metres, seconds); the scales are data, in
``configs/perturbation``. A draw is a function of the severity and of the generator it is handed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from simeval.errors import ConfigError, unknown
from simeval.settings import names, positive, truth
from simeval.types import Perturbation

SEVERITIES = (2.0, 4.0, 8.0)
"""The whitened norms of levels 1, 2 and 3."""


class PerturbationAxis(ABC):
    """One way to change a rollout, at any severity: what ``configs/perturbation/<name>.yaml`` builds."""

    name: str
    """``Perturbation.axis`` of what it draws."""
    severities: tuple[float, ...]
    """The whitened norms of its levels, ascending."""

    @abstractmethod
    def draw(self, level: float, rng: np.random.Generator) -> Perturbation:
        """A perturbation of severity ``level``, at least 0; 0 is the one that changes nothing."""


def _severities(name: str, given: Iterable[float]) -> tuple[float, ...]:
    levels = tuple(positive(f"severities of axis {name}", level) for level in given)
    if not levels or list(levels) != sorted(set(levels)):
        raise ConfigError(f"severities of axis {name} are numbers in ascending order; received {list(levels)}")
    return levels


def _checked(name: str, level: float) -> float:
    if isinstance(level, bool) or not isinstance(level, int | float) or not math.isfinite(level) or level < 0:
        raise ConfigError(f"a severity of axis {name} is a number of at least 0; received {level!r}")
    return float(level)


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(1 << 32))


@dataclass(frozen=True)
class Axis(PerturbationAxis):
    """A change with a number for each of several components, along a random direction.

    ``scales``: component -> its scale, in its own unit; none leaves the component out. Those of ``one_sided`` are
    never negative. ``seeded``: ``params.seed`` settles what has no size (which colour, which way an object is moved).
    """

    name: str
    scales: Mapping[str, float]
    one_sided: Sequence[str] = ()
    seeded: bool = False
    severities: tuple[float, ...] = SEVERITIES

    def __post_init__(self) -> None:
        scales = {
            key: positive(f"scale {key!r} of axis {self.name}", value)
            for key, value in self.scales.items()
            if value is not None
        }
        if not scales:
            raise ConfigError(f"axis {self.name} has no scales: it could change nothing")
        for component in names(f"one_sided of axis {self.name}", self.one_sided):
            if component not in self.scales:
                raise unknown(f"component of axis {self.name}", component, self.scales)
        object.__setattr__(self, "scales", MappingProxyType(scales))
        object.__setattr__(self, "one_sided", names("one_sided", self.one_sided))
        object.__setattr__(self, "seeded", truth("seeded", self.seeded))
        object.__setattr__(self, "severities", _severities(self.name, self.severities))

    def draw(self, level: float, rng: np.random.Generator) -> Perturbation:
        """See ``PerturbationAxis.draw``: ``level`` times a random unit direction, times the scales."""
        level = _checked(self.name, level)
        direction = rng.standard_normal(len(self.scales))
        direction = level * direction / np.linalg.norm(direction)
        params: dict[str, Any] = {}
        for (component, scale), amount in zip(self.scales.items(), direction.tolist(), strict=True):
            # "+ 0.0": at level 0 there is one zero, not two.
            params[component] = scale * (abs(amount) if component in self.one_sided else amount) + 0.0
        if self.seeded:
            params["seed"] = _seed(rng)
        return Perturbation(self.name, level, params)

    def severity(self, params: Mapping[str, Any]) -> float:
        """The whitened norm of a change; components that it does not name are 0."""
        return math.sqrt(sum((params.get(key, 0.0) / scale) ** 2 for key, scale in self.scales.items()))


@dataclass(frozen=True)
class Count(PerturbationAxis):
    """A change that comes in whole pieces: ``component`` is ``per_level`` times the severity, rounded, at least 1.

    ``fixed``: further params, the same in every draw. ``seeded``: ``params.seed`` settles which pieces.
    """

    name: str
    component: str
    per_level: float
    fixed: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = True
    severities: tuple[float, ...] = SEVERITIES

    def __post_init__(self) -> None:
        positive(f"per_level of axis {self.name}", self.per_level)
        object.__setattr__(self, "fixed", MappingProxyType(dict(self.fixed)))
        object.__setattr__(self, "severities", _severities(self.name, self.severities))

    def draw(self, level: float, rng: np.random.Generator) -> Perturbation:
        """See ``PerturbationAxis.draw``."""
        level = _checked(self.name, level)
        count = max(1, round(self.per_level * level)) if level else 0
        seed = {"seed": _seed(rng)} if self.seeded else {}
        return Perturbation(self.name, level, {**self.fixed, self.component: count, **seed})


@dataclass(frozen=True)
class Dropout(PerturbationAxis):
    """A camera whose pictures get lost, each with a probability of ``per_level`` times the severity.

    ``camera``: its name, ``all``, or none to draw one. ``mode``: what is seen instead, ``black`` or ``frozen`` (the
    last picture that was not lost).
    """

    name: str = "sensor.dropout"
    per_level: float = 0.05
    camera: str | None = None
    mode: str = "black"
    severities: tuple[float, ...] = SEVERITIES

    def __post_init__(self) -> None:
        positive(f"per_level of axis {self.name}", self.per_level)
        object.__setattr__(self, "severities", _severities(self.name, self.severities))

    def draw(self, level: float, rng: np.random.Generator) -> Perturbation:
        """See ``PerturbationAxis.draw``."""
        level = _checked(self.name, level)
        drawn = float(rng.random())
        params = {
            "probability": min(1.0, self.per_level * level),
            "camera": drawn if self.camera is None else self.camera,
            "mode": self.mode,
        }
        return Perturbation(self.name, level, params)


@dataclass(frozen=True)
class Occlusion(PerturbationAxis):
    """A square patch that hides part of every picture, its side ``per_level`` times the severity of the picture's.

    ``camera``: a name, ``all``, or none to draw one. Where the patch lies is drawn.
    """

    name: str = "sensor.occlusion"
    per_level: float = 0.06
    camera: str | None = "all"
    severities: tuple[float, ...] = SEVERITIES

    def __post_init__(self) -> None:
        positive(f"per_level of axis {self.name}", self.per_level)
        object.__setattr__(self, "severities", _severities(self.name, self.severities))

    def draw(self, level: float, rng: np.random.Generator) -> Perturbation:
        """See ``PerturbationAxis.draw``."""
        level = _checked(self.name, level)
        x, y, drawn = rng.random(3).tolist()
        params = {
            "size": min(1.0, self.per_level * level),
            "x": x,
            "y": y,
            "camera": drawn if self.camera is None else self.camera,
        }
        return Perturbation(self.name, level, params)


@dataclass(frozen=True)
class TaskChange(PerturbationAxis):
    """The policy is told another task than the one that is judged: the negative control, at whatever severity.

    ``instructions``: sentences to draw from. Without any the effect changes words of the start's own instruction, as
    ``params.seed`` settles.
    """

    name: str = "language.task"
    instructions: Sequence[str] = ()
    severities: tuple[float, ...] = SEVERITIES

    def __post_init__(self) -> None:
        object.__setattr__(self, "instructions", names(f"instructions of axis {self.name}", self.instructions))
        object.__setattr__(self, "severities", _severities(self.name, self.severities))

    def draw(self, level: float, rng: np.random.Generator) -> Perturbation:
        """See ``PerturbationAxis.draw``."""
        level = _checked(self.name, level)
        seed = _seed(rng)
        if not level:
            return Perturbation(self.name, level)
        chosen = {"instruction": self.instructions[seed % len(self.instructions)]} if self.instructions else {}
        return Perturbation(self.name, level, chosen or {"seed": seed})
