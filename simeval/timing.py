"""How long policies took to predict, and whether that or control binds: the control-time roofline.

A robot that predicts its next actions while it executes those before repeats every T = max(L_inference, L_env), where
L_env = executed actions x control period (PhyAI, arXiv 2608.03682). L_inference is the time of the ``Policy.act`` call
that predicted, in which all slots shared a batch: with ``world.num_slots=1`` it is what one robot would wait for.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simeval.conventions import Conventions
from simeval.latency import Counts, quantile, total
from simeval.outcomes import Outcome

if TYPE_CHECKING:
    from rich.table import Table

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def timings(outcomes: Sequence[Outcome], conventions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per policy and World whose predictions were timed, as JSON data; times in ms.

    ``inference_ms`` and ``cycle_ms`` (T) by quantile, ``binds`` (``"inference"`` or ``"control"``, what T is) by
    quantile. ``conventions`` are the run's; without the World's control period there is ``inference_ms`` alone. A
    policy that does not say how many actions it executes of each chunk predicts at every step.
    """
    counts: dict[tuple[str, str], list[Counts]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.inference:
            counts[outcome.arm.policy, outcome.world].append(outcome.inference)
    return [_row(policy, world, total(found), conventions) for (policy, world), found in counts.items()]


def _row(policy: str, world: str, counts: Counts, conventions: Mapping[str, Any]) -> dict[str, Any]:
    inference = {name: 1e3 * quantile(counts, share) for name, share in QUANTILES.items()}
    period = Conventions.from_json(conventions.get("worlds", {}).get(world, {})).control_dt
    declared = Conventions.from_json(conventions.get("policies", {}).get(world, {}).get(policy, {}))
    executed = 1 if declared.executed is None else declared.executed
    control = None if period is None else 1e3 * executed * period
    return {
        "policy": policy,
        "world": world,
        "predictions": sum(counts.values()),
        "inference_ms": inference,
        "executed": executed,
        "control_ms": control,
        "cycle_ms": None if control is None else {name: max(value, control) for name, value in inference.items()},
        "binds": None
        if control is None
        else {name: "inference" if value > control else "control" for name, value in inference.items()},
    }


def binding(row: Mapping[str, Any]) -> str:
    """Which side binds, in words: at every quantile, or from one on."""
    if row["binds"] is None:
        return "control period not recorded"
    late = [name for name, side in row["binds"].items() if side == "inference"]
    if not late:
        return "control binds"
    return "inference binds" if late[0] == "p50" else f"control binds; from {late[0]} on, inference"


_QUICK = 0.1
"""A policy that predicts within this share of its control time has nothing to tell of it, as scripted ones do."""


def worth_reading(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    """The rows of :func:`timings` whose times matter, and the others in a sentence (empty where there are none)."""
    quick = [row for row in rows if row["control_ms"] and row["inference_ms"]["p99"] <= _QUICK * row["control_ms"]]
    if not quick:
        return list(rows), ""
    names = list(dict.fromkeys(row["policy"] for row in quick))
    who = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} policies"
    longest = milliseconds(max(row["inference_ms"]["p99"] for row in quick))
    verb = "predicts" if len(names) == 1 else "predict"
    told = f"{who} {verb} within {longest} ms (p99), a small part of the control time"
    return [row for row in rows if row not in quick], told


_NAMED = 3
"""So many quick policies are named; more are counted."""


def timing_table(rows: Sequence[Mapping[str, Any]]) -> "Table":
    """The rows of :func:`timings` for a terminal; there is at least one."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    several = len({row["world"] for row in rows}) > 1
    table = Table(
        title=escape("Inference [ms]"),
        caption="of calls for all slots of a batch (one robot: world.num_slots=1 policy.batch_size=1); "
        "T = max(inference, executed actions × control period), at p50",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        collapse_padding=True,
        pad_edge=False,
    )
    for name in ("policy", *QUANTILES, "control", "T", ""):
        table.add_column(name, justify="right" if name in (*QUANTILES, "control", "T") else "left")
    for row in rows:
        cells = [milliseconds(value) for value in row["inference_ms"].values()]
        cells += [milliseconds(row["control_ms"]), milliseconds(row["cycle_ms"] and row["cycle_ms"]["p50"])]
        name = f"{row['policy']} @ {row['world']}" if several else row["policy"]
        table.add_row(escape(name), *cells, binding(row))
    return table


def milliseconds(value: float | None) -> str:
    """A time to three digits."""
    return "–" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
