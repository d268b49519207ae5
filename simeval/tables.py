"""Scores and comparisons as tables for a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simeval.wording import p_value, percent, points

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 4
"""Up to this many arms, each has a column; with more, each has a row."""


def print_table(scores: dict[str, Any], console: "Console | None" = None) -> None:
    """Print the table of scores and the headline."""
    from rich.console import Console

    console = console or Console()
    console.print(score_table(scores))
    console.print(scores["headline"], highlight=False)


def score_table(scores: dict[str, Any]) -> "Table":
    """Success rates with their intervals, errors and paired difference, as a rich table."""
    return _by_task(scores) if len(scores["arms"]) <= _WIDE else _by_arm(scores)


def _table(title: str, scores: dict[str, Any]) -> "Table":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    level = f"{100 * scores['rule']['confidence']:g} %"
    caption = f"success rate [{level} Wilson interval] successes/episodes; {scores['rule']['name']}"
    return Table(
        title=escape(title), caption=escape(caption), box=box.SIMPLE_HEAD, show_footer=False, title_justify="left"
    )


def _by_task(scores: dict[str, Any]) -> "Table":
    from rich.markup import escape

    table = _table(f"Success by task · {scores['run']}", scores)
    arms = [arm["arm"] for arm in scores["arms"]]
    pair = scores["pairs"][0] if len(scores["pairs"]) == 1 else None
    table.add_column("task", no_wrap=True)
    for arm in arms:
        table.add_column(escape(arm), justify="right")
    if pair:
        table.add_column(escape(f"{pair['a']} − {pair['b']} [points]"), justify="right")
    cells = {(row["task"], row["arm"]): row for row in scores["tasks"]}
    differences = {row["task"]: row for row in pair["tasks"]} if pair else {}
    tasks = list(dict.fromkeys(row["task"] for row in scores["tasks"]))
    for index, task in enumerate(tasks):
        row = [escape(task), *(_cell(cells.get((task, arm))) for arm in arms)]
        if pair:
            row.append(_difference(differences.get(task)))
        table.add_row(*row, end_section=index == len(tasks) - 1)
    total = ["all tasks", *(_cell(arm) for arm in scores["arms"])]
    if pair:
        total.append(f"{_difference(pair)} {_whole('p =', p_value(pair['p_holm']))}")
    table.add_row(*total, style="bold")
    return table


def _by_arm(scores: dict[str, Any]) -> "Table":
    from rich.markup import escape

    table = _table(f"Success by policy · {scores['run']}", scores)
    first = scores["arms"][0]["arm"]
    pairs = {pair["b"]: pair for pair in scores["pairs"] if pair["a"] == first}
    table.add_column("", no_wrap=True)
    for name in ("success", f"{first} − it [points]", "p (Holm)"):
        table.add_column(escape(name), justify="right")
    for arm in scores["arms"]:
        pair = pairs.get(arm["arm"])
        table.add_row(escape(arm["arm"]), _cell(arm), _difference(pair), p_value(pair["p_holm"]) if pair else "")
    return table


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    errors = f" [red]{_whole(row['errors'], 'error' + 's' * (row['errors'] > 1))}[/red]" if row["errors"] else ""
    if row["rate"] is None:
        return f"none counted{errors}"
    interval = _brackets(*(f"{100 * bound:.0f}" for bound in row["wilson"]))
    return f"{_whole(percent(row['rate'], row['n']))} {interval} {row['successes']}/{row['n']}{errors}"


def _difference(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    estimate, low, high = (points(value, row["n"]) for value in (row["difference"], *row["newcombe"]))
    return f"{estimate} {_brackets(low, high)}"


def _brackets(low: str, high: str) -> str:
    return _whole(f"\\[{low},", f"{high}]")


def _whole(*parts: object) -> str:
    """Text that a narrow terminal does not break."""
    return " ".join(map(str, parts)).replace(" ", "\u00a0")


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
        for name in ("", "successes", "rate"):
            table.add_column(name, justify="right" if name else "left")
        for side in ("a", "b"):
            rate = item[f"rate_{side}"]
            bounds = ", ".join(f"{100 * bound:.0f}" for bound in rate["wilson"])
            cells = (escape(f"{side.upper()}: {item[side]}"), f"{rate['successes']}/{rate['n']}")
            table.add_row(*cells, f"{percent(rate['rate'], rate['n'])} \\[{bounds}]")
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
