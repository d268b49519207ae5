"""Results in words and readable numbers."""

from collections.abc import Sequence
from typing import Any


def headline(scores: dict[str, Any]) -> str:
    """The result in words, with its interval, its number of episodes and the name of its rule."""
    level = f"{100 * scores['rule']['confidence']:g} %"
    rule = f"Rule: {scores['rule']['name']}."
    arms = [arm for arm in scores["arms"] if arm["n"]]
    if not arms:
        return "No episode counts yet, so there is no success rate."
    if scores["pairs"]:
        return f"{_pair_in_words(_widest(scores['pairs']), len(scores['pairs']), level)} {rule}"
    best = max(arms, key=lambda arm: arm["rate"])
    lead = "" if len(arms) == 1 else f"Highest of {len(arms)}: "
    interval = f"{percent(best['wilson'][0])} to {percent(best['wilson'][1])}"
    return (
        f"{lead}{best['arm']} succeeded in {best['successes']} of {best['n']} episodes, {percent(best['rate'])} "
        f"({level} interval {interval}, Wilson). {rule}"
    )


def _widest(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return max(pairs, key=lambda pair: abs(pair["difference"]))


def _pair_in_words(pair: dict[str, Any], count: int, level: str) -> str:
    better, worse = pair["a"], pair["b"]
    only_better, only_worse = pair["only_a"], pair["only_b"]
    gain, interval = pair["difference"], pair["newcombe"]
    if gain < 0:
        better, worse, only_better, only_worse = worse, better, only_worse, only_better
        gain, interval = -gain, [-bound for bound in reversed(interval)]
    lead = "On" if count == 1 else f"The widest of {count} paired differences: on"
    relation = (
        f"{better} succeeded more often than {worse} by {points(gain)[1:]} points"
        if gain
        else f"{better} and {worse} succeeded equally often"
    )
    adjusted = f", Holm over {count}" if count > 1 else ""
    shown = "" if pair["p_holm"] < 0.05 else ", so no difference is shown"
    return (
        f"{lead} the same {pair['n']} starts and noise, {relation} "
        f"({level} interval {points(interval[0])} to {points(interval[1])}). Only {better} succeeded on {only_better}, "
        f"only {worse} on {only_worse}: exact McNemar p = {p_value(pair['p_holm'])}{adjusted}{shown}."
    )


def percent(rate: float) -> str:
    """A rate as a percentage with one decimal, e.g. ``97.5 %``."""
    return f"{100 * rate:.1f} %"


def points(difference: float) -> str:
    """A difference of rates in signed percentage points, e.g. ``+12.5``."""
    return f"{100 * difference:+.1f}"


def p_value(p: float) -> str:
    """A p-value for reading: three decimals, or a power of ten when smaller."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"
