"""Scores and comparisons as tables for a terminal."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simeval.fidelity_analysis import fidelity_tables
from simeval.matched_tables import matched_comparison_table, matched_table
from simeval.pairing import LEVEL
from simeval.recovery_analysis import recovery_table
from simeval.timing import timing_table, worth_reading
from simeval.wording import (
    bounds_in_percent,
    difference,
    errors_in_words,
    groups,
    mean_return,
    p_value,
    parts,
    percent,
    undefined,
)

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
    """Print the tables of scores and the headline; of a matched study, its own table."""
    from rich.console import Console

    console = console or Console()
    for study in scores["matched"]:
        console.print(matched_table(study, scores["run"], scores["rule"]["confidence"]))
    for table in fidelity_tables(scores["fidelity"], scores["run"], scores["rule"]["confidence"]):
        console.print(table)
    for study in scores["recovery"]:
        console.print(recovery_table(study, scores["run"], scores["rule"]["confidence"]))
    for group in groups(scores):
        if (scores["matched"] or scores["fidelity"]) and group["measure"] == "success":
            continue
        many = len(group["arms"]) > _WIDE
        build = _by_arm if many else _by_task
        for part in parts(group) if many else [group]:
            console.print(_fitting(partial(build, scores, part), console))
    if scores["timing"] and not scores["fidelity"]:
        rows, quick = worth_reading(scores["timing"])
        if rows:
            console.print(timing_table(rows))
        if quick:
            console.print(f"Inference: {quick}.", highlight=False, markup=False)
    console.print(_kept_whole(scores["headline"]), highlight=False)


def _fitting(build: "Callable[[str], Table]", console: "Console") -> "Table":
    """A table with a line for each row, or, where that is too wide, with the intervals below."""
    table = build(" ")
    room = console.options.update(max_width=_UNBOUNDED)
    return table if console.measure(table, options=room).maximum <= console.width else build("\n")


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
        notes.append("† this interval leaves out 0, but the test, which decides, shows no difference")
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
    sides = list(dict.fromkeys((pair["a"], pair["b"]) for pair in group["pairs"]))
    paired = group["pairs"] if len(sides) == 1 else []
    names = ["task", *(arm["arm"] for arm in arms)]
    if paired:
        names.append(f"{sides[0][0]} − {sides[0][1]}{_unit(group)}")
    cells = {(row["task"], row["arm"]): row for row in group["tasks"]}
    apart = len(parts(group)) > 1
    differences = {row["task"]: pair if apart else row for pair in paired for row in pair["tasks"]}
    rows: list[Sequence[str]] = []
    for task in dict.fromkeys(row["task"] for row in group["tasks"]):
        row = [escape(task), *(_joined(_cell(cells.get((task, arm["arm"]))), joint) for arm in arms)]
        rows.append(row + ([_tested(differences.get(task), joint, apart)] if paired else []))
    table = _table(scores, group, "task")
    if not apart:
        total = [*(_joined(_cell(arm), joint) for arm in arms), *([_tested(paired[0], joint, True)] if paired else [])]
        rows = _with_total(rows, total)
    _fill(table, names, rows, [len(rows) - 2] if len(rows) > 1 and not apart else [])
    return table


def _with_total(rows: Sequence[Sequence[str]], total: Sequence[str]) -> list[Sequence[str]]:
    """The rows of tasks and that of all; of one task once."""
    return [[rows[0][0], *total]] if len(rows) == 1 else [*rows, ["all tasks", *total]]


def _tested(row: Mapping[str, Any] | None, joint: str, with_p: bool) -> str:
    """A difference, and the p-value of its test below."""
    text = _joined(_difference(row), joint)
    return f"{text}\n{_whole('p =', p_value(row['p_holm']))}" if row and with_p else text


def _by_arm(scores: dict[str, Any], group: dict[str, Any], joint: str) -> "Table":
    from rich.markup import escape

    first = group["arms"][0]["arm"]
    pairs = {pair["b"]: pair for pair in group["pairs"] if pair["a"] == first}
    rows = []
    for arm in group["arms"]:
        pair = pairs.get(arm["arm"])
        cells = [_joined(_cell(arm), joint), _joined(_difference(pair), joint)]
        rows.append([escape(arm["arm"]), *cells, p_value(pair["p_holm"]) if pair else ""])
    table = _table(scores, group, "policy" if group["task"] is None else f"policy on {group['task']}")
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
        interval = _brackets(bounds_in_percent(row["wilson"]))
        return [_whole(percent(row["rate"], row["n"])), *interval, f"{row['successes']}/{row['n']}", *errors]
    if row["return"] is None:
        return ["none counted", *errors]
    mean, *bounds = mean_return(row["return"])
    return [mean, *_brackets(bounds), f"n={row['n']}", *errors]


def _difference(row: Mapping[str, Any] | None) -> _Lines:
    if row is None or row["difference"] is None:
        return [""]
    estimate, *bounds = difference(row)
    return [estimate, *(f"{text}{'†' * row['contested']}" for text in _brackets(bounds))]


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


_SHOWN = 5
"""Of the episodes on which two sides disagree, so many are listed."""


def print_comparison(comparison: Mapping[str, Any], console: "Console | None" = None) -> None:
    """Print a comparison: a table by task, the conclusion, where the sides disagree, and how the runs differ."""
    from rich.console import Console

    console = console or Console()

    def say(text: str, style: str = "") -> None:
        console.print(_kept_whole(text), style=style, highlight=False, markup=False)

    say(f"A = {comparison['a']}\nB = {comparison['b']}")
    for side, there in comparison["unfinished"].items():
        say(f"{side.upper()} is not finished: {there}.")
    single = [item for item in comparison["comparisons"] if item["place"] is None]
    if len(single) < len(comparison["comparisons"]):
        _print_matched(comparison, console, say)
    for item in single:
        console.print(_fitting(partial(_compared, item), console))
        say(f"Compared as {item['kind']}: {item['why']}.")
        for note in item["notes"]:
            say(f"Note: {note}.")
        say(item["conclusion"], style="bold")
        if item.get("discordant"):
            say(f"Only A succeeded on {item['only_a']}, only B on {item['only_b']}:")
            for found in item["discordant"][:_SHOWN]:
                say(f"  {found['task']}: only {found['succeeded'].upper()} (A {found['a']}, B {found['b']})")
            if len(item["discordant"]) > _SHOWN:
                say(f"  … and {len(item['discordant']) - _SHOWN} more")
    if comparison["tasks_left_out"]:
        say(f"In one run only: {', '.join(comparison['tasks_left_out'])}")
    if comparison["differences"]:
        say("The runs also differ:")
        for item in comparison["differences"]:
            say(f"  {item['text']}")


def _print_matched(comparison: Mapping[str, Any], console: "Console", say: Callable[[str], None]) -> None:
    """Two matched studies in one table, and what is shown under which conditions."""
    items = [item for item in comparison["comparisons"] if item["place"] is not None]
    console.print(matched_comparison_table(comparison))
    for note in comparison["notes"]:
        say(f"Note: {note}.")
    for better, sign in (("A", 1), ("B", -1)):
        shown = [item["condition"] for item in items if item["p_holm"] < LEVEL and sign * item["difference"] > 0]
        if shown:
            say(f"{better} succeeds more often under: {', '.join(shown)}.")
    rest = sum(item["p_holm"] >= LEVEL for item in items)
    say(f"No difference is shown under {rest} of {len(items)} conditions." if rest else "A difference shows under all.")


def _compared(item: Mapping[str, Any], joint: str) -> "Table":
    """Both sides of a comparison and their difference, by task."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    success = item["measure"] == "success"
    what = "Success rate" if success else "Mean return"
    table = Table(
        title=escape(what),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        collapse_padding=True,
        pad_edge=False,
    )
    sides = [f"{side.upper()}: {item[side]}" for side in "ab"]
    rows = [
        [escape(row["task"]), *(_joined(_side(row, side), joint) for side in "ab"), _tested(row, joint, False) or "–"]
        for row in item["tasks"]
    ]
    if item["task"] is None:
        total = [*(_joined(_side(item, side), joint) for side in "ab"), _tested(item, joint, True)]
        shown = _with_total(rows, total)
        _fill(table, ["task", *sides, "A − B [points]"], shown, [len(rows) - 1] if len(rows) > 1 else [])
    else:
        _fill(table, ["task", *sides, "A − B"], rows)
    return table


def _side(row: Mapping[str, Any], side: str) -> _Lines:
    if f"rate_{side}" in row:
        return _cell({"measure": "success", "errors": 0, **row[f"rate_{side}"]})
    mean = row[f"return_{side}"]
    return _cell({"measure": "return", "errors": 0, "return": mean, "n": mean and mean["n"]})
