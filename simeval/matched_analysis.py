"""What a matched study shows, from its traces alone: each axis against the nominal run, and several axes at once.

An instance's cells are found by content: the rollouts of one start and seed under each of a combination's
perturbations by itself, and under all of them. Errors and whatever else does not count leave their instance out; how
many is said, and what the rates are if errors are failures.
"""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from simeval import interaction, stats
from simeval.arms import severity_of
from simeval.noise import Key
from simeval.outcomes import COUNTED, DROPPED, ERROR, Outcome
from simeval.types import canonical_json

UNPERTURBED = "[]"
"""The condition without perturbations."""

_FEWEST_CONFIGURATIONS = 5
"""With fewer perturbations drawn of a severity, an interval over them says nothing."""
_DRAWS = Key(0)

Axis = tuple[str, tuple[str, ...]]
"""An axis as a trace tells it: its name, and the components that it changes."""

_Cells = Mapping[str, Outcome]
"""Condition -> its outcome, of one start and seed."""


def matched_studies(outcomes: Iterable[Outcome], confidence: float = 0.95) -> list[dict[str, Any]]:
    """The analysis, as JSON data, of each study of a run; see docs/matched.md for what is in it."""
    return [
        {"policy": study.policy, "world": study.world, **study.analysis(confidence)} for study in studies_of(outcomes)
    ]


def studies_of(outcomes: Iterable[Outcome]) -> list["Study"]:
    """A study for each policy in each world that was run under matched perturbations and defines success."""
    groups: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if not outcome.branch and outcome.success_hold:
            groups[outcome.world, outcome.arm.policy].append(outcome)
    return [study for study in map(Study, groups.values()) if study.axes]


@dataclass(frozen=True, slots=True)
class Term:
    """One perturbation of a condition, and the condition in which it acts alone."""

    axis: Axis
    level: float
    alone: str
    redraws: int


@lru_cache(65536)
def terms(condition: str) -> tuple[Term, ...]:
    """The perturbations of a condition, in their order."""
    return tuple(
        Term(
            (data["axis"], tuple(kind["components"])),
            data["level"],
            canonical_json([data]),
            int(data["params"].get("redraws", 0)),
        )
        for data, kind in zip(json.loads(condition), json.loads(severity_of(condition)), strict=True)
    )


class Study:
    """The outcomes of one policy in one world: by start and condition, and those with fresh noise."""

    def __init__(self, outcomes: Sequence[Outcome]):
        self.policy, self.world = outcomes[0].arm.policy, outcomes[0].world
        self.cells: dict[bytes, dict[str, Outcome]] = defaultdict(dict)
        self.again: dict[str, dict[bytes, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
        levels: dict[Axis, set[float]] = defaultdict(set)
        for outcome in outcomes:
            drawn = outcome.condition != UNPERTURBED
            if drawn and outcome.arm.condition != severity_of(outcome.condition):
                continue
            if outcome.fresh and not drawn:
                self.again[" and ".join(outcome.fresh)][outcome.instance].append(outcome)
            elif not outcome.fresh:
                self.cells[outcome.instance][outcome.condition] = outcome
                for term in terms(outcome.condition):
                    levels[term.axis].add(term.level)
        self.axes = {axis: sorted(found) for axis, found in levels.items()}
        self.names = axis_names(self.axes)
        self.tasks = list(dict.fromkeys(outcome.task for outcome in outcomes))
        self.number = {key: number for number, key in enumerate(self.cells)}
        self.asked: dict[tuple[tuple[Axis, ...], int], list[Outcome]] = defaultdict(list)
        """Axes that act, and which of their severities, from 0 -> the outcomes, in the order asked."""
        for cells in self.cells.values():
            for condition, outcome in cells.items():
                parts = terms(condition)
                ranks = {self.axes[part.axis].index(part.level) for part in parts}
                if len(ranks) == 1:
                    self.asked[tuple(part.axis for part in parts), ranks.pop()].append(outcome)

    def severity(self, rank: int) -> str:
        """A severity as it is called: its whitened norm, where that is the same for all axes."""
        levels = {levels[rank] for levels in self.axes.values() if rank < len(levels)}
        return f"{levels.pop():g}" if len(levels) == 1 else f"level {rank + 1}"

    def instances(self, rank: int) -> list[list[Outcome | None]]:
        """The cells of every instance at a severity: nominal, each axis alone, and all at once (none: not asked)."""
        axes = tuple(self.axes)
        alone: dict[bytes, dict[Axis, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
        for axis in axes:
            for outcome in self.asked.get(((axis,), rank), ()):
                alone[outcome.instance][axis].append(outcome)
        at_once: dict[bytes, list[Outcome]] = defaultdict(list)
        for outcome in self.asked.get((axes, rank), ()) if len(axes) > 1 else ():
            at_once[outcome.instance].append(outcome)
        found: list[list[Outcome | None]] = []
        for key, cells in self.cells.items():
            nominal = cells.get(UNPERTURBED)
            found += [
                [nominal, *(cells.get(part.alone) for part in terms(outcome.condition)), outcome]
                for outcome in at_once[key]
            ]
            most = max(map(len, alone[key].values()), default=0)
            for number in range(len(at_once[key]), most):
                row = [alone[key][axis][number : number + 1] for axis in axes]
                found.append([nominal, *(one[0] if one else None for one in row), None])
        return found

    def notable(self, count: int) -> list[Outcome]:
        """Runs worth watching: whole instances that fail, and that succeed, only together, and losses of each axis.

        ``count`` of each, of the highest severities that have them; with each its unperturbed run.
        """
        found: dict[str, Outcome] = {}
        ranks = reversed(range(max(map(len, self.axes.values()))))
        every = [
            [cell if cell and cell.status == COUNTED else None for cell in cells]
            for rank in ranks
            for cells in self.instances(rank)
        ]
        kinds: list[Callable[[Sequence[Outcome | None]], list[Outcome]]] = [_emergent, _compensated]
        kinds += [partial(_lost, axis) for axis in range(len(self.axes))]
        for kind in kinds:
            shown = filter(None, map(kind, every))
            for outcomes in itertools.islice(shown, count):
                found |= {outcome.id: outcome for outcome in outcomes}
        return list(found.values())

    def analysis(self, confidence: float) -> dict[str, Any]:
        """Everything about the study, as JSON data."""
        nominal = [cells[UNPERTURBED] for cells in self.cells.values() if UNPERTURBED in cells]
        ranks = range(max(map(len, self.axes.values()), default=0))
        replications = [self._replication(stream, confidence) for stream in self.again]
        rows = [
            self._axis(axis, rank, confidence)
            for axis, rank in itertools.product(self.axes, ranks)
            if ((axis,), rank) in self.asked
        ]
        sets = sorted({axes for axes, _ in self.asked if len(axes) > 1}, key=lambda axes: (-len(axes), axes))
        combinations = [
            self._combination(axes, rank, confidence)
            for rank, axes in itertools.product(ranks, sets)
            if (axes, rank) in self.asked
        ]
        families = [rows]
        for test, everything in itertools.product(("interaction", "against_nominal"), (True, False)):
            families.append([row[test] for row in combinations if row["all"] == everything])
        for family in families:
            for row, p in zip(family, stats.holm([row["p"] for row in family]), strict=True):
                row["p_holm"] = p
        every = [outcome for cells in self.cells.values() for outcome in cells.values()]
        every += [outcome for starts in self.again.values() for found in starts.values() for outcome in found]
        return {
            "axes": list(self.names.values()),
            "severities": [self.severity(rank) for rank in ranks],
            "tasks": [task for task in self.tasks if any(o.task == task for o in nominal)],
            "starts": len(nominal),
            "nominal": _rate(nominal, confidence),
            "replications": replications,
            "rows": rows,
            "combinations": combinations,
            "errors": sum(outcome.status == ERROR for outcome in every),
            "dropped": sum(outcome.status == DROPPED for outcome in every),
            "redraws": sum(terms(c)[0].redraws for cells in self.cells.values() for c in cells if len(terms(c)) == 1),
        }

    def _replication(self, stream: str, confidence: float) -> dict[str, Any]:
        """The nominal run against itself with one stream of noise drawn anew."""
        before, after, starts, left_out = self._replicated(stream)
        return {
            "stream": stream,
            "flips": interaction.rate(before != after, starts, confidence),
            **interaction.change(after, before, starts, confidence),
            "left_out": left_out,
        }

    def _replicated(self, stream: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Success before and after [n], the number of the start [n], and how many do not count."""
        pairs, left_out = [], 0
        for key, found in self.again.get(stream, {}).items():
            before = self.cells.get(key, {}).get(UNPERTURBED)
            for after in found:
                if before is None or {before.status, after.status} != {COUNTED}:
                    left_out += 1
                else:
                    pairs.append((before.succeeded, after.succeeded, self.number[key]))
        columns = np.array(pairs, dtype=int).reshape(-1, 3).T
        return columns[0].astype(bool), columns[1].astype(bool), columns[2], left_out

    def _axis(self, axis: Axis, rank: int, confidence: float) -> dict[str, Any]:
        """One axis alone at one severity, against the nominal runs of the same starts."""
        asked = [
            (self.number[outcome.instance], outcome, self.cells[outcome.instance].get(UNPERTURBED))
            for outcome in self.asked[(axis,), rank]
        ]
        counted = [(n, o, plain) for n, o, plain in asked if o.status == COUNTED]
        pairs = [(n, o.succeeded, plain.succeeded) for n, o, plain in counted if plain and plain.status == COUNTED]
        starts, after, before = np.array(pairs, dtype=int).reshape(-1, 3).T
        after, before = after.astype(bool), before.astype(bool)
        numbers = np.array([n for n, _, _ in counted], dtype=int)
        success = interaction.rate(np.array([o.succeeded for _, o, _ in counted], dtype=bool), numbers, confidence)
        return {
            "axis": self.names[axis],
            "rank": rank,
            "level": self.axes[axis][rank],
            "configurations": len({o.condition for _, o, _ in counted}),
            "over_configurations": _over_configurations([o for _, o, _ in counted], confidence),
            "success": {**success, "with_errors": _lenient([o for _, o, _ in asked], confidence)},
            **interaction.change(after, before, starts, confidence),
            "changed": interaction.rate(after != before, starts, confidence),
            "kept": interaction.rate(after[before], starts[before], confidence),
            "excess": self._excess(after != before, starts, confidence),
            "left_out": _reasons(o.status for _, o, _ in asked)
            | _reasons(
                f"nominal {plain.status if plain else 'not asked'}"
                for _, _, plain in counted
                if plain is None or plain.status != COUNTED
            ),
            "tasks": _by_task([o for _, o, _ in asked], confidence),
        }

    def _excess(self, changed: np.ndarray, starts: np.ndarray, confidence: float) -> list[dict[str, Any]]:
        """By how much more outcomes change than they do by replication, for each stream of noise."""
        found = []
        for stream in self.again:
            before, after, again, _ = self._replicated(stream)
            found.append({"stream": stream, **interaction.excess(changed, starts, before != after, again, confidence)})
        return found

    def _combination(self, axes: tuple[Axis, ...], rank: int, confidence: float) -> dict[str, Any]:
        """Several axes at once at one severity, against each of the same perturbations alone."""
        complete, lenient, left_out = [], [], Counter[str]()
        outcomes = self.asked[axes, rank]
        for outcome in outcomes:
            cells = self.cells[outcome.instance]
            alone = [cells.get(part.alone) for part in terms(outcome.condition)]
            needed = [one for one in (cells.get(UNPERTURBED), outcome, *alone) if one is not None]
            if len(needed) < len(axes) + 2:
                left_out["a single not asked"] += 1
                continue
            row = [*(one.succeeded for one in needed), self.number[outcome.instance], self.tasks.index(outcome.task)]
            uncounted = sorted({one.status for one in needed} - {COUNTED})
            if not uncounted:
                complete.append(row)
            if uncounted in ([], [ERROR]):
                lenient.append(row)
            left_out.update(uncounted[:1])
        instances = _instances(complete, len(axes))
        result = interaction.combination(instances, confidence)
        with_errors = _instances(lenient, len(axes))
        return {
            "axes": [self.names[axis] for axis in axes],
            "all": len(axes) == len(self.axes),
            "rank": rank,
            "success": {
                **interaction.rate(*_counted(outcomes, self.number), confidence),
                "with_errors": _lenient(outcomes, confidence),
            },
            **result,
            "excess": self._excess(instances.conjunction != instances.combined, instances.starts, confidence),
            "by_replication": self._by_replication(len(axes)),
            "given_nominal": interaction.combination(instances.where(instances.nominal), confidence),
            "with_errors": _brief(interaction.combination(with_errors, confidence)),
            "left_out": dict(left_out),
            "tasks": _by_task(outcomes, confidence),
        }

    def _by_replication(self, axes: int) -> list[dict[str, Any]]:
        """The outcome change that each stream's replication alone would give."""
        found = []
        for stream in self.again:
            before, after, _, _ = self._replicated(stream)
            if len(before):
                success, flips = float(np.concatenate([before, after]).mean()), float((before != after).mean())
                change = interaction.change_by_replication(success, flips, axes)
                found.append({"stream": stream, "change": change})
        return found


def _emergent(cells: Sequence[Outcome | None]) -> list[Outcome]:
    """All of an instance that survives each perturbation alone and fails together; nothing of another."""
    whole = [cell for cell in cells if cell is not None]
    if len(whole) < len(cells) or whole[-1].succeeded:
        return []
    return whole if all(cell.succeeded for cell in whole[1:-1]) else []


def _compensated(cells: Sequence[Outcome | None]) -> list[Outcome]:
    """Of an instance that succeeds only together: that run, the unperturbed one, and those that fail alone."""
    whole = [cell for cell in cells if cell is not None]
    if len(whole) < len(cells) or not whole[-1].succeeded:
        return []
    failed = [cell for cell in whole[1:-1] if not cell.succeeded]
    return [whole[0], *failed, whole[-1]] if failed else []


def _lost(axis: int, cells: Sequence[Outcome | None]) -> list[Outcome]:
    """The unperturbed run that succeeded and that of one axis alone that did not."""
    nominal, single = cells[0], cells[1 + axis]
    lost = nominal is not None and single is not None and nominal.succeeded and not single.succeeded
    return [nominal, single] if lost and nominal is not None and single is not None else []


def place_of(severity: str) -> list[dict[str, Any]]:
    """Which axes act at which level, of the condition of an arm that is a severity."""
    parsed = json.loads(severity)
    names = axis_names((data["axis"], tuple(data["components"])) for data in parsed)
    return [{"axis": names[data["axis"], tuple(data["components"])], "level": data["level"]} for data in parsed]


def axis_names(axes: Iterable[Axis]) -> dict[Axis, str]:
    """What each axis is called: its name, and its components where others have the same name."""
    axes = list(axes)
    users = Counter(name for name, _ in axes)
    return {axis: axis[0] if users[axis[0]] == 1 else f"{axis[0]} ({', '.join(axis[1])})" for axis in axes}


def _instances(rows: Sequence[Sequence[int]], axes: int) -> interaction.Instances:
    """Of rows: nominal, combined, singles, start, task."""
    table = np.array(rows, dtype=int).reshape(-1, axes + 4)
    flags = table[:, : axes + 2].astype(bool)
    return interaction.Instances(flags[:, 2:], flags[:, 1], flags[:, 0], table[:, -2], table[:, -1])


def _counted(outcomes: Sequence[Outcome], numbers: Mapping[bytes, int]) -> tuple[np.ndarray, np.ndarray]:
    """Successes and starts of those that count."""
    counted = [outcome for outcome in outcomes if outcome.status == COUNTED]
    successes = np.array([outcome.succeeded for outcome in counted], dtype=bool)
    return successes, np.array([numbers[outcome.instance] for outcome in counted], dtype=int)


def _rate(outcomes: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    """The success rate of runs that share no start, in both denominators, and task by task."""
    won = np.array([o.succeeded for o in outcomes if o.status == COUNTED], dtype=bool)
    return {
        **interaction.rate(won, np.arange(len(won)), confidence),
        "with_errors": _lenient(outcomes, confidence),
        "tasks": _by_task(outcomes, confidence),
    }


def _lenient(outcomes: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    """The rate with errors as failures."""
    judged = [outcome for outcome in outcomes if outcome.status in (COUNTED, ERROR)]
    starts = np.unique([outcome.instance for outcome in judged], return_inverse=True)[1]
    return interaction.rate(np.array([o.succeeded for o in judged], dtype=bool), starts, confidence)


def _by_task(outcomes: Sequence[Outcome], confidence: float) -> dict[str, Any]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.task].append(outcome)
    found = {}
    for task, members in groups.items():
        numbers = {key: number for number, key in enumerate({outcome.instance for outcome in members})}
        found[task] = interaction.rate(*_counted(members, numbers), confidence)
    return found


def _brief(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of a combination, the rates alone."""
    return {name: result[name] for name in ("n", "sim", "conj", "emergent", "compensated", "change")}


def _over_configurations(outcomes: Sequence[Outcome], confidence: float) -> list[float] | None:
    """What to expect of other perturbations of the severity: an interval of the mean over those that were drawn."""
    groups: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.condition].append(float(outcome.succeeded))
    if len(groups) < _FEWEST_CONFIGURATIONS:
        return None
    found = stats.cluster_bootstrap(list(groups.values()), _DRAWS, confidence)
    return [found.low, found.high] if found.low < found.high else None


def _reasons(statuses: Iterable[str]) -> dict[str, int]:
    """How many do not count, by why."""
    return dict(Counter(status for status in statuses if status != COUNTED))
