"""The worker's end of a hosted policy: it holds the policy, bound to whatever Worlds it is asked to act in."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simeval.host.description import (
    conventions_from_plain,
    conventions_to_plain,
    keys_from_plain,
    space_from_plain,
    space_to_plain,
)
from simeval.host.parts import put_together, taken_apart
from simeval.host.target import build
from simeval.host.worker import Answer
from simeval.policy import Policy
from simeval.types import WorldSpec


class PolicyService:
    """A policy built from its plain configuration (see ``simeval.host.worker.Service``)."""

    def __init__(self, config: Mapping[str, Any], what: str):
        self._bound: list[Policy] = [build(config, Policy, what)]

    def describe(self) -> Any:
        """What the policy declares before it is bound."""
        return _declared(self._bound[0])

    def call(self, method: str, arguments: Any, arrays: Mapping[str, np.ndarray]) -> Answer:
        """One of the policy's methods, its arguments by name; ``policy``: the number that ``bind`` gave."""
        if method == "bind":
            self._bound.append(self._bound[0].bind(spec_from_plain(arguments["spec"])))
            return [len(self._bound) - 1, _declared(self._bound[-1])], {}
        policy = self._bound[arguments["policy"]]
        if method == "initial_memory":
            return taken_apart(policy.initial_memory(arguments["n"]))
        if method == "due":
            return taken_apart({"due": policy.due(put_together(arguments["memory"], arrays))})
        if method == "act":
            given = put_together(arguments["given"], arrays)
            keys = keys_from_plain(arguments["keys"])
            step = policy.act(given["observation"], arguments["instruction"], given["memory"], keys)
            return taken_apart(
                {
                    "action": step.action,
                    "memory": step.memory,
                    "log_prob": step.log_prob,
                    "entropy": step.entropy,
                    "chunk": step.chunk,
                    "extras": step.extras,
                }
            )
        raise ValueError(f"a hosted policy has no method {method!r}")

    def close(self) -> None:
        """Close the policy."""
        for policy in self._bound:
            policy.close()


def _declared(policy: Policy) -> dict[str, Any]:
    return {
        "observation_keys": list(policy.observation_keys),
        "fingerprint": policy.fingerprint,
        "batch_size": policy.batch_size,
        "conventions": conventions_to_plain(policy.conventions),
    }


def spec_to_plain(spec: WorldSpec) -> dict[str, Any]:
    """What a policy may know of a World, as plain data."""
    return {
        "name": spec.name,
        "observation_space": space_to_plain(spec.observation_space),
        "action_space": space_to_plain(spec.action_space),
        "control_dt": spec.control_dt,
        "tasks": list(spec.tasks),
        "conventions": conventions_to_plain(spec.conventions),
    }


def spec_from_plain(data: Mapping[str, Any]) -> WorldSpec:
    """The inverse of :func:`spec_to_plain`."""
    return WorldSpec(
        data["name"],
        space_from_plain(data["observation_space"]),
        space_from_plain(data["action_space"]),
        data["control_dt"],
        tuple(data["tasks"]),
        conventions_from_plain(data["conventions"]),
    )
