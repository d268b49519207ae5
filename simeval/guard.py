"""What Worlds and policies return, held against their contracts before it is used or recorded."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from simeval.errors import ConfigError
from simeval.lane import Lane
from simeval.policy import REPLANNED, SNAPSHOT, PolicyStep
from simeval.types import Snapshot, TimeStep
from simeval.world import World, action_problems

_NUMBERS = "biufc"
"""Kinds of dtype that can be recorded."""


class WorldGuard:
    """Sees that what a World shows keeps its parts, shapes and dtypes; a World that does not stops the run."""

    def __init__(self, world: World):
        self._world = world
        self._layout: dict[str, tuple[Any, ...]] = {}

    def check(self, result: TimeStep, count: int) -> None:
        """Raise ``ConfigError`` where ``result`` is not of the form declared, and of the form first seen."""
        shown = {f"observation {key!r}": value for key, value in result.observation.items()}
        shown |= {f"signal {key!r}": value for key, value in result.signals.items()}
        for key, value in shown.items():
            if getattr(value, "dtype", None) is None or not value.shape:
                raise self._broken(f"{key} is {_described(value)}, expected an array of {count} rows")
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
        self._check_parts(result)
        for row, why in result.failures.items():
            if not isinstance(why, str) or row not in range(len(lanes)):
                raise self._broken(f"failures has {why!r} of row {row!r}, expected texts of rows below {len(lanes)}")
        if strange := set(result.lost).difference(range(self._world.num_slots)):
            raise self._broken(f"lost names slots {sorted(map(str, strange))} of {self._world.num_slots}")
        for name in ("terminated", "truncated", "success"):
            flag = np.asarray(getattr(result, name))
            if flag.dtype != bool or flag.shape != (len(lanes),):
                raise self._broken(f"{name} is {flag.dtype}{list(flag.shape)}, expected bool[{len(lanes)}]")
        reward = result.reward
        if not isinstance(reward, np.ndarray) or reward.dtype.kind not in "fiu" or reward.shape != (len(lanes),):
            raise self._broken(f"reward is {_described(reward)}, expected float64[{len(lanes)}]")
        failures = dict(result.failures)
        for name, value in (*result.observation.items(), ("reward", result.reward)):
            if not isinstance(value, np.ndarray) or value.shape[:1] != (len(lanes),):
                continue  # which :meth:`check` refuses, unless it is kept on a device
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                finite = np.isfinite(value.reshape(len(lanes), -1)).all(axis=1)
                for row in np.flatnonzero(~finite):
                    where = f"world {self._world.name!r}, slot {lanes[row].slot}, step {lanes[row].step}"
                    failures.setdefault(int(row), f"{where}: {name} is not finite; the simulation diverged")
        return failures

    def snapshots(self, taken: Sequence[Snapshot], count: int) -> list[Snapshot]:
        """What ``World.snapshot`` gave for ``count`` slots; ``ConfigError`` where that is something else."""
        listed = isinstance(taken, list | tuple)
        if not listed or len(taken) != count or not all(isinstance(snapshot, Snapshot) for snapshot in taken):
            kinds = sorted({type(item).__name__ for item in taken}) if listed else []
            found = f"{len(taken)} of {', '.join(kinds)}" if listed else f"{taken!r:.60}"
            raise self._broken(f"snapshot gave {found} for {count} slots, expected a Snapshot of each")
        return list(taken)

    def _check_parts(self, result: TimeStep) -> None:
        if not isinstance(result, TimeStep):
            raise self._broken(f"it returned {_described(result)}, expected a TimeStep")
        for name in ("observation", "signals", "failures"):
            if not isinstance(getattr(result, name), Mapping):
                raise self._broken(f"{name} is {_described(getattr(result, name))}, expected a mapping")
        if not isinstance(result.lost, Collection):
            raise self._broken(f"lost is {_described(result.lost)}, expected a set of slots")

    def _check_names(self, result: TimeStep) -> None:
        for shown in (result.observation, result.signals):
            _check_names(shown, "what a World shows")
        for key, value in result.signals.items():
            if np.dtype(value.dtype).kind not in _NUMBERS:
                raise self._broken(f"signal {key!r} is of dtype {value.dtype}; numbers and booleans can be recorded")
        declared = self._world.observation_space.spaces.keys()
        if SNAPSHOT in declared:
            raise self._broken(f"the observation {SNAPSHOT!r} is the engine's to show; give its own another name")
        if result.observation.keys() != declared:
            raise self._broken(f"it shows observations {sorted(result.observation)}, and declares {sorted(declared)}")
        for key, space in self._world.observation_space.spaces.items():
            value = result.observation[key]
            if (value.dtype, tuple(value.shape[1:])) != (space.dtype, space.shape):
                said = f"{space.dtype}{list(space.shape or ())}"
                raise self._broken(f"observation {key!r} is {_described(value)}, and a row is declared as {said}")

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
    if not isinstance(result.extras, Mapping):
        raise ValueError(f"extras are {_described(result.extras)}; expected a mapping of names to arrays")
    extras = {key: np.asarray(value) for key, value in result.extras.items()}
    for key, value in (("log_prob", result.log_prob), ("entropy", result.entropy), ("chunk", result.chunk)):
        if value is not None:
            extras[key] = np.asarray(value)
    _check_names(extras, "extras")
    for key, value in extras.items():
        if value.dtype.kind not in _NUMBERS:
            raise ValueError(f"extras {key!r} are of dtype {value.dtype}; numbers and booleans can be recorded")
    check_rows(extras, count, "extras")
    if REPLANNED in extras and extras[REPLANNED].shape != (count,):
        raise ValueError(f"extras {REPLANNED!r} are {_described(extras[REPLANNED])}, expected bool[{count}]")
    return extras


def check_rows(arrays: Mapping[str, Any], count: int, what: str) -> None:
    """Raise ``ValueError`` unless ``arrays`` is a nested mapping of arrays with ``count`` rows each."""
    if not isinstance(arrays, Mapping):
        raise ValueError(f"{what} is {_described(arrays)}; expected a mapping of names to arrays")
    for key, value in arrays.items():
        if isinstance(value, Mapping):
            check_rows(value, count, what)
        elif getattr(value, "ndim", None) is None:
            raise ValueError(f"{what} {key!r} is {_described(value)}; expected an array of {count} rows")
        elif value.ndim == 0 or len(value) != count:
            raise ValueError(f"{what} {key!r} has shape {list(value.shape)}; expected {count} rows, one per episode")


def _check_names(names: Iterable[Any], what: str) -> None:
    """Raise ``ConfigError`` unless all can be names in a trace beside each other: no group is also an array."""
    names = list(names)
    for key in names:
        known = (
            isinstance(key, str) and key.isprintable() and all(part not in ("", ".", "..") for part in key.split("/"))
        )
        if not known:
            raise ConfigError(
                f"{what}: {key!r} cannot be a name in a trace; use names such as 'state' or 'images/front'"
            )
    groups = {key[:end] for key in names for end in range(len(key)) if key[end] == "/"}
    for key in names:
        if key in groups:
            raise ConfigError(f"{what}: {key!r} cannot be an array and hold others ({key}/…); give it another name")


def _described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return f"{value!r:.60}"
