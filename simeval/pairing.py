"""Two arms on the same starts and noise: matching their outcomes, and the paired difference."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from simeval import stats
from simeval.noise import Key
from simeval.outcomes import COUNTED, Outcome, measure
from simeval.summaries import mean

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
) -> dict[str, Any] | None:
    """First minus second on the starts that both finished, or none where they share none; ``p`` is not yet adjusted.

    The difference of success rates, or, where a side's world defines no success, the mean difference of returns.
    """
    pairs, left_out = match(first, second)
    if "return" in (measure(first), measure(second)):
        return _compare_returns(pairs, left_out, confidence)
    if not pairs:
        return None
    by_task: dict[str, list[tuple[Outcome, Outcome]]] = defaultdict(list)
    for pair in pairs:
        by_task[pair[0].task].append(pair)
    counts = _paired_counts(pairs)
    test = stats.mcnemar(counts.only_first, counts.only_second)
    return {
        "measure": "success",
        **_paired_summary(counts, confidence),
        "mid_p": test.mid_p,
        "test": test.method,
        "left_out": left_out,
        "return_difference": mean([gain for pair in pairs if (gain := _gain(pair)) is not None], confidence),
        "tasks": [
            {"task": task, **_paired_summary(_paired_counts(members), confidence)} for task, members in by_task.items()
        ],
    }


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
    pairs: Sequence[tuple[Outcome, Outcome]], left_out: dict[str, int], confidence: float
) -> dict[str, Any] | None:
    by_task: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        gain = _gain(pair)
        if gain is None:
            left_out["a return is not finite"] = left_out.get("a return is not finite", 0) + 1
        else:
            by_task[pair[0].task].append(gain)
    gains = list(itertools.chain(*by_task.values()))
    if not gains:
        return None
    return {
        "measure": "return",
        **_mean_difference(gains, confidence),
        "left_out": left_out,
        "tasks": [{"task": task, **_mean_difference(members, confidence)} for task, members in by_task.items()],
    }


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


def _paired_summary(counts: stats.PairedCounts, confidence: float) -> dict[str, Any]:
    interval = stats.paired_difference(counts, confidence)
    bounds, p = [interval.low, interval.high], stats.mcnemar(counts.only_first, counts.only_second).p
    return {
        "n": counts.n,
        "both": counts.both,
        "only_a": counts.only_first,
        "only_b": counts.only_second,
        "neither": counts.neither,
        "difference": interval.estimate,
        "newcombe": bounds,
        "p": p,
        "contested": contested(bounds, p),
    }
