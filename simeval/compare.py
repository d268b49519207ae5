"""Two runs side by side: paired where they share starts and noise, and what a difference between them may be due to."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simeval import stats
from simeval.arms import Arm, condition_names, labels
from simeval.differences import differences
from simeval.errors import ConfigError, unknown
from simeval.matched_analysis import UNPERTURBED, place_of
from simeval.outcomes import COUNTED, Outcome, measure, read_outcomes
from simeval.pairing import LEVEL, compare_paired, contested, match
from simeval.reader import Run
from simeval.summaries import mean, proportion
from simeval.verdict import conclusion, notes_on, plan
from simeval.wording import bounds_of

SCHEMA = "simeval-comparison/1"
_MATCHED_SHARE = 0.5
"""Runs are compared as paired if at least this share of the smaller side's episodes match."""


def compare(
    run_a: Run,
    run_b: Run,
    policy_a: str | None = None,
    policy_b: str | None = None,
    *,
    detect: float = 0.1,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """What two runs say of each other, as JSON data; every difference is A minus B.

    ``policy_a`` and ``policy_b`` name what of each run is compared (a policy, or an arm by its whole name); whatever is
    not named is matched by policy, condition and setting, or is all that the run has. Episodes of the tasks that both
    runs have are matched by start and noise, and compared as pairs (exact McNemar, Newcombe's paired interval); where
    fewer than half match, as independent samples (Barnard, Newcombe's unpaired interval). Where a side's world defines
    no success, returns are compared task by task: as pairs by the sign-flip test and its interval, as independent
    samples by Welch's. ``detect`` is the difference in success rate to plan for. Raises ``ConfigError`` for runs with
    nothing in common.

    Two matched studies are compared condition by condition: ``place`` says which axes act at which severity, and
    ``beyond_nominal`` by how much more the difference is than that of the same starts unperturbed. What must be known
    of all conditions together is in ``notes``.
    """
    sides = [_roots(run) for run in (run_a, run_b)]
    tasks = _common_tasks(run_a, run_b, sides)
    names = labels(outcome.arm for side in sides for outcome in side)
    conditions = condition_names(outcome.arm.condition for side in sides for outcome in side)
    matched = any(outcome.arm.drawn for side in sides for outcome in side)
    compared: list[dict[str, Any]] = []
    everything: tuple[list[Outcome], list[Outcome]] = [], []
    differ = differences(run_a.info, run_b.info)
    words = [item["text"] for item in differ]
    same_run = run_a.run_id == run_b.run_id and run_a.path.samefile(run_b.path)
    for arm_a, arm_b in _arms(sides, names, (policy_a, policy_b)):
        first = [o for o in sides[0] if o.arm == arm_a and o.task in tasks]
        second = [o for o in sides[1] if o.arm == arm_b and o.task in tasks]
        for item, members in _compare_arms(first, second, confidence):
            if arm_a.drawn:
                item["beyond_nominal"] = _beyond_nominal(sides, (arm_a, arm_b), members, confidence)
            if matched:
                everything[0].extend(members[0])
                everything[1].extend(members[1])
            notes = [] if matched else notes_on(*members, same_run, words)
            told = _told_apart((names[arm_a], names[arm_b]), (run_a, run_b), differ)
            named = {"a": told[0], "b": told[1], "condition": conditions[arm_a.condition]}
            where = {"place": place_of(arm_a.condition) if arm_a.drawn else [] if matched else None}
            compared.append({**named, **where, **item, "notes": notes})
    adjusted = stats.holm([item["p"] for item in compared])
    for item, p in zip(compared, adjusted, strict=True):
        item["p_holm"] = p
        item["contested"] = contested(bounds_of(item), p)
        item["plan"] = plan(item, detect) if item["measure"] == "success" and p >= LEVEL else None
        item["conclusion"] = conclusion(item, f"{100 * confidence:g} %")
    return {
        "schema": SCHEMA,
        "a": str(run_a.path),
        "b": str(run_b.path),
        "unfinished": {
            side: f"{run.unfinished} are there; go on by {run.resumed_by}"
            for side, run in (("a", run_a), ("b", run_b))
            if run.unfinished
        },
        "tasks": tasks,
        "tasks_left_out": sorted({o.task for side in sides for o in side} - set(tasks)),
        "comparisons": compared,
        "notes": notes_on(*everything, same_run, words) if matched else [],
        "differences": differ,
    }


_FEW = 2
"""Sides of one name are told apart by their settings where no more than so many differ."""


def _told_apart(names: tuple[str, str], runs: tuple[Run, Run], differ: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What the sides are called: where their names are the same, with the settings that differ, or their folders."""
    if names[0] != names[1]:
        return names
    settings = [item for item in differ if item["what"].startswith("config.")]
    plain = all(not isinstance(item[side], list | Mapping | None) for item in settings for side in "ab")
    if plain and 1 <= len(settings) <= _FEW:
        by = [[f"{item['what'].removeprefix('config.')}={item[side]}" for item in settings] for side in "ab"]
        return f"{names[0]}, {', '.join(by[0])}", f"{names[1]}, {', '.join(by[1])}"
    folders = [str(run.path) if runs[0].path.name == runs[1].path.name else run.path.name for run in runs]
    return f"{names[0]} in {folders[0]}", f"{names[1]} in {folders[1]}"


def _roots(run: Run) -> list[Outcome]:
    """All but branches, and the replications that a matched study sets against itself."""
    return [o for o in read_outcomes(run) if not o.branch and not (o.fresh and o.arm.setting)]


def _common_tasks(run_a: Run, run_b: Run, sides: Sequence[Sequence[Outcome]]) -> list[str]:
    has = [dict.fromkeys(o.task for o in side if o.status == COUNTED) for side in sides]
    common = [task for task in has[0] if task in has[1]]
    if not common:
        listed = [", ".join(tasks) or "no finished episode" for tasks in has]
        raise ConfigError(
            f"{run_a.path} and {run_b.path} have no task in common: the first has {listed[0]}; the second has "
            f"{listed[1]}; compare runs over the same tasks"
        )
    return common


def _arms(
    sides: Sequence[Sequence[Outcome]], names: Mapping[Arm, str], asked: Sequence[str | None]
) -> list[tuple[Arm, Arm]]:
    """The arms to compare: those that correspond, or the only one of each side."""
    first, second = (
        _chosen(list(dict.fromkeys(outcome.arm for outcome in side)), names, name)
        for side, name in zip(sides, asked, strict=True)
    )
    one_policy = len({arm.policy for arm in first}) == len({arm.policy for arm in second}) == 1
    for policies_match in (True, False) if one_policy else (True,):
        found = [(a, b) for a in first for b in second if _correspond(a, b, policies_match)]
        if found:
            return found
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    raise ConfigError(
        f"it is not clear what to compare; the first run has: {', '.join(names[arm] for arm in first)}; the second "
        f"has: {', '.join(names[arm] for arm in second)}; name one of each by --policy-a and --policy-b"
    )


def _chosen(arms: Sequence[Arm], names: Mapping[Arm, str], asked: str | None) -> list[Arm]:
    if asked is None:
        return list(arms)
    found = [arm for arm in arms if names[arm] == asked] or [arm for arm in arms if arm.policy == asked]
    if not found:
        raise unknown("policy", asked, [names[arm] for arm in arms])
    return found


def _correspond(a: Arm, b: Arm, policies_match: bool) -> bool:
    """Whether two arms differ in their policies at most, as far as both of them say."""
    settings = not a.setting or not b.setting or a.setting == b.setting
    worlds = not a.world or not b.world or a.world == b.world
    return settings and worlds and a.condition == b.condition and (a.policy == b.policy or not policies_match)


def _beyond_nominal(
    sides: Sequence[Sequence[Outcome]], arms: tuple[Arm, Arm], members: "_Members", confidence: float
) -> dict[str, Any] | None:
    """The difference less that of the same starts unperturbed: the mean over starts with Student's t interval."""
    plain = [
        {o.instance: o.succeeded for o in side if o.arm == arm.changed(condition=UNPERTURBED) and o.status == COUNTED}
        for side, arm in zip(sides, arms, strict=True)
    ]
    gains: dict[bytes, list[float]] = {}
    for a, b in match(*members)[0]:
        if a.instance in plain[0] and b.instance in plain[1]:
            nominal = int(plain[0][a.instance]) - int(plain[1][b.instance])
            gains.setdefault(a.instance, []).append(int(a.succeeded) - int(b.succeeded) - nominal)
    return mean([sum(found) / len(found) for found in gains.values()], confidence)


_Members = tuple[Sequence[Outcome], Sequence[Outcome]]


def _compare_arms(
    first: Sequence[Outcome], second: Sequence[Outcome], confidence: float
) -> Iterator[tuple[dict[str, Any], _Members]]:
    """Success of all tasks together, or returns one task at a time, with the outcomes that are compared."""
    counted = [[o for o in side if o.status == COUNTED] for side in (first, second)]
    if not all(counted):
        raise ConfigError("one of the runs has no finished episode of a policy to compare; resume it first")
    tasks = [task for task in dict.fromkeys(o.task for o in counted[0]) if any(o.task == task for o in counted[1])]
    if not tasks:
        raise ConfigError("the policies to compare have finished no task in common; resume the runs first")
    first, second = ([o for o in side if o.task in tasks] for side in (first, second))
    if "return" not in map(measure, counted):
        yield _compared(first, second, None, confidence), (first, second)
        return
    for task in tasks:
        members = [o for o in first if o.task == task], [o for o in second if o.task == task]
        yield _compared(*members, task, confidence), members


def _compared(
    first: Sequence[Outcome], second: Sequence[Outcome], task: str | None, confidence: float
) -> dict[str, Any]:
    sizes = [sum(o.status == COUNTED for o in side) for side in (first, second)]
    pairs, _ = match(first, second)
    share = len(pairs) / min(sizes)
    found = compare_paired(first, second, confidence) if share >= _MATCHED_SHARE else []
    compare_independent = _independent_rates if task is None else _independent_returns
    if found:
        kind, result = "paired", found[0]
        why = f"{len(pairs)} starts with their noise are in both runs ({sizes[0]} and {sizes[1]} episodes counted)"
        by_task = {row["task"]: row for row in result["tasks"]}
    else:
        kind, result = "unpaired", compare_independent(first, second, confidence)
        why = "the runs share no start and noise"
        if pairs:
            why = f"only {len(pairs)} starts of {min(sizes)} are in both runs"
        by_task = {
            name: compare_independent(*_of_task(name, first, second), confidence)
            for name in dict.fromkeys(o.task for o in first if o.status == COUNTED)
        }
    rows = [
        {"task": name, **_sides(*_of_task(name, first, second), task is None, confidence), **_difference_of(row)}
        for name in dict.fromkeys(o.task for o in first if o.status == COUNTED)
        for row in [by_task.get(name)]
    ]
    whole = {"kind": kind, "why": why, **_sides(first, second, task is None, confidence), **result}
    discordant = {"discordant": _discordant(pairs)} if found and task is None else {}
    return {**whole, "measure": "success" if task is None else "return", "task": task, **discordant, "tasks": rows}


def _of_task(task: str, first: Sequence[Outcome], second: Sequence[Outcome]) -> _Members:
    return [o for o in first if o.task == task], [o for o in second if o.task == task]


def _difference_of(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """A task's difference, its interval and its test; none where no start of it is shared."""
    if row is None:
        return {"difference": None, "n": 0, "p": None, "interval": None, "contested": False}
    bounds = bounds_of(row)
    kept = {name: value for name, value in row.items() if name != "tasks"}
    return {**kept, "contested": contested(bounds, row["p"])}


def _sides(first: Sequence[Outcome], second: Sequence[Outcome], by_success: bool, confidence: float) -> dict[str, Any]:
    """The rates, or the mean returns, of both sides over their counted episodes."""
    told: dict[str, Any] = {}
    for letter, side in zip("ab", (first, second), strict=True):
        counted = [o for o in side if o.status == COUNTED]
        if by_success:
            told[f"rate_{letter}"] = proportion(sum(o.succeeded for o in counted), len(counted), confidence)
        else:
            told[f"return_{letter}"] = mean(_returns(counted), confidence)
    return told


def _returns(outcomes: Sequence[Outcome]) -> list[float]:
    returns = [o.summary.total_reward for o in outcomes if o.status == COUNTED and o.summary is not None]
    return [value for value in returns if math.isfinite(value)]


def _independent_rates(first: Sequence[Outcome], second: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    sizes = [sum(o.status == COUNTED for o in side) for side in (first, second)]
    successes = [sum(o.succeeded for o in side) for side in (first, second)]
    interval = stats.unpaired_difference(successes[0], sizes[0], successes[1], sizes[1], confidence)
    test = stats.barnard(successes[0], sizes[0], successes[1], sizes[1])
    bounds = [interval.low, interval.high]
    return {
        "n": min(sizes),
        "difference": interval.estimate,
        "newcombe": bounds,
        "p": test.p,
        "test": test.method,
    }


def _independent_returns(first: Sequence[Outcome], second: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    returns_a, returns_b = _returns(first), _returns(second)
    if not returns_a or not returns_b:
        raise ConfigError("one of the runs has no finite return of a policy to compare")
    interval, test = stats.welch(returns_a, returns_b, confidence)
    bounds = [interval.low, interval.high] if math.isfinite(interval.low) else None
    return {
        "n": min(len(returns_a), len(returns_b)),
        "difference": interval.estimate,
        "interval": bounds,
        "p": test.p,
        "test": test.method,
    }


def _discordant(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[dict[str, Any]]:
    return [
        {"task": a.task, "a": a.id, "b": b.id, "succeeded": "a" if a.succeeded else "b"}
        for a, b in pairs
        if a.succeeded != b.succeeded
    ]
