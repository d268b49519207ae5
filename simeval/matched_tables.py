"""A matched study as one table for a terminal: a row for each condition, a column for each severity."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simeval.matched_words import Study, by_itself
from simeval.wording import bounds_in_percent, p_value, percent, points

if TYPE_CHECKING:
    from rich.table import Table

_PAIRS = 6
"""So many pairs of axes are shown, those whose instances change outcome most."""
_MARK = 0.05
_TERMS = (
    "emergent: survives each alone and fails together; compensated: the other way round; outcome changed: both; net: "
    "their difference; hidden: the emergent of the failures",
)
_NAMES = 20
"""Names of conditions are broken into lines no shorter than this."""


def matched_table(study: Study, run: str, confidence: float) -> "Table":
    """Success at every severity, what it lost against the same starts unperturbed, and what the axes do at once."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    level = f"{100 * confidence:g} %"
    notes = [
        f"success rate [{level} interval]; below, the difference to the same starts unperturbed [points]",
        f"* p < {_MARK:g} after Holm over the tests of its kind",
        f"intervals are over starts, of the {_configurations(study)} drawn",
        *(_TERMS if study["combinations"] else ()),
        *filter(None, [by_itself(study).rstrip("."), _redraws(study), _left_out(study)]),
    ]
    table = Table(
        title=escape(f"Matched perturbations · {study['policy']} in {study['world']} · {run}"),
        caption=escape("; ".join(notes)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("severity", min_width=_NAMES)
    for severity in study["severities"]:
        table.add_column(severity, justify="right")
    ranks = range(len(study["severities"]))
    table.add_row("as it is", _rate(study["nominal"]), *[""] * (len(ranks) - 1), style="bold", end_section=True)
    rows = {(row["axis"], row["rank"]): row for row in study["rows"]}
    for number, axis in enumerate(study["axes"]):
        cells = [_alone(rows.get((axis, rank))) for rank in ranks]
        table.add_row(escape(axis), *cells, end_section=number == len(study["axes"]) - 1)
    for axes in _shown(study["combinations"]):
        found = {row["rank"]: row for row in study["combinations"] if row["axes"] == axes}
        _add_combination(table, [found.get(rank) for rank in ranks], axes)
    return table


def matched_comparison_table(comparison: Mapping[str, Any]) -> "Table":
    """Two matched studies: A less B under every condition, a column for each severity."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    items = [item for item in comparison["comparisons"] if item["place"] is not None]
    severities = sorted(
        {_severity(item["place"]) for item in items if item["place"]}, key=lambda text: (len(text), text)
    )
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for item in items:
        axes = [term["axis"] for term in item["place"]]
        name = " + ".join(axes) if len(axes) < 3 else f"all {len(axes)} at once"
        rows.setdefault(name or "as it is", {})[_severity(item["place"])] = item
    table = Table(
        title=escape(
            f"Success rate, A − B [points] · A: {items[0]['a']} · B: {items[0]['b']}".replace(" · nominal", "")
        ),
        caption=escape(
            f"rate of A, rate of B; A − B [interval]; * p < {_MARK:g} after Holm over {len(items)} conditions; beyond: "
            "by how much more than for the same starts unperturbed"
        ),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("severity", min_width=_NAMES)
    for severity in severities:
        table.add_column(severity, justify="right")
    for name, found in rows.items():
        cells = [found.get(severity) for severity in severities] if name != "as it is" else [found[""]]
        table.add_row(escape(name), *map(_compared, cells), style="bold" if name == "as it is" else "")
    return table


def _severity(place: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(f"{term['level']:g}" for term in place))


def _compared(item: Mapping[str, Any] | None) -> str:
    if item is None:
        return "–"
    rates = ", ".join(percent(item[f"rate_{side}"]["rate"], item[f"rate_{side}"]["n"]) for side in "ab")
    low, high = (points(bound, 1) for bound in item["newcombe"])
    mark = "*" if item["p_holm"] < _MARK else ""
    beyond = item.get("beyond_nominal")
    told = "\n" + _whole(f"[dim]beyond {points(beyond['mean'], item['n'])}[/dim]") if beyond else ""
    return (
        _whole(f"[dim]{rates}[/dim]")
        + "\n"
        + _whole(f"{points(item['difference'], item['n'])} \\[{low}, {high}]{mark}")
        + told
    )


def _shown(combinations: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The sets of axes to show: all at once, and the pairs that change most."""
    every = [row["axes"] for row in combinations if row["all"]]
    rest = [row for row in combinations if not row["all"] and row["n"]]
    ranked = [row["axes"] for row in sorted(rest, key=lambda row: -row["change"]["rate"])]
    return [list(axes) for axes in dict.fromkeys(map(tuple, [*every[:1], *ranked]))][: _PAIRS + 1]


def _add_combination(table: "Table", rows: Sequence[Mapping[str, Any] | None], axes: Sequence[str]) -> None:
    from rich.markup import escape

    if not any(row and row["all"] for row in rows):
        table.add_row(escape(" + ".join(axes)), *map(_changed, rows))
        return
    lines = [
        (f"all {len(axes)} at once", [_alone(row and {**row, **row["against_nominal"]}) for row in rows]),
        ("  survive each alone", [_rate(row and row["conj"]) for row in rows]),
        ("  if independent", [_estimate(row, "indep") for row in rows]),
        ("  emergent", [_share(row, "emergent") for row in rows]),
        ("  compensated", [_share(row, "compensated") for row in rows]),
        ("  outcome changed", [_share(row, "change") for row in rows]),
        ("  net", [_net(row) for row in rows]),
        ("  hidden", [_share(row, "hidden") for row in rows]),
    ]
    for number, (label, cells) in enumerate(lines):
        table.add_row(label, *cells, end_section=number == len(lines) - 1, style="" if number else "bold")


def _rate(row: Mapping[str, Any] | None) -> str:
    if not row or row["rate"] is None:
        return "–"
    low, high = bounds_in_percent(row["interval"])
    return _whole(f"{percent(row['rate'], row['n'])} \\[{low}, {high}]")


def _alone(row: Mapping[str, Any] | None) -> str:
    if row is None or row["difference"] is None:
        return _rate(row and row["success"])
    mark = "*" if row["p_holm"] < _MARK else ""
    low, high = (points(bound, 1) for bound in row["interval"])
    return f"{_rate(row['success'])}\n" + _whole(
        f"[dim]{points(row['difference'], row['n'])} \\[{low}, {high}]{mark}[/dim]"
    )


def _share(row: Mapping[str, Any] | None, name: str) -> str:
    if not row or row[name]["rate"] is None:
        return "–"
    return _whole(f"{percent(row[name]['rate'], row[name]['n'])} {row[name]['count']}/{row[name]['n']}")


def _estimate(row: Mapping[str, Any] | None, name: str) -> str:
    return "–" if not row or row[name]["estimate"] is None else _whole(percent(row[name]["estimate"], row["n"]))


def _net(row: Mapping[str, Any] | None) -> str:
    if not row or row["interaction"]["difference"] is None:
        return "–"
    net = row["interaction"]
    low, high = (points(bound, 1) for bound in net["interval"])
    return (
        _whole(f"{points(net['difference'], net['n'])} \\[{low}, {high}]")
        + "\n"
        + _whole(f"p = {p_value(net['p_holm'])}")
    )


def _changed(row: Mapping[str, Any] | None) -> str:
    """Success with two axes at once, and below, how many outcomes changed, and net of both ways."""
    if not row or row["change"]["rate"] is None:
        return _rate(row and row["success"])
    net, n = row["interaction"], row["n"]
    mark = "*" if net["p_holm"] < _MARK else ""
    told = f"[dim]{percent(row['change']['rate'], n)}, net {points(net['difference'], n)}{mark}[/dim]"
    return f"{_rate(row['success'])}\n{_whole(told)}"


def _configurations(study: Study) -> str:
    """How many perturbations were drawn of each axis and severity."""
    counts = {row["configurations"] for row in study["rows"]} or {0}
    low, high = min(counts), max(counts)
    many = f"{low} to {high}" if low < high else str(high)
    return f"{many} perturbation{'s' * (high != 1)} of each axis and severity"


def _redraws(study: Study) -> str:
    return f"{study['redraws']} draws rejected by the world and drawn again" if study["redraws"] else ""


def _left_out(study: Study) -> str:
    told = [f"{study[name]} {what}" for name, what in (("errors", "errors"), ("dropped", "dropped")) if study[name]]
    return f"left out: {', '.join(told)}" if told else ""


def _whole(text: str) -> str:
    """Text that a narrow terminal does not break."""
    return text.replace(" ", "\u00a0")
