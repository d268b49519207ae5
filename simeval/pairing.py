"""Two arms on the same starts and noise: matching their outcomes, and the paired difference."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from simeval import stats
from simeval.outcomes import COUNTED, Outcome
from simeval.summaries import mean


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
    """First minus second on the starts that both finished, or none where they share none; ``p`` is not yet adjusted."""
    pairs, left_out = match(first, second)
    if not pairs:
        return None
    by_task: dict[str, list[tuple[Outcome, Outcome]]] = defaultdict(list)
    for pair in pairs:
        by_task[pair[0].task].append(pair)
    counts = _paired_counts(pairs)
    test = stats.mcnemar(counts.only_first, counts.only_second)
    gains = [
        a.summary.total_reward - b.summary.total_reward
        for a, b in pairs
        if a.summary is not None and b.summary is not None
    ]
    return {
        **_paired_summary(counts, confidence),
        "p": test.p,
        "mid_p": test.mid_p,
        "test": test.method,
        "left_out": left_out,
        "return_difference": mean(gains, confidence),
        "tasks": [
            {"task": task, **_paired_summary(_paired_counts(members), confidence)} for task, members in by_task.items()
        ],
    }


def _paired_counts(pairs: Sequence[tuple[Outcome, Outcome]]) -> stats.PairedCounts:
    return stats.PairedCounts.of([a.succeeded for a, _ in pairs], [b.succeeded for _, b in pairs])


def _paired_summary(counts: stats.PairedCounts, confidence: float) -> dict[str, Any]:
    interval = stats.paired_difference(counts, confidence)
    return {
        "n": counts.n,
        "both": counts.both,
        "only_a": counts.only_first,
        "only_b": counts.only_second,
        "neither": counts.neither,
        "difference": interval.estimate,
        "newcombe": [interval.low, interval.high],
    }
