"""What perturbations do to a rollout outside the World: to what the policy is told, sees, and does.

An :class:`Effect` gives one axis its meaning. Perturbations of the axes in ``World.perturbation_axes`` are put into the
``Start`` instead, and the World applies them itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simeval.errors import ConfigError, UnsupportedError, unknown
from simeval.noise import StepKey
from simeval.types import Perturbation, Rollout
from simeval.world import World


class Effect:
    """What one perturbation does; the default changes nothing. Each method returns a new value."""

    def instruction(self, instruction: str) -> str:
        """The instruction as the policy is told it."""
        return instruction

    def observation(self, observation: dict[str, Any], key: StepKey) -> dict[str, Any]:
        """One slot's observation (arrays without a batch dimension) as the policy sees it."""
        return observation

    def action(self, action: np.ndarray, key: StepKey) -> np.ndarray:
        """One slot's action ``[A]`` as the World receives it."""
        return action


@dataclass(frozen=True, slots=True)
class Identity(Effect):
    """Axis ``identity``: the control that must change no bit of a trace."""


@dataclass(frozen=True, slots=True)
class ReplaceAction(Effect):
    """Axis ``actuation.replace``: ``value`` [A] in place of the policy's action (the counterfactual intervention)."""

    value: np.ndarray

    def action(self, action: np.ndarray, key: StepKey) -> np.ndarray:
        """See ``Effect.action``."""
        if self.value.shape != action.shape:
            raise ConfigError(f"actuation.replace has a value of shape {self.value.shape}; actions are {action.shape}")
        return self.value.astype(action.dtype)


def _param(perturbation: Perturbation, name: str) -> Any:
    if name not in perturbation.params:
        raise ConfigError(f"perturbation {perturbation.axis} needs params.{name}; received {dict(perturbation.params)}")
    return perturbation.params[name]


_EFFECTS: dict[str, Callable[[Perturbation], Effect]] = {
    "identity": lambda p: Identity(),
    "actuation.replace": lambda p: ReplaceAction(np.asarray(_param(p, "value"), dtype=np.float64)),
}


def register_effect(axis: str, build: Callable[[Perturbation], Effect]) -> None:
    """Give ``axis`` its effect; an axis that already has one is an error."""
    if axis in _EFFECTS:
        raise ValueError(f"perturbation axis {axis!r} is registered already")
    _EFFECTS[axis] = build


def effect_of(perturbation: Perturbation) -> Effect:
    """The effect of a perturbation of a registered axis."""
    if perturbation.axis not in _EFFECTS:
        raise unknown("perturbation axis", perturbation.axis, _EFFECTS)
    return _EFFECTS[perturbation.axis](perturbation)


def split(world: World, perturbations: Sequence[Perturbation]) -> tuple[list[Perturbation], list[Perturbation]]:
    """Those that ``world`` applies itself, and those that are effects around it; an axis of neither is an error."""
    own, around = [], []
    for perturbation in perturbations:
        if perturbation.axis in world.perturbation_axes:
            own.append(perturbation)
        elif perturbation.axis in _EFFECTS:
            around.append(perturbation)
        else:
            raise UnsupportedError(
                f"world {world.name!r} cannot apply perturbation axis {perturbation.axis!r}; it applies: "
                f"{', '.join(sorted(world.perturbation_axes | _EFFECTS.keys()))}"
            )
    return own, around


class Effects:
    """The effects that act on one rollout, each while its perturbation holds."""

    def __init__(self, rollout: Rollout, perturbations: Sequence[Perturbation]):
        self._effects = [(p, effect_of(p)) for p in perturbations]
        self._streams = [
            rollout.key("perturbation").stream(f"perturbation/{index}/{p.axis}")
            for index, p in enumerate(perturbations)
        ]

    def __bool__(self) -> bool:
        return bool(self._effects)

    def instruction(self, instruction: str) -> str:
        """The instruction after all language effects."""
        for _, effect in self._effects:
            instruction = effect.instruction(instruction)
        return instruction

    def observation(self, observation: Mapping[str, Any], step: int) -> dict[str, Any]:
        """One slot's observation after all sensor effects that hold at ``step``."""
        out = dict(observation)
        for (perturbation, effect), stream in zip(self._effects, self._streams, strict=True):
            if perturbation.holds(step):
                out = effect.observation(out, stream.key(step))
        return out

    def action(self, action: np.ndarray, step: int) -> np.ndarray:
        """One slot's action after all actuation effects that hold at ``step``."""
        for (perturbation, effect), stream in zip(self._effects, self._streams, strict=True):
            if perturbation.holds(step):
                action = effect.action(action, stream.key(step))
        return action
