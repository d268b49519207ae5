"""What a comparison of two runs comes to, in words: what to know before believing it, and what it would take."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from simeval import stats
from simeval.audit import agree
from simeval.outcomes import COUNTED, Outcome
from simeval.pairing import LEVEL, match
from simeval.wording import caveat, difference, ordered, p_value, percent


def notes_on(first: Sequence[Outcome], second: Sequence[Outcome], same_run: bool, differ: Sequence[str]) -> list[str]:
    """What a reader must know before believing a comparison; ``differ``: in what the two runs differ, in words."""
    pairs, _ = match(first, second)
    same = [(a, b) for a, b in pairs if a.id == b.id]
    apart = [(a, b) for a, b in same if a.summary is None or b.summary is None or not agree(a.summary, b.summary)]
    opposite = sum(a.succeeded != b.succeeded for a, b in apart)
    notes = []
    if same_run and same:
        notes.append("A and B are the same episodes: a run is compared with itself")
    elif apart:
        notes.append(
            f"{len(same)} rollouts are asked for in the same words in both runs (equal ids), and {len(apart)} of them "
            f"ended differently, {opposite} with the opposite outcome: {_why_apart(differ)}"
        )
    elif same:
        notes.append(
            f"{len(same)} rollouts are asked for in the same words in both runs (equal ids), and ended alike: one "
            "repeats the other"
        )
    reads: dict[str, Callable[[Outcome], Hashable]] = {
        "the horizon": lambda outcome: outcome.horizon,
        "whether an episode stops at success": lambda outcome: "yes" if outcome.stop_on_success else "no",
        "for how many steps success must hold": lambda outcome: outcome.success_hold,
        "the world": lambda outcome: outcome.world,
    }
    for what, read in reads.items():
        notes += _setting_note(what, first, second, read)
    words = sum(a.instruction != b.instruction for a, b in pairs)
    if words:
        notes.append(f"on {words} of the shared starts the instructions of A and B differ")
    return notes


def _why_apart(differ: Sequence[str]) -> str:
    if len(differ) == 1:
        return f"the one difference between the runs is {differ[0]}"
    if differ:
        return f"the runs differ in {len(differ)} things, which are listed"
    return "a policy or a world has changed under its name, or is not a function of the rollout"


def _setting_note(
    what: str, first: Sequence[Outcome], second: Sequence[Outcome], read: Callable[[Outcome], Hashable]
) -> list[str]:
    """That a setting of the episodes differs, and on which tasks."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for task in dict.fromkeys(outcome.task for outcome in first):
        a, b = (
            ", ".join(sorted({str(read(o)) for o in side if o.task == task and o.status == COUNTED}))
            for side in (first, second)
        )
        if a != b:
            found[a, b].append(task)
    return [f"{what} is {a} in A and {b} in B on {', '.join(tasks)}" for (a, b), tasks in found.items()]


_POWER = 0.8


def plan(item: Mapping[str, Any], detect: float) -> dict[str, Any] | None:
    """How many pairs, or episodes a side, a difference of ``detect`` takes to show, if things go on as observed.

    None where what was observed says nothing of it: too few pairs differ for such a difference to be possible.
    """
    if item["kind"] == "paired":
        share = (item["only_a"] + item["only_b"]) / item["n"]
        if share < detect:
            return None
        assumed, needed = {"discordance": share}, stats.pairs_needed(detect, share, _POWER)
    else:
        base = item["rate_b"]["rate"]
        other = base + detect if base + detect <= 1 else base - detect
        assumed, needed = {"base": base}, stats.episodes_needed(base, other, _POWER)
    return {"detect": detect, "power": _POWER, **assumed, "needed": needed, "more": max(0, needed - item["n"])}


def conclusion(item: Mapping[str, Any], level: str) -> str:
    """What a comparison shows, in words, from the side of the better; ``level`` names the interval's confidence."""
    success, paired = item["measure"] == "success", item["kind"] == "paired"
    better, worse, gain, bounds = ordered({**item, "a": "A", "b": "B"})
    oriented = {"n": item["n"], "difference": gain, ("newcombe" if success else "interval"): bounds}
    size, *ends = difference(oriented)
    amount = f"{size.lstrip('+')} points" if success else f"a mean of {size.lstrip('+')}"
    over = f"over {item['n']} {'pairs' if paired else 'episodes a side'}"
    evidence = f"({caveat(item, level, ends)}, {item['test']} p = {p_value(item['p_holm'])})"
    where = "" if item["task"] is None else f"{item['task']}: "
    if item["p_holm"] < LEVEL:
        verb = "succeeds more often" if success else "has a higher return"
        return f"{where}{better} {verb} than {worse}, by {amount} {over} {evidence}."
    if gain:
        return f"{where}No difference is shown: {better} leads by {amount} {over} {evidence}.{_outlook(item)}"
    what = "succeed equally often" if success else "have equal mean returns"
    return f"{where}No difference is shown: A and B {what} {over} {evidence}.{_outlook(item)}"


def _outlook(item: Mapping[str, Any]) -> str:
    planned = item["plan"]
    if planned is None:
        return ""
    n = item["n"]
    if "discordance" in planned:
        unit, given = (
            "pairs",
            f"if outcomes go on to differ on {percent(planned['discordance'], n)} of pairs, as they do here",
        )
    else:
        unit, given = "episodes a side", f"at B's rate of {percent(planned['base'], n)}"
    more = (
        f" ({planned['more']} more)" if planned["more"] else ", fewer than there are" if planned["needed"] < n else ""
    )
    return (
        f" To show a true difference of {100 * planned['detect']:g} points with power {planned['power']:g}, "
        f"{given}, takes about {planned['needed']} {unit}{more}."
    )
