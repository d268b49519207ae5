"""The scores of a run, computed from its trace arrays alone, and ``scores.json``.

Two denominators are always given: *counted* episodes (finished, and not solved before they began), and counted ones
plus errors, an error being no success. Whatever was requested and not counted is listed with its reason. Episodes of
worlds that define no success have no rates: their returns are the outcome (``measure`` is ``"return"``). Returns are
averaged and compared within a task only, as those of other tasks have another scale.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simeval.arms import Arm, condition_names, labels
from simeval.errors import in_brief
from simeval.fidelity_analysis import fidelity_studies, fidelity_words, truth_world
from simeval.folder import write_json
from simeval.judge_analysis import judged_by
from simeval.matched_analysis import matched_studies
from simeval.matched_words import matched_headline
from simeval.outcomes import COUNTED, Outcome, measure, read_outcomes
from simeval.pairing import compare_paired, contested
from simeval.reader import Run
from simeval.recovery_analysis import recovery_studies, recovery_words
from simeval.stats import holm
from simeval.summaries import other_rules, over_tasks, rate, summary
from simeval.timing import timings
from simeval.verdicts import Verdicts, read_verdicts
from simeval.versions import version_of
from simeval.wording import bounds_of, headline, undefined

SCHEMA = "simeval-scores/1"


def score(run: Run, confidence: float = 0.95, judge: str | None = None) -> dict[str, Any]:
    """The scores of ``run`` as JSON data, also written to its ``scores.json``.

    By the verdicts of a ``judge``, where one is named (``simeval.verdicts``), and then written beside these. Raises
    ``TraceError``, naming the episode, where trace arrays, attributes and index disagree.
    """
    verdicts = None if judge is None else read_verdicts(run, judge)
    scores = run_scores(run, read_outcomes(run), confidence, verdicts)
    write_json((run.path if verdicts is None else verdicts.folder) / "scores.json", scores)
    return scores


def run_scores(
    run: Run, outcomes: Sequence[Outcome], confidence: float = 0.95, verdicts: Verdicts | None = None
) -> dict[str, Any]:
    """The scores of a run with these outcomes; one that was not gone through to its end says so first of all.

    With ``verdicts``, success is what their judge found, in the worlds that it judged; a study of models of a World
    still holds them against what that World recorded.
    """
    recorded, told = outcomes, ""
    if verdicts is not None:
        outcomes = judged_by(recorded, verdicts)
        told = f"the verdict of {verdicts.name}" + _where(recorded, verdicts)
    truth = truth_world(run, recorded)  # which no judge knows better
    sides = [was if was.world == truth else now for was, now in zip(recorded, outcomes, strict=True)]
    studies = fidelity_studies(run, sides, confidence)
    scores = scores_of(judged(outcomes), run.path.name, confidence, run.conventions, told) | {"fidelity": studies}
    if studies:
        scores["headline"] = " ".join(map(fidelity_words, studies))
        scores["timing"] = [row for row in scores["timing"] if row["world"] == studies[0]["truth"]]
    if not run.unfinished:
        return scores
    said = f"This run is not finished: {run.unfinished} are there; go on by {run.resumed_by}."
    return {**scores, "headline": f"{said} {scores['headline']}", "unfinished": said}


def _where(outcomes: Sequence[Outcome], verdicts: Verdicts) -> str:
    others = sorted({outcome.world for outcome in outcomes} - set(verdicts.worlds))
    return f" (in {', '.join(verdicts.worlds)}; in {', '.join(others)}: as recorded)" if others else ""


def judged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that say how good a policy is: all but actions that were done again in a model."""
    return [outcome for outcome in outcomes if version_of(outcome.arm.policy) is None]


def scores_of(
    outcomes: Sequence[Outcome],
    name: str,
    confidence: float = 0.95,
    conventions: Mapping[str, Any] | None = None,
    judge: str = "",
) -> dict[str, Any]:
    """The scores of a set of outcomes. Branches (children of a rollout) are counted apart: they share their past.

    ``conventions`` are the run's (``Run.conventions``), from which the control time is known. ``judge``: in words, who
    found what succeeded, where that was not the World.
    """
    roots = [outcome for outcome in outcomes if not outcome.branch]
    names = labels(outcome.arm for outcome in outcomes)
    conditions = condition_names(outcome.arm.condition for outcome in outcomes)
    by_arm = _grouped(roots)
    by_cell: dict[tuple[str, Arm], list[Outcome]] = defaultdict(list)
    for outcome in roots:
        by_cell[outcome.task, outcome.arm].append(outcome)
    scores: dict[str, Any] = {
        "schema": SCHEMA,
        "run": name,
        "rule": _rule(roots, confidence, judge),
        "requested": {
            "rollouts": len(outcomes),
            "branches": len(outcomes) - len(roots),
            **dict(sorted(Counter(o.status for o in roots).items())),
        },
        "arms": [
            {
                "arm": names[arm],
                "policy": arm.policy,
                "world": arm.world,
                "condition": conditions[arm.condition],
                "setting": arm.setting,
                **summary(members, confidence),
                "over_tasks": over_tasks(members, confidence),
                "under_other_rules": {} if judge else other_rules(members),
            }
            for arm, members in by_arm.items()
        ],
        "tasks": [
            {
                "task": task,
                "worlds": sorted({member.world for member in members}),
                "arm": names[arm],
                **summary(members, confidence),
            }
            for (task, arm), members in by_cell.items()
        ],
        "overall": summary(roots, confidence),
        "pairs": _pairs(by_arm, names, confidence),
        "matched": matched_studies(outcomes, confidence),
        "recovery": recovery_studies(outcomes, confidence),
        "fidelity": [],
        "branches": [
            {"arm": names[arm], **rate(members, confidence)}
            for arm, members in _grouped(o for o in outcomes if o.branch).items()
        ],
        "timing": timings(outcomes, conventions or {}),
        "not_counted": [
            {"id": o.id, "task": o.task, "arm": names[o.arm], "reason": o.status, "detail": in_brief(o.reason)}
            for o in outcomes
            if o.status != COUNTED
        ],
    }
    said = matched_headline(scores["matched"], scores["rule"]) if scores["matched"] else headline(scores)
    said = " ".join([*map(recovery_words, scores["recovery"]), said])
    return {"headline": said, **scores}


def _grouped(outcomes: Iterable[Outcome]) -> dict[Arm, list[Outcome]]:
    groups: dict[Arm, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.arm].append(outcome)
    return groups


def _rule(roots: Sequence[Outcome], confidence: float, judge: str) -> dict[str, Any]:
    holds = sorted({o.success_hold for o in roots if o.summary is not None and o.success_hold})
    if len(holds) == 1:
        steps = f"{holds[0]} consecutive step" + ("s" if holds[0] > 1 else "")
    else:
        steps = f"as many consecutive steps as its world asks ({', '.join(map(str, holds)) or 'none recorded'})"
    without = sorted({outcome.world for outcome in roots if not outcome.success_hold})
    success = judge or f"the goal holds for {steps} before the horizon"
    if without:
        success = (f"{success}; " if holds else "") + undefined(without)
    name = f"success by {judge}" if judge else "held success"
    return {
        "name": ("return" if measure(roots) == "return" else name) + ", errors excluded",
        "success": success,
        "denominator": "episodes that finished and were not solved before their first action",
        "success_hold": holds,
        "without_success": without,
        "confidence": confidence,
    }


def _pairs(by_arm: dict[Arm, list[Outcome]], names: dict[Arm, str], confidence: float) -> list[dict[str, Any]]:
    """Paired comparisons of the arms that differ in one respect only and share starts and noise.

    What a matched study says of its conditions is said by ``matched``.
    """
    found = []
    for first, second in itertools.combinations(by_arm, 2):
        drawn = first.condition != second.condition and (first.drawn or second.drawn)
        if not drawn and len(first.differs_in(second)) == 1:
            pairs = compare_paired(by_arm[first], by_arm[second], confidence)
            found += [{"a": names[first], "b": names[second], **pair} for pair in pairs]
    adjusted = holm([pair["p"] for pair in found])
    for pair, p in zip(found, adjusted, strict=True):
        pair["p_holm"] = p
        pair["contested"] = contested(bounds_of(pair), p)
    return found
