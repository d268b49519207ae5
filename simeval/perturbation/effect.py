"""What one perturbation does around a World: the contract of an effect, and how its parameters are read."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simeval.errors import ConfigError, unknown
from simeval.noise import StepKey
from simeval.types import Perturbation

EffectMemory = Mapping[str, Any]
"""What an effect remembers from step to step: plain data, as in a ``Snapshot``, which forks and checkpoints copy."""

_COUNTERS = ("redraws",)
"""Params that say how a perturbation was found and change nothing."""


class Effect:
    """What one perturbation does; the default changes nothing.

    It keeps nothing on ``self``: what it remembers is handed to it and returned, a new value each time, and begins as
    ``initial_memory``. Nor are arguments modified. ``key`` is of the rollout's noise stream ``perturbation``.
    """

    observation_keys: tuple[str, ...] = ()
    """The observations that it changes; it is shown these and no others, and pictures only where somebody looks."""
    remembers_pictures: bool = False
    """Whether a picture that nobody looks at may change a later one, so that it has to be drawn all the same."""

    def initial_memory(self) -> EffectMemory:
        """What it remembers before its first step."""
        return {}

    def instruction(self, instruction: str) -> str:
        """The instruction as the policy is told it."""
        return instruction

    def observation(
        self, observation: dict[str, Any], memory: EffectMemory, key: StepKey
    ) -> tuple[dict[str, Any], EffectMemory]:
        """One slot's observation (arrays without a batch dimension) as the policy sees it, and the memory after it."""
        return observation, memory

    def action(self, action: np.ndarray, memory: EffectMemory, key: StepKey) -> tuple[np.ndarray, EffectMemory]:
        """One slot's action ``[A]`` as the World receives it, and the memory after it."""
        return action, memory


@dataclass(frozen=True, slots=True)
class Identity(Effect):
    """Axis ``identity``, and every other whose components are all 0: the control that must change no bit of a trace."""


@dataclass(frozen=True, slots=True)
class ReplaceAction(Effect):
    """Axis ``actuation.replace``: ``value`` [A] in place of the policy's action (the counterfactual intervention)."""

    value: np.ndarray

    def action(self, action: np.ndarray, memory: EffectMemory, key: StepKey) -> tuple[np.ndarray, EffectMemory]:
        """See ``Effect.action``."""
        if self.value.shape != action.shape:
            raise ConfigError(f"actuation.replace has a value of shape {self.value.shape}; actions are {action.shape}")
        return self.value.astype(action.dtype), memory


def required(perturbation: Perturbation, name: str) -> Any:
    """A parameter that an axis cannot do without."""
    if name not in perturbation.params:
        raise ConfigError(f"perturbation {perturbation.axis} needs params.{name}; received {dict(perturbation.params)}")
    return perturbation.params[name]


def amounts(
    perturbation: Perturbation, components: Iterable[str], settled: Iterable[str] = (), one_sided: Iterable[str] = ()
) -> dict[str, float]:
    """The amount of each of an axis's ``components``, 0 where it is missing.

    ``settled``: further params that the axis has. ``ConfigError`` for any other, for an amount that is no finite
    number, and for one below 0 among ``one_sided``.
    """
    listed, below = tuple(components), frozenset(one_sided)
    known = (*listed, *settled, *_COUNTERS)
    for name in perturbation.params:
        if name not in known:
            raise unknown(f"component of perturbation axis {perturbation.axis}", name, (*listed, *settled))
    values = {}
    for name in listed:
        value = perturbation.params.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(f"{perturbation.axis}: {name} is a number; received {value!r}")
        if name in below and value < 0:
            raise ConfigError(f"{perturbation.axis}: {name} is at least 0; received {value!r}")
        values[name] = float(value)
    return values


def whole_amount(perturbation: Perturbation, name: str, settled: Iterable[str] = ()) -> int:
    """The one component of an axis that counts pieces: a whole number of at least 0."""
    amounts(perturbation, (name,), settled, (name,))
    value = perturbation.params.get(name, 0)
    if not isinstance(value, int):
        raise ConfigError(f"{perturbation.axis}: {name} is a whole number; received {value!r}")
    return value


def seed_of(perturbation: Perturbation) -> int:
    """``params.seed``, 0 where it is missing: what settles all that has no size."""
    seed = perturbation.params.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"{perturbation.axis}: seed is a whole number; received {seed!r}")
    return seed
