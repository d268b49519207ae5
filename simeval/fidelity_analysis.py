"""How far a model of a World can be trusted: step by step under the same actions, and rate by rate of the policies."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simeval import agreement, stats
from simeval.noise import Key
from simeval.outcomes import COUNTED, Outcome
from simeval.reader import Run
from simeval.stats import Interval
from simeval.versions import RECORDED, SHUFFLED, STILL, VERSIONS, player, version_of
from simeval.wording import bounds_in_percent, p_value, percent, points, rounded

if TYPE_CHECKING:
    from rich.table import Table

PERSISTENCE = "persistence"
"""The foresight that nothing moves."""
CONTROLS = (PERSISTENCE, STILL, SHUFFLED)
_DRAWS = Key(0)
_FEWEST = 10
"""Errors are averaged as long as so many episodes last."""
_SHOWN = (1, 2, 5, 10, 20, 50, 100, 200, 500)
STATISTICS: Mapping[str, agreement.Statistic] = {
    "pearson": agreement.pearson,
    "spearman": agreement.spearman,
    "mmrv": agreement.mean_maximum_rank_violation,
    "mean_gap": agreement.mean_gap,
}


def fidelity_studies(run: Run, outcomes: Sequence[Outcome], confidence: float = 0.95) -> list[dict[str, Any]]:
    """One analysis, as JSON data, of each model in a study of ``simeval.fidelity``; none of other runs."""
    truth = truth_world(run, outcomes)
    if truth is None:
        return []
    worlds = dict.fromkeys(outcome.world for outcome in outcomes)
    return [_study(run, outcomes, truth, model, confidence) for model in worlds if model != truth]


def truth_world(run: Run, outcomes: Sequence[Outcome]) -> str | None:
    """The World that the others of a study of ``simeval.fidelity`` are models of; none of other runs."""
    protocol, configured = (run.config.get(part) for part in ("protocol", "worlds"))
    if not isinstance(protocol, Mapping) or "fidelity" not in str(protocol.get("_target_")):
        return None
    worlds = dict.fromkeys(outcome.world for outcome in outcomes)
    named = protocol.get("truth") or next(iter(configured if isinstance(configured, Mapping) else ()), None)
    return named if named in worlds else next(iter(worlds), "")


def _study(run: Run, outcomes: Sequence[Outcome], truth: str, model: str, confidence: float) -> dict[str, Any]:
    by_side: dict[tuple[str, str], dict[tuple[str, bytes], Outcome]] = defaultdict(dict)
    for outcome in outcomes:
        if outcome.status == COUNTED and not outcome.branch:
            by_side[outcome.world, outcome.arm.policy][outcome.task, outcome.instance] = outcome
    policies = [policy for world, policy in by_side if world == truth and version_of(policy) is None]
    rows = [_policy_row(policy, by_side[truth, policy], by_side[model, policy], confidence) for policy in policies]
    errors = {policy: _errors(run, by_side, truth, model, policy) for policy in policies}
    together = _joined([each for each in errors.values() if each])
    for row in rows:
        own = errors[row["policy"]]
        row["trusted"] = _trusted(own, confidence) if own else None
    return {
        "truth": truth,
        "model": model,
        "policies": rows,
        "agreement": _agreement(by_side, policies, truth, model, confidence),
        "open_loop": _curves(together, confidence) if together else None,
        "trusted": _trusted(together, confidence) if together else None,
    }


# Closed loop


def _policy_row(
    policy: str,
    truth: Mapping[tuple[str, bytes], Outcome],
    model: Mapping[tuple[str, bytes], Outcome],
    confidence: float,
) -> dict[str, Any]:
    shared = [key for key in truth if key in model]
    there, here = (np.array([side[key].succeeded for key in shared], dtype=bool) for side in (truth, model))
    more = np.array([outcome.succeeded for key, outcome in model.items() if key not in truth], dtype=bool)
    row: dict[str, Any] = {"policy": policy, "n": len(shared), "imagined": len(more)}
    if len(shared) < 2:
        return {**row, "truth": None, "model": None, "combined": None}
    found = agreement.control_variate(there, here, more, confidence)
    wilson = (stats.wilson(int(side.sum()), len(side), confidence) for side in (there, here))
    alone, imagined = (_told(interval) for interval in wilson)
    agreeing = float((there == here).mean())
    combined = {**_told(found.combined), "alone": _told(found.alone), "weight": found.weight, "worth": found.worth}
    return {
        **row,
        "truth": alone,
        "model": imagined,
        "same_outcome": agreeing,
        "combined": combined if len(more) else None,
    }


def _agreement(
    by_side: Mapping[tuple[str, str], Mapping[tuple[str, bytes], Outcome]],
    policies: Sequence[str],
    truth: str,
    model: str,
    confidence: float,
) -> dict[str, Any] | None:
    sides = [[by_side.get((world, policy), {}) for policy in policies] for world in (truth, model)]
    shared = [key for key in (sides[0][0] if policies else {}) if all(key in each for side in sides for each in side)]
    if len(policies) < 3 or not shared:
        return None
    x, y = (np.array([[each[key].succeeded for key in shared] for each in side], dtype=float) for side in sides)
    found = {
        name: _told(agreement.agreement(x, y, statistic, _DRAWS, confidence)) for name, statistic in STATISTICS.items()
    }
    chance = agreement.permutation(x.mean(1).tolist(), y.mean(1).tolist(), _DRAWS)
    return {"policies": len(policies), "starts": len(shared), "p": chance.p, "test": chance.method, **found}


# Open loop


_Errors = dict[str, np.ndarray]
"""Name of a foresight -> its error [episodes, steps] in standard deviations, not a number past an episode's end; and
``sensitivity``, ``start``."""


def _errors(
    run: Run,
    by_side: Mapping[tuple[str, str], Mapping[tuple[str, bytes], Outcome]],
    truth: str,
    model: str,
    policy: str,
) -> _Errors | None:
    pairs = [
        (outcome, [by_side[model, player(policy, kind)].get(key) for kind in VERSIONS])
        for key, outcome in by_side[truth, policy].items()
    ]
    whole = [(outcome, twins) for outcome, twins in pairs if all(twin is not None for twin in twins)]
    if not whole:
        return None
    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    shown = [_numbers(run, outcome.id, None) for outcome, _ in whole]
    keys = sorted(set(shown[0]) & set(_numbers(run, whole[0][1][0].id, None)))  # type: ignore[union-attr]
    real = [np.concatenate([episode[key] for key in keys], axis=1) for episode in shown]
    scale = np.concatenate(real).std(axis=0)
    moving = scale > 1e-6
    for (_, twins), seen in zip(whole, real, strict=True):
        seen = seen[:, moving] / scale[moving]
        versions = {
            kind: np.concatenate([_numbers(run, twin.id, keys)[key] for key in keys], axis=1)[:, moving] / scale[moving]
            for kind, twin in zip(VERSIONS, twins, strict=True)
            if twin is not None
        }
        length = min(len(seen), *(len(version) for version in versions.values()))
        versions[PERSISTENCE] = np.broadcast_to(seen[:1], (length, seen.shape[1]))
        for name, version in versions.items():
            columns[name].append(np.sqrt(np.square(version[1:length] - seen[1:length]).mean(axis=1)))
        moved, by_actions, by_none = (each[1:length] - seen[:1] for each in (seen, versions[RECORDED], versions[STILL]))
        columns["sensitivity"].append(_cosine(by_actions, moved) - _cosine(by_none, moved))
    starts = {key: number for number, key in enumerate(by_side[truth, policy])}
    of = [starts[outcome.task, outcome.instance] for outcome, _ in whole]
    return {**{name: _padded(rows) for name, rows in columns.items()}, "start": np.array(of)}


def _numbers(run: Run, rollout_id: str, keys: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The vectors of an episode's observations [T + 1, …], flattened."""
    shown = run[rollout_id].observation
    found = {}
    for key in shown if keys is None else keys:
        value = shown[key]
        if value.ndim <= 2 and np.issubdtype(value.dtype, np.floating):
            found[key] = np.asarray(value, dtype=np.float64).reshape(len(value), -1)
    return found


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.where(length > 1e-9, (a * b).sum(axis=1) / np.maximum(length, 1e-9), 0.0)


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    found = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


def _joined(parts: Sequence[_Errors]) -> _Errors | None:
    if not parts:
        return None
    joined = {"start": np.concatenate([part["start"] for part in parts])}
    for name in parts[0]:
        if name != "start":
            joined[name] = _padded([row[np.isfinite(row)] for part in parts for row in part[name]])
    return joined


def _steps(errors: _Errors) -> int:
    """For how many steps enough episodes last."""
    lasting = np.isfinite(errors[RECORDED]).sum(axis=0)
    return int((lasting >= min(_FEWEST, len(errors[RECORDED]))).sum())


def _mean(values: np.ndarray, starts: np.ndarray, confidence: float) -> Interval:
    there = np.isfinite(values)
    values, starts = values[there], starts[there]
    if len(set(starts.tolist())) < 2:
        return Interval(float(values.mean()), float("-inf"), float("inf"), "one start")
    columns = np.stack([values, np.ones_like(values)], axis=1)
    (found,) = stats.bootstrap_totals(columns, starts, lambda totals: totals[:, :1] / totals[:, 1:], _DRAWS, confidence)
    return found


def _curves(errors: _Errors, confidence: float) -> dict[str, Any]:
    steps = _steps(errors)
    shown = [step for step in _SHOWN if step <= steps]
    names = (RECORDED, *CONTROLS, "sensitivity")
    return {
        "episodes": len(errors["start"]),
        "steps": shown,
        "lasting": [int(np.isfinite(errors[RECORDED][:, step - 1]).sum()) for step in shown],
        "mean": {name: np.nanmean(errors[name][:, :steps], axis=0).tolist() for name in names},
        "at": {
            name: [_told(_mean(errors[name][:, step - 1], errors["start"], confidence)) for step in shown]
            for name in names
        },
    }


def _trusted(errors: _Errors, confidence: float) -> dict[str, Any]:
    """For how many steps the model foresees better than each control, and what ends that.

    Better: the error under the recorded actions is smaller than the control's on the same episodes, and the interval of
    the difference, over starts, leaves 0 out; at that step and at all before it.
    """
    steps = _steps(errors)
    for step in range(steps):
        for control in CONTROLS:
            apart = errors[RECORDED][:, step] - errors[control][:, step]
            if control != PERSISTENCE and step == 0 and control == SHUFFLED:
                continue  # one action, drawn from the same episode, tells little
            found = _mean(apart, errors["start"], confidence)
            if not found.high < 0:
                return {"steps": step, "ended_by": control, "difference": _told(found)}
    return {"steps": steps, "ended_by": None, "difference": None}


def _told(interval: Interval) -> dict[str, Any]:
    finite = [None if not np.isfinite(x) else float(x) for x in (interval.estimate, interval.low, interval.high)]
    return {"estimate": finite[0], "interval": finite[1:]}


# In words


_ENDS = {
    PERSISTENCE: "a guess that nothing moves does as well",
    STILL: "it does as well without being told the actions",
    SHUFFLED: "it does as well with the actions in another order",
}


def fidelity_words(study: Mapping[str, Any]) -> str:
    """How far the model can be trusted, in a sentence or two."""
    said = []
    trusted, found = study["trusted"], study["agreement"]
    if trusted is not None:
        steps = f"{trusted['steps']} step{'' if trusted['steps'] == 1 else 's'}"
        where = "after that " if trusted["steps"] else ""
        why = f"{where}{_ENDS[trusted['ended_by']]}" if trusted["ended_by"] else "as many as it was compared for"
        said.append(f"{study['model']} can be trusted for {steps} of {study['truth']}: {why}.")
    if found is not None:
        pearson, violation, gap = (found[name]["estimate"] for name in ("pearson", "mmrv", "mean_gap"))
        rates = (
            f"{study['model']} gives all {found['policies']} policies one success rate, so that it ranks none"
            if pearson is None
            else f"success rates of {found['policies']} policies in {study['model']} and in {study['truth']}, on "
            f"{found['starts']} shared starts, correlate with r = {_number(pearson, 2)} (p = {p_value(found['p'])}); "
            f"MMRV is {_number(violation, 2)}, and those in {study['model']} are {_apart(gap, found['starts'])}"
        )
        said.append(f"{rates[0].upper() if pearson is not None else rates[0]}{rates[1:]}.")
    return " ".join(said)


def _apart(gap: float, n: int) -> str:
    size = points(gap, n)
    if size[0] not in "+−":
        return "as high on average"
    return f"{size[1:]} points {'higher' if gap > 0 else 'lower'} on average"


def _number(value: float, places: int) -> str:
    return rounded(value, places).replace("-", "−")


def fidelity_tables(studies: Sequence[Mapping[str, Any]], run: str, confidence: float) -> "list[Table]":
    """Rates of the policies on all sides, how they agree, and the error over the horizon of useful models."""
    if not studies:
        return []
    useful = [study for study in studies if study["open_loop"] is not None and study["trusted"]["steps"]]
    return [
        _rates(studies, run, confidence),
        _agreements(studies, run, confidence),
        *(_open_loop(study, run, confidence) for study in useful),
    ]


def _table(title: str, caption: str) -> "Table":
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    return Table(
        title=escape(title),
        caption=escape(caption),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
        collapse_padding=True,
    )


def _rates(studies: Sequence[Mapping[str, Any]], run: str, confidence: float) -> "Table":
    from rich.markup import escape

    first, level = studies[0], f"{100 * confidence:g} %"
    imagined = any(row["combined"] is not None for row in first["policies"])
    caption = f"success rates, [{level} Wilson interval] below, on the same starts and noise in all worlds"
    if imagined:
        caption += (
            f"; together: the rate in {first['truth']} as estimated with the help of further starts in "
            f"{first['model']}; worth: of how many rollouts in {first['truth']} one is worth with that help"
        )
    table = _table(f"Closed loop · {run}", caption)
    table.add_column("policy")
    for name in (first["truth"], *(study["model"] for study in studies), *(("together", "worth") if imagined else ())):
        table.add_column(escape(name), justify="right", overflow="fold")
    for number, row in enumerate(first["policies"]):
        cells = [_rate(row["truth"], row["n"])]
        cells += [_rate(study["policies"][number]["model"], study["policies"][number]["n"]) for study in studies]
        if imagined:
            own = row["combined"]
            cells += [_rate(own, row["n"]), "–" if own is None else _number(own["worth"], 2)]
        table.add_row(escape(row["policy"]), *cells)
    return table


def _agreements(studies: Sequence[Mapping[str, Any]], run: str, confidence: float) -> "Table":
    from rich.markup import escape

    table = _table(
        f"Agreement · {run}",
        f"of the policies' success rates in a model with those in {studies[0]['truth']}, [{100 * confidence:g} % "
        "interval over starts] below; p: by permutation of the policies; MMRV: mean over policies of the largest gap "
        "in truth that is ranked wrongly; trusted: for so many steps its error under the same actions is less than if "
        "nothing moved, or if it were given no actions, or these in another order",
    )
    for name in ("model", "Pearson", "Spearman", "MMRV", "mean gap\n[points]", "trusted\n[steps]"):
        table.add_column(escape(name), justify="left" if name == "model" else "right", overflow="fold")
    for study in studies:
        found, trusted = study["agreement"], study["trusted"]
        cells = ["–"] * 4
        if found is not None:
            cells = [_estimate(found[name]) for name in ("pearson", "spearman", "mmrv")]
            cells.append(_in_points(found["mean_gap"], found["starts"]))
            if found["pearson"]["estimate"] is not None:
                cells[0] += f"\n[dim]p\u00a0=\u00a0{p_value(found['p'])}[/dim]"
        table.add_row(escape(study["model"]), *cells, "–" if trusted is None else str(trusted["steps"]))
    return table


def _estimate(value: Mapping[str, Any]) -> str:
    if value["estimate"] is None:
        return "–"
    return f"{_number(value['estimate'], 2)}\n[dim]{_bounds(value)}[/dim]".replace(" ", "\u00a0")


def _in_points(value: Mapping[str, Any], n: int) -> str:
    ends = [("−∞", "∞")[i] if end is None else points(end, 1) for i, end in enumerate(value["interval"])]
    return f"{points(value['estimate'], n)}\n[dim]\\[{ends[0]}, {ends[1]}][/dim]".replace(" ", "\u00a0")


def _open_loop(study: Mapping[str, Any], run: str, confidence: float) -> "Table":
    curves = study["open_loop"]
    table = _table(
        f"Open loop · {study['model']} of {study['truth']} · {run}",
        "error after so many steps of the same actions, in standard deviations "
        f"[{100 * confidence:g} % interval]; persistence: nothing moves; still, shuffled: the model given no action, "
        "or the actions in another order; sensitivity: cosine of foreseen and true displacement, less that with none",
    )
    table.add_column("steps", justify="right")
    names = (RECORDED, *CONTROLS, "sensitivity")
    for name in names:
        table.add_column(name, justify="right")
    for number, step in enumerate(curves["steps"]):
        values = {name: curves["at"][name][number] for name in names}
        cells = [_number(values[name]["estimate"], 2) for name in names]
        for place in (0, len(names) - 1):
            cells[place] += f"\n[dim]{_bounds(values[names[place]])}[/dim]".replace(" ", "\u00a0")
        table.add_row(str(step), *cells)
    return table


def _rate(value: Mapping[str, Any] | None, n: int) -> str:
    if value is None:
        return "–"
    low, high = bounds_in_percent(value["interval"])
    return f"{percent(value['estimate'], n)}\n[dim]\\[{low}, {high}][/dim]".replace(" ", "\u00a0")


def _bounds(value: Mapping[str, Any]) -> str:
    low, high = (("−∞", "∞")[i] if end is None else _number(end, 2) for i, end in enumerate(value["interval"]))
    return f"\\[{low}, {high}]"
