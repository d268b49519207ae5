"""The suites pass what is right, and name what is wrong: one deliberately broken World or Policy per sentence."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.testing import (
    POLICY_CHECKS,
    WORLD_CHECKS,
    Check,
    Faulty,
    ToyExpert,
    ToySimulator,
    ToySmoother,
    ToyWorldModel,
    assert_conforms,
    check_policy,
    check_world,
    toy_policies,
)
from simeval.types import Array, Observation, Perturbation, Snapshot, Start, TimeStep
from simeval.world import World
from simeval.wrappers import Delegate

CHEAP = {"tasks": ("push-left",), "steps": 40}


def broken(checks: Sequence[Check]) -> set[str]:
    return {check.name for check in checks if not check.passed}


@pytest.mark.parametrize("factory", [ToySimulator, ToyWorldModel])
def test_both_toy_worlds_conform(factory):
    checks = check_world(factory, tasks=("push-left",))
    assert_conforms(checks)
    assert tuple(check.name for check in checks) == WORLD_CHECKS


@pytest.mark.slow
@pytest.mark.parametrize("world", [ToySimulator, ToyWorldModel])
def test_toy_worlds_with_a_camera_conform(world):
    assert_conforms(check_world(partial(world, cameras=("top",)), **CHEAP))


@pytest.mark.parametrize("name", toy_policies())
@pytest.mark.parametrize("world", [ToySimulator, ToyWorldModel])
def test_toy_policies_conform_in_both_worlds(name, world):
    checks = check_policy(partial(_toy_policy, name), world)
    assert_conforms(checks)
    assert tuple(check.name for check in checks) == POLICY_CHECKS


def _toy_policy(name: str) -> Policy:
    return toy_policies()[name]


class Toy(Delegate):
    """A right World, over which each broken one changes one method."""

    def __init__(self, num_slots: int):
        super().__init__(ToySimulator(num_slots))


class ReturnsItsBuffer(Toy):
    """Returns the same observation array at every step."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        self._buffer = np.zeros((num_slots, 12))

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        view = self._buffer[: len(slots)]
        view[:] = result.observation["state"]
        return replace(result, observation={"state": view})


class HidesGlobalNoise(Toy):
    """Draws from numpy's global generator."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        return replace(result, reward=result.reward + 1e-9 * np.random.rand(len(slots)))  # noqa: NPY002


class HidesItsGenerator(Toy):
    """Holds a generator of its own."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        self._generator = np.random.default_rng(0)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        return replace(result, reward=result.reward + 1e-9 * self._generator.random(len(slots)))


class ForgetsInSnapshot(Toy):
    """Filters actions, and leaves the filter's state out of the snapshot."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        self._last = np.zeros((num_slots, 2), dtype=np.float32)

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        self._last[list(slots)] = 0.0
        return super().reset(slots, starts, keys)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        self.check_actions(slots, actions, keys)
        self._last[list(slots)] = 0.5 * self._last[list(slots)] + 0.5 * actions
        return super().step(slots, self._last[list(slots)], keys)


class RemembersEpisodes(ForgetsInSnapshot):
    """Filters actions, and carries the filter over to the next episode."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        return self.world.reset(slots, starts, keys)


class ReadsNeighbours(Toy):
    """A reward relative to the other slots of the call."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        return replace(result, reward=result.reward - result.reward.mean())


class KnowsItsSlot(Toy):
    """Something that depends on the slot's number."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        return replace(result, reward=result.reward + 1e-12 * np.asarray(slots))


class KnowsItsSlotCount(Toy):
    """Something that depends on how many slots there are."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        return replace(result, reward=result.reward + 1e-12 * self.num_slots)


class SharesSnapshots(Toy):
    """A snapshot that is a view of the live state."""

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        columns = self.world._slots  # type: ignore[attr-defined]
        own = self.snapshot_fingerprint
        return [Snapshot(own, {name: column[slot] for name, column in columns.items()}) for slot in slots]


class RestoresAnything(Toy):
    """Takes any snapshot for its own."""

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        return super().restore(slots, [replace(snapshot, world=self.snapshot_fingerprint) for snapshot in snapshots])


class ForgetsStep(Toy):
    """Restores the state but not the reward that went with it."""

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        result = super().restore(slots, snapshots)
        return replace(result, reward=np.zeros(len(slots)))


class ClipsActions(Toy):
    """Silently clips what is out of bounds."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        clipped = np.clip(np.nan_to_num(np.resize(actions, (len(slots), 2))), -1, 1).astype(np.float32)
        return super().step(slots, clipped, keys)


class MovesThenRefuses(Toy):
    """Refuses a bad action, but only after the slot has moved."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        clipped = np.clip(np.nan_to_num(np.resize(actions, (len(slots), 2))), -1, 1).astype(np.float32)
        result = super().step(slots, clipped, keys)
        self.check_actions(slots, actions, keys)
        return result


class OneLayout(Toy):
    """Draws the same layout whatever the seed."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        return super().reset(slots, [replace(start, seed=7) for start in starts], keys)


class WrongDtype(Toy):
    """Observations of another dtype than the space's."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        return replace(result, observation={"state": result.observation["state"].astype(np.float32)})


class WrongDtypeLate(Toy):
    """Observations of another dtype in a late step."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        if keys[0].step != 51:
            return result
        return replace(result, observation={"state": result.observation["state"].astype(np.float32)})


class LosesAKey(Toy):
    """An observation key that is missing in every seventh step."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        spaces = self.observation_space.spaces
        self.observation_space = gymnasium.spaces.Dict({**spaces, "again": spaces["state"]})

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        return self._with(super().reset(slots, starts, keys), True)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        return self._with(super().step(slots, actions, keys), keys[0].step % 7 > 0)

    def _with(self, result: TimeStep, all_keys: bool) -> TimeStep:
        again = {"again": np.array(result.observation["state"])} if all_keys else {}
        return replace(result, observation={**result.observation, **again})


class SignalChangesDtype(Toy):
    """A signal that is a number after a reset and a flag in a step."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        result = super().reset(slots, starts, keys)
        return replace(result, signals={**result.signals, "contact": result.signals["contact"].astype(float)})


class SuccessIsANumber(Toy):
    """Success as 0.0 and 1.0."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        return replace(result, success=result.success.astype(float))


class NoiseAtGoal(Toy):
    """Draws from numpy's global generator once the goal holds."""

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        result = super().step(slots, actions, keys)
        if not result.success.any():
            return result
        return replace(result, reward=result.reward + np.random.rand(len(slots)))  # noqa: NPY002


class StartDependsOnHash(Toy):
    """Draws a start by the hash of the task's name."""

    def start(self, task: str, seed: int) -> Start:
        return super().start(task, (seed + hash(task)) % 2**31)


class ResetDependsOnHash(Toy):
    """Draws the layout by the hash of the task's name, though the start does not say so."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        hashed = [replace(start, seed=(start.seed + hash(start.task)) % 2**31) for start in starts]  # type: ignore
        return super().reset(slots, hashed, keys)


class IgnoresPerturbations(Toy):
    """Declares axes to which it does nothing."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        return super().reset(slots, [replace(start, perturbations=()) for start in starts], keys)


class KeepsThePuckHeavy(Toy):
    """A mass that stays perturbed in the next episode of the slot."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        before = self.world._slots["mass_scale"][list(slots)]  # type: ignore[attr-defined]
        result = super().reset(slots, starts, keys)
        for slot, start, mass in zip(slots, starts, before, strict=True):
            if not start.perturbations:
                self.world._slots["mass_scale"][slot] = mass  # type: ignore[attr-defined]
        return result


class LeavesMassOutOfSnapshots(Toy):
    """Restores an unperturbed mass."""

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        own = self.snapshot_fingerprint
        return [Snapshot(own, {**s.state, "mass_scale": np.array(1.0)}) for s in super().snapshot(slots)]


class SaysNothing(Toy):
    """Starts without an instruction."""

    def start(self, task: str, seed: int) -> Start:
        return replace(super().start(task, seed), instruction="")


class TakesAnyTask(Toy):
    """Runs the first task when it does not know the name."""

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        known = [replace(start, task=start.task if start.task in self.tasks else self.tasks[0]) for start in starts]
        return super().reset(slots, known, keys)


class RenderMoves(Toy):
    """Taking a picture changes the state."""

    def render(self, slots: Sequence[int]) -> np.ndarray:
        self.world._slots["state"][:, 0] += 1e-12  # type: ignore[attr-defined]
        return super().render(slots)


class KeepsInModule(Toy):
    """Keeps part of the state outside the World: gone in another process."""

    kept: dict[bytes, np.ndarray]

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        out = []
        for snapshot in super().snapshot(slots):
            name = snapshot.state["state"].tobytes()
            _KEPT[name] = snapshot.state["state"]
            out.append(Snapshot(self.snapshot_fingerprint, {**snapshot.state, "state": np.zeros(12), "name": name}))
        return out

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        whole = [
            Snapshot(s.world, {**s.state, "state": _KEPT.get(s.state["name"], s.state["state"])}) for s in snapshots
        ]
        return super().restore(slots, whole)


_KEPT: dict[bytes, np.ndarray] = {}


class ForkTakesParent(Toy):
    """A fork that is the parent under another number: stepping one steps both."""

    def __init__(self, num_slots: int):
        super().__init__(num_slots)
        self._of = list(range(num_slots))

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        for slot in slots:
            self._of[slot] = slot
        return super().reset(slots, starts, keys)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        rows = [self.world.step([self._of[s]], actions[i : i + 1], keys[i : i + 1]) for i, s in enumerate(slots)]
        columns = {n: np.concatenate([getattr(r, n) for r in rows]) for n in ("reward", "terminated", "success")}
        join = {
            n: {k: np.concatenate([getattr(r, n)[k] for r in rows]) for k in getattr(rows[0], n)}
            for n in ("observation", "signals")
        }
        return TimeStep(truncated=np.zeros(len(rows), dtype=bool), **columns, **join)

    def fork(self, source: int, targets: Sequence[int]) -> TimeStep:
        for target in targets:
            self._of[target] = self._of[source]
        return super().restore([source], self.snapshot([source]))


class MovesOnlyWhenLookedAt(Toy):
    """Saves the steps that nobody looks at."""

    def advance(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey], looks: Sequence[bool]) -> TimeStep:
        return self.step(slots, actions * np.asarray(looks, dtype=np.float32)[:, None], keys)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (MovesOnlyWhenLookedAt, "What is not looked at goes on as what is, and what is looked at is all there"),
        (ReturnsItsBuffer, "Returned arrays share memory with nothing"),
        (HidesGlobalNoise, "No global random generator is drawn from"),
        (HidesItsGenerator, "An episode is a function of its start, actions and keys alone"),
        (ForgetsInSnapshot, "A fork continues bit for bit as its parent"),
        (RemembersEpisodes, "An episode is a function of its start, actions and keys alone"),
        (ReadsNeighbours, "An episode is the same in any slot, whatever the neighbours do"),
        (KnowsItsSlot, "An episode is the same in any slot, whatever the neighbours do"),
        (KnowsItsSlotCount, "An episode is the same whatever the number of slots"),
        (SharesSnapshots, "A snapshot is a value"),
        (RestoresAnything, "A snapshot of another World is refused"),
        (ForgetsStep, "Restore returns the time step of the snapshot"),
        (ClipsActions, "Bad actions are refused by slot and step, and move nothing"),
        (MovesThenRefuses, "Bad actions are refused by slot and step, and move nothing"),
        (OneLayout, "Different seeds give different starts"),
        (WrongDtype, "Observations, rewards, flags and signals fit their spaces"),
        (WrongDtypeLate, "Observations, rewards, flags and signals fit their spaces"),
        (LosesAKey, "Observations, rewards, flags and signals fit their spaces"),
        (SignalChangesDtype, "Observations, rewards, flags and signals fit their spaces"),
        (SuccessIsANumber, "Observations, rewards, flags and signals fit their spaces"),
        (StartDependsOnHash, "A start, and the episode that begins from it, are the same in a fresh process"),
        (ResetDependsOnHash, "A start, and the episode that begins from it, are the same in a fresh process"),
        (IgnoresPerturbations, "Every perturbation axis that it declares changes something"),
        (KeepsThePuckHeavy, "A perturbation acts on its own episode alone, and goes with its snapshots"),
        (LeavesMassOutOfSnapshots, "A perturbation acts on its own episode alone, and goes with its snapshots"),
        (SaysNothing, "Starts are plain data with an instruction"),
        (TakesAnyTask, "An unknown task is refused by name"),
        (RenderMoves, "A picture is uint8 RGB, and taking it changes nothing"),
        (KeepsInModule, "A snapshot goes through HDF5 into a fresh process and continues bit for bit"),
        (ForkTakesParent, "A stepped fork leaves its parent alone"),
    ],
)
def test_the_world_suite_names_the_fault(factory, sentence):
    checks = check_world(factory, only=[sentence], **CHEAP)
    assert broken(checks) == {sentence}
    with pytest.raises(AssertionError, match=sentence):
        assert_conforms(checks)


def test_a_policy_that_reaches_the_goal_shows_what_happens_there():
    sentence = "No global random generator is drawn from"
    assert_conforms(check_world(NoiseAtGoal, only=[sentence], **CHEAP))
    checks = check_world(NoiseAtGoal, policy=ToyExpert, only=[sentence], **CHEAP)
    assert broken(checks) == {sentence}
    assert "reached the goal in 1 of 1 tasks" in checks[0].detail


def test_a_world_conforms_under_a_policy():
    assert_conforms(check_world(ToySimulator, policy=ToyExpert, **CHEAP))


def test_perturbations_are_tried_with_the_parameters_given():
    heavy = Perturbation("dynamics.puck_mass", 7.0)
    sentence = "Every perturbation axis that it declares changes something"
    checks = check_world(ToySimulator, perturbations=[heavy], only=[sentence], **CHEAP)
    assert_conforms(checks)
    assert "dynamics.puck_mass at 7" in checks[1].detail
    assert "initial_state.puck at 2" in checks[1].detail


SCRIPT = """
from pathlib import Path
from simeval.testing import ToySimulator, assert_conforms, check_world
Path("runs.txt").open("a").write("run ")

class Mine(ToySimulator):
    pass

FRESH = "A snapshot goes through HDF5 into a fresh process and continues bit for bit"
assert_conforms(check_world({factory}, steps=20, tasks=("push-left",), only=[FRESH]))
Path("after.txt").open("a").write("checked ")

class Late(ToySimulator):
    pass

late = check_world(Late, steps=20, tasks=("push-left",), only=[FRESH])
print(late[-1].detail)
"""


@pytest.mark.parametrize(("factory", "runs"), [("Mine", 3), ("ToySimulator", 2)])
def test_a_script_needs_no_main_guard_and_goes_no_further_than_its_check_elsewhere(factory, runs, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{factory}", factory))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs.txt").read_text().split() == ["run"] * runs
    assert (tmp_path / "after.txt").read_text().split() == ["checked"]
    assert "put the check under if __name__ == '__main__'" in done.stdout


def test_a_factory_that_cannot_go_elsewhere_is_named():
    checks = check_world(lambda slots: ToySimulator(slots), only=[WORLD_CHECKS[3]], **CHEAP)
    assert "module-level function, class or partial" in checks[1].detail


def test_a_world_that_breaks_at_once_fails_every_sentence_that_needs_an_episode_without_running_it():
    checks = check_world(BreaksAtOnce, **CHEAP)
    tried = {"It declares slots, tasks, spaces and a fingerprint", "Starts are plain data with an instruction"}
    assert broken(checks) == set(WORLD_CHECKS) - tried
    assert "a fault was asked for" in checks[0].detail


class BreaksAtOnce(Faulty):
    """Reports a failure in its first reset, whatever the seed."""

    def __init__(self, num_slots: int):
        super().__init__(ToySimulator(num_slots), {})

    def _due(self, slots: Sequence[int], keys: Sequence[StepKey]) -> dict[int, Any]:
        return dict.fromkeys(range(len(slots)), "report")


class Remembers(Policy):
    """Keeps its memory in the object."""

    observation_keys = ("state",)

    def __init__(self) -> None:
        self.calls = 0

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        self.calls += 1
        return PolicyStep(np.full((len(keys), 2), 1.0 / self.calls, dtype=np.float32), {})


class Meddles(ToySmoother):
    """Writes its new memory into the old."""

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        result = super().act(observation, instruction, memory, keys)
        memory["action"][:] = result.memory["action"]
        return PolicyStep(result.action, {**result.memory, "action": memory["action"]})


class NormalisesBatch(ToyExpert):
    """Subtracts the mean of the batch."""

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        action = super().act(observation, instruction, memory, keys).action
        return PolicyStep((action - action.mean(axis=0)) / 2, {})


class DrawsGlobally(ToyExpert):
    """Draws from numpy's global generator."""

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        return PolicyStep(np.random.uniform(-1, 1, (len(keys), 2)).astype(np.float32), {})  # noqa: NPY002


class Overshoots(ToyExpert):
    """Leaves the action space."""

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        return PolicyStep(3 * super().act(observation, instruction, memory, keys).action, {})


class RemembersGenerator(ToyExpert):
    """A memory that is no plain data."""

    def initial_memory(self, n: int) -> Memory:
        return {"object": np.array([object() for _ in range(n)])}

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        return PolicyStep(super().act(observation, instruction, memory, keys).action, memory)


class OutgrowsMemory(ToyExpert):
    """A memory that is empty at first and then has another shape."""

    def initial_memory(self, n: int) -> Memory:
        return {"last": np.zeros((n, 0))}

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        action = super().act(observation, instruction, memory, keys).action
        return PolicyStep(action, {"last": action})


class BindsToAnything(ToyExpert):
    """Does not look at what the World gives."""

    def bind(self, spec: Any) -> Policy:
        return self


class LooksUnasked(ToyExpert):
    """Says that it reads nothing, and reads."""

    def due(self, memory: Memory) -> np.ndarray:
        return np.zeros(4, dtype=bool)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (LooksUnasked, "Rows that it says are not due act the same whatever they are shown"),
        (Remembers, "The same arguments give the same action, in this policy and in a fresh one"),
        (Meddles, "Acting does not modify its arguments"),
        (NormalisesBatch, "A row does not depend on who shares the batch, in which order, or how many"),
        (DrawsGlobally, "No global random generator is drawn from"),
        (Overshoots, "It acts within the action space"),
        (RemembersGenerator, "Memory goes through bytes and back, and continues"),
        (OutgrowsMemory, "Its episodes run in the engine, and are the same in any slot and order"),
        (BindsToAnything, "It binds to the World, and to none that lacks what it reads"),
    ],
)
def test_the_policy_suite_names_the_fault(factory, sentence):
    assert sentence in broken(check_policy(factory, ToySimulator))


def test_a_world_that_wraps_another_declares_all_that_it_does() -> None:
    inner = ToySimulator(2)
    inner.restores_by_replay, inner.success_hold, inner.perturbation_axes = True, 3, frozenset({"dynamics.mass"})
    outer = Delegate(inner)
    for name in World.__annotations__:
        assert getattr(outer, name) == getattr(inner, name), name
