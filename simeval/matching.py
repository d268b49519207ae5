"""A policy made ready for a World, if both mean the same: conventions are compared before anything runs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from simeval.conventions import Conventions, Match, match
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.types import Observation, WorldSpec
from simeval.world import World


def fit(policy: Policy, spec: WorldSpec) -> Policy:
    """``policy`` bound to a World; ``ConfigError`` with all differences where the two declare other conventions."""
    keys = policy.observation_keys
    if isinstance(keys, str) or not isinstance(keys, Collection):
        raise ConfigError(
            f"observation_keys of policy {type(policy).__name__} is {keys!r}, expected a tuple of names, as ('state',)"
        )
    bound = policy.bind(spec)
    if not isinstance(bound, Policy):
        raise ConfigError(f"bind of policy {type(policy).__name__} gave {bound!r:.60}, expected the policy bound")
    if not isinstance(bound.conventions, Conventions):
        raise ConfigError(
            f"conventions of policy {type(policy).__name__} is {bound.conventions!r:.60}, expected Conventions"
        )
    different = [item.told(spec.name) for item in matches(bound, spec) if item.differs]
    if different:
        raise ConfigError(f"policy and world {spec.name!r} follow different conventions: {'; '.join(different)}")
    return bound


def matches(policy: Policy, spec: WorldSpec) -> list[Match]:
    """Every convention as a policy and a World declare it."""
    return match(policy.conventions, spec.conventions, policy.observation_keys)


def declarations(worlds: Mapping[str, World], policies: Mapping[str, Mapping[str, Policy]]) -> dict[str, Any]:
    """What a run records: the conventions of Worlds by name, and of bound policies by World and name."""
    return {
        "worlds": {name: world.spec.conventions.to_json() for name, world in worlds.items()},
        "policies": {
            world: {name: policy.conventions.to_json() for name, policy in named.items()}
            for world, named in policies.items()
        },
    }


class Declaring(Policy):
    """``policy``, which is said to follow ``conventions``, whatever it says itself.

    For policies that cannot say it, such as those on a server; a configuration does it by ``policy.conventions``.
    """

    def __init__(self, policy: Policy, conventions: Conventions):
        self._policy = policy
        self._said = conventions
        self.observation_keys = policy.observation_keys
        self.conventions = conventions.over(policy.conventions)
        self.batch_size = policy.batch_size

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        return Declaring(self._policy.bind(spec), self._said)

    @property
    def fingerprint(self) -> str:
        """That of the policy: what is said of it changes no action."""
        return self._policy.fingerprint

    def initial_memory(self, n: int) -> Memory:
        """See ``Policy.initial_memory``."""
        return self._policy.initial_memory(n)

    def due(self, memory: Memory) -> np.ndarray | None:
        """See ``Policy.due``."""
        return self._policy.due(memory)

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        return self._policy.act(observation, instruction, memory, keys)

    def close(self) -> None:
        """See ``Policy.close``."""
        self._policy.close()
