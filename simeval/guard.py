"""What Worlds and policies return, held against their contracts before it is used or recorded."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from simeval.errors import ConfigError
from simeval.lane import Lane
from simeval.policy import SNAPSHOT, PolicyStep
from simeval.types import TimeStep
from simeval.world import World, action_problems


class WorldGuard:
    """Sees that what a World shows keeps its parts, shapes and dtypes; a World that does not stops the run."""

    def __init__(self, world: World):
        self._world = world
        self._layout: dict[str, tuple[Any, ...]] = {}

    def check(self, result: TimeStep, count: int) -> None:
        """Raise ``ConfigError`` where ``result`` is not of the form declared, and of the form first seen."""
        shown = {f"observation {key!r}": value for key, value in result.observation.items()}
        shown |= {f"signal {key!r}": value for key, value in result.signals.items()}
        layout = {key: (value.dtype, tuple(value.shape[1:])) for key, value in shown.items()}
        if not self._layout:
            self._check_names(result)
            self._layout = layout
        if layout != self._layout:
            keys = sorted(layout.keys() | self._layout.keys())
            told = [
                f"{key} is {layout.get(key, 'missing')} and was {self._layout.get(key, 'absent')}"
                for key in keys
                if layout.get(key) != self._layout.get(key)
            ]
            raise self._broken("; ".join(told))
        for key, value in shown.items():
            if len(value) != count:
                raise self._broken(f"{key} has {len(value)} rows for {count} slots")

    def failures(self, result: TimeStep, lanes: Sequence[Lane]) -> dict[int, str]:
        """Row -> why its simulation failed: what the World reports, and what is not finite."""
        for name in ("terminated", "truncated", "success"):
            flag = np.asarray(getattr(result, name))
            if flag.dtype != bool or flag.shape != (len(lanes),):
                raise self._broken(f"{name} is {flag.dtype}{list(flag.shape)}, expected bool[{len(lanes)}]")
        failures = dict(result.failures)
        for name, value in (*result.observation.items(), ("reward", result.reward)):
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
                finite = np.isfinite(value.reshape(len(lanes), -1)).all(axis=1)
                for row in np.flatnonzero(~finite):
                    where = f"world {self._world.name!r}, slot {lanes[row].slot}, step {lanes[row].step}"
                    failures.setdefault(int(row), f"{where}: {name} is not finite; the simulation diverged")
        return failures

    def _check_names(self, result: TimeStep) -> None:
        for key in (*result.observation, *result.signals):
            _check_name(key, "what a World shows")
        declared = self._world.observation_space.spaces.keys()
        if SNAPSHOT in declared:
            raise self._broken(f"the observation {SNAPSHOT!r} is the engine's to show; give its own another name")
        if result.observation.keys() != declared:
            raise self._broken(f"it shows observations {sorted(result.observation)}, and declares {sorted(declared)}")

    def _broken(self, text: str) -> ConfigError:
        return ConfigError(f"world {self._world.name!r} breaks its contract (`simeval check` proves it): {text}")


def cast_actions(space: gymnasium.spaces.Box, actions: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """Actions ``[n, A]`` in the space's dtype, and row -> what is wrong with it, looked for before anything is lost."""
    problems = action_problems(space, actions, len(actions))
    with np.errstate(invalid="ignore"):
        cast = actions.astype(space.dtype)
    if cast.dtype.kind in "iu" and actions.dtype.kind == "f":
        for row in np.flatnonzero((cast != actions).reshape(len(actions), -1).any(axis=1)):
            problems.setdefault(int(row), f"action {actions[row]} is not whole; the action space is {space.dtype}")
    return cast, problems


def extras_of(result: PolicyStep, count: int) -> dict[str, np.ndarray]:
    """All that a policy said of its actions, as arrays ``[n, ...]`` that can be recorded; ``ValueError`` otherwise."""
    extras = {key: np.asarray(value) for key, value in result.extras.items()}
    for key, value in (("log_prob", result.log_prob), ("entropy", result.entropy), ("chunk", result.chunk)):
        if value is not None:
            extras[key] = np.asarray(value)
    for key, value in extras.items():
        _check_name(key, "extras")
        if value.dtype.kind not in "biufc":
            raise ValueError(f"extras {key!r} are of dtype {value.dtype}; numbers and booleans can be recorded")
    check_rows(extras, count, "extras")
    return extras


def check_rows(arrays: Mapping[str, Any], count: int, what: str) -> None:
    """Raise ``ValueError`` unless every array of a nested mapping has ``count`` rows."""
    for key, value in arrays.items():
        if isinstance(value, Mapping):
            check_rows(value, count, what)
        elif value.ndim == 0 or len(value) != count:
            raise ValueError(f"{what} {key!r} has shape {list(value.shape)}; expected {count} rows, one per episode")


def _check_name(key: str, what: str) -> None:
    if not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ConfigError(f"{what}: {key!r} cannot be a name in a trace; use names such as 'state' or 'images/front'")
