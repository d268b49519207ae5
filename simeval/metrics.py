"""What one episode's arrays say: pure functions, used when the engine records and when scoring recomputes."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """The outcome of one episode.

    ``success_step`` is the step (counted from 0) at which success had held for long enough, or none; ``length`` is
    the number of steps; ``total_reward`` the undiscounted sum of rewards.
    """

    success: bool
    success_step: int | None
    length: int
    total_reward: float


def summarise(reward: np.ndarray, success: np.ndarray, success_hold: int = 1, held: int = 0) -> EpisodeSummary:
    """The outcome of an episode with ``reward`` [T] and ``success`` [T] (the goal holds after step t).

    An episode succeeds if its goal held for at least ``success_hold`` consecutive steps; what held for fewer is
    transient and does not count, and nor does what held before the first step, except in a branch, whose goal had held
    for ``held`` steps when it forked. With ``success_hold`` 0 no success is defined, and the episode has none.
    """
    if reward.shape != success.shape or reward.ndim != 1:
        raise ValueError(f"reward and success must both be [T]; received {reward.shape} and {success.shape}")
    step = hold_step(success, success_hold, held) if success_hold else None
    return EpisodeSummary(step is not None, step, len(reward), float(np.sum(reward, dtype=np.float64)))


def hold_step(flags: np.ndarray, hold: int, held: int = 0) -> int | None:
    """The first index at which ``flags`` [T] (bool) has been true ``hold`` times in a row, or none.

    ``held`` true steps are taken to come right before the first.
    """
    if hold < 1:
        raise ValueError(f"success must hold for at least one step; received success_hold={hold}")
    true = np.asarray(flags, dtype=bool)
    if not true.any():
        return None
    index = np.arange(len(true))
    last_false = np.maximum.accumulate(np.where(true, -1 - held, index))
    reached = np.flatnonzero(index - last_false >= hold)
    return int(reached[0]) if len(reached) else None


def action_rate(action: np.ndarray, control_dt: float) -> float:
    """Root mean square rate of change of ``action`` [T, A], in action units per second; 0 is perfectly smooth.

    ``control_dt`` is the time between two actions [s]. Not a number for fewer than two actions.
    """
    return _rms(np.diff(action, axis=0) / control_dt)


def action_jerk(action: np.ndarray, control_dt: float) -> float:
    """Root mean square second derivative of ``action`` [T, A], per second squared (a jerk for velocity actions).

    Not a number for fewer than three actions.
    """
    return _rms(np.diff(action, n=2, axis=0) / control_dt**2)


def _rms(vectors: np.ndarray) -> float:
    if len(vectors) == 0:
        return float("nan")
    return float(np.sqrt(np.mean(np.sum(np.square(vectors, dtype=np.float64), axis=-1))))
