"""What a study of faults shows: success after each fault, by when it came, against the run that had none."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simeval import interaction, stats
from simeval.arms import FAULT
from simeval.outcomes import COUNTED, DROPPED, Outcome
from simeval.wording import bounds_in_percent, percent, points

if TYPE_CHECKING:
    from rich.table import Table

PHASES = ("early", "middle", "late")
"""Thirds of the run without the fault."""
_LEVEL = 0.05


def recovery_studies(outcomes: Sequence[Outcome], confidence: float = 0.95) -> list[dict[str, Any]]:
    """One analysis, as JSON data, of each policy in each world that faults were injected in.

    ``recovered``: of runs whose twin without the fault succeeded, those that succeeded all the same. Forks of one start
    are a cluster. An error of the fork, or of its twin, leaves the pair out.
    """
    twins = {outcome.id: outcome for outcome in outcomes}
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.branch and f'"axis":"{FAULT}' in outcome.condition:
            groups[outcome.world, outcome.arm.policy].append(outcome)
    return [
        {"policy": policy, "world": world, **_study(members, twins, confidence)}
        for (world, policy), members in groups.items()
    ]


def _study(forks: Sequence[Outcome], twins: Mapping[str, Outcome], confidence: float) -> dict[str, Any]:
    by_fault: dict[str, list[tuple[Outcome, Outcome, str]]] = defaultdict(list)
    left_out: dict[str, Counter[str]] = defaultdict(Counter)
    for fork in forks:
        fault = next(data for data in json.loads(fork.condition) if data["axis"].startswith(FAULT))
        name, twin = fault["axis"].removeprefix(FAULT), twins.get(fork.parent)
        by_fault[name] += []
        if twin is None or twin.summary is None or {fork.status, twin.status} != {COUNTED}:
            left_out[name][fork.reason if fork.status == DROPPED else "error"] += 1
            continue
        phase = min(len(PHASES) - 1, int(len(PHASES) * fault["from_step"] / twin.summary.length))
        by_fault[name].append((fork, twin, PHASES[phase]))
    rows = [
        {"fault": name, **_row(pairs, confidence), "left_out": dict(left_out[name])} for name, pairs in by_fault.items()
    ]
    for row, p in zip(rows, stats.holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
    every = [pair for pairs in by_fault.values() for pair in pairs]
    plain = {twin.id: twin for _, twin, _ in every}
    return {
        "twins": interaction.rate(*_columns(plain.values(), plain.values()), confidence),
        "faults": rows,
        "all": _row(every, confidence),
        "phases": list(PHASES),
    }


def _row(pairs: Sequence[tuple[Outcome, Outcome, str]], confidence: float) -> dict[str, Any]:
    forks, twins = [fork for fork, _, _ in pairs], [twin for _, twin, _ in pairs]
    after, starts = _columns(forks, twins)
    before, _ = _columns(twins, twins)
    phases = np.array([phase for _, _, phase in pairs], dtype=object)
    return {
        "success": interaction.rate(after, starts, confidence),
        **interaction.change(after, before, starts, confidence),
        "recovered": interaction.rate(after[before], starts[before], confidence),
        "by_phase": {
            phase: {
                "success": interaction.rate(after[here], starts[here], confidence),
                "recovered": interaction.rate(after[here & before], starts[here & before], confidence),
            }
            for phase in PHASES
            for here in [phases == phase]
        },
    }


def _columns(outcomes: Iterable[Outcome], starts: Iterable[Outcome]) -> tuple[np.ndarray, np.ndarray]:
    """Successes, and a number for each start."""
    keys = [outcome.instance for outcome in starts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([o.succeeded for o in outcomes], dtype=bool), np.array([numbers[key] for key in keys], dtype=int)


def recovery_words(study: Mapping[str, Any]) -> str:
    """The recovery rate, and the fault that costs most."""
    every, twins = study["all"], study["twins"]
    if not every["recovered"]["n"]:
        return f"{study['policy']}: no faulty run whose twin succeeded counts yet."
    rate = percent(every["recovered"]["rate"], every["recovered"]["n"])
    rows = [row for row in study["faults"] if row["recovered"]["n"]]
    worst = min(rows, key=lambda row: row["recovered"]["rate"])
    return (
        f"{study['policy']} recovers from {rate} of {every['recovered']['n']} faults in runs that succeed without "
        f"({percent(twins['rate'], twins['n'])} do); least from {worst['fault']}: "
        f"{percent(worst['recovered']['rate'], worst['recovered']['n'])}."
    )


def recovery_table(study: Mapping[str, Any], run: str, confidence: float) -> "Table":
    """Recovery by fault and phase."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    drops = [f"{row['fault']}: {n} {why}" for row in study["faults"] for why, n in row["left_out"].items()]
    notes = [
        f"of runs whose twin without the fault succeeded, those that still do [{100 * confidence:g} % interval]",
        "change: success less that of the twins [points]; * p < 0.05 after Holm",
        *([f"left out: {'; '.join(drops)}"] if drops else []),
    ]
    table = Table(
        title=escape(f"Recovery · {study['policy']} in {study['world']} · {run}"),
        caption=escape("; ".join(notes)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    for name in ("fault", *study["phases"], "any time", "change"):
        table.add_column(name, justify="left" if name == "fault" else "right", no_wrap=name == "fault")
    rows = [*study["faults"], {"fault": "all", "p_holm": 1.0, **study["all"]}]
    for number, row in enumerate(rows):
        cells = [_told(row["by_phase"][phase]["recovered"]) for phase in study["phases"]]
        mark = "*" if row["p_holm"] < _LEVEL else ""
        change = "–" if row["difference"] is None else f"{points(row['difference'], row['n'])}{mark}"
        last = number == len(study["faults"]) - 1
        table.add_row(escape(row["fault"]), *cells, _told(row["recovered"], True), change, end_section=last)
    return table


def _told(rate: Mapping[str, Any], interval: bool = False) -> str:
    if rate["rate"] is None:
        return "–"
    text = f"{percent(rate['rate'], 1)} {rate['count']}/{rate['n']}"
    if interval:
        text += "\n[dim]\\[{}, {}][/dim]".format(*bounds_in_percent(rate["interval"]))
    return text.replace(" ", "\u00a0")
