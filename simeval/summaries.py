"""Estimates with their intervals, as JSON data: the rows that scores are made of."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from simeval import stats
from simeval.noise import Key
from simeval.outcomes import COUNTED, ERROR, SOLVED_AT_RESET, Outcome, measure

_BOOTSTRAP = Key(0)
_FEWEST_TASKS = 5
"""With fewer tasks an interval over tasks says nothing."""


def rate(outcomes: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    """Success rates of a group in both denominators: counted episodes, and these plus errors.

    Episodes of worlds that define no success are left out; where there are no others, ``measure`` is ``"return"``,
    ``n`` counts them, and the rates are none.
    """
    by = measure(outcomes)
    judged = [outcome for outcome in outcomes if by == "return" or outcome.success_hold]
    counted = [outcome for outcome in judged if outcome.status == COUNTED]
    errors = sum(outcome.status == ERROR for outcome in judged)
    own = sum(outcome.status == ERROR and outcome.blame == "policy" for outcome in judged)
    successes = None if by == "return" else sum(outcome.succeeded for outcome in counted)
    return {
        "measure": by,
        **proportion(successes, len(counted), confidence),
        "errors": errors,
        "policy_errors": own,
        "with_errors": proportion(successes, len(counted) + errors, confidence),
    }


def proportion(successes: int | None, n: int, confidence: float) -> dict[str, Any]:
    """A rate with its Wilson and Clopper–Pearson intervals; none where nothing counts or no success is defined."""
    if n == 0 or successes is None:
        return {"n": n, "successes": successes, "rate": None, "wilson": None, "clopper_pearson": None}
    wilson, exact = stats.wilson(successes, n, confidence), stats.clopper_pearson(successes, n, confidence)
    return {
        "n": n,
        "successes": successes,
        "rate": wilson.estimate,
        "wilson": [wilson.low, wilson.high],
        "clopper_pearson": [exact.low, exact.high],
    }


def summary(outcomes: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    """Rates, and the means of return, length [steps] and steps to success over counted episodes.

    Returns of different tasks or worlds have no common scale: over several, there is no mean of them.
    """
    places = {(o.world, o.task) for o in outcomes}
    counted = [o.summary for o in outcomes if o.status == COUNTED and o.summary is not None]
    return {
        **rate(outcomes, confidence),
        "return": mean([s.total_reward for s in counted], confidence) if len(places) == 1 else None,
        "length": mean([float(s.length) for s in counted], confidence),
        "steps_to_success": mean([s.success_step + 1.0 for s in counted if s.success_step is not None], confidence),
    }


def mean(values: Sequence[float], confidence: float) -> dict[str, Any] | None:
    """A mean with Student's t interval (none for a single value), over the finite values; none where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    interval = stats.mean_interval(finite, confidence)
    bounded = math.isfinite(interval.low)
    return {
        "n": len(finite),
        "mean": interval.estimate,
        "interval": [interval.low, interval.high] if bounded else None,
        "min": min(finite),
        "max": max(finite),
    }


def over_tasks(outcomes: Sequence[Outcome], confidence: float) -> dict[str, Any] | None:
    """What to expect of other tasks like these: the mean of task rates, with a bootstrap over tasks."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.status == COUNTED and outcome.success_hold:
            by_task[outcome.task].append(float(outcome.succeeded))
    if len(by_task) < _FEWEST_TASKS:
        return None
    interval = stats.cluster_bootstrap(list(by_task.values()), _BOOTSTRAP, confidence)
    if interval.low == interval.high:  # equal in every task, which does not make it certain in the next
        return None
    return {"tasks": len(by_task), "mean": interval.estimate, "interval": [interval.low, interval.high]}


def other_rules(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """What the same episodes would score under other rules in use: how much of a number is the rule."""
    outcomes = [outcome for outcome in outcomes if outcome.success_hold]
    counted = [outcome for outcome in outcomes if outcome.status == COUNTED]
    errors = sum(outcome.status == ERROR for outcome in outcomes)
    solved = sum(outcome.status == SOLVED_AT_RESET for outcome in outcomes)
    held, n = sum(outcome.succeeded for outcome in counted), len(counted)

    def share(successes: int, of: int) -> float | None:
        return successes / of if of else None

    return {
        "goal held (the rule)": share(held, n),
        "goal touched at any step": share(sum(outcome.ever for outcome in counted), n),
        "goal holds at the last step": share(sum(outcome.final for outcome in counted), n),
        "errors counted as failures": share(held, n + errors),
        "solved at reset counted as successes": share(held + solved, n + solved),
    }
