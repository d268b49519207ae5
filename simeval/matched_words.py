"""A matched study in words: the worst axis, what happens when all act at once, and what happens by itself."""

from collections.abc import Mapping
from typing import Any

from simeval.pairing import LEVEL, contested
from simeval.wording import caveat, p_value, percent, points

Study = Mapping[str, Any]


def matched_headline(studies: list[dict[str, Any]], rule: Mapping[str, Any]) -> str:
    """All studies of a run in a few sentences, and the name of the rule."""
    level = f"{100 * rule['confidence']:g} %"
    told = [" ".join(told) for told in stories(studies, level)]
    return f"{' '.join(told)} Rule: {rule['name']}."


def stories(studies: list[dict[str, Any]], level: str) -> list[list[str]]:
    """The sentences of each study, which name its world where there are several."""
    several = len({study["world"] for study in studies}) > 1
    return [
        [
            told
            for told in (
                worst_axis(study, level, several),
                losses(study),
                together(study, level),
                by_itself(study),
                uncounted(study),
            )
            if told
        ]
        for study in studies
    ]


def worst_axis(study: Study, level: str, named: bool = False) -> str:
    """How the policy does as it is, and under which axis alone it loses most."""
    who = f"{study['policy']} in {study['world']}" if named else study["policy"]
    nominal = study["nominal"]
    if not nominal["n"]:
        return f"{who}: no unperturbed episode counts yet."
    lead = f"{who} succeeds on {percent(nominal['rate'], nominal['n'])} of {nominal['n']} starts as they are"
    row = worst(study)
    if row is None:
        return f"{lead}."
    if row["difference"] >= 0:
        return f"{lead}, and under no axis alone on fewer of them."
    where = f"{row['axis']} at severity {study['severities'][row['rank']]}"
    size = points(row["difference"], row["n"])
    ends = [points(end, row["n"]) for end in row["interval"] or ()]
    bounds = f"{level} interval {' to '.join(ends)}" if ends else f"too few starts for a {level} interval"
    p = f"p = {p_value(row['p_holm'])} after Holm over {len(study['rows'])} tests"
    if not _is_loss(row):
        return (
            f"{lead}. The largest loss to one axis alone, {size} points under {where} ({bounds}), is not beyond "
            f"chance: {p}."
        )
    rate = percent(row["success"]["rate"], row["success"]["n"])
    return f"{lead}; the worst axis alone is {where}: {rate}, {size} points ({bounds}, {p})."


def losses(study: Study) -> str:
    """Under which axes alone a loss is shown, where there are several."""
    shown = list(dict.fromkeys(row["axis"] for row in study["rows"] if _is_loss(row)))
    if len(shown) < 2:
        return ""
    where = "every axis" if len(shown) == len(study["axes"]) else f"each of {', '.join(shown[:-1])} and {shown[-1]}"
    return f"By itself, {where} shows a loss."


def worst(study: Study) -> Mapping[str, Any] | None:
    """The row of the largest loss: of those that are shown, where there are any."""
    rows = [row for row in study["rows"] if row["difference"] is not None]
    return min(rows, key=lambda row: (not _is_loss(row), row["difference"]), default=None)


def _is_loss(row: Mapping[str, Any]) -> bool:
    """Whether a loss is shown, and not only seen."""
    return row["difference"] is not None and row["difference"] < 0 and row["p_holm"] < LEVEL


def together(study: Study, level: str) -> str:
    """What all axes at once do beyond what each does alone, at the highest severity."""
    rows = [row for row in study["combinations"] if row["all"] and row["n"]]
    if not rows:
        return ""
    row = rows[-1]
    n, net = row["n"], row["interaction"]
    lead = (
        f"All {len(row['axes'])} at once at severity {study['severities'][row['rank']]}: "
        f"{percent(row['sim']['rate'], n)} succeed, where {percent(row['conj']['rate'], n)} survive each alone; "
        f"{row['emergent']['count']} of {n} instances fail only together and {row['compensated']['count']} "
        "succeed only together"
    )
    bounds = _bounds(net, level)
    size = points(net["difference"], n)
    if net["p_holm"] < LEVEL:
        return f"{lead}, a net {size} points ({bounds}, p = {p_value(net['p_holm'])})."
    if row["change"]["count"]:
        change = percent(row["change"]["rate"], n)
        return (
            f"{lead}: the net effect of {size} points is not distinguishable from zero ({bounds}, "
            f"p = {p_value(net['p_holm'])}), while {change} of instances change outcome."
        )
    return f"{lead}."


def by_itself(study: Study) -> str:
    """How many outcomes flip with no perturbation at all."""
    told = []
    for row in study["replications"]:
        flips = row["flips"]
        if flips["n"]:
            share = f"{percent(flips['rate'], flips['n'])} of outcomes" if flips["count"] else "no outcome"
            told.append(f"fresh {row['stream']} noise {share}")
    if not told:
        return ""
    return f"With no perturbation, {' and '.join(told).replace(' noise ', ' noise flips ')}."


def uncounted(study: Study) -> str:
    """What the numbers leave out."""
    told = []
    if study["errors"]:
        told.append(f"{study['errors']} error{'s' * (study['errors'] > 1)}")
    if study["dropped"]:
        told.append(f"{study['dropped']} rollouts dropped because the world objects to every draw")
    return f"Left out: {', '.join(told)}." if told else ""


def _bounds(row: Mapping[str, Any], level: str) -> str:
    return caveat(
        {"contested": contested(row["interval"], row["p_holm"])},
        level,
        [points(end, row["n"]) for end in row["interval"] or ()],
    )
