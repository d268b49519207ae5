"""Two arms on the same starts and noise: matching their outcomes, and the paired difference."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from simeval import stats
from simeval.noise import Key
from simeval.outcomes import COUNTED, Outcome, measure

LEVEL = 0.05
"""The family-wise error at which a difference is called one."""
_SIGNS = Key(0)


def match(first: Sequence[Outcome], second: Sequence[Outcome]) -> tuple[list[tuple[Outcome, Outcome]], dict[str, int]]:
    """Outcomes matched by start and noise, and how many starts were left out, by reason."""
    tables = [_by_pair(first), _by_pair(second)]
    pairs, left_out = [], Counter[str]()
    for key in dict.fromkeys(itertools.chain(*tables)):
        sides = [table.get(key, []) for table in tables]
        if not all(sides):
            left_out["only one side asked for this start"] += 1
        elif max(map(len, sides)) > 1:
            left_out["several episodes of one side share this start and noise"] += 1
        else:
            a, b = sides[0][0], sides[1][0]
            if a.status == COUNTED and b.status == COUNTED:
                pairs.append((a, b))
            else:
                left_out[a.status if a.status != COUNTED else b.status] += 1
    return pairs, dict(left_out)


def _by_pair(outcomes: Sequence[Outcome]) -> dict[bytes, list[Outcome]]:
    table: dict[bytes, list[Outcome]] = {}
    for outcome in outcomes:
        table.setdefault(outcome.pair, []).append(outcome)
    return table


def compare_paired(
    first: Sequence[Outcome], second: Sequence[Outcome], confidence: float = 0.95
) -> list[dict[str, Any]]:
    """First minus second on the starts that both finished, none where they share none; ``p`` is not yet adjusted.

    The difference of success rates, or, where a side's world defines no success, the mean difference of returns, task
    by task: returns of different tasks have no common scale. ``task`` is none where all tasks are taken together.
    """
    if "return" in (measure(first), measure(second)):
        found = (
            _compare_returns(
                task, [o for o in first if o.task == task], [o for o in second if o.task == task], confidence
            )
            for task in dict.fromkeys(outcome.task for outcome in (*first, *second))
        )
        return [pair for pair in found if pair is not None]
    pairs, left_out = match(first, second)
    if not pairs:
        return []
    by_task: dict[str, list[tuple[Outcome, Outcome]]] = defaultdict(list)
    for pair in pairs:
        by_task[pair[0].task].append(pair)
    return [
        {
            "measure": "success",
            "task": None,
            **_paired_summary(pairs, confidence),
            "left_out": left_out,
            "tasks": [{"task": task, **_paired_summary(members, confidence)} for task, members in by_task.items()],
        }
    ]


def _paired_counts(pairs: Sequence[tuple[Outcome, Outcome]]) -> stats.PairedCounts:
    return stats.PairedCounts.of([a.succeeded for a, _ in pairs], [b.succeeded for _, b in pairs])


def contested(interval: Sequence[float] | None, p: float) -> bool:
    """Whether an interval leaves out 0 though the test, which decides, shows no difference.

    Newcombe's interval is approximate and McNemar's test exact, so with few discordant pairs they may disagree; and
    Holm's correction raises p, but widens no interval.
    """
    return interval is not None and p >= LEVEL and not interval[0] <= 0 <= interval[1]


def _gain(pair: tuple[Outcome, Outcome]) -> float | None:
    returns = [outcome.summary.total_reward for outcome in pair if outcome.summary is not None]
    return returns[0] - returns[1] if len(returns) == 2 and all(map(math.isfinite, returns)) else None


def _compare_returns(
    task: str, first: Sequence[Outcome], second: Sequence[Outcome], confidence: float
) -> dict[str, Any] | None:
    pairs, left_out = match(first, second)
    gains = [gain for pair in pairs if (gain := _gain(pair)) is not None]
    if not gains:
        return None
    if len(gains) < len(pairs):
        left_out["a return is not finite"] = len(pairs) - len(gains)
    difference = {"task": task, **_mean_difference(gains, confidence)}
    return {"measure": "return", **difference, "left_out": left_out, "tasks": [difference]}


def _mean_difference(gains: Sequence[float], confidence: float) -> dict[str, Any]:
    interval, test = stats.sign_flip(gains, _SIGNS, confidence)
    bounds = [interval.low, interval.high] if math.isfinite(interval.low) else None
    return {
        "n": len(gains),
        "difference": interval.estimate,
        "interval": bounds,
        "p": test.p,
        "test": test.method,
        "contested": contested(bounds, test.p),
    }


def _paired_summary(pairs: Sequence[tuple[Outcome, Outcome]], confidence: float) -> dict[str, Any]:
    """Counts, difference and test; pairs of one start (of a matched study's configurations) are a cluster."""
    counts = _paired_counts(pairs)
    differences = np.array([int(a.succeeded) - int(b.succeeded) for a, b in pairs])
    starts = np.unique([a.instance for a, _ in pairs], return_inverse=True)[1]
    interval = stats.paired_difference(counts, confidence, stats.design_effect(differences, starts))
    test = stats.clustered_mcnemar(differences, starts, _SIGNS)
    bounds, p = [interval.low, interval.high], test.p
    return {
        "n": counts.n,
        "both": counts.both,
        "only_a": counts.only_first,
        "only_b": counts.only_second,
        "neither": counts.neither,
        "difference": interval.estimate,
        "newcombe": bounds,
        "p": p,
        "mid_p": test.mid_p,
        "test": test.method,
        "contested": contested(bounds, p),
    }
