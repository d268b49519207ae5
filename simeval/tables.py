"""Scores and comparisons as tables for a terminal."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simeval.wording import difference, errors_in_words, groups, mean_return, p_value, percent, undefined

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 4
"""Up to this many arms, each has a column; with more, each has a row."""
_HEADER = 12
"""Names of columns are broken into lines no shorter than this."""
_UNBOUNDED = 10_000

_Lines = list[str]
"""A cell: an estimate, its interval and its counts, each of which stays whole."""


def print_table(scores: dict[str, Any], console: "Console | None" = None) -> None:
    """Print the tables of scores and the headline."""
    from rich.console import Console

    console = console or Console()
    for group in groups(scores):
        console.print(_fitting(scores, group, console))
    console.print(_kept_whole(scores["headline"]), highlight=False)


def _fitting(scores: dict[str, Any], group: dict[str, Any], console: "Console") -> "Table":
    """The table of a group with a line for each row, or, where that is too wide, with the intervals below."""
    build = _by_task if len(group["arms"]) <= _WIDE else _by_arm
    table = build(scores, group, " ")
    room = console.options.update(max_width=_UNBOUNDED)
    return table if console.measure(table, options=room).maximum <= console.width else build(scores, group, "\n")


def _table(scores: dict[str, Any], group: dict[str, Any], by: str) -> "Table":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    level = f"{100 * scores['rule']['confidence']:g} %"
    if group["measure"] == "success":
        what, notes = "Success", [f"success rate [{level} Wilson interval] successes/episodes", scores["rule"]["name"]]
    else:
        what, notes = "Mean return", [f"mean return [{level} t interval] episodes", undefined(group["without_success"])]
    if any(row["contested"] for pair in group["pairs"] for row in (pair, *pair["tasks"])):
        notes.append("* this interval leaves out 0, but the test, which decides, shows no difference")
    return Table(
        title=escape(f"{what} by {by} · {scores['run']}"),
        caption=escape("; ".join(notes)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
    )


def _fill(table: "Table", names: Sequence[str], rows: Sequence[Sequence[str]], sections: Iterable[int] = ()) -> None:
    """Add columns, whose names are broken into lines to the width of their cells, and rows."""
    from rich.markup import escape
    from rich.text import Text

    for index, name in enumerate(names):
        widths = [Text.from_markup(line).cell_len for row in rows for line in row[index].splitlines()]
        header = "\n".join(textwrap.wrap(name, max([_HEADER, *widths]), break_long_words=False))
        table.add_column(escape(header), justify="right" if index else "left")
    ends = set(sections)
    for index, row in enumerate(rows):
        table.add_row(*row, end_section=index in ends, style="bold" if index - 1 in ends else None)


def _by_task(scores: dict[str, Any], group: dict[str, Any], joint: str) -> "Table":
    from rich.markup import escape

    arms = group["arms"]
    pair = group["pairs"][0] if len(group["pairs"]) == 1 else None
    names = ["task", *(arm["arm"] for arm in arms)]
    if pair:
        names.append(f"{pair['a']} − {pair['b']}{_unit(group)}")
    cells = {(row["task"], row["arm"]): row for row in group["tasks"]}
    differences = {row["task"]: row for row in pair["tasks"]} if pair else {}
    tasks = list(dict.fromkeys(row["task"] for row in group["tasks"]))
    rows = []
    for task in tasks:
        row = [escape(task), *(_joined(_cell(cells.get((task, arm["arm"]))), joint) for arm in arms)]
        rows.append(row + ([_joined(_difference(differences.get(task)), joint)] if pair else []))
    total = ["all tasks", *(_joined(_cell(arm), joint) for arm in arms)]
    if pair:
        total.append(f"{_joined(_difference(pair), joint)}\n{_whole('p =', p_value(pair['p_holm']))}")
    table = _table(scores, group, "task")
    _fill(table, names, [*rows, total], [len(tasks) - 1])
    return table


def _by_arm(scores: dict[str, Any], group: dict[str, Any], joint: str) -> "Table":
    from rich.markup import escape

    first = group["arms"][0]["arm"]
    pairs = {pair["b"]: pair for pair in group["pairs"] if pair["a"] == first}
    rows = []
    for arm in group["arms"]:
        pair = pairs.get(arm["arm"])
        cells = [_joined(_cell(arm), joint), _joined(_difference(pair), joint)]
        rows.append([escape(arm["arm"]), *cells, p_value(pair["p_holm"]) if pair else ""])
    table = _table(scores, group, "policy")
    what = "success" if group["measure"] == "success" else "mean return"
    _fill(table, ["", what, f"{first} − it{_unit(group)}", "p (Holm)"], rows)
    return table


def _unit(group: dict[str, Any]) -> str:
    return " [points]" if group["measure"] == "success" else ""


def _cell(row: dict[str, Any] | None) -> _Lines:
    if row is None:
        return ["–"]
    errors = [f"[red]{_whole(errors_in_words(row))}[/red]"] if row["errors"] else []
    if row["measure"] == "success":
        if row["rate"] is None:
            return ["none counted", *errors]
        interval = _brackets([f"{100 * bound:.0f}" for bound in row["wilson"]])
        return [_whole(percent(row["rate"], row["n"])), *interval, f"{row['successes']}/{row['n']}", *errors]
    if row["return"] is None:
        return ["none counted", *errors]
    mean, *bounds = mean_return(row["return"])
    return [mean, *_brackets(bounds), f"n={row['n']}", *errors]


def _difference(row: dict[str, Any] | None) -> _Lines:
    if row is None:
        return [""]
    estimate, *bounds = difference(row)
    return [estimate, *(f"{text}{'*' * row['contested']}" for text in _brackets(bounds))]


def _joined(cell: _Lines, joint: str) -> str:
    """The parts of a cell on one line, or with the interval on a line of its own."""
    if joint == " ":
        return _whole(*cell)
    intervals = [part for part in cell if part.startswith("\\[")]
    return "\n".join([_whole(*(part for part in cell if part not in intervals)), *intervals])


def _brackets(bounds: Sequence[str]) -> _Lines:
    return [_whole(f"\\[{bounds[0]},", f"{bounds[1]}]")] if bounds else []


def _kept_whole(text: str) -> str:
    return text.replace("p = ", "p\u00a0=\u00a0").replace(" %", "\u00a0%")


def _whole(*parts: object) -> str:
    """Text that a narrow terminal does not break."""
    return " ".join(map(str, parts)).replace(" ", "\u00a0")


def _rate(item: Mapping[str, Any], side: str) -> _Lines:
    rate = item[f"rate_{side}"]
    interval = _brackets([f"{100 * bound:.0f}" for bound in rate["wilson"]])
    return [f"{rate['successes']}/{rate['n']}", _whole(percent(rate["rate"], rate["n"]), *interval)]


def _mean(item: Mapping[str, Any], side: str) -> _Lines:
    mean, *bounds = mean_return(item[f"return_{side}"])
    return [str(item[f"return_{side}"]["n"]), _whole(mean, *_brackets(bounds))]


def print_comparison(comparison: Mapping[str, Any], console: "Console | None" = None) -> None:
    """Print a comparison: conclusions, a table, the discordant episodes, and what differs between the runs."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = console or Console()
    console.print(f"A = {comparison['a']}\nB = {comparison['b']}", highlight=False, markup=False)
    for item in comparison["comparisons"]:
        table = Table(box=box.SIMPLE_HEAD)
        success = item["measure"] == "success"
        for name in ("", *(("successes", "rate") if success else ("episodes", "mean return"))):
            table.add_column(name, justify="right" if name else "left")
        for side in ("a", "b"):
            table.add_row(escape(f"{side.upper()}: {item[side]}"), *(_rate if success else _mean)(item, side))
        console.print(table)
        console.print(f"Compared as {item['kind']}: {item['why']}.", highlight=False, markup=False)
        console.print(item["conclusion"], style="bold", highlight=False, markup=False)
        for discordant in item.get("discordant", [])[:20]:
            winner, loser = ("A", "B") if discordant["succeeded"] == "a" else ("B", "A")
            text = f"  only {winner} on {discordant['task']}: A {discordant['a']}, B {discordant['b']} ({loser} failed)"
            console.print(text, highlight=False, markup=False)
        hidden = len(item.get("discordant", [])) - 20
        if hidden > 0:
            console.print(f"  … and {hidden} more", highlight=False)
    if comparison["tasks_left_out"]:
        console.print(f"In one run only: {', '.join(comparison['tasks_left_out'])}", highlight=False, markup=False)
    if comparison["differences"]:
        console.print("The runs also differ in:")
        for item in comparison["differences"]:
            console.print(f"  {item['what']}: {item['a']} | {item['b']}", highlight=False, markup=False)
