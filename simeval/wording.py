"""Results in words and readable numbers."""

from typing import Any


def headline(scores: dict[str, Any]) -> str:
    """The result in words, with its interval, its number of episodes and the name of its rule."""
    level = f"{100 * scores['rule']['confidence']:g} %"
    rule = f"Rule: {scores['rule']['name']}."
    arms = [arm for arm in scores["arms"] if arm["n"]]
    if not arms:
        return "No episode counts yet, so there is no success rate."
    ranked = sorted(arms, key=lambda arm: arm["rate"], reverse=True)
    top = {arm["arm"] for arm in ranked[:2]}
    pair = next((pair for pair in scores["pairs"] if {pair["a"], pair["b"]} == top), None)
    if pair is not None:
        return f"{_pair_in_words(pair, len(arms), len(scores['pairs']), level)} {rule}"
    best = ranked[0]
    lead = "" if len(arms) == 1 else f"Highest of {len(arms)}: "
    interval = " to ".join(percent(bound, best["n"]) for bound in best["wilson"])
    rate = percent(best["rate"], best["n"])
    return (
        f"{lead}{best['arm']} succeeded in {best['successes']} of {best['n']} episodes, {rate} ({level} interval "
        f"{interval}, Wilson). {rule}"
    )


_LEVEL = 0.05
"""The family-wise error at which a difference is called one."""


def _pair_in_words(pair: dict[str, Any], arms: int, pairs: int, level: str) -> str:
    better, worse = pair["a"], pair["b"]
    only_better, only_worse = pair["only_a"], pair["only_b"]
    gain, interval = pair["difference"], pair["newcombe"]
    if gain < 0:
        better, worse, only_better, only_worse = worse, better, only_worse, only_better
        gain, interval = -gain, [-bound for bound in reversed(interval)]
    lead = "On" if arms == 2 else f"The highest two of {arms}: on"
    size = f"{points(gain, pair['n']).lstrip('+')} points"
    if pair["p_holm"] < _LEVEL:
        relation = f"{better} succeeded more often than {worse} by {size}"
    elif gain:
        relation = f"no difference is shown: {better} leads {worse} by {size}"
    else:
        relation = f"{better} and {worse} succeeded equally often"
    bounds = " to ".join(points(bound, pair["n"]) for bound in interval)
    adjusted = f", Holm over {pairs}" if pairs > 1 else ""
    return (
        f"{lead} the same {pair['n']} starts and noise, {relation} "
        f"({level} interval {bounds}). Only {better} succeeded on {only_better}, "
        f"only {worse} on {only_worse}: exact McNemar p = {p_value(pair['p_holm'])}{adjusted}."
    )


_FINE = 100
"""From so many episodes on, a decimal of a percentage is worth reading."""


def percent(rate: float, n: int) -> str:
    """A rate over ``n`` episodes as a percentage, with a decimal only where ``n`` is large: ``97.5 %``, ``97 %``."""
    return f"{100 * rate:.{int(n >= _FINE)}f} %"


def points(difference: float, n: int) -> str:
    """A difference of rates over ``n`` pairs in signed percentage points: ``+12.5``, ``+12``, ``0``."""
    text = f"{100 * difference:+.{int(n >= _FINE)}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def p_value(p: float) -> str:
    """A p-value for reading: three decimals, or a power of ten when smaller."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}".replace("e-0", "e-")
