"""Results in words and readable numbers."""

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from simeval.pairing import LEVEL

_MOST_TASKS = 3
"""The headline tells the returns of so many tasks; the rest are in the tables."""


def headline(scores: dict[str, Any]) -> str:
    """The result in words, with its interval, its number of episodes and the name of its rule."""
    level = f"{100 * scores['rule']['confidence']:g} %"
    told = []
    for group in groups(scores):
        shown = [part for part in parts(group) if any(arm["n"] for arm in part["arms"])]
        told += [
            _success(part, level) if part["measure"] == "success" else _returns(part, level)
            for part in shown[:_MOST_TASKS]
        ]
        if len(shown) > _MOST_TASKS:
            told.append(f"{len(shown) - _MOST_TASKS} more tasks, each by itself, are in the table.")
    if not told:
        return "No episode counts yet, so there is no success rate."
    return f"{' '.join(told)}{_errors(scores)} Rule: {scores['rule']['name']}."


def groups(scores: dict[str, Any]) -> list[dict[str, Any]]:
    """The arms, tasks and pairs of scores, parted into those that are comparable.

    All that is judged by success is one group; what is judged by its return is grouped by the tasks it was asked to do,
    as returns of other tasks have another scale. ``without_success`` names a group's worlds that define no success.
    """
    doing: dict[str, list[str]] = {}
    for row in scores["tasks"]:
        doing.setdefault(row["arm"], []).append(row["task"])
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for arm in scores["arms"]:
        tasks = () if arm["measure"] == "success" else tuple(sorted(doing.get(arm["arm"], ())))
        found.setdefault((arm["measure"], tasks), []).append(arm)
    parted: list[dict[str, Any]] = []
    left = list(scores["pairs"])
    for (measure, _), arms in sorted(found.items(), key=lambda item: item[0][0] == "return"):
        names = {arm["arm"] for arm in arms}
        mine = [pair["measure"] == measure and bool(names & {pair["a"], pair["b"]}) for pair in left]
        pairs = [pair for pair, own in zip(left, mine, strict=True) if own]
        left = [pair for pair, own in zip(left, mine, strict=True) if not own]
        parted.append(
            {
                "measure": measure,
                "task": None,
                "arms": arms,
                "tested": len(scores["pairs"]),
                "tasks": [row for row in scores["tasks"] if row["arm"] in names],
                "pairs": pairs,
                "without_success": [
                    world
                    for world in scores["rule"]["without_success"]
                    if measure == "return" and any(arm["world"] in ("", world) for arm in arms)
                ],
            }
        )
    return parted


def parts(group: dict[str, Any]) -> list[dict[str, Any]]:
    """What of a group may be taken together: all of it, or, where returns are compared, one task each (``task``)."""
    tasks = list(dict.fromkeys(row["task"] for row in group["tasks"]))
    if group["measure"] == "success" or len(tasks) < 2:
        return [group]
    found = []
    for task in tasks:
        rows = [row for row in group["tasks"] if row["task"] == task]
        pairs = [pair for pair in group["pairs"] if pair["task"] == task]
        found.append({**group, "task": task, "arms": rows, "tasks": rows, "pairs": pairs})
    return found


def errors_in_words(row: dict[str, Any]) -> str:
    """How many errors, and whose: ``3 errors``, ``3 policy errors``, ``3 errors (1 policy)``."""
    count, own = row["errors"], row["policy_errors"]
    noun = "error" + "s" * (count > 1)
    return f"{count} policy {noun}" if own == count else f"{count} {noun}" + (f" ({own} policy)" if own else "")


def _errors(scores: dict[str, Any]) -> str:
    """What was left out because of errors, and what counting it as failures would make of the rates."""
    arms = [arm for arm in scores["arms"] if arm["errors"]]
    if not arms:
        return ""
    left_out = ", ".join(f"{errors_in_words(arm)} of {arm['arm']}" for arm in arms)
    judged = [arm for arm in scores["arms"] if arm["measure"] == "success"]
    if not any(arm["errors"] for arm in judged):
        return f" Left out: {left_out}."
    counted = ", ".join(f"{a['arm']} {a['with_errors']['successes']}/{a['with_errors']['n']}" for a in judged)
    return f" Left out: {left_out}; with errors as failures: {counted}."


def undefined(worlds: Sequence[str]) -> str:
    """That some worlds define no success."""
    one = len(worlds) == 1
    return f"world{'' if one else 's'} {' and '.join(worlds)} define{'s' if one else ''} no success"


def _success(group: dict[str, Any], level: str) -> str:
    arms = [arm for arm in group["arms"] if arm["n"]]
    ranked = sorted(arms, key=lambda arm: arm["rate"], reverse=True)
    pair = _pair_of(group, ranked)
    if pair is not None:
        return _pair_in_words(pair, len(arms), group["tested"], level)
    best = ranked[0]
    lead = "" if len(arms) == 1 else f"Highest of {len(arms)}: "
    interval = " to ".join(percent(bound, best["n"]) for bound in best["wilson"])
    rate = percent(best["rate"], best["n"])
    return (
        f"{lead}{best['arm']} succeeded in {best['successes']} of {best['n']} episodes, {rate} ({level} interval "
        f"{interval}, Wilson)."
    )


def _pair_of(group: dict[str, Any], ranked: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    top = {arm["arm"] for arm in ranked[:2]}
    return next((pair for pair in group["pairs"] if {pair["a"], pair["b"]} == top), None)


def _pair_in_words(pair: dict[str, Any], arms: int, pairs: int, level: str) -> str:
    better, worse, gain, interval = ordered(pair)
    only_better, only_worse = (pair["only_a"], pair["only_b"])[:: 1 if better == pair["a"] else -1]
    size = f"{points(gain, pair['n']).lstrip('+')} points"
    if pair["p_holm"] < LEVEL:
        relation = f"{better} succeeded more often than {worse} by {size}"
    elif gain:
        relation = f"no difference is shown: {better} leads {worse} by {size}"
    else:
        relation = f"{better} and {worse} succeeded equally often"
    bounds = caveat(pair, level, [points(bound, pair["n"]) for bound in interval or ()])
    return (
        f"{_on(pair, arms)}, {relation} ({bounds}). Only {better} succeeded on {only_better}, "
        f"only {worse} on {only_worse}: {pair['test']} p = {p_value(pair['p_holm'])}{_adjusted(pairs)}."
    )


def _returns(group: dict[str, Any], level: str) -> str:
    arms = [arm for arm in group["arms"] if arm["return"]]
    where = undefined(group["without_success"])
    on = "" if group["task"] is None else f"{group['task']}: "
    if not arms:
        return f"{on}No episode has a finite return; {where}."
    ranked = sorted(arms, key=lambda arm: arm["return"]["mean"], reverse=True)
    pair = _pair_of(group, ranked)
    if pair is not None:
        means = ", ".join(f"{arm['arm']} {mean_return(arm['return'])[0]}" for arm in ranked[:2])
        told = _return_pair_in_words(pair, len(arms), group["tested"], level)
        return f"{on}{told}. Mean return {means}; {where}."
    best = ranked[0]
    mean, *ends = mean_return(best["return"])
    lead = "" if len(arms) == 1 else f"Highest of {len(arms)}: "
    interval = f" ({level} interval {' to '.join(ends)}, Student t)" if ends else ""
    episodes = f"{best['n']} episode{'s' if best['n'] > 1 else ''}"
    return f"{on}{lead}{best['arm']} has mean return {mean}{interval} over {episodes}; {where}."


def _return_pair_in_words(pair: dict[str, Any], arms: int, pairs: int, level: str) -> str:
    better, worse, gain, interval = ordered(pair)
    size, *ends = quantities(gain, interval, signed=True)
    size = size.lstrip("+")
    if pair["p_holm"] < LEVEL:
        relation = f"{better} has a higher return than {worse} by {size}"
    elif gain:
        relation = f"no difference is shown: {better} leads {worse} by a return of {size}"
    else:
        relation = f"{better} and {worse} have equal mean returns"
    bounds = caveat(pair, level, ends)
    return f"{_on(pair, arms)}, {relation} ({bounds}): {pair['test']} p = {p_value(pair['p_holm'])}{_adjusted(pairs)}"


def _on(pair: dict[str, Any], arms: int) -> str:
    return ("On" if arms == 2 else f"The highest two of {arms}: on") + f" the same {pair['n']} starts and noise"


def ordered(pair: Mapping[str, Any]) -> tuple[str, str, float, list[float] | None]:
    """The better and the worse of a pair, the gain, and its interval."""
    bounds = bounds_of(pair)
    if pair["difference"] >= 0:
        return pair["a"], pair["b"], pair["difference"], bounds
    return pair["b"], pair["a"], -pair["difference"], bounds and [-bound for bound in reversed(bounds)]


def caveat(pair: Mapping[str, Any], level: str, ends: Sequence[str]) -> str:
    """The interval of a difference, and what must be said of it."""
    if not ends:
        return f"too few episodes for a {level} interval"
    if pair["contested"]:
        return f"approximate {level} interval {' to '.join(ends)}: it leaves out 0, but the test decides"
    return f"{level} interval {' to '.join(ends)}"


def _adjusted(pairs: int) -> str:
    return f", Holm over {pairs}" if pairs > 1 else ""


_FINE = 100
"""From so many episodes on, a decimal of a percentage is worth reading."""


def rounded(value: float, places: int) -> str:
    """``value`` to so many decimals; a half goes away from zero, as with ``toFixed`` in the report's JavaScript.

    (Python's own formats round a half to the even digit: 32.5 would be 32 in the one and 33 in the other.)
    """
    return format(Decimal(value).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _DIGITS), "f")


_DIGITS = Context(prec=400)
"""As many as any float has before its point, and decimals."""


def _significant(value: float) -> str:
    """``value`` to four digits, rounded likewise."""
    return format(Context(prec=4, rounding=ROUND_HALF_UP).create_decimal_from_float(value).normalize(), "f")


def percent(rate: float, n: int) -> str:
    """A rate over ``n`` episodes as a percentage, with a decimal only where ``n`` is large: ``97.5 %``, ``97 %``."""
    return f"{rounded(100 * rate, int(n >= _FINE))} %"


def bounds_in_percent(interval: Sequence[float]) -> list[str]:
    """The ends of an interval of a rate in whole percent, without the sign: ``57``, ``93``."""
    return [rounded(100 * end, 0) for end in interval]


def points(difference: float, n: int) -> str:
    """A difference of rates over ``n`` pairs in signed percentage points: ``+12.5``, ``+12``, ``0``."""
    return _signed(rounded(100 * abs(difference), int(n >= _FINE)), difference)


def _signed(size: str, number: float) -> str:
    """The text of a size with the sign of its number, where it is not zero."""
    return size if not float(size) else ("−" if number < 0 else "+") + size


def p_value(p: float) -> str:
    """A p-value for reading: three decimals, or a power of ten when smaller."""
    return rounded(p + 1e-12, 3) if p >= 0.001 else f"{p:.0e}".replace("e-0", "e-").replace("-", "−")


def bounds_of(row: Mapping[str, Any]) -> list[float] | None:
    """The interval of a paired difference, of success rates or of returns."""
    return row["newcombe"] if "newcombe" in row else row["interval"]


def difference(row: Mapping[str, Any]) -> list[str]:
    """A difference for reading, and the ends of its interval where there is one."""
    bounds = bounds_of(row)
    if "newcombe" in row:
        return [points(value, row["n"]) for value in (row["difference"], *(bounds or ()))]
    return quantities(row["difference"], bounds, signed=True)


def mean_return(mean: dict[str, Any]) -> list[str]:
    """A mean for reading, and the ends of its interval where there is one."""
    return quantities(mean["mean"], mean["interval"])


def quantities(value: float, bounds: Sequence[float] | None, signed: bool = False) -> list[str]:
    """A number and its bounds, rounded to two digits of half the interval's width, or to four digits without one."""
    half = (bounds[1] - bounds[0]) / 2 if bounds else 0.0
    places = max(0, 1 - math.floor(math.log10(half))) if half > 0 else None
    fixed = places is not None and places < 7 and abs(value) < 1e7

    def text(number: float) -> str:
        shown = rounded(abs(number), places) if fixed and places is not None else _significant(abs(number))
        return _signed(shown, number) if signed else _signed(shown, number).lstrip("+")

    return [text(number) for number in (value, *(bounds or ()))]
