"""The outcome of every rollout of a run, recomputed from the trace arrays and checked against what the files claim."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any, Literal

import numpy as np

from simeval.arms import FAULT, Arm, severity_of
from simeval.audit import agree, audit, indexed_episode, indexed_rollout, shown
from simeval.episode import Episode
from simeval.errors import TraceError
from simeval.latency import Counts
from simeval.metrics import EpisodeSummary
from simeval.reader import Run
from simeval.shard_reader import open_shard
from simeval.types import Rollout, canonical_json
from simeval.versions import version_of

COUNTED, ERROR, SOLVED_AT_RESET, DROPPED, PENDING = "counted", "error", "solved at reset", "dropped", "pending"
REPEATED = "repeated"
"""What became of a requested rollout; only ``counted`` ones and, in the second denominator, errors enter a rate."""

Measure = Literal["success", "return"]
"""What an episode is judged by: its success, or its return where the World defines no success."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One requested rollout: what became of it (``status``, with ``reason``), and its summary where there is one.

    ``pair`` identifies what it shares with the rollouts that it is compared with: the start and noise, and what was
    drawn, where its arm is a severity. ``instance`` identifies the start and the seed alone, ``condition`` is the
    JSON of its perturbations, and ``fresh`` names the noise streams keyed by another seed. ``ever`` and ``final`` say
    whether the goal held after any step, and after the last one. ``success_hold`` is 0 where the world defines no
    success. ``blame`` says whose an error is: the policy's or the world's. ``parent`` is empty for a root.
    ``inference``: how long the policy took to predict.
    """

    id: str
    arm: Arm
    world: str
    task: str
    pair: bytes
    parent: str
    horizon: int
    stop_on_success: bool
    instruction: str
    status: str
    summary: EpisodeSummary | None = None
    success_hold: int = 1
    ever: bool = False
    final: bool = False
    reason: str = ""
    blame: str = ""
    inference: Counts = field(default_factory=dict)
    instance: bytes = b""
    condition: str = "[]"
    fresh: tuple[str, ...] = ()

    @property
    def branch(self) -> bool:
        """Whether it is a child of another rollout, whose past it shares."""
        return bool(self.parent)

    @property
    def succeeded(self) -> bool:
        """Whether it counts as a success (anything but a counted episode does not)."""
        return self.status == COUNTED and self.summary is not None and self.summary.success

    @classmethod
    def of(cls, rollout: Rollout, status: str, reason: str = "") -> "Outcome":
        """What can be said of a rollout without an episode."""
        arm = Arm.of(rollout)
        return cls(
            rollout.id,
            arm,
            intern(rollout.world),
            intern(rollout.start.task),
            pair_key(rollout),
            rollout.parent or "",
            rollout.horizon,
            rollout.stop_on_success,
            intern(rollout.start.instruction),
            intern(status),
            reason=reason,
            instance=_digest(_start_of(rollout), rollout.seed),
            condition=arm.condition,
            fresh=tuple(name for name, _ in rollout.streams),
        )


def measure(outcomes: Iterable[Outcome]) -> Measure:
    """``"return"`` if there are outcomes and none of their worlds defines success, else ``"success"``."""
    holds = {outcome.success_hold for outcome in outcomes}
    return "return" if holds == {0} else "success"


def pair_key(rollout: Rollout) -> bytes:
    """What two rollouts that differ only in policy, world or perturbations share: their start and their noise."""
    return _digest(_start_of(rollout), rollout.seed, [list(pair) for pair in rollout.streams], rollout.branch_step)


def _start_of(rollout: Rollout) -> dict[str, Any]:
    return replace(rollout.start, perturbations=(), instruction="").to_json()


def _digest(*shared: Any) -> bytes:
    return hashlib.blake2b(canonical_json(list(shared)).encode(), digest_size=10).digest()


def read_outcomes(run: Run) -> list[Outcome]:
    """The outcome of every rollout requested, in the order asked.

    Rewards and successes are read once, shard by shard, and nothing else of an episode is kept. Raises ``TraceError``
    where the arrays, the table and the index disagree, naming the episode if it is one's alone, and where one is gone.

    Rollouts that differ in nothing but the snapshots they keep are one episode: the first that finished stands for
    them, and the others are ``repeated``. Raises ``TraceError`` naming them where such episodes ended differently.
    """
    found = {outcome.id: outcome for outcome in _recorded(run)}
    dropped = run.dropped
    outcomes = [found.get(id_) or _absent(run, id_, dropped) for id_ in run.requested]
    for told_apart in (_by_measure, _by_world, _by_limits, _by_instruction, _by_noise, _by_severity, _once):
        outcomes = told_apart(outcomes)
    return outcomes


def _recorded(run: Run) -> Iterator[Outcome]:
    seen: set[str] = set()
    for path in sorted((run.path / "traces").glob("*.h5"), reverse=True):  # an error run again is in a later shard
        with open_shard(path, run.run_id) as shard:
            episodes: dict[int, Episode] = {}
            for row, name in enumerate(shard.ids):
                if name not in run:
                    raise TraceError(f"{path} holds episode {name}, which the run's index does not know")
                if name not in seen:
                    episodes[row] = indexed_episode(run, name)
            seen.update(shard.ids)
            for episode, success in audit(shard, episodes):
                yield _outcome(episode, success)


def _outcome(episode: Episode, success: np.ndarray | None) -> Outcome:
    ending = episode.ending
    outcome = replace(Outcome.of(episode.rollout, ERROR, episode.error), inference=ending.inference)
    if success is None:
        return replace(outcome, success_hold=ending.success_hold, blame=ending.blame)
    return replace(
        outcome,
        status=SOLVED_AT_RESET if ending.solved_at_reset else COUNTED,
        summary=ending.summary,
        success_hold=ending.success_hold,
        ever=bool(success.any()),
        final=bool(success[-1:].any()),
        reason="the task was already solved before the first action" if ending.solved_at_reset else "",
    )


def _absent(run: Run, id_: str, dropped: dict[str, str]) -> Outcome:
    if id_ in run:
        raise TraceError(
            f"episode {id_} of {run.path} is {run[id_].status!r} in the index, but no file in traces/ holds it; put "
            "the missing file back, or resume the run to make it again"
        )
    rollout = indexed_rollout(run, id_)
    if id_ in dropped:
        return Outcome.of(rollout, DROPPED, dropped[id_])
    return Outcome.of(rollout, PENDING, "requested and not finished")


def _by_measure(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What was never run is judged like what was run in its world."""
    without = {outcome.world for outcome in outcomes if outcome.success_hold == 0}
    return [
        replace(outcome, success_hold=0)
        if outcome.status in (DROPPED, PENDING) and outcome.world in without
        else outcome
        for outcome in outcomes
    ]


def _by_world(outcomes: Sequence[Outcome]) -> list[Outcome]:
    places = {(outcome.task, outcome.world) for outcome in outcomes}
    worlds = {world for _, world in places}
    if len(places) > len({task for task, _ in places}):
        return list(outcomes)
    return [
        replace(outcome, arm=outcome.arm.changed(world="")) if outcome.success_hold or len(worlds) == 1 else outcome
        for outcome in outcomes
    ]


def _by_limits(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Where rollouts of one task may run for different times, those of each are an arm of their own.

    Actions that were done again in a model run for as long as there are any, and stand apart.
    """

    def place(outcome: Outcome) -> Hashable:
        again = outcome.id if version_of(outcome.arm.policy) else None
        return outcome.world, outcome.task, outcome.branch, again

    horizons = _values(outcomes, place, lambda outcome: outcome.horizon)
    stops = _values(outcomes, place, lambda outcome: outcome.stop_on_success)
    return [
        _in_setting(
            outcome,
            f"horizon {outcome.horizon}" if len(horizons[place(outcome)]) > 1 else "",
            ("stops at success" if outcome.stop_on_success else "goes on after success")
            if len(stops[place(outcome)]) > 1
            else "",
        )
        for outcome in outcomes
    ]


def _by_instruction(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Where one start is asked for in several words, those of each are an arm of their own."""

    def place(outcome: Outcome) -> Hashable:
        return outcome.pair, outcome.world, outcome.arm.condition, outcome.parent

    said = _values(outcomes, place, lambda outcome: outcome.instruction)
    return [
        _in_setting(outcome, f"“{outcome.instruction}”" if len(said[place(outcome)]) > 1 else "")
        for outcome in outcomes
    ]


def _by_noise(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Where one start is run again with fresh noise, that is an arm of its own."""

    def place(outcome: Outcome) -> Hashable:
        return outcome.instance, outcome.world, outcome.arm.condition, outcome.parent

    noises = _values(outcomes, place, lambda outcome: outcome.fresh)
    return [
        _in_setting(outcome, f"fresh {' and '.join(outcome.fresh)} noise" if outcome.fresh else "")
        if not outcome.branch and len(noises[place(outcome)]) > 1
        else outcome
        for outcome in outcomes
    ]


def _by_severity(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """What a matched study drew at one severity is one arm, whose outcomes are told apart by ``pair``; so is a fault.

    A study is matched in a world if some start is run there, with one noise, as it is and under several perturbations.
    """

    def place(outcome: Outcome) -> Hashable:
        return outcome.world, outcome.arm.policy, outcome.pair

    roots = [outcome for outcome in outcomes if not outcome.branch]
    conditions = _values(roots, place, lambda outcome: outcome.condition)
    matched = {(o.world, o.arm.policy) for o in roots if len(found := conditions[place(o)]) > 2 and "[]" in found}

    def drawn(outcome: Outcome) -> bool:
        if outcome.branch:
            return f'"axis":"{FAULT}' in outcome.condition
        return outcome.condition != "[]" and (outcome.world, outcome.arm.policy) in matched

    return [
        replace(
            outcome,
            arm=outcome.arm.changed(condition=severity_of(outcome.condition)),
            pair=_digest(outcome.pair.hex(), outcome.condition),
        )
        if drawn(outcome)
        else outcome
        for outcome in outcomes
    ]


def _values(
    outcomes: Sequence[Outcome], place: Callable[[Outcome], Hashable], value: Callable[[Outcome], Hashable]
) -> dict[Hashable, set[Hashable]]:
    found: dict[Hashable, set[Hashable]] = defaultdict(set)
    for outcome in outcomes:
        found[place(outcome)].add(value(outcome))
    return found


def _in_setting(outcome: Outcome, *parts: str) -> Outcome:
    setting = ", ".join(filter(None, (outcome.arm.setting, *parts)))
    return outcome if setting == outcome.arm.setting else replace(outcome, arm=outcome.arm.changed(setting=setting))


def _once(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Each episode counted once, though it was requested as several rollouts."""
    first: dict[Hashable, str] = {}
    same: dict[str, str] = {}
    standing: dict[str, Outcome] = {}
    for outcome in outcomes:
        arm, parent = outcome.arm.changed(world=outcome.world), same.get(outcome.parent, outcome.parent)
        content = arm, outcome.pair, outcome.instruction, outcome.horizon, outcome.stop_on_success, parent
        group = same[outcome.id] = first.setdefault(content, outcome.id)
        other = standing.get(group)
        if other is None or (other.summary is None and outcome.summary is not None):
            standing[group] = outcome
        elif other.summary is not None and outcome.summary is not None and not agree(other.summary, outcome.summary):
            raise TraceError(
                f"episodes {other.id} and {outcome.id} differ in nothing but the snapshots they keep, and yet ended "
                f"differently ({shown(other.summary)}; {shown(outcome.summary)}); their world or policy is not a "
                "function of the rollout: `simeval check` finds out why"
            )
    return [
        outcome
        if (stands := standing[same[outcome.id]]) is outcome
        else replace(outcome, status=REPEATED, reason=f"the same episode as {stands.id}, which stands for both")
        for outcome in outcomes
    ]
