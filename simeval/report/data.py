"""What the page shows, as compact JSON data."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simeval.arms import labels
from simeval.matched_analysis import studies_of
from simeval.outcomes import COUNTED, ERROR, REPEATED, SOLVED_AT_RESET, Outcome
from simeval.reader import Run
from simeval.wording import groups

CURVES = 2000
"""The most episodes whose reward curves go into the page."""
_CURVE_POINTS = 80


def page_data(run: Run, scores: Mapping[str, Any], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Scores, one row per root rollout, their reward curves, and where the numbers come from."""
    rows = run.episodes.to_dict("records")
    table: dict[str, Mapping[Any, Any]] = {str(row["id"]): row for row in rows}
    roots = [outcome for outcome in outcomes if not outcome.branch and outcome.status != REPEATED]
    names = labels(outcome.arm for outcome in outcomes)
    columns: dict[str, dict[bytes, int]] = {}
    reasons: dict[str, int] = {"": 0}
    episodes: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for outcome in roots:
        places[outcome.id] = len(episodes)
        column = columns.setdefault(outcome.task, {}).setdefault(outcome.pair, len(columns[outcome.task]))
        reason = reasons.setdefault(outcome.reason, len(reasons))
        episodes.append(_episode(outcome, names[outcome.arm], column, reason, table[outcome.id]))
    return {
        "scores": scores,
        "groups": [_named(group) for group in groups(dict(scores))],
        "episodes": episodes,
        "reasons": list(reasons),
        "matched": _instances(outcomes, places),
        "general": not (scores["matched"] or scores["fidelity"])
        or any(arm["measure"] == "return" for arm in scores["arms"]),
        "curves": _curves(run, roots),
        "curve_limit": CURVES,
        "provenance": _provenance(run),
    }


def _instances(outcomes: Sequence[Outcome], places: Mapping[str, int]) -> list[list[list[list[int]]]]:
    """Study, severity, instance -> the places of its episodes: nominal, each axis alone, all at once (-1: none)."""
    return [
        [
            [[places.get(one.id, -1) if one else -1 for one in row] for row in study.instances(rank)]
            for rank in range(max(map(len, study.axes.values())))
        ]
        for study in studies_of(outcomes)
    ]


def _named(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group of arms that are comparable, by name: the page finds their rows in the scores."""
    return {
        "measure": group["measure"],
        "without_success": group["without_success"],
        "arms": [arm["arm"] for arm in group["arms"]],
        "pairs": [[pair["a"], pair["b"]] for pair in group["pairs"]],
    }


def _episode(outcome: Outcome, arm: str, column: int, reason: int, row: Mapping[Any, Any]) -> dict[str, Any]:
    summary = outcome.summary
    return {
        "id": outcome.id,
        "arm": arm,
        "task": outcome.task,
        "world": outcome.world,
        "column": column,
        "outcome": _shown(outcome),
        "reason": reason,
        "instruction": row["instruction"],
        "seed": row["seed"],
        "start": _start(row),
        "length": summary.length if summary else None,
        "return": _number(summary.total_reward) if summary else None,
        "success_step": summary.success_step if summary else None,
    }


def _shown(outcome: Outcome) -> str:
    if outcome.status == COUNTED and not outcome.success_hold:
        return "finished"
    if outcome.status == COUNTED:
        return "success" if outcome.succeeded else "failure"
    return "error" if outcome.status == ERROR else outcome.status


def _start(row: Mapping[Any, Any]) -> str:
    parts = [
        f"{name} {int(row[key])}" for name, key in (("seed", "start_seed"), ("index", "start_index")) if _has(row[key])
    ]
    return ", ".join(parts) or "default"


def _has(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _curves(run: Run, roots: Sequence[Outcome]) -> dict[str, Any]:
    curves = {}
    for outcome in roots[:CURVES]:
        if outcome.status in (COUNTED, SOLVED_AT_RESET) and outcome.summary is not None and outcome.summary.length:
            episode = run[outcome.id]
            curves[outcome.id] = {"reward": _thinned(episode.reward), "success": _spans(episode.success)}
    return curves


def _thinned(values: np.ndarray) -> list[list[float | None]]:
    """``[step, value]`` of at most :data:`_CURVE_POINTS` steps, always with the first and the last."""
    steps = np.unique(np.linspace(0, len(values) - 1, min(len(values), _CURVE_POINTS)).round().astype(int))
    return [[int(step), _short(float(values[step]))] for step in steps]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _spans(flags: np.ndarray) -> list[list[int]]:
    """``[from, to)`` of each run of true steps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(flags, dtype=np.int8), [0]])))
    return [[int(begin), int(end)] for begin, end in edges.reshape(-1, 2)]


def _provenance(run: Run) -> dict[str, Any]:
    """``run.json`` in the order of a reader's interest; the last session's environment stands for the run's."""
    info = dict(run.info)
    sessions = info.pop("sessions", None) or []
    config = info.pop("config", {})
    last = {key: value for key, value in (sessions[-1] if sessions else {}).items() if key != "config"}
    return {
        "sections": {
            "identity": {key: value for key, value in info.items() if not isinstance(value, Mapping)},
            **{key: value for key, value in info.items() if isinstance(value, Mapping)},
            **{key: value for key, value in last.items() if isinstance(value, Mapping)},
            "session": {
                "sessions": max(1, len(sessions)),
                **{key: value for key, value in last.items() if not isinstance(value, Mapping)},
            },
        },
        "config": config,
    }
