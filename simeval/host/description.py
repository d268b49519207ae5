"""A World's declarations and keys as plain data: what a host has to know of a World that lives elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from simeval.conventions import Conventions
from simeval.errors import UnsupportedError
from simeval.noise import StepKey, Stream
from simeval.world import World

_PLAIN = ("name", "control_dt", "fingerprint", "dynamics", "success_hold", "restores_by_replay")


def describe(world: World) -> dict[str, Any]:
    """Everything that a World declares."""
    return {
        **{name: getattr(world, name) for name in _PLAIN},
        "tasks": list(world.tasks),
        "perturbation_axes": sorted(world.perturbation_axes),
        "conventions": conventions_to_plain(world.conventions),
        "observation_space": space_to_plain(world.observation_space),
        "action_space": space_to_plain(world.action_space),
    }


def assume(world: World, description: Mapping[str, Any]) -> None:
    """Let ``world`` declare what was described."""
    for name in _PLAIN:
        setattr(world, name, description[name])
    world.tasks = tuple(description["tasks"])
    world.perturbation_axes = frozenset(description["perturbation_axes"])
    world.conventions = conventions_from_plain(description["conventions"])
    world.observation_space = space_from_plain(description["observation_space"])
    world.action_space = space_from_plain(description["action_space"])


def conventions_to_plain(conventions: Conventions) -> list[Any]:
    """Conventions as plain data, with the settings that change them."""
    return [conventions.to_json(), dict(conventions.settings)]


def conventions_from_plain(data: Sequence[Any]) -> Conventions:
    """The inverse of :func:`conventions_to_plain`."""
    return Conventions.from_json(*data)


def space_to_plain(space: gymnasium.Space) -> dict[str, Any]:
    """A Gymnasium space as plain data, its bounds exact."""
    if isinstance(space, spaces.Dict):
        return {"space": "Dict", "spaces": [[key, space_to_plain(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"space": "Tuple", "spaces": [space_to_plain(inner) for inner in space.spaces]}
    if isinstance(space, spaces.Box):
        return {"space": "Box", "low": space.low, "high": space.high, "dtype": space.dtype.str}
    if isinstance(space, spaces.Discrete):
        return {"space": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": _dtype(space)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"space": "MultiDiscrete", "nvec": space.nvec, "start": space.start, "dtype": _dtype(space)}
    if isinstance(space, spaces.MultiBinary):
        return {"space": "MultiBinary", "n": list(space.shape)}
    raise UnsupportedError(f"a space of type {type(space).__name__} cannot be told to another process: {space}")


def space_from_plain(data: Mapping[str, Any]) -> Any:
    """The inverse of :func:`space_to_plain`."""
    match data["space"]:
        case "Dict":
            return spaces.Dict({key: space_from_plain(inner) for key, inner in data["spaces"]})
        case "Tuple":
            return spaces.Tuple([space_from_plain(inner) for inner in data["spaces"]])
        case "Box":
            return spaces.Box(data["low"], data["high"], dtype=np.dtype(data["dtype"]).type)
        case "Discrete":
            return spaces.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(data["nvec"], dtype=np.dtype(data["dtype"]).type, start=data["start"])
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
    raise UnsupportedError(f"there is no space {data['space']!r}")


def _dtype(space: gymnasium.Space) -> str:
    assert space.dtype is not None
    return space.dtype.str


def keys_to_plain(keys: Sequence[StepKey]) -> list[list[Any]]:
    """Seed, stream and step of each key."""
    return [[key.stream.seed, key.stream.name, key.step] for key in keys]


def keys_from_plain(data: Sequence[Sequence[Any]]) -> list[StepKey]:
    """The inverse of :func:`keys_to_plain`."""
    return [StepKey(Stream(seed, name), step) for seed, name, step in data]
