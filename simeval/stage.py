"""One World at work: its queue, its slots, and one tick of observe, act, step, record."""

import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from simeval.episode import ArraySource, Checkpoint, Ending, Episode
from simeval.errors import ConfigError, HostError, LostError, MissingPackageError, UnsupportedError, in_brief
from simeval.guard import WorldGuard, cast_actions, check_rows, extras_of
from simeval.lane import Lane, Program
from simeval.latency import add
from simeval.metrics import summarise
from simeval.noise import StepKey
from simeval.policy import (
    REPLANNED,
    SNAPSHOT,
    Memory,
    Policy,
    PolicyStep,
    memory_row,
    put_memory,
    snapshot_column,
    stack_memory,
    take_memory,
)
from simeval.settings import whole
from simeval.tape import Tape
from simeval.types import Snapshot, TimeStep, is_picture
from simeval.world import World, action_problems

_NOT_AN_EPISODES_FAULT = (ConfigError, HostError, MissingPackageError, UnsupportedError)
"""Errors of the set-up: they stop the run instead of becoming an episode's error."""
_LOST_AGAIN = "lost for the second time, run anew in between"


class _Abandoned(Exception):
    """A call for several lanes failed; its lanes will run again, each alone, so that only the culprit is blamed."""


def _by_policy(lanes: Iterable[Lane]) -> dict[str, list[Lane]]:
    groups: dict[str, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(lane.rollout.policy, []).append(lane)
    return groups


class Stage:
    """Runs programs in the slots of one World and hands finished episodes to ``deliver``."""

    def __init__(
        self,
        world: World,
        policies: Mapping[str, Policy],
        pool: ThreadPoolExecutor,
        keep: Callable[[str], bool],
        deliver: Callable[[Episode], None],
    ):
        self.world = world
        self.policies = policies
        for name, policy in policies.items():
            whole(f"batch_size of policy {name!r}", policy.batch_size)
        self.steps = 0
        self._deliver = deliver
        self._queue: deque[Program] = deque()
        self._lanes: list[Lane | None] = [None] * world.num_slots
        self._tape = Tape(world.num_slots, pool, keep)
        self._observation: dict[str, Any] = {}
        self._memory: dict[str, Memory] = {}
        self._guard = WorldGuard(world)
        self._acted: set[str] = set()
        self._pictures = {key for key, space in world.observation_space.items() if is_picture(space)}
        self._pictures_recorded = {key for key in self._pictures if keep(f"observation/{key}")}

    def submit(self, program: Program) -> None:
        """Queue a program; it begins when a slot comes free."""
        self._queue.append(program)

    def tick(self) -> bool:
        """Fill free slots and advance every lane by one control step; false when there was nothing to do."""
        begun = self._fill()
        lanes = [lane for lane in self._lanes if lane is not None]
        if not lanes:
            return begun
        self._keep_checkpoints(lanes)
        actions = self._act(self._ready(self._alive(lanes)))
        for group in self._groups([lane for lane in lanes if lane.slot in actions]):
            self._step(group, np.stack([actions[lane.slot] for lane in group]))
        return True

    def _groups(self, lanes: Sequence[Lane]) -> Iterator[list[Lane]]:
        """The lanes that share a call, and then those that share none, as far as they are still there by then."""
        together = [lane for lane in lanes if not lane.program.isolated]
        for group in (together, *([lane] for lane in lanes if lane.program.isolated)):
            if alive := self._alive(group):
                yield alive

    def _ready(self, lanes: Sequence[Lane]) -> list[Lane]:
        """The lanes to advance now: where others of their policy can, those that are due wait to fill its batches."""
        waiting: set[int] = set()
        for name, group in _by_policy(lane for lane in lanes if not lane.program.isolated).items():
            size = self.policies[name].batch_size
            if size == 1:
                continue
            due = [lane.slot for lane, is_due in zip(group, self._due(name, group), strict=True) if is_due]
            if len(due) < len(group):
                waiting.update(due[len(due) - len(due) % size :])
        return [lane for lane in lanes if lane.slot not in waiting]

    def _due(self, name: str, lanes: Sequence[Lane]) -> np.ndarray:
        memory = take_memory(self._memory[name], np.array([lane.slot for lane in lanes]))
        try:
            due = self.policies[name].due(memory)
            flags = np.ones(len(lanes), dtype=bool) if due is None else np.asarray(due)
        except Exception as error:
            raise self._broken(name, f"due(memory) raised {in_brief(traceback.format_exc())}") from error
        if flags.dtype != bool or flags.shape != (len(lanes),):
            raise self._broken(name, f"due(memory) is {flags.dtype}{list(flags.shape)}, expected bool[{len(lanes)}]")
        return flags

    def _broken(self, name: str, text: str) -> ConfigError:
        return ConfigError(f"policy {name!r} breaks its contract (`simeval check policy=…` proves it): {text}")

    def _looks(self, lanes: Sequence[Lane]) -> list[bool]:
        """Whether what each lane observes after its next step is looked at, or recorded."""
        looks = np.ones(len(lanes), dtype=bool)
        if self._pictures and not self._pictures_recorded:
            row = {lane.slot: index for index, lane in enumerate(lanes)}
            staying = (lane for lane in lanes if lane.recording or lane.step + 1 < lane.until)
            for name, group in _by_policy(staying).items():
                reads = not self._pictures.isdisjoint(self.policies[name].observation_keys)
                seen = self._due(name, group) if reads else np.zeros(len(group), dtype=bool)
                remembered = [lane.effects.remembers_pictures for lane in group]
                looks[[row[lane.slot] for lane in group]] = seen | remembered
        return looks.tolist()

    def _shown(self, lane: Lane, look: bool) -> frozenset[str]:
        """The observations of a lane for its effects to change: pictures only where somebody looks."""
        keys = lane.effects.observation_keys & self._observation.keys()
        if lane.effects.remembers_pictures:
            return keys
        read = self.policies[lane.rollout.policy].observation_keys if look else ()
        return keys - (self._pictures - self._pictures_recorded).difference(read)

    def _alive(self, lanes: Sequence[Lane]) -> list[Lane]:
        return [lane for lane in lanes if self._lanes[lane.slot] is lane]

    # Beginning

    def _fill(self) -> bool:
        begun = False
        free = deque(slot for slot, lane in enumerate(self._lanes) if lane is None)
        while free and self._queue:
            begun = True
            fresh: list[Lane] = []
            while free and self._queue:
                lane = Lane(free.popleft(), self._queue.popleft())
                self._lanes[lane.slot] = lane
                lane.enter(self.world)
                fresh.append(lane)
            for anew in (True, False):
                for group in self._groups([lane for lane in fresh if (lane.program.origin is None) is anew]):
                    self._begin(group)
            free = deque(slot for slot, lane in enumerate(self._lanes) if lane is None)
        return begun

    def _begin(self, lanes: list[Lane]) -> None:
        slots = [lane.slot for lane in lanes]
        origins = [lane.program.origin for lane in lanes]
        try:
            with self._blame("world", lanes):
                if lanes[0].program.origin is None:
                    keys = [StepKey(lane.world_stream, 0) for lane in lanes]
                    result = self.world.reset(slots, [lane.program.start for lane in lanes], keys)
                else:
                    result = self.world.restore(slots, [origin.snapshot for origin in origins if origin is not None])
        except _Abandoned:
            return
        failures = self._guard.failures(result, lanes)
        self._lose(result.lost, lanes, result.failures)
        for row, reason in failures.items():
            self._fail(lanes[row], reason, "world")
        rows = [row for row, lane in enumerate(lanes) if self._lanes[lane.slot] is lane]
        for row in rows:
            lane = lanes[row]
            origin = origins[row]
            if origin is not None:
                lane.inherit(origin)
            lane.solved_at_reset = lane.program.rollout.parent is None and self._solved(result, row)
            inherits = origin is not None and lane.rollout.policy == lane.program.origin_policy
            self._begin_memory(lane, origin.memory if origin is not None and inherits else None)
        rows = [row for row in rows if self._lanes[lanes[row].slot] is lanes[row]]
        self._tape.begin([lanes[row].slot for row in rows if lanes[row].recording])
        self._observe(lanes, rows, result, [True] * len(lanes))

    def _solved(self, result: TimeStep, row: int) -> bool:
        return self.world.success_hold > 0 and bool(result.success[row])

    def _begin_memory(self, lane: Lane, memory: Memory | None) -> None:
        name = lane.rollout.policy
        with suppress(_Abandoned), self._blame("policy", [lane]):
            if name not in self._memory:
                count = self.world.num_slots
                self._memory[name] = take_memory(self._initial_memory(name, count), np.arange(count))
            initial = self._initial_memory(name, 1) if memory is None else stack_memory([memory])
            put_memory(self._memory[name], np.array([lane.slot]), initial)

    def _initial_memory(self, name: str, count: int) -> Memory:
        memory = self.policies[name].initial_memory(count)
        check_rows(memory, count, "initial_memory")
        return memory

    # Acting

    def _act(self, lanes: Sequence[Lane]) -> dict[int, np.ndarray]:
        groups: dict[tuple[str, int], list[Lane]] = {}
        for lane in lanes:
            groups.setdefault((lane.rollout.policy, lane.slot if lane.program.isolated else -1), []).append(lane)
        actions: dict[int, np.ndarray] = {}
        for (name, _), group in groups.items():
            try:
                self._act_group(name, group, actions)
            except _Abandoned:
                continue
        return actions

    def _act_group(self, name: str, lanes: list[Lane], actions: dict[int, np.ndarray]) -> None:
        policy, bank = self.policies[name], self._memory[name]
        slots = np.array([lane.slot for lane in lanes])
        observation = {key: self._observation[key][slots] for key in policy.observation_keys if key != SNAPSHOT}
        if SNAPSHOT in policy.observation_keys:
            observation[SNAPSHOT] = snapshot_column(self._snapshots(lanes))
        keys = [StepKey(lane.policy_stream, lane.step) for lane in lanes]
        space = self.world.action_space
        with self._blame("policy", lanes):
            memory = take_memory(bank, slots)
            began = time.perf_counter()
            result = policy.act(observation, [lane.instruction for lane in lanes], memory, keys)
            if not isinstance(result, PolicyStep):
                raise self._misfit(name, f"policy {name!r} gave {result!r:.60}, expected a PolicyStep")
            action = np.asarray(result.action)
            took = time.perf_counter() - began
            if action.shape != (len(lanes), *space.shape) or action.dtype.kind not in "biuf":
                raise self._wrong_form(name, action, len(lanes))
            check_rows(result.memory, len(lanes), "memory")
            put_memory(bank, slots, result.memory)
            extras = extras_of(result, len(lanes))
            predicted = extras.get(REPLANNED, np.ones(len(lanes), dtype=bool))
            for row, lane in enumerate(lanes):
                lane.report(extras)
                if lane.recording and predicted[row] and name in self._acted:  # the first call loads and compiles
                    add(lane.inference, took)
        self._acted.add(name)
        action, problems = cast_actions(space, action)
        for row, problem in problems.items():
            self._fail_action(name, lanes[row], problem)
        for row, lane in enumerate(lanes):
            if lane.effects and row not in problems:
                action[row] = lane.send(action[row])
                for problem in action_problems(space, action[row : row + 1], 1).values():
                    self._fail_action(name, lane, problem)
        for row, lane in enumerate(lanes):
            if self._lanes[lane.slot] is not lane:
                continue
            if not lane.recording and lane.diverges(action[row]):
                self._fail(
                    lane,
                    f"replaying {lane.rollout.id} to branch from it gave another action at step {lane.step} than the "
                    "one recorded; policy or world is not a function of the rollout alone: run `simeval check`",
                )
                continue
            actions[lane.slot] = action[row]
        rows = [row for row, lane in enumerate(lanes) if lane.recording and self._lanes[lane.slot] is lane]
        if rows:
            self._tape.write(slots[rows], {"action": action[rows]})
            self._tape.write(slots[rows], {key: value[rows] for key, value in extras.items()}, "policy/")

    def _wrong_form(self, name: str, action: np.ndarray, count: int) -> Exception:
        text = (
            f"policy {name!r} gave actions of shape {action.shape} and dtype {action.dtype} for {count} observations; "
            f"world {self.world.name!r} expects numbers of shape {(count, *self.world.action_space.shape)}"
        )
        return self._misfit(name, text)

    def _misfit(self, name: str, text: str) -> Exception:
        # A policy that never acted rightly does not fit the World; one that did has made a mistake in an episode.
        return ValueError(text) if name in self._acted else ConfigError(text)

    def _fail_action(self, name: str, lane: Lane, problem: str) -> None:
        self._fail(lane, f"ActionError: policy {name!r}, slot {lane.slot}, step {lane.step}: {problem}", "policy")

    # Stepping

    def _step(self, lanes: list[Lane], actions: np.ndarray) -> None:
        slots = [lane.slot for lane in lanes]
        keys = [StepKey(lane.world_stream, lane.step + 1) for lane in lanes]
        try:
            with self._blame("world", lanes):
                looks = self._looks(lanes)
                if all(looks):
                    result = self.world.step(slots, actions, keys)
                else:
                    result = self.world.advance(slots, actions, keys, looks)
        except _Abandoned:
            return
        self.steps += len(lanes)
        failures = self._guard.failures(result, lanes)
        self._lose(result.lost, lanes, result.failures)
        terminated, success = np.asarray(result.terminated), np.asarray(result.success)
        truncated = np.array(result.truncated)
        over: list[Lane] = []
        handing_on: list[Lane] = []
        hold = self.world.success_hold
        for row, (lane, dead, good) in enumerate(zip(lanes, terminated.tolist(), success.tolist(), strict=True)):
            if row in failures:
                continue
            lane.step += 1
            lane.held = lane.held + 1 if good else 0
            solved = lane.rollout.stop_on_success and 0 < hold <= lane.held
            if lane.step == lane.until and not lane.recording:
                handing_on.append(lane)
            elif dead or truncated[row] or solved or lane.step == lane.until:
                truncated[row] |= not dead
                over.append(lane)
        for row, reason in failures.items():
            self._fail(lanes[row], reason, "world")
        rows = [row for row, lane in enumerate(lanes) if self._lanes[lane.slot] is lane]
        recorded = [row for row in rows if lanes[row].recording]
        if recorded:
            at = np.array([slots[row] for row in recorded])
            outcome = {
                "reward": np.asarray(result.reward, dtype=np.float64),
                "terminated": terminated,
                "truncated": truncated,
                "success": success,
            }
            self._tape.write(at, {key: value[recorded] for key, value in outcome.items()})
            self._tape.advance(at)
        for lane in handing_on:
            self._hand_on(lane)
        rows = [row for row in rows if self._lanes[slots[row]] is lanes[row]]
        self._observe(lanes, rows, result, looks)
        self._keep_checkpoints([lane for lane in over if lane.recording])
        for lane in over:
            if lane.recording:
                self._finish(lane)
            else:
                self._fail(lane, f"{lane.rollout.id} ended at step {lane.step}, before the step to branch at")

    def _hand_on(self, lane: Lane) -> None:
        """Go from a replayed stretch to the next one."""
        before = lane.rollout.policy
        lane.position += 1
        lane.enter(self.world)
        if lane.rollout.policy != before:
            self._begin_memory(lane, None)
        if lane.recording and self._lanes[lane.slot] is lane:
            self._tape.begin([lane.slot])

    def _observe(self, lanes: Sequence[Lane], rows: list[int], result: TimeStep, looks: Sequence[bool]) -> None:
        """Show the policies what the World returned, and record it for the lanes that are being recorded.

        ``looks``: of which lanes somebody looks at the pictures.
        """
        if not rows:
            return
        slots = np.array([lanes[row].slot for row in rows])
        self._guard.check(result, len(lanes))
        for key, value in result.observation.items():
            if key not in self._observation:
                self._observation[key] = value[np.zeros(self.world.num_slots, dtype=np.int64)]
            self._observation[key][slots] = value[rows]
        for row in rows:
            lane = lanes[row]
            if lane.effects:
                own = {key: np.array(self._observation[key][lane.slot]) for key in self._shown(lane, looks[row])}
                for key, value in lane.show(own).items():
                    self._observation[key][lane.slot] = value
        recorded = [row for row in rows if lanes[row].recording]
        if recorded:
            at = np.array([lanes[row].slot for row in recorded])
            self._tape.write(at, {key: value[at] for key, value in self._observation.items()}, "observation/")
            self._tape.write(at, {key: value[recorded] for key, value in result.signals.items()}, "signals/")

    # Ending

    def _keep_checkpoints(self, lanes: Sequence[Lane]) -> None:
        due = [lane for lane in lanes if lane.step in lane.snapshot_steps and lane.step not in lane.checkpoints]
        for group in self._groups(due):
            self._keep_checkpoints_of(group)

    def _keep_checkpoints_of(self, lanes: list[Lane]) -> None:
        try:
            snapshots = self._snapshots(lanes)
        except _Abandoned:
            if alive := self._alive(lanes):
                self._keep_checkpoints_of(alive)
            return
        for lane, snapshot in zip(lanes, snapshots, strict=True):
            memory = memory_row(self._memory[lane.rollout.policy], lane.slot)
            try:
                with self._blame("world", [lane]):
                    lane.checkpoints[lane.step] = Checkpoint(
                        lane.step, snapshot, memory, lane.held, lane.effect_memory
                    ).to_bytes()
            except _Abandoned:
                continue

    def _snapshots(self, lanes: list[Lane]) -> list[Snapshot]:
        """The World's state of each lane; ``_Abandoned`` if one has none any more, and those still there go on."""
        with self._blame("world", lanes):
            try:
                return self._guard.snapshots(self.world.snapshot([lane.slot for lane in lanes]), len(lanes))
            except LostError as error:
                lost = error
        self._lose(lost.slots, lanes, dict.fromkeys(range(len(lanes)), str(lost)))
        raise _Abandoned

    def _finish(self, lane: Lane, error: str = "", blame: str = "") -> None:
        if self._lanes[lane.slot] is not lane:
            return
        self._lanes[lane.slot] = None
        arrays = self._tape.finish(lane.slot) if lane.recording else {}
        arrays.setdefault("action", np.zeros((0, *self.world.action_space.shape), self.world.action_space.dtype))
        arrays.setdefault("reward", np.zeros(0))
        for flag in ("terminated", "truncated", "success"):
            arrays.setdefault(flag, np.zeros(0, dtype=bool))
        reward, success = arrays["reward"], arrays["success"]
        assert isinstance(reward, np.ndarray)
        assert isinstance(success, np.ndarray)
        summary = summarise(reward, success, self.world.success_hold, lane.held_at_first)
        if error:
            summary = replace(summary, success=False, success_step=None)
        ending = Ending(
            status="error" if error else "done",
            summary=summary,
            success_hold=self.world.success_hold,
            held=lane.held_at_first,
            solved_at_reset=lane.solved_at_reset,
            error=error,
            blame=blame,
            told=lane.instruction if lane.recording and lane.instruction != lane.rollout.start.instruction else "",
            wall_s=time.perf_counter() - lane.began,
            inference=lane.inference,
        )
        self._deliver(Episode(lane.program.rollout, ending, ArraySource(arrays, lane.checkpoints)))

    def _fail(self, lane: Lane, reason: str, blame: str = "") -> None:
        self._finish(lane, reason, blame)

    def _lose(self, slots: Collection[int], asked: Sequence[Lane], reasons: Mapping[int, str]) -> None:
        """Run again, anew, what was in slots whose process ended.

        What a call ``asked`` about may be what ended it (row -> reason): it runs again once, and alone, so that one
        that ends every process it is given takes no other along twice.
        """
        called = {lane.slot: reasons.get(row, "") for row, lane in enumerate(asked)}
        again: list[Program] = []
        for slot in sorted(slots):
            lane = self._lanes[slot]
            if lane is None:
                continue
            if slot not in called:
                again.append(lane.program)
            elif not lane.program.lost:
                lane.program.lost = lane.program.isolated = True
                again.append(lane.program)
            else:
                self._fail(lane, f"{called[slot]} ({_LOST_AGAIN})", "world")
            self._lanes[slot] = None
        self._queue.extendleft(reversed(again))

    @contextmanager
    def _blame(self, whose: str, lanes: Sequence[Lane]) -> Iterator[None]:
        """Turn an exception into the error of the one lane concerned; of several, run each again alone."""
        try:
            yield
        except _NOT_AN_EPISODES_FAULT:
            raise
        except (Exception, SystemExit) as error:  # a call of sys.exit ends an episode, and no run
            if len(lanes) == 1:
                self._fail(lanes[0], traceback.format_exc(), whose)
            else:
                for lane in lanes:
                    self._lanes[lane.slot] = None
                    lane.program.isolated = True
                self._queue.extendleft(lane.program for lane in reversed(lanes))
            raise _Abandoned from error
