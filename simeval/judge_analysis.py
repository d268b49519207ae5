"""How far a judge can be trusted: its verdicts held against a simulator's truth, and outcomes as a judge has them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simeval import stats
from simeval.judge import Verdict
from simeval.noise import Key
from simeval.outcomes import COUNTED, Outcome
from simeval.stats import Interval, PairedCounts
from simeval.verdicts import Verdicts
from simeval.versions import RECORDED, player, version_of

UNJUDGED = "not judged"
"""What became of an episode that a judge came to no verdict on; it enters no rate."""
ITSELF, SAME_START, SAME_ACTIONS = "itself", "the same start", "the same actions"
"""Whose truth an episode is held against: its own, or, if it was imagined, that of the simulator's episode of the same
policy from the same start with the same noise, or of the one whose actions were done again."""
_BINS = 10
_DRAWS = Key(0)


@dataclass(frozen=True, slots=True)
class Judged:
    """An episode with a verdict, ``true`` by a simulator: ``task``, ``policy``, and the number of its ``start``."""

    verdict: Verdict
    true: bool
    task: str
    policy: str
    start: int


def judged_by(outcomes: Sequence[Outcome], verdicts: Verdicts) -> list[Outcome]:
    """The outcomes as a judge has them, in the worlds that it judged; without its verdict, one does not count."""
    return [_judged(o, verdicts) if o.status == COUNTED and o.world in verdicts.worlds else o for o in outcomes]


def _judged(outcome: Outcome, verdicts: Verdicts) -> Outcome:
    verdict = verdicts.get(outcome.id)
    if verdict is None or verdict.success is None or outcome.summary is None:
        why = "not looked at yet" if verdict is None else verdict.reason
        return replace(outcome, status=UNJUDGED, reason=f"{verdicts.name} came to no verdict: {why}")
    summary = replace(outcome.summary, success=verdict.success, success_step=None)
    hold = max(1, outcome.success_hold)  # also where the World itself defines no success
    return replace(outcome, summary=summary, success_hold=hold, ever=verdict.success, final=verdict.success)


def audits(
    outcomes: Sequence[Outcome], verdicts: Verdicts, truths: Sequence[str], confidence: float = 0.95
) -> list[dict[str, Any]]:
    """One audit, as JSON data, of each world judged and each kind of truth that its episodes have.

    ``outcomes`` as recorded; ``truths``: the worlds whose recorded success is true. Episodes of other worlds are held
    against those of a true one, where there are such (see :data:`SAME_START`, :data:`SAME_ACTIONS`).
    """
    counted = [outcome for outcome in outcomes if outcome.status == COUNTED and not outcome.branch]
    real = {
        _place(outcome, outcome.arm.policy): outcome
        for outcome in counted
        if outcome.world in truths and outcome.success_hold
    }
    starts: dict[tuple[str, bytes], int] = {}
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for outcome in counted:
        verdict = verdicts.get(outcome.id)
        version = version_of(outcome.arm.policy)
        if verdict is None or version not in (None, RECORDED):
            continue
        policy = outcome.arm.policy.removesuffix(player("", RECORDED))
        if outcome.world in truths:
            true, against = (outcome if outcome.success_hold else None), ITSELF
        else:
            true, against = real.get(_place(outcome, policy)), SAME_ACTIONS if version else SAME_START
        if true is not None:
            start = starts.setdefault((outcome.task, outcome.instance), len(starts))
            groups[outcome.world, against].append(Judged(verdict, true.succeeded, outcome.task, policy, start))
    return [
        {"judge": verdicts.name, "world": world, "against": against, **audit(members, confidence)}
        for (world, against), members in groups.items()
    ]


def _place(outcome: Outcome, policy: str) -> tuple[str, str, bytes, str]:
    return policy, outcome.task, outcome.instance, outcome.condition


def audit(episodes: Sequence[Judged], confidence: float = 0.95) -> dict[str, Any]:
    """How a judge's verdicts compare with the truth, as JSON data.

    Episodes without a verdict are counted (``undecided``, by truth), and enter nothing else. Intervals allow for
    episodes that share a start.
    """
    decided = [each for each in episodes if each.verdict.success is not None]
    left = [each.true for each in episodes if each.verdict.success is None]
    said, true, start = (
        np.array([bool(each.verdict.success) for each in decided], dtype=bool),
        np.array([each.true for each in decided], dtype=bool),
        np.array([each.start for each in decided], dtype=int),
    )

    def rows(name: str) -> list[dict[str, Any]]:
        """The same of the episodes of each task, or policy."""
        of = np.array([getattr(each, name) for each in decided])
        parts = {value: of == value for value in dict.fromkeys(of.tolist())}
        return [
            {
                name: value,
                **_rightly(said[here], true[here], start[here], confidence),
                **_rates(said[here], true[here], start[here], confidence),
            }
            for value, here in parts.items()
        ]

    return {
        "n": len(decided),
        "undecided": {"succeeded": sum(left), "failed": len(left) - sum(left)},
        "confusion": {
            "true_positive": int((said & true).sum()),
            "false_positive": int((said & ~true).sum()),
            "false_negative": int((~said & true).sum()),
            "true_negative": int((~said & ~true).sum()),
        },
        **_rightly(said, true, start, confidence),
        "calibration": _calibration(decided, confidence),
        "tasks": rows("task"),
        "policies": rows("policy"),
        "rate": _rates(said, true, start, confidence) if decided else None,
    }


def _rightly(said: np.ndarray, true: np.ndarray, start: np.ndarray, confidence: float) -> dict[str, Any]:
    """Of all episodes, of successes and of failures: the share that is judged rightly."""

    def share(of: np.ndarray) -> dict[str, Any] | None:
        right = (said == true)[of]
        if not len(right):
            return None
        effect = stats.design_effect(right, start[of])
        return {"n": len(right), **_told(stats.wilson(int(right.sum()), len(right), confidence, effect))}

    return {"accuracy": share(np.ones_like(true)), "sensitivity": share(true), "specificity": share(~true)}


def _rates(said: np.ndarray, true: np.ndarray, start: np.ndarray, confidence: float) -> dict[str, Any]:
    """True and judged success rate, and how far the judged one is off."""
    effect = stats.design_effect(said.astype(float) - true, start) if (said != true).any() else 1.0
    off = stats.paired_difference(PairedCounts.of(said, true), confidence, effect)
    return {"n": len(said), "true": float(true.mean()), "judged": float(said.mean()), "off": _told(off)}


def _calibration(episodes: Sequence[Judged], confidence: float) -> dict[str, Any] | None:
    """Of probabilities: Brier score beside that of a judge who knows the base rate alone, ECE and the bins of it."""
    given = [each for each in episodes if each.verdict.probability is not None]
    if not given:
        return None
    p = np.array([each.verdict.probability for each in given], dtype=float)
    y = np.array([each.true for each in given], dtype=float)
    start = np.array([each.start for each in given])
    place = np.minimum((p * _BINS).astype(int), _BINS - 1)
    bins = [
        {
            "from": index / _BINS,
            "to": (index + 1) / _BINS,
            "n": int(here.sum()),
            "probability": float(p[here].mean()),
            "true": float(y[here].mean()),
        }
        for index in range(_BINS)
        if (here := place == index).any()
    ]
    return {
        "n": len(given),
        "brier": _told(_mean(np.square(p - y), start, confidence)),
        "brier_of_base_rate": float(y.mean() * (1 - y.mean())),
        "ece": sum(each["n"] * abs(each["probability"] - each["true"]) for each in bins) / len(given),
        "bins": bins,
    }


def _mean(values: np.ndarray, start: np.ndarray, confidence: float) -> Interval:
    if len(set(start.tolist())) < 2:
        return Interval(float(values.mean()), float("-inf"), float("inf"), "one start")
    columns = np.stack([values, np.ones_like(values)], axis=1)
    (found,) = stats.bootstrap_totals(columns, start, lambda totals: totals[:, :1] / totals[:, 1:], _DRAWS, confidence)
    return found


def _told(interval: Interval) -> dict[str, Any]:
    bounds = [bound if np.isfinite(bound) else None for bound in (interval.low, interval.high)]
    return {"estimate": interval.estimate, "interval": bounds}
