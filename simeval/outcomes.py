"""The outcome of every rollout of a run, recomputed from the trace arrays and checked against what the files claim."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from h5py import h5d, h5s

from simeval.errors import TraceError
from simeval.metrics import EpisodeSummary, summarise
from simeval.reader import Run
from simeval.trace import open_shard
from simeval.types import Perturbation, Rollout, canonical_json

COUNTED, ERROR, SOLVED_AT_RESET, DROPPED, PENDING = "counted", "error", "solved at reset", "dropped", "pending"
"""What became of a requested rollout; only ``counted`` ones and, in the second denominator, errors enter a rate."""

_EPISODES_PER_OPEN = 256
"""HDF5 remembers some 25 KB of every group it has visited until its file is closed, so large shards are reopened."""

NOMINAL = "nominal"
"""The condition of a rollout without perturbations."""

Measure = Literal["success", "return"]
"""What an episode is judged by: its success, or its return where the World defines no success."""


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """One of the things being compared: a policy, under a condition (axes and levels of perturbation), in a world.

    ``world`` is empty where each task is played in one world only: there the world is part of the task, and a policy's
    episodes in all worlds belong together; but among several worlds, one that defines no success stands by itself,
    since returns of different worlds have no common scale.
    """

    policy: str
    world: str = ""
    condition: str = NOMINAL

    @classmethod
    def of(cls, rollout: Rollout) -> "Arm":
        """The arm that a rollout belongs to."""
        return cls(rollout.policy, rollout.world, condition((*rollout.start.perturbations, *rollout.perturbations)))

    def differs_in(self, other: "Arm") -> tuple[str, ...]:
        """Names of the parts in which two arms differ."""
        return tuple(name for name in ("policy", "world", "condition") if getattr(self, name) != getattr(other, name))


def condition(perturbations: Iterable[Perturbation]) -> str:
    """A readable name for a set of perturbations: axes with their levels, or ``nominal``."""
    return " + ".join(sorted(f"{p.axis} {p.level:g}" for p in perturbations)) or NOMINAL


def labels(arms: Iterable[Arm]) -> dict[Arm, str]:
    """A short name for each arm: its policy, and whatever else tells the arms apart."""
    arms = list(arms)
    worlds, conditions = {arm.world for arm in arms}, {arm.condition for arm in arms}

    def label(arm: Arm) -> str:
        text = arm.policy
        if len(conditions) > 1:
            text += f" · {arm.condition}"
        return text + (f" @ {arm.world}" if len(worlds) > 1 and arm.world else "")

    return {arm: label(arm) for arm in arms}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One requested rollout: what became of it (``status``, with ``reason``), and its summary where there is one.

    ``pair`` identifies the start and noise that it shares with the rollouts of other arms; ``ever`` and ``final`` say
    whether the goal held after any step, and after the last one. ``success_hold`` is 0 where the world defines no
    success. ``blame`` says whose an error is: the policy's or the world's.
    """

    id: str
    arm: Arm
    world: str
    task: str
    pair: bytes
    branch: bool
    status: str
    summary: EpisodeSummary | None = None
    success_hold: int = 1
    ever: bool = False
    final: bool = False
    reason: str = ""
    blame: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it counts as a success (anything but a counted episode does not)."""
        return self.status == COUNTED and self.summary is not None and self.summary.success


def measure(outcomes: Iterable[Outcome]) -> Measure:
    """``"return"`` if there are outcomes and none of their worlds defines success, else ``"success"``."""
    holds = {outcome.success_hold for outcome in outcomes}
    return "return" if holds == {0} else "success"


def pair_key(rollout: Rollout) -> bytes:
    """What two rollouts that differ only in policy, world or perturbations share: their start and their noise."""
    start = replace(rollout.start, perturbations=(), instruction="")
    shared = [start.to_json(), rollout.seed, [list(pair) for pair in rollout.streams], rollout.branch_step]
    return hashlib.blake2b(canonical_json(shared).encode(), digest_size=10).digest()


def read_outcomes(run: Run) -> list[Outcome]:
    """The outcome of every rollout requested, in the order asked.

    Each sealed episode's reward and success are read once, shard by shard, and nothing else of it is kept. Raises
    ``TraceError`` naming the episode where its arrays, its attributes and the index disagree, and where one is gone.
    """
    table = run.episodes
    claims = {
        row[0]: row[1:]
        for row in table[["id", "status", "success", "length", "return"]].itertuples(index=False, name=None)
    }
    reasons = dict(zip(table["id"], table["error"], strict=True))
    found: dict[str, tuple[Outcome, Path]] = {}
    for path in sorted((run.path / "traces").glob("*.h5")):
        for outcome in _read_shard(path):
            if outcome.id not in claims:
                raise TraceError(f"{path} holds episode {outcome.id}, which the run's index does not know")
            found[outcome.id] = (outcome, path)  # an error run again stands in a later shard
    for outcome, path in found.values():
        _check_index(path, outcome, claims[outcome.id])
    outcomes = [found[id_][0] if id_ in found else _absent(run, id_, claims[id_][0], reasons[id_]) for id_ in claims]
    return _with_worlds_told_apart_by_task(_with_holds_of_worlds(outcomes))


def _with_holds_of_worlds(outcomes: list[Outcome]) -> list[Outcome]:
    """What was never run is judged like what was run in its world."""
    without = {outcome.world for outcome in outcomes if outcome.success_hold == 0}
    return [
        replace(outcome, success_hold=0)
        if outcome.status in (DROPPED, PENDING) and outcome.world in without
        else outcome
        for outcome in outcomes
    ]


def _with_worlds_told_apart_by_task(outcomes: list[Outcome]) -> list[Outcome]:
    places = {(outcome.task, outcome.world) for outcome in outcomes}
    worlds = {world for _, world in places}
    if len(places) > len({task for task, _ in places}):
        return outcomes
    return [
        replace(outcome, arm=replace(outcome.arm, world="")) if outcome.success_hold or len(worlds) == 1 else outcome
        for outcome in outcomes
    ]


def _absent(run: Run, id_: str, status: str, reason: str) -> Outcome:
    if status not in ("pending", "dropped"):
        raise TraceError(
            f"episode {id_} of {run.path} is {status!r} in the index, but no file in traces/ holds it; put the missing "
            "file back, or resume the run to make it again"
        )
    rollout = run.rollout(id_)
    state = DROPPED if status == "dropped" else PENDING
    return Outcome(
        id_,
        Arm.of(rollout),
        rollout.world,
        rollout.start.task,
        pair_key(rollout),
        rollout.parent is not None,
        state,
        reason=reason or "requested and not finished",
    )


def _read_shard(path: Path) -> Iterator[Outcome]:
    with open_shard(path) as file:
        names = list(file)
    for begin in range(0, len(names), _EPISODES_PER_OPEN):
        with open_shard(path) as file:
            for name in names[begin : begin + _EPISODES_PER_OPEN]:
                try:
                    yield _read_episode(name, file[name])
                except (KeyError, OSError, ValueError) as error:
                    raise TraceError(f"{path}: episode {name} cannot be read ({error}); the file was altered") from None


def _read_episode(name: str, group: h5py.Group) -> Outcome:
    attrs = group.attrs
    rollout = Rollout.from_json(json.loads(attrs["rollout"]))
    if rollout.id != name:
        raise ValueError(f"it holds the rollout {rollout.id}")
    status, hold = attrs["status"], int(attrs["success_hold"])
    identity = (name, Arm.of(rollout), rollout.world, rollout.start.task, pair_key(rollout), rollout.parent is not None)
    if status != "done":
        return Outcome(*identity, ERROR, success_hold=hold, reason=attrs["error"], blame=attrs["blame"])
    success = _column(group, "success").astype(bool)
    held = int(attrs["held"]) if rollout.parent is not None else 0
    summary = summarise(_column(group, "reward"), success, hold, held)
    _check_attrs(summary, attrs)
    solved = bool(attrs["solved_at_reset"])
    return Outcome(
        *identity,
        SOLVED_AT_RESET if solved else COUNTED,
        summary,
        hold,
        bool(success.any()),
        bool(success[-1:].any()),
        "the task was already solved before the first action" if solved else "",
    )


def _column(group: h5py.Group, name: str) -> np.ndarray:
    """A dataset read through the low-level interface, which costs a third of ``group[name][...]``."""
    dataset = h5d.open(group.id, name.encode())
    array = np.empty(dataset.shape, dataset.dtype)
    if array.size:
        dataset.read(h5s.ALL, h5s.ALL, array)
    return array


def _check_attrs(summary: EpisodeSummary, attrs: Mapping[str, Any]) -> None:
    claimed = (bool(attrs["success"]), int(attrs["length"]), float(attrs["return"]))
    if not _agree(summary, *claimed):
        said = EpisodeSummary(claimed[0], None, *claimed[1:])
        raise ValueError(f"its arrays give {_shown(summary)}, its attributes say {_shown(said)}")


def _check_index(path: Path, outcome: Outcome, claim: tuple[Any, ...]) -> None:
    summary = outcome.summary
    status = "error" if outcome.status == ERROR else "done"
    if status != claim[0] or (summary is not None and not _agree(summary, *claim[1:])):
        said = f"{claim[0]}, success={claim[1]}, length={claim[2]}, return={claim[3]}"
        here = f"{status}, {_shown(summary)}" if summary is not None else status
        raise TraceError(
            f"{path}: episode {outcome.id} is [{here}], but the run's index says [{said}]; one was altered"
        )


def _agree(summary: EpisodeSummary, success: Any, length: Any, total: Any) -> bool:
    same_return = math.isclose(summary.total_reward, total, rel_tol=1e-9, abs_tol=1e-9)
    same_return |= math.isnan(summary.total_reward) and math.isnan(total)
    claimed = bool(success == 1)  # where no success is defined, the table has none, or not a number beside missing rows
    return summary.success == claimed and summary.length == int(length) and same_return


def _shown(summary: EpisodeSummary) -> str:
    return f"success={summary.success}, length={summary.length}, return={summary.total_reward:.9g}"
