"""Axes ``injection.*``: a fault in the middle of an episode, as commands that go wrong (FRBench, RePO-VLA 2605.09410).

They act while their perturbation holds, from a step to a step. Which numbers of an action are the hand's and the
gripper's, and which way that closes, is what the World declares of its actions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from simeval.errors import UnsupportedError
from simeval.noise import StepKey
from simeval.perturbation.actuation import numbers_of
from simeval.perturbation.effect import Effect, EffectMemory, Identity, amounts
from simeval.types import Perturbation, WorldSpec

_SHIFTS = ("dx", "dy", "dz")
_CLOSES_AT_THE_TOP = {
    "plus_closes": True,
    "one_closes": True,
    "minus_closes": False,
    "zero_closes": False,
    "width": False,
}


@dataclass(frozen=True, slots=True)
class Gripper:
    """Which number of an action the gripper is, and the commands that open and close it."""

    number: int
    opened: float
    closed: float

    @classmethod
    def of(cls, spec: WorldSpec) -> "Gripper":
        """That of a World; ``UnsupportedError`` where it declares none."""
        found = [number for number, name in enumerate(numbers_of(spec) or ()) if "grip" in name]
        if len(found) != 1 or spec.conventions.gripper is None:
            raise UnsupportedError(
                f"world {spec.name!r} does not declare which number of an action is the gripper, and which way it "
                "closes (World.conventions: action, gripper)"
            )
        low, high = (float(bound.reshape(-1)[found[0]]) for bound in (spec.action_space.low, spec.action_space.high))
        closes_high = _CLOSES_AT_THE_TOP[spec.conventions.gripper]
        return cls(found[0], *((low, high) if closes_high else (high, low)))


@dataclass(frozen=True, slots=True)
class Command(Effect):
    """One number of an action replaced by ``value``."""

    number: int
    value: float

    def action(self, action: np.ndarray, memory: EffectMemory, key: StepKey) -> tuple[np.ndarray, EffectMemory]:
        """See ``Effect.action``."""
        changed = action.copy()
        changed.reshape(-1)[self.number] = self.value
        return changed, memory


@dataclass(frozen=True, slots=True, eq=False)
class Offset(Effect):
    """``offset`` [A] added to an action, and the sum clipped to the action space."""

    offset: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def action(self, action: np.ndarray, memory: EffectMemory, key: StepKey) -> tuple[np.ndarray, EffectMemory]:
        """See ``Effect.action``."""
        value = np.clip(action.reshape(-1) + self.offset, self.low, self.high)
        return value.astype(action.dtype).reshape(action.shape), memory


def closing(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """``injection.premature_close``: the gripper closes, whatever is commanded."""
    amounts(perturbation, ())
    gripper = Gripper.of(spec)
    return Command(gripper.number, gripper.closed)


def opening(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """``injection.grasp_slip`` and ``injection.hold_open``: the gripper opens, whatever is commanded."""
    amounts(perturbation, ())
    gripper = Gripper.of(spec)
    return Command(gripper.number, gripper.opened)


def moved(of: Callable[[WorldSpec], Mapping[str, int]]) -> Callable[[Perturbation, WorldSpec], Effect]:
    """``injection.position_offset`` and ``.orientation_mismatch``: numbers of ``of`` get so many half ranges more."""

    def build(perturbation: Perturbation, spec: WorldSpec) -> Effect:
        numbers = of(spec)
        given = amounts(perturbation, numbers)
        low, high = (bound.reshape(-1).astype(np.float64) for bound in (spec.action_space.low, spec.action_space.high))
        offset = np.zeros(len(low))
        for name, number in numbers.items():
            offset[number] = given[name] * (high[number] - low[number]) / 2
        return Offset(offset, low, high) if offset.any() else Identity()

    return build


def shifts(spec: WorldSpec) -> dict[str, int]:
    """The numbers of an action that move the hand."""
    return _some(spec, "displace the hand", lambda name: name in _SHIFTS)


def turns(spec: WorldSpec) -> dict[str, int]:
    """The numbers of an action that turn the hand."""
    return _some(spec, "turn the hand", lambda name: "turn" in name or name in ("droll", "dpitch", "dyaw"))


def _some(spec: WorldSpec, what: str, is_one: Callable[[str], bool]) -> dict[str, int]:
    found = {name: number for number, name in enumerate(numbers_of(spec) or ()) if is_one(name)}
    if not found:
        raise UnsupportedError(f"world {spec.name!r} does not declare which numbers of an action {what}")
    return found
