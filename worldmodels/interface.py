"""What a world model takes the place of: the spaces, tasks and control step of the World that its data are of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError, unknown
from simeval.types import Start, WorldSpec


@dataclass(frozen=True)
class Interface:
    """The World that a model imagines, as far as it imagines it.

    ``observation``: key -> vector space, of the keys that it predicts; ``action``: the action space;
    ``control_dt`` [s]; ``horizons``: task -> the longest that its episodes were allowed, in steps;
    ``success_hold``: see ``World``.
    """

    observation: Mapping[str, gymnasium.spaces.Box]
    action: gymnasium.spaces.Box
    control_dt: float
    horizons: Mapping[str, int]
    success_hold: int
    conventions: Conventions = UNDECLARED

    @classmethod
    def of(
        cls,
        spec: WorldSpec,
        keys: Sequence[str],
        horizons: Mapping[str, int],
        success_hold: int,
        conventions: Conventions,
    ) -> "Interface":
        """The part of a World that has the observations ``keys``; ``ConfigError`` for one that it cannot have."""
        spaces = {}
        for key in keys:
            if key not in spec.observation_space.spaces:
                raise unknown(f"observation of world {spec.name!r}", key, spec.observation_space.spaces)
            space = spec.observation_space[key]
            if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or space.dtype.kind != "f":
                raise ConfigError(f"observation {key!r} is {space}; this model learns vectors of floats")
            spaces[key] = space
        return cls(spaces, spec.action_space, spec.control_dt, horizons, success_hold, conventions.seen_by(keys))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that were learned."""
        return tuple(self.horizons)

    @property
    def number_dim(self) -> int:
        """The length of all vectors, one after the other."""
        return sum(space.shape[0] for space in self.observation.values())

    @property
    def action_dim(self) -> int:
        """Numbers in an action."""
        return int(self.action.shape[0])

    def joined(self, observation: Mapping[str, Any]) -> np.ndarray:
        """The vectors of ``n`` observations, one after the other: float32 [n, number_dim]."""
        return np.concatenate([np.asarray(observation[key], dtype=np.float32) for key in self.observation], axis=-1)

    def split(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The inverse of :meth:`joined`, within the bounds of the spaces and in their types."""
        parts, begin = {}, 0
        for key, space in self.observation.items():
            part = numbers[..., begin : begin + space.shape[0]]
            parts[key] = np.clip(part, space.low, space.high).astype(space.dtype)
            begin += space.shape[0]
        return parts

    def check(self, spec: WorldSpec) -> None:
        """Raise ``ConfigError`` naming everything in which a World is another than the one that was learned."""
        spaces = spec.observation_space.spaces
        wrong = []
        for key, space in self.observation.items():
            if key not in spaces:
                wrong.append(f"no observation {key!r}")
            elif spaces[key].shape != space.shape:
                wrong.append(f"observation {key!r} is {spaces[key].shape}, not {space.shape}")
        if spec.action_space != self.action:
            wrong.append(f"actions are {spec.action_space}, not {self.action}")
        if not np.isclose(spec.control_dt, self.control_dt, rtol=1e-6):
            wrong.append(f"a control step is {spec.control_dt:g} s, not {self.control_dt:g} s")
        if wrong:
            raise ConfigError(f"world {spec.name!r} does not fit what this world model learned: {'; '.join(wrong)}")

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "observation": {key: _box_to_json(space) for key, space in self.observation.items()},
            "action": _box_to_json(self.action),
            "control_dt": self.control_dt,
            "horizons": dict(self.horizons),
            "success_hold": self.success_hold,
            "conventions": replace(self.conventions, settings={}).to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Interface":
        """The inverse of :meth:`to_json`."""
        return cls(
            {str(key): _box_from_json(space) for key, space in data["observation"].items()},
            _box_from_json(data["action"]),
            float(data["control_dt"]),
            {str(task): int(steps) for task, steps in data["horizons"].items()},
            int(data["success_hold"]),
            Conventions.from_json(data["conventions"]),
        )


@dataclass(frozen=True)
class Beginnings:
    """Starts of recorded episodes, and the first observation of each as numbers [number_dim]."""

    starts: tuple[Start, ...]
    numbers: np.ndarray


def _box_to_json(space: gymnasium.spaces.Box) -> dict[str, Any]:
    low, high = ([None if np.isinf(x) else float(x) for x in bound] for bound in (space.low, space.high))
    return {"dtype": np.dtype(space.dtype).str, "low": low, "high": high}


def _box_from_json(data: Mapping[str, Any]) -> gymnasium.spaces.Box:
    dtype = np.dtype(data["dtype"])
    low = np.array([-np.inf if x is None else x for x in data["low"]], dtype)
    high = np.array([np.inf if x is None else x for x in data["high"]], dtype)
    return gymnasium.spaces.Box(low, high, dtype=dtype.type)
