"""Axes ``actuation`` and ``dynamics.delay``: what becomes of a command on its way to the robot.

The gripper's numbers, where the World declares which they are, are left to the delay alone: a gripper that closes with
another sign or strength is another change.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simeval.errors import UnsupportedError
from simeval.noise import Key, StepKey
from simeval.perturbation.effect import Effect, EffectMemory, Identity, amounts, seed_of, whole_amount
from simeval.types import Perturbation, WorldSpec

_PARTS: Mapping[str, tuple[str, ...]] = {
    "hand_displacement": ("dx", "dy", "dz"),
    "hand_turn": ("turn_x", "turn_y", "turn_z"),
}
"""Part of an action -> its numbers; every other part that a World names is one number of that name."""
_LEVEL_FRAMES = ("world", "base")
"""Frames whose third axis is the vertical."""


def numbers_of(spec: WorldSpec) -> tuple[str, ...] | None:
    """The name of each number of an action, or none where the World does not declare it."""
    if spec.conventions.action is None:
        return None
    found = tuple(name for part in spec.conventions.action for name in _PARTS.get(part, (part,)))
    return found if len(found) == math.prod(spec.action_space.shape) else None


def actuation(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``actuation``.

    ``misalignment`` [rad] turns the hand's displacement about the vertical; ``gain`` [log2] scales; ``bias`` (root mean
    square, along a direction that ``seed`` settles) and ``noise`` (standard deviation) are in half ranges of the action
    space; the result is clipped to it, and ``lag`` [s] is the time constant of a first-order response to that. What
    lags begins with no command: 0, or the nearest to it in the action space.
    """
    given = amounts(perturbation, ("gain", "bias", "misalignment", "lag", "noise"), ("seed",), ("bias", "lag", "noise"))
    if not any(given.values()):
        return Identity()
    names = numbers_of(spec)
    low, high = (bound.reshape(-1).astype(np.float64) for bound in (spec.action_space.low, spec.action_space.high))
    moving = np.array([name is None or "grip" not in name for name in names or [None] * len(low)])
    half = (high - low) / 2
    if (given["bias"] or given["noise"]) and not np.isfinite(half[moving]).all():
        raise UnsupportedError(
            f"bias and noise of perturbation axis actuation are in half ranges, and actions of world {spec.name!r} are "
            "not bounded; leave them out"
        )
    half = np.where(moving & np.isfinite(half), half, 0.0)
    draws = np.where(moving, Key(seed_of(perturbation)).stream("bias").event().standard_normal(len(low)), 0.0)
    turned = None
    if given["misalignment"]:
        if names is None or spec.conventions.action_frame not in _LEVEL_FRAMES or not {"dx", "dy"} <= {*names}:
            raise UnsupportedError(
                "misalignment of perturbation axis actuation turns the hand's displacement about the vertical, and "
                f"world {spec.name!r} does not declare which numbers of an action that is (World.conventions: action, "
                "and an action_frame of world or base); leave it out: perturbation.actuation.scales.misalignment=null"
            )
        turned = (names.index("dx"), names.index("dy"), given["misalignment"])
    return Actuation(
        moving=moving,
        turned=turned,
        gain=2.0 ** given["gain"],
        bias=given["bias"] * half * draws * math.sqrt(moving.sum()) / (np.linalg.norm(draws) or 1.0),
        noise=given["noise"] * half,
        kept=math.exp(-spec.control_dt / given["lag"]) if given["lag"] else 0.0,
        low=low,
        high=high,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Actuation(Effect):
    """See :func:`actuation`. Arrays ``[A]``; ``turned``: two numbers of the action and the angle [rad] that they are
    turned by; ``kept``: the part of the last response in the next, 0 without lag."""

    moving: np.ndarray
    turned: tuple[int, int, float] | None
    gain: float
    bias: np.ndarray
    noise: np.ndarray
    kept: float
    low: np.ndarray
    high: np.ndarray

    def initial_memory(self) -> EffectMemory:
        """The response to no command, where there is a lag."""
        return {"response": np.clip(np.zeros_like(self.low), self.low, self.high)} if self.kept else {}

    def action(self, action: np.ndarray, memory: EffectMemory, key: StepKey) -> tuple[np.ndarray, EffectMemory]:
        """See ``Effect.action``."""
        value = action.reshape(-1).astype(np.float64)
        if self.turned is not None:
            x, y, angle = self.turned
            cos, sin = math.cos(angle), math.sin(angle)
            value[x], value[y] = cos * value[x] - sin * value[y], sin * value[x] + cos * value[y]
        value[self.moving] *= self.gain
        value += self.bias
        if self.noise.any():
            value += self.noise * key.generator("noise").standard_normal(len(value))
        value = np.clip(value, self.low, self.high)
        if self.kept:
            response = value + self.kept * (memory["response"] - value)
            value = np.where(self.moving, np.clip(response, self.low, self.high), value)
            memory = {"response": value}
        return value.astype(action.dtype).reshape(action.shape), memory


def delay(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``dynamics.delay``: commands arrive ``steps`` control steps late.

    Until the first arrives there is no command: 0, or the nearest to it in the action space. What is still on its way
    at ``to_step`` is lost.
    """
    steps = whole_amount(perturbation, "steps")
    if not steps:
        return Identity()
    space = spec.action_space
    rest = np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return Delay(np.repeat(rest[None], steps, axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Delay(Effect):
    """See :func:`delay`; ``waiting`` [steps, A]: what is on its way at first."""

    waiting: np.ndarray

    def initial_memory(self) -> EffectMemory:
        """What is on its way at first."""
        return {"waiting": self.waiting}

    def action(self, action: np.ndarray, memory: EffectMemory, key: StepKey) -> tuple[np.ndarray, EffectMemory]:
        """See ``Effect.action``."""
        waiting = memory["waiting"]
        return waiting[0].copy(), {"waiting": np.concatenate([waiting[1:], action[None]])}
