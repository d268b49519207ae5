"""Two runs side by side: paired where they share starts and noise, and what a difference between them may be due to."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simeval import stats
from simeval.arms import Arm, labels
from simeval.errors import ConfigError
from simeval.outcomes import COUNTED, Outcome, measure, read_outcomes
from simeval.pairing import LEVEL, compare_paired, contested, match
from simeval.reader import Run
from simeval.summaries import mean
from simeval.wording import bounds_of, difference, p_value

SCHEMA = "simeval-comparison/1"
_MATCHED_SHARE = 0.5
"""Runs are compared as paired if at least this share of the smaller side's episodes match."""
_NO_MATTER = ("run_id", "config.run", "config.hydra", "began", "config.world.num_slots", "config.policy.device")


def compare(
    run_a: Run,
    run_b: Run,
    policies: Mapping[str, str] | None = None,
    *,
    detect: float = 0.1,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """What two runs say of each other, as JSON data; every difference is A minus B.

    ``policies`` maps names in A to names in B; without it, equal names are compared, and where each run has one policy,
    those two. Episodes of the tasks that both runs have are matched by start and noise, and compared as pairs (exact
    McNemar, Newcombe's paired interval); where fewer than half match, as independent samples (Barnard, Newcombe's
    unpaired interval). Where a side's world defines no success, returns are compared: as pairs by the sign-flip test
    and its interval, as independent samples by Welch's. ``detect`` is the difference in success rate to plan for.
    Raises ``ConfigError`` for runs with nothing in common.
    """
    sides = [_roots(run) for run in (run_a, run_b)]
    tasks = _common_tasks(run_a, run_b, sides)
    names = [labels(o.arm for o in side) for side in sides]
    compared = []
    for arm_a, arm_b in _arms(names, policies):
        first = [o for o in sides[0] if o.arm == arm_a and o.task in tasks]
        second = [o for o in sides[1] if o.arm == arm_b and o.task in tasks]
        result = _compare_arms(first, second, confidence)
        compared.append({"a": names[0][arm_a], "b": names[1][arm_b], **result})
    adjusted = stats.holm([item["p"] for item in compared])
    for item, p in zip(compared, adjusted, strict=True):
        item["p_holm"] = p
        item["contested"] = contested(bounds_of(item), p)
        item["plan"] = _plan(item, detect) if item["measure"] == "success" else None
        item["conclusion"] = _conclusion(item, confidence)
    return {
        "schema": SCHEMA,
        "a": str(run_a.path),
        "b": str(run_b.path),
        "tasks": tasks,
        "tasks_left_out": sorted({o.task for side in sides for o in side} - set(tasks)),
        "comparisons": compared,
        "differences": differences(run_a.info, run_b.info),
    }


def _roots(run: Run) -> list[Outcome]:
    return [outcome for outcome in read_outcomes(run) if not outcome.branch]


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


def _arms(names: Sequence[Mapping[Arm, str]], policies: Mapping[str, str] | None) -> list[tuple[Arm, Arm]]:
    by_name = [{name: arm for arm, name in side.items()} for side in names]
    if policies is None:
        policies = {name: name for name in by_name[0] if name in by_name[1]}
        if not policies and len(by_name[0]) == len(by_name[1]) == 1:
            policies = dict(zip(by_name[0], by_name[1], strict=True))
    unknown = [*(a for a in policies if a not in by_name[0]), *(b for b in policies.values() if b not in by_name[1])]
    if unknown or not policies:
        what = f"unknown policy {unknown[0]!r}" if unknown else "the runs have no policy name in common"
        raise ConfigError(
            f"{what}; the first run has: {', '.join(by_name[0])}; the second has: {', '.join(by_name[1])}; "
            "name the pairs to compare, as NAME_IN_A=NAME_IN_B"
        )
    return [(by_name[0][a], by_name[1][b]) for a, b in policies.items()]


def _compare_arms(first: Sequence[Outcome], second: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    counted = [[o for o in side if o.status == COUNTED] for side in (first, second)]
    successes, sizes = [sum(o.succeeded for o in side) for side in counted], [len(side) for side in counted]
    if min(sizes) == 0:
        raise ConfigError("one of the runs has no finished episode of a policy to compare; resume it first")
    by_return = "return" in (measure(counted[0]), measure(counted[1]))
    returns = [[o.summary.total_reward for o in side if o.summary is not None] for side in counted]
    outcome: dict[str, Any] = {}
    for letter, won, n, gained in zip("ab", successes, sizes, returns, strict=True):
        if by_return:
            outcome[f"return_{letter}"] = mean(gained, confidence)
        else:
            wilson = _bounds(stats.wilson(won, n, confidence))
            outcome[f"rate_{letter}"] = {"successes": won, "n": n, "rate": won / n, "wilson": wilson}
    if by_return and None in outcome.values():
        raise ConfigError("one of the runs has no finite return of a policy to compare")
    pairs, _ = match(first, second)
    share = len(pairs) / min(sizes)
    paired = compare_paired(first, second, confidence) if share >= _MATCHED_SHARE else None
    if paired is not None:
        why = f"{len(pairs)} starts with their noise are in both runs ({sizes[0]} and {sizes[1]} episodes counted)"
        result = {"kind": "paired", "why": why, **outcome, **paired}
        return result if by_return else {**result, "discordant": _discordant(pairs)}
    why = f"only {len(pairs)} starts of {min(sizes)} are in both runs" if pairs else "the runs share no start and noise"
    result = {"kind": "unpaired", "why": why, "measure": "return" if by_return else "success", **outcome}
    if by_return:
        first_finite, second_finite = ([value for value in gained if math.isfinite(value)] for gained in returns)
        interval, test = stats.welch(first_finite, second_finite, confidence)
        bounds = {"interval": _bounds(interval) if math.isfinite(interval.low) else None}
    else:
        interval = stats.unpaired_difference(successes[0], sizes[0], successes[1], sizes[1], confidence)
        test = stats.barnard(successes[0], sizes[0], successes[1], sizes[1])
        bounds = {"newcombe": _bounds(interval)}
    return {
        **result,
        "n": min(sizes),
        "difference": interval.estimate,
        **bounds,
        "p": test.p,
        "test": test.method,
    }


def _discordant(pairs: Sequence[tuple[Outcome, Outcome]]) -> list[dict[str, Any]]:
    return [
        {"task": a.task, "a": a.id, "b": b.id, "succeeded": "a" if a.succeeded else "b"}
        for a, b in pairs
        if a.succeeded != b.succeeded
    ]


def _bounds(interval: stats.Interval) -> list[float]:
    return [interval.low, interval.high]


def _plan(item: Mapping[str, Any], detect: float) -> dict[str, Any]:
    """How many pairs, or episodes a side, would show a difference of ``detect`` with power 0.8; and those at hand."""
    if item["kind"] == "paired":
        discordance = (item["only_a"] + item["only_b"] + 0.5) / (item["n"] + 1)
        needed = stats.pairs_needed(detect, max(discordance, detect))
        smallest = stats.minimum_detectable_paired_effect(item["n"], max(discordance, detect))
    else:
        base = min(item["rate_b"]["rate"], 1 - detect)
        needed = stats.episodes_needed(base, base + detect)
        smallest = stats.minimum_detectable_effect(item["n"], base)
    return {
        "detect": detect,
        "power": 0.8,
        "needed": needed,
        "more": max(0, needed - item["n"]),
        "smallest_detectable": smallest,
    }


def _conclusion(item: Mapping[str, Any], confidence: float) -> str:
    n, gain, plan = item["n"], item["difference"], item["plan"]
    estimate, *ends = difference(dict(item))
    level = f"{100 * confidence:g} % interval"
    if not ends:
        interval = f"too few episodes for a {level}"
    elif item["contested"]:
        interval = f"approximate {level} {' to '.join(ends)}: it leaves out 0, but the test decides"
    else:
        interval = f"{level} {' to '.join(ends)}"
    evidence = f"{interval}, {item['test']} p = {p_value(item['p_holm'])}"
    unit = "pairs" if item["kind"] == "paired" else "episodes a side"
    size = f"{n} {unit}"
    what = "succeeds more often" if item["measure"] == "success" else "has a higher return"
    gained = f"{estimate} points" if item["measure"] == "success" else f"a mean return of {estimate}"
    if item["p_holm"] < LEVEL:
        side, than = ("A", "B") if gain > 0 else ("B", "A")
        return f"{side} {what} than {than}: {gained} over {size} ({evidence})."
    verdict = f"No difference is shown: {gained} over {size} ({evidence})"
    if plan is None:
        return f"{verdict}."
    more = (
        f"{plan['more']} more {unit} would show a difference of {100 * plan['detect']:g} points (power 0.8)"
        if plan["more"]
        else f"{size} are enough to have shown a difference of {100 * plan['detect']:g} points (power 0.8)"
    )
    return f"{verdict}; {more}."


def differences(info_a: Mapping[str, Any], info_b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Configuration, versions, fingerprints and hardware in which two runs differ, but for names and slots."""
    flat = [_flatten({**info, **_last_session(info), "sessions": None}) for info in (info_a, info_b)]
    return [
        {"what": key, "a": flat[0].get(key), "b": flat[1].get(key)}
        for key in sorted({*flat[0], *flat[1]})
        if flat[0].get(key) != flat[1].get(key) and not any(key == k or key.startswith(k + ".") for k in _NO_MATTER)
    ]


def _last_session(info: Mapping[str, Any]) -> Mapping[str, Any]:
    sessions = info.get("sessions") or [{}]
    return sessions[-1]


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        flat = {}
        for key, item in value.items():
            flat.update(_flatten(item, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    return {prefix: value}
