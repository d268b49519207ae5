"""How one rollout is brought about: where it begins, what is replayed on the way, and its progress in a slot."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simeval.episode import Checkpoint, Episode
from simeval.errors import UnsupportedError
from simeval.latency import Counts
from simeval.noise import Stream
from simeval.perturbation import EffectMemory, Effects, split
from simeval.reader import Run
from simeval.types import Rollout, Start
from simeval.world import World

Recall = Callable[[str], Episode | None]
"""Rollout id -> its finished episode, or none."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rollout up to step ``until``; ``actions`` are those recorded from step ``first`` on."""

    rollout: Rollout
    until: int
    actions: np.ndarray | None = None
    first: int = 0


@dataclass(slots=True)
class Program:
    """A rollout to be recorded, and how to get to its first step.

    It begins at ``origin``, or by resetting at ``start``; all segments but the last are replayed unrecorded.
    ``isolated`` programs never share a call with others. ``lost``: a process ended while this was run in it.
    """

    rollout: Rollout
    segments: tuple[Segment, ...]
    start: Start
    origin: Checkpoint | None = None
    origin_policy: str | None = None
    isolated: bool = False
    lost: bool = False


def plan(rollout: Rollout, world: World, recall: Recall) -> Program:
    """The shortest way to the first step of ``rollout``: from a kept checkpoint, or replayed from the root's reset."""
    own, _ = split(world, rollout.perturbations)
    start = replace(rollout.start, perturbations=rollout.start.perturbations + tuple(own))
    segments = [Segment(rollout, rollout.horizon)]
    current = rollout
    while current.parent is not None:
        step = current.branch_step
        parent = recall(current.parent)
        if parent is None:
            raise ValueError(
                f"rollout {current.id} branches from {current.parent}, which is not finished in this run; yield the "
                "parent first and branch from what comes back"
            )
        if split(world, parent.rollout.perturbations)[0] != own:
            raise UnsupportedError(
                f"rollout {rollout.id} changes perturbations that world {world.name!r} applies at reset; give the "
                "branch its parent's, or start a new root"
            )
        begin, end = parent.rollout.branch_step, parent.rollout.branch_step + parent.length
        if not begin <= step <= end or (step == end and _has_ended(parent)):
            raise ValueError(
                f"cannot branch from {parent.id} at step {step}: it has steps {begin} to {end - 1} "
                f"(status {parent.status}, {'succeeded' if parent.succeeded else 'no success'})"
            )
        kept = [item for item in parent.source.checkpoint_steps() if item <= step]
        first = max(kept, default=begin)
        if first < step:
            segments.append(Segment(parent.rollout, step, parent.action, begin))
        if kept:
            return Program(
                rollout, tuple(reversed(segments)), start, parent.source.checkpoint(first), parent.rollout.policy
            )
        current = parent.rollout
    origin = None
    if start.snapshot is not None:
        kept_state = _checkpoint(start, recall)
        origin = Checkpoint(0, kept_state.snapshot, {}, 0)
    return Program(rollout, tuple(reversed(segments)), start, origin)


def _has_ended(episode: Episode) -> bool:
    """Whether an episode ended by itself, so that nothing can follow; one cut at its horizon could go on."""
    solved = episode.rollout.stop_on_success and episode.succeeded
    end = episode.rollout.branch_step + episode.length
    return episode.rollout.horizon > end or solved or not episode.length or bool(episode.terminated[-1])


def _checkpoint(start: Start, recall: Recall) -> Checkpoint:
    """The state that a start refers to; it must be of the same task, as it holds the goal too."""
    ref = start.snapshot
    assert ref is not None
    if start.perturbations:
        raise UnsupportedError(
            "a start from a snapshot keeps the World as it was; it cannot be given: "
            f"{', '.join(p.axis for p in start.perturbations)}"
        )
    episode = recall(ref.rollout) if ref.run in ("", ".") else Run(ref.run)[ref.rollout]
    if episode is None:
        raise ValueError(f"the start's snapshot is of rollout {ref.rollout}, which is not finished in this run")
    if episode.rollout.start.task != start.task:
        raise ValueError(
            f"a start of task {start.task!r} cannot begin from a state of task {episode.rollout.start.task!r}"
        )
    return episode.source.checkpoint(ref.step)


@dataclass(slots=True)
class Lane:
    """One slot's work in progress."""

    slot: int
    program: Program
    step: int = 0
    held: int = 0
    position: int = 0
    solved_at_reset: bool = False
    held_at_first: int = 0
    checkpoints: dict[int, bytes] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    rollout: Rollout = field(init=False)
    until: int = field(init=False)
    recording: bool = field(init=False)
    world_stream: Stream = field(init=False)
    policy_stream: Stream = field(init=False)
    effects: Effects = field(init=False)
    effect_memory: EffectMemory = field(default_factory=dict)
    """What the effects remember as this step's observation arrives, and, once there is an action, after that."""
    _shown: EffectMemory = field(default_factory=dict)
    instruction: str = field(init=False)
    snapshot_steps: frozenset[int] = field(init=False)
    extras: dict[str, Any] | None = None
    inference: Counts = field(default_factory=dict)

    def enter(self, world: World) -> None:
        """Take up the segment at ``position``."""
        segment = self.program.segments[self.position]
        rollout = segment.rollout
        self.rollout = rollout
        self.until = segment.until
        self.recording = self.position == len(self.program.segments) - 1
        self.world_stream = rollout.key("world").stream("world")
        self.policy_stream = rollout.key("policy").stream("policy")
        self.effects = Effects(rollout, split(world, rollout.perturbations)[1], world.spec)
        self.effect_memory = self.effects.begin(self.effect_memory)
        self.instruction = self.effects.instruction(rollout.start.instruction)
        self.snapshot_steps = frozenset(rollout.snapshot_steps) if self.recording else frozenset()
        if self.recording:
            self.held_at_first = self.held

    def inherit(self, origin: Checkpoint) -> None:
        """Begin where a checkpoint was kept."""
        self.step, self.held, self.held_at_first = origin.step, origin.held, origin.held
        self.effect_memory = self.effects.begin(origin.effects)

    def show(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """What the effects make of this step's observation."""
        shown, self._shown = self.effects.observation(observation, self.step, self.effect_memory)
        return shown

    def send(self, action: np.ndarray) -> np.ndarray:
        """What the effects make of this step's action."""
        sent, self.effect_memory = self.effects.action(action, self.step, self._shown)
        return sent

    def report(self, extras: Mapping[str, np.ndarray]) -> None:
        """Take note of what the policy reports; ``ValueError`` if that is other than before in this episode."""
        layout = {key: (value.dtype, value.shape[1:]) for key, value in extras.items()}
        if self.extras is None:
            self.extras = layout
        elif self.extras != layout:
            raise ValueError(f"the policy reports {layout}, and reported {self.extras} earlier in the episode")

    def diverges(self, action: np.ndarray) -> bool:
        """Whether a replayed action differs from the one recorded at this step."""
        segment = self.program.segments[self.position]
        return segment.actions is not None and not np.array_equal(segment.actions[self.step - segment.first], action)
