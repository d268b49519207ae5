"""The worker's end of a hosted World: it holds some of the slots, numbered from 0, and answers the World's calls."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simeval.host.description import describe, keys_from_plain
from simeval.host.target import build
from simeval.host.worker import Answer
from simeval.types import Snapshot, Start, TimeStep
from simeval.world import World

_FLAGS = ("reward", "terminated", "truncated", "success")


class WorldService:
    """A World built from its plain configuration (see ``simeval.host.worker.Service``)."""

    def __init__(self, config: Mapping[str, Any], what: str):
        self._world: World = build(config, World, what)

    def describe(self) -> Any:
        """What the World declares."""
        return describe(self._world)

    def call(self, method: str, arguments: Any, arrays: Mapping[str, np.ndarray]) -> Answer:
        """One of the World's methods, its arguments by name."""
        world = self._world
        match method:
            case "step":
                keys = keys_from_plain(arguments["keys"])
                return _answer(world.step(arguments["slots"], arrays["action"].copy(), keys))
            case "reset":
                starts = [Start.from_json(start) for start in arguments["starts"]]
                return _answer(world.reset(arguments["slots"], starts, keys_from_plain(arguments["keys"])))
            case "snapshot":
                taken = world.snapshot(arguments["slots"])
                return [[snapshot.world, snapshot.to_bytes()] for snapshot in taken], {}
            case "restore":
                distinct = [Snapshot.from_bytes(data) for data in arguments["snapshots"]]
                return _answer(world.restore(arguments["slots"], [distinct[index] for index in arguments["which"]]))
            case "render":
                return None, {"picture": world.render(arguments["slots"])}
            case "start":
                return world.start(arguments["task"], arguments["seed"]).to_json(), {}
            case "starts":
                drawn = world.starts(arguments["task"], arguments["count"], arguments["seed"])
                return [start.to_json() for start in drawn], {}
            case "check_start":
                world.check_start(Start.from_json(arguments["start"]))
                return None, {}
            case "objection":
                return world.objection(Start.from_json(arguments["start"])), {}
            case "horizon":
                return world.horizon(arguments["task"]), {}
        raise ValueError(f"a hosted World has no method {method!r}")

    def close(self) -> None:
        """Close the World."""
        self._world.close()


def _answer(step: TimeStep) -> Answer:
    """Failures as data; everything else by name as arrays."""
    arrays = {f"observation/{key}": np.asarray(value) for key, value in step.observation.items()}
    for name in _FLAGS:
        arrays[name] = np.asarray(getattr(step, name))
    arrays.update({f"signals/{key}": np.asarray(value) for key, value in step.signals.items()})
    return [[row, text] for row, text in step.failures.items()], arrays
