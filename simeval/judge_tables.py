"""Audits of judges as tables for a terminal, and in words."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simeval.judge_analysis import ITSELF
from simeval.wording import percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_audits(audits: Sequence[Mapping[str, Any]], run: str, confidence: float, console: "Console") -> None:
    """Print the audits of a judge: confusion, calibration and rates of each."""
    level = f"{100 * confidence:g} %"
    for audit in audits:
        console.print(_confusion(audit, run, level))
        if audit["calibration"] is not None:
            console.print(_calibration(audit["calibration"], level))
        console.print(_rates(audit, level))
        console.print(audit_words(audit).replace(" %", "\u00a0%"), highlight=False)


def audit_words(audit: Mapping[str, Any]) -> str:
    """An audit in a few sentences."""
    undecided = sum(audit["undecided"].values())
    said = [f"{_title(audit)}: {audit['n']} verdicts."]
    if undecided:
        said.append(f"It came to none on {undecided} of {undecided + audit['n']} episodes, which count nowhere.")
    if audit["n"]:
        off = audit["rate"]["off"]
        low, high = off["interval"]
        said.append(
            f"It is right on {_share(audit['accuracy'])}, and its success rate is off by {_signed(off['estimate'])} "
            f"points ({_signed(low)} to {_signed(high)})."
        )
    return " ".join(said)


def _title(audit: Mapping[str, Any]) -> str:
    truth = "" if audit["against"] == ITSELF else f", truth: the simulator's episode of {audit['against']}"
    return f"{audit['judge']} on {audit['world']}{truth}"


def _table(title: str, caption: str, *columns: str) -> "Table":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title),
        caption=escape(caption),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
    )
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left")
    return table


def _confusion(audit: Mapping[str, Any], run: str, level: str) -> "Table":
    table = _table(
        f"Judge {_title(audit)} · {run}",
        f"episodes by truth and verdict, and the share judged rightly [{level} interval over starts]",
        "truth",
        "success",
        "failure",
        "none",
        "judged rightly",
    )
    counts, undecided = audit["confusion"], audit["undecided"]
    rows = (
        ("success", counts["true_positive"], counts["false_negative"], undecided["succeeded"], audit["sensitivity"]),
        ("failure", counts["false_positive"], counts["true_negative"], undecided["failed"], audit["specificity"]),
    )
    for number, (truth, good, bad, none, share) in enumerate(rows):
        name = ("sensitivity", "specificity")[number]
        table.add_row(truth, str(good), str(bad), str(none), f"{name} {_share(share)}", end_section=number == 1)
    good, bad = (rows[0][place] + rows[1][place] for place in (1, 2))
    none = sum(undecided.values())
    table.add_row("all", str(good), str(bad), str(none), f"accuracy {_share(audit['accuracy'])}", style="bold")
    return table


def _calibration(found: Mapping[str, Any], level: str) -> "Table":
    low, high = found["brier"]["interval"]
    bounds = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    table = _table(
        "Calibration",
        f"Brier score {found['brier']['estimate']:.3f}{bounds} ({level} interval over starts; knowing the base rate "
        f"alone: {found['brier_of_base_rate']:.3f}); expected calibration error {found['ece']:.3f}",
        "probability",
        "episodes",
        "mean",
        "succeeded",
    )
    for each in found["bins"]:
        table.add_row(
            f"{each['from']:.1f} to {each['to']:.1f}",
            str(each["n"]),
            f"{each['probability']:.2f}",
            percent(each["true"], each["n"]),
        )
    return table


def _rates(audit: Mapping[str, Any], level: str) -> "Table":
    from rich.markup import escape

    table = _table(
        "By task and policy",
        f"of the episodes with a verdict; off: judged less true, in points [{level} paired interval]",
        "",
        "episodes",
        "sensitivity",
        "specificity",
        "true",
        "judged",
        "off",
    )
    parts = [("task", audit["tasks"]), ("policy", audit["policies"])]
    shown = [[{"of": row[name], **row} for row in rows] for name, rows in parts if len(rows) > 1]
    for rows in (*shown, [{"of": "all", **audit, **audit["rate"]}] if audit["n"] else []):
        for number, row in enumerate(rows):
            low, high = row["off"]["interval"]
            off = f"{_signed(row['off']['estimate'])} \\[{_signed(low)}, {_signed(high)}]"
            rates = (percent(row[side], row["n"]) for side in ("true", "judged"))
            rightly = (_brief(row[name]) for name in ("sensitivity", "specificity"))
            last = number == len(rows) - 1
            table.add_row(escape(row["of"]), str(row["n"]), *rightly, *rates, off, end_section=last)
    return table


def _brief(value: Mapping[str, Any] | None) -> str:
    return "–" if value is None else percent(value["estimate"], value["n"])


def _share(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–"
    low, high = value["interval"]
    return f"{percent(value['estimate'], value['n'])} ({100 * low:.0f} to {100 * high:.0f})".replace(" ", "\u00a0")


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")
