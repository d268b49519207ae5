"""What a world model takes the place of: the spaces, tasks and control step of the World that its data are of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError, unknown
from simeval.types import Start, WorldSpec

NUMBERS = "numbers"
"""The name under which all vectors are seen."""


@dataclass(frozen=True)
class Interface:
    """The World that a model imagines, as far as it imagines it.

    ``observation``: key -> space, of the keys that it predicts, vectors of floats or pictures uint8 [H, W, 3];
    ``action``: the action space; ``control_dt`` [s]; ``horizons``: task -> the longest that its episodes were allowed,
    in steps; ``success_hold``: see ``World``; ``frame_skip``: the control steps from one frame that it imagines to the
    next.

    *Seen* are n observations as a model has them: ``"numbers"``, all vectors one after the other, float32
    [n, number_dim], and every picture under its key, uint8 [n, H, W, 3].
    """

    observation: Mapping[str, gymnasium.spaces.Box]
    action: gymnasium.spaces.Box
    control_dt: float
    horizons: Mapping[str, int]
    success_hold: int
    conventions: Conventions = UNDECLARED
    frame_skip: int = 1

    @classmethod
    def of(
        cls,
        spec: WorldSpec,
        keys: Sequence[str],
        horizons: Mapping[str, int],
        success_hold: int,
        conventions: Conventions,
        frame_skip: int = 1,
        pictures: bool = False,
    ) -> "Interface":
        """The part of a World that has the observations ``keys``; ``ConfigError`` for one that it cannot have.

        ``pictures``: whether the model learns pictures as well as vectors.
        """
        spaces = {}
        for key in keys:
            if key not in spec.observation_space.spaces:
                raise unknown(f"observation of world {spec.name!r}", key, spec.observation_space.spaces)
            space = spec.observation_space[key]
            box = space if isinstance(space, gymnasium.spaces.Box) else None
            if box is None or not (_is_vector(box) or (pictures and _is_picture(box))):
                learned = "vectors of floats, and pictures uint8 [H, W, 3]" if pictures else "vectors of floats"
                raise ConfigError(f"observation {key!r} is {space}; this model learns {learned}")
            spaces[key] = box
        said = conventions.seen_by(keys)
        return cls(spaces, spec.action_space, spec.control_dt, horizons, success_hold, said, frame_skip)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that were learned."""
        return tuple(self.horizons)

    @property
    def vectors(self) -> dict[str, gymnasium.spaces.Box]:
        """Those of the observations that are vectors."""
        return {key: space for key, space in self.observation.items() if _is_vector(space)}

    @property
    def pictures(self) -> dict[str, gymnasium.spaces.Box]:
        """Those of the observations that are pictures."""
        return {key: space for key, space in self.observation.items() if not _is_vector(space)}

    @property
    def number_dim(self) -> int:
        """The length of all vectors, one after the other."""
        return sum(space.shape[0] for space in self.vectors.values())

    @property
    def action_dim(self) -> int:
        """Numbers in an action."""
        return int(self.action.shape[0])

    @property
    def still(self) -> np.ndarray:
        """The action of one who does nothing: zero, or what the space has nearest."""
        zero = np.zeros(self.action.shape, self.action.dtype)
        return np.clip(zero, self.action.low, self.action.high).astype(self.action.dtype)

    def places(self, key: str) -> slice:
        """Where a vector is among the numbers; ``ConfigError`` if there is none of that name."""
        begin = 0
        for name, space in self.vectors.items():
            if name == key:
                return slice(begin, begin + space.shape[0])
            begin += space.shape[0]
        raise unknown("vector that the model is given", key, self.vectors)

    def seen(self, observation: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """``n`` observations as a model has them."""
        vectors = [np.asarray(observation[key], dtype=np.float32) for key in self.vectors]
        pictures = {key: np.asarray(observation[key]) for key in self.pictures}
        count = len(next(iter(pictures.values()))) if pictures else len(vectors[0])
        numbers = np.concatenate(vectors, axis=-1) if vectors else np.zeros((count, 0), np.float32)
        return {NUMBERS: numbers, **pictures}

    def shown(self, seen: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inverse of :meth:`seen`, within the bounds of the spaces and in their types."""
        parts: dict[str, np.ndarray] = {}
        for key, space in self.observation.items():
            part = seen[key] if key in self.pictures else seen[NUMBERS][..., self.places(key)]
            parts[key] = np.clip(part, space.low, space.high).astype(space.dtype)
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
            "frame_skip": self.frame_skip,
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
            int(data.get("frame_skip", 1)),
        )


@dataclass(frozen=True)
class Beginnings:
    """Starts of recorded episodes, and the first observation of each, as seen by the model."""

    starts: tuple[Start, ...]
    seen: Mapping[str, np.ndarray]


def _is_vector(space: gymnasium.spaces.Box) -> bool:
    return len(space.shape) == 1 and space.dtype.kind == "f"


def _is_picture(space: gymnasium.spaces.Box) -> bool:
    return len(space.shape) == 3 and space.shape[2] == 3 and space.dtype == np.uint8


def _box_to_json(space: gymnasium.spaces.Box) -> dict[str, Any]:
    if _is_picture(space):
        return {"picture": list(space.shape)}
    low, high = ([None if np.isinf(x) else float(x) for x in bound] for bound in (space.low, space.high))
    return {"dtype": np.dtype(space.dtype).str, "low": low, "high": high}


def _box_from_json(data: Mapping[str, Any]) -> gymnasium.spaces.Box:
    if "picture" in data:
        height, width, colours = data["picture"]
        return gymnasium.spaces.Box(0, 255, (int(height), int(width), int(colours)), np.uint8)
    dtype = np.dtype(data["dtype"])
    low = np.array([-np.inf if x is None else x for x in data["low"]], dtype)
    high = np.array([np.inf if x is None else x for x in data["high"]], dtype)
    return gymnasium.spaces.Box(low, high, dtype=dtype.type)
