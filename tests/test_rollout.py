"""The engine: a rollout's result is a function of the rollout alone."""

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from simeval.episode import Episode
from simeval.errors import ConfigError, InstructionError, UnsupportedError, in_brief
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.protocols import MonteCarlo, Paired, Setting, together
from simeval.rollout import Engine, run
from simeval.schedule import Parallel, Protocol, parallel
from simeval.store import MemoryStore
from simeval.testing import Faulty, ToySimulator, ToyWorldModel, toy_policies
from simeval.types import Observation, Perturbation, Rollout, SnapshotRef, Start
from simeval.world import World

POLICIES = toy_policies()


def arrays_of(episode: Episode) -> dict[str, np.ndarray]:
    return {path: episode.source.read(path) for path in episode.source.paths()}


def assert_same(one: Episode, other: Episode) -> None:
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    for path, array in first.items():
        assert array.dtype == second[path].dtype
        np.testing.assert_array_equal(array, second[path], err_msg=path)
    assert replace(one.ending, wall_s=0) == replace(other.ending, wall_s=0)


def roots(world: World, count: int = 4, policies: Sequence[str] = ("expert", "smoother", "gaussian")) -> list[Rollout]:
    return [
        Rollout(world.start(task, seed), seed=seed, horizon=world.horizon(task), policy=policy)
        for seed in range(count)
        for task in world.tasks
        for policy in policies
    ]


def result(world: World, rollouts: Sequence[Rollout], policies: Mapping[str, Policy] = POLICIES) -> list[Episode]:
    return run(together(rollouts), world, policies)


@pytest.mark.parametrize("make", [ToySimulator, ToyWorldModel])
def test_results_do_not_depend_on_slots_or_order(make: Any) -> None:
    reference = result(make(num_slots=1), roots(make(), 2))
    assert {episode.status for episode in reference} == {"done"}
    assert any(episode.succeeded for episode in reference)
    rng = np.random.default_rng(0)
    for slots in (3, 16):
        order = rng.permutation(len(reference))
        shuffled = result(make(num_slots=slots), [reference[i].rollout for i in order])
        for i, episode in zip(order, shuffled, strict=True):
            assert_same(reference[i], episode)


def test_images_are_recorded_losslessly_and_identically_for_any_slots() -> None:
    world = ToySimulator(num_slots=1, cameras=("top",), image_size=32)
    (one,) = result(world, roots(world, 1)[:1])
    many = result(ToySimulator(num_slots=5, cameras=("top",), image_size=32), roots(world, 2))
    assert one.observation["image_top"].shape == (one.length + 1, 32, 32, 3)
    assert_same(one, many[0])


def test_an_episode_ends_once_success_has_held_and_no_later() -> None:
    world = ToySimulator()
    for episode in result(world, roots(world, policies=("expert",))):
        if episode.succeeded:
            assert episode.length == episode.summary.success_step + 1
            assert episode.success[-world.success_hold :].all()
            assert episode.truncated[-1] or episode.terminated[-1]
    onward = [replace(rollout, stop_on_success=False) for rollout in roots(world, 1, ("expert",))]
    assert all(e.length == e.rollout.horizon or e.terminated[-1] for e in result(world, onward))


def test_the_recorded_actions_replayed_give_the_recorded_observations() -> None:
    world = ToySimulator(num_slots=2)
    (episode,) = result(world, roots(world, 1, ("gaussian",))[:1])
    rollout = episode.rollout
    stream = rollout.key("world").stream("world")
    step = world.reset([1], [rollout.start], [stream.key(0)])
    for t in range(episode.length):
        np.testing.assert_array_equal(step.observation["state"][0], episode.observation["state"][t])
        step = world.step([1], episode.action[t : t + 1], [stream.key(t + 1)])
        assert step.reward[0] == episode.reward[t]
    np.testing.assert_array_equal(step.observation["state"][0], episode.observation["state"][-1])


def branches(world: World, at: int, keep: tuple[int, ...], **fork: Any) -> tuple[Episode, Episode]:
    def protocol() -> Protocol:
        root = Rollout(world.start("push-left", 3), seed=8, horizon=60, policy="gaussian", snapshot_steps=keep)
        (parent,) = yield [root]
        (child,) = yield [parent.rollout.branch(at, **fork)]
        return parent, child

    return run(protocol(), world, POLICIES)


@pytest.mark.parametrize("keep", [(), (0,), (4, 9, 20)], ids=["replayed from reset", "from 0", "from the nearest"])
@pytest.mark.parametrize("make", [ToySimulator, ToyWorldModel])
def test_a_child_that_shares_everything_is_its_parents_continuation(make: Any, keep: tuple[int, ...]) -> None:
    parent, child = branches(make(num_slots=3), 11, keep)
    assert child.length == parent.length - 11
    for path, array in arrays_of(child).items():
        np.testing.assert_array_equal(array, arrays_of(parent)[path][11:], err_msg=path)
    assert child.succeeded == parent.succeeded


def test_fresh_policy_noise_diverges_and_world_noise_stays_shared() -> None:
    parent, child = branches(ToySimulator(), 11, (11,), fresh=["policy"], seed=99)
    np.testing.assert_array_equal(child.observation["state"][0], parent.observation["state"][11])
    assert not np.array_equal(child.action[0], parent.action[11])
    both = min(child.length, parent.length - 11)
    np.testing.assert_array_equal(child.signals["gust"][1:both], parent.signals["gust"][12 : 11 + both])
    _, other = branches(ToySimulator(), 11, (11,), fresh=["world"], seed=99)
    np.testing.assert_array_equal(other.action[0], parent.action[11])
    assert not np.array_equal(other.signals["gust"][1], parent.signals["gust"][12])


def test_an_intervention_changes_actions_from_its_step_on_and_nothing_before() -> None:
    push = Perturbation("actuation.replace", params={"value": [1.0, -1.0]}, from_step=15, to_step=18)
    parent, child = branches(ToySimulator(), 11, (), perturbations=(push,))
    np.testing.assert_array_equal(child.action[:4], parent.action[11:15])
    np.testing.assert_array_equal(child.action[4:7], np.tile(np.float32([1, -1]), (3, 1)))
    assert not np.array_equal(child.action[7], [1, -1])


def test_grandchildren_replay_through_their_ancestors() -> None:
    world = ToySimulator(num_slots=2)

    def protocol() -> Protocol:
        root = Rollout(world.start("push-right", 5), seed=8, horizon=60, policy="smoother")
        (parent,) = yield [root]
        (child,) = yield [parent.rollout.branch(7, fresh=["world"], seed=1)]
        (grandchild,) = yield [child.rollout.branch(20, policy="gaussian")]
        (twin,) = yield [child.rollout.branch(20)]
        return child, grandchild, twin

    child, grandchild, twin = run(protocol(), world, POLICIES)
    for path, array in arrays_of(twin).items():
        np.testing.assert_array_equal(array, arrays_of(child)[path][13:], err_msg=path)
    np.testing.assert_array_equal(grandchild.observation["state"][0], child.observation["state"][13])


def test_branching_past_the_end_or_from_the_unknown_is_refused() -> None:
    def late() -> Protocol:
        (parent,) = yield [Rollout(ToySimulator().start("reach-left", 3), seed=8, horizon=60, policy="expert")]
        assert parent.succeeded
        yield [parent.rollout.branch(parent.length)]

    with pytest.raises(ValueError, match=r"cannot branch .* succeeded"):
        run(late(), ToySimulator(), POLICIES)
    orphan = replace(roots(ToySimulator())[0], parent="0" * 20, branch_step=3)
    with pytest.raises(ValueError, match="not finished"):
        result(ToySimulator(), [orphan])


def test_a_start_can_be_a_state_of_a_recorded_rollout() -> None:
    world = ToySimulator()

    def protocol() -> Protocol:
        root = Rollout(world.start("push-left", 3), seed=8, horizon=60, policy="expert", snapshot_steps=(9,))
        (parent,) = yield [root]
        start = replace(root.start, snapshot=SnapshotRef("", parent.id, 9))
        (child,) = yield [Rollout(start, seed=1, horizon=20, policy="expert")]
        return parent, child

    parent, child = run(protocol(), world, POLICIES)
    np.testing.assert_array_equal(child.observation["state"][0], parent.observation["state"][9])
    assert child.length <= 20


@functools.cache
def undisturbed() -> list[Episode]:
    return result(ToySimulator(), roots(ToySimulator(), 3))


@pytest.mark.parametrize("fault", ["raise", "crash", "report", "nan"])
@pytest.mark.parametrize("step", [0, 6])
def test_one_broken_simulator_is_one_error_and_leaves_the_others_as_they_are(fault: Any, step: int) -> None:
    world = ToySimulator(num_slots=4)
    broken = result(Faulty(world, {(1, step): fault}), roots(world, 3))
    for one, other in zip(undisturbed(), broken, strict=True):
        if one.rollout.start.seed == 1:
            assert (other.status, other.ending.blame) == ("error", "world")
            assert not other.succeeded
            assert other.error
            assert other.length == max(step - 1, 0)
        else:
            assert_same(one, other)


class Wrong(Policy):
    """Wraps the toy expert and spoils what it gives for one instruction."""

    observation_keys = ("state",)

    def __init__(self, spoil: Any):
        self.spoil = spoil

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        step = POLICIES["expert"].act(observation, instruction, memory, keys)
        return replace(step, action=self.spoil(step.action, instruction))


def spoil_pushes(value: float) -> Any:
    def spoil(action: np.ndarray, instruction: Sequence[str]) -> np.ndarray:
        push = np.array(["push" in text for text in instruction])
        return np.where(push[:, None], np.float32(value), action)

    return spoil


@pytest.mark.parametrize("value", [np.nan, 1.5, np.inf])
def test_a_bad_action_is_that_episodes_error_and_names_slot_and_step(value: float) -> None:
    world = ToySimulator(num_slots=4)
    episodes = result(world, roots(world, 2, ("wrong",)), {"wrong": Wrong(spoil_pushes(value))})
    for episode in episodes:
        if "push" in episode.rollout.start.instruction:
            assert (episode.status, episode.ending.blame) == ("error", "policy")
            assert "slot" in episode.error
            assert "step 0" in episode.error
            assert "action[0]" in episode.error
        else:
            assert episode.status == "done"


def test_an_action_of_the_wrong_shape_stops_the_run() -> None:
    world = ToySimulator()
    with pytest.raises(ConfigError, match=r"shape \(4, 1\).*shape \(4, 2\)"):
        result(world, roots(world, 2, ("wrong",)), {"wrong": Wrong(lambda action, _: action[:, :1])})


@pytest.mark.parametrize("dtype", [object, str, complex])
def test_actions_that_are_no_real_numbers_are_the_policys_error(dtype: type) -> None:
    world = ToySimulator(num_slots=4)
    with pytest.raises(ConfigError, match=r"policy 'wrong' gave actions of .* dtype .* expects numbers"):
        result(world, roots(world, 2, ("wrong",)), {"wrong": Wrong(lambda action, _: action.astype(dtype))})

    def spoil(action: np.ndarray, instruction: Sequence[str]) -> np.ndarray:
        return action.astype(dtype) if spoiled and "left" in instruction[0] else action

    spoiled = False

    def later(action: np.ndarray, instruction: Sequence[str]) -> np.ndarray:
        nonlocal spoiled
        given = spoil(action, instruction)
        spoiled = True
        return given

    episodes = result(world, roots(world, 2, ("wrong",)), {"wrong": Wrong(later)})
    assert {e.status for e in episodes} == {"error", "done"}
    assert all("expects numbers" in e.error and e.ending.blame == "policy" for e in episodes if e.status == "error")


@pytest.mark.parametrize(
    ("due", "named"),
    [
        (lambda memory: 1 / 0, "due\\(memory\\) raised ZeroDivisionError: division by zero .*test_rollout.py:"),
        (lambda memory: np.ones(9, bool), "bool\\[9\\], expected bool\\[4\\]"),
        (lambda memory: ["yes"] * 4, "expected bool\\[4\\]"),
    ],
)
def test_a_policy_that_misstates_when_it_is_due_is_named(due: Any, named: str) -> None:
    world, policy = ToySimulator(num_slots=4), Wrong(lambda action, _: action)
    policy.due, policy.batch_size = due, 4  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=f"policy 'wrong' breaks its contract.*{named}"):
        result(world, roots(world, 2, ("wrong",)), {"wrong": policy})


def test_a_batch_size_is_a_whole_number() -> None:
    world, policy = ToySimulator(), Wrong(lambda action, _: action)
    policy.batch_size = "all"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="batch_size of policy 'wrong' is a whole number of at least 1"):
        result(world, roots(world, 1, ("wrong",)), {"wrong": policy})


def test_a_policy_that_raises_for_one_episode_spoils_only_that_one() -> None:
    def spoil(action: np.ndarray, instruction: Sequence[str]) -> np.ndarray:
        if any("left" in text for text in instruction):
            raise RuntimeError("cannot go left")
        return action

    world = ToySimulator(num_slots=4)
    episodes = result(world, roots(world, 2, ("wrong",)), {"wrong": Wrong(spoil)})
    assert {(e.status, "left" in e.rollout.start.instruction) for e in episodes} == {("error", True), ("done", False)}
    assert all("cannot go left" in e.error for e in episodes if e.status == "error")


def test_an_instruction_that_a_policy_cannot_read_is_that_episodes_error() -> None:
    def spoil(action: np.ndarray, instruction: Sequence[str]) -> np.ndarray:
        if any("left" in text for text in instruction):
            raise InstructionError("cannot read 'left'")
        return action

    world = ToySimulator(num_slots=4)
    episodes = result(world, roots(world, 2, ("wrong",)), {"wrong": Wrong(spoil)})
    assert {(e.status, "left" in e.rollout.start.instruction) for e in episodes} == {("error", True), ("done", False)}
    assert {e.ending.blame for e in episodes if e.status == "error"} == {"policy"}


def test_missing_observation_keys_and_unknown_names_are_refused_before_anything_runs() -> None:
    class Pixels(Wrong):
        observation_keys = ("image_front",)

    world = ToySimulator()
    with pytest.raises(ConfigError, match="reads observation 'image_front'"):
        result(world, roots(world, 1), {"expert": Pixels(None)})
    with pytest.raises(ConfigError, match="unknown policy of world 'world' 'exprt'; did you mean expert"):
        result(world, [replace(roots(world, 1)[0], policy="exprt")])
    with pytest.raises(ConfigError, match="unknown world"):
        result(world, [replace(roots(world, 1)[0], world="mars")])
    perturbed = replace(roots(world, 1)[0], perturbations=(Perturbation("appearance.texture"),))
    with pytest.raises(UnsupportedError, match=r"world 'toy' cannot apply perturbation axis 'appearance\.texture'"):
        result(world, [perturbed])


def test_the_identity_perturbation_changes_no_bit() -> None:
    world = ToySimulator()
    rollouts = roots(world, 1)
    same = [replace(rollout, perturbations=(Perturbation("identity"),)) for rollout in rollouts]
    for one, other in zip(result(world, rollouts), result(world, same), strict=True):
        assert_same(one, other)


def test_a_rollout_asked_for_twice_runs_once() -> None:
    world = ToySimulator()
    rollout = roots(world, 1)[0]
    with Engine({"world": world}, {"world": POLICIES}) as engine:
        first, second = engine.run(together([rollout, rollout]))
        (third,) = engine.run(together([rollout]))
    assert first is second is third
    assert engine.steps == first.length


def test_parallel_protocols_advance_by_themselves_and_return_in_order() -> None:
    world = ToySimulator(num_slots=3)

    def adaptive(seed: int) -> Protocol:
        ids = []
        (episode,) = yield [Rollout(world.start("push-left", seed), seed=seed, horizon=40, policy="gaussian")]
        for branch in range(2):
            step = episode.rollout.branch_step + episode.length // 2
            (episode,) = yield [episode.rollout.branch(step, fresh=["policy"], seed=branch)]
            ids.append(episode.id)
        return ids

    def nested() -> Protocol:
        inner = yield from parallel(adaptive(7), adaptive(8))
        return ["inner", *inner]

    alone = [run(adaptive(seed), world, POLICIES) for seed in range(7)]
    many = run(parallel(*(adaptive(seed) for seed in range(7)), nested()), world, POLICIES)
    assert many[:7] == alone
    assert many[7] == ["inner", *run(parallel(adaptive(7), adaptive(8)), world, POLICIES)]


def test_parallel_protocols_are_started_only_as_slots_come_free() -> None:
    world = ToySimulator(num_slots=2)
    started, finished, backlog = [], [], []

    def one(seed: int) -> Protocol:
        started.append(seed)
        yield [Rollout(world.start("reach-left", seed), seed=seed, horizon=10, policy="expert")]
        finished.append(seed)
        backlog.append(len(started) - len(finished))

    def all_of_them() -> Protocol:
        return (yield Parallel(one(seed) for seed in range(50)))

    assert run(all_of_them(), world, POLICIES) == [None] * 50
    assert max(backlog) <= 4


def test_resume_is_memoisation_and_a_longer_study_begins_with_the_shorter_one() -> None:
    world, store = ToySimulator(), MemoryStore()
    setting = Setting({"world": world}, {"world": ["expert", "gaussian"]}, seed=4)
    with Engine({"world": world}, {"world": POLICIES}, store) as engine:
        first = engine.run(Paired(episodes=3).protocol(setting))
        steps = engine.steps
        engine.run(Paired(episodes=3).protocol(setting))
        assert engine.steps == steps
        longer = engine.run(Paired(episodes=4).protocol(setting))
        assert engine.steps > steps
    assert {e.id for e in first} < {e.id for e in longer}
    assert len(first) == Paired(episodes=3).size(setting) == 3 * 4 * 2


def test_paired_policies_share_starts_and_noise_and_monte_carlo_ones_do_not() -> None:
    world = ToySimulator()
    setting = Setting({"world": world}, {"world": ["expert", "smoother"]}, seed=4)
    rounds = list(Paired(episodes=2).rounds(setting))
    assert all(replace(a, policy="") == replace(b, policy="") for a, b in rounds)
    single = [rollout for (rollout,) in MonteCarlo(episodes=2).rounds(setting)]
    assert {r.start for r in single if r.policy == "expert"}.isdisjoint(
        {r.start for r in single if r.policy == "smoother"}
    )
    assert [r for r in single if r.policy == "expert"] == [pair[0] for pair in rounds]
    with pytest.raises(ConfigError, match="at least two policies"):
        list(Paired(episodes=1).rounds(Setting({"world": world}, {"world": ["expert"]}, 0)))
    with pytest.raises(ConfigError, match="at least one episode"):
        MonteCarlo(episodes=0)


def test_a_policy_is_shown_only_the_keys_it_declares_and_never_signals() -> None:
    seen = set()

    class Curious(Wrong):
        def act(
            self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
        ) -> PolicyStep:
            seen.update(observation)
            return super().act(observation, instruction, memory, keys)

    world = ToySimulator(cameras=("top",))
    result(world, roots(world, 1, ("curious",)), {"curious": Curious(lambda action, _: action)})
    assert seen == {"state"}


def test_a_start_that_is_solved_already_is_marked() -> None:
    class Solved(ToySimulator):
        def start(self, task: str, seed: int) -> Start:
            return super().start(task, seed)

        def _time_step(self, slots: Sequence[int]) -> Any:
            return replace(super()._time_step(slots), success=np.ones(len(slots), dtype=bool))

    world = Solved()
    episodes = result(world, roots(world, 1))
    assert all(episode.ending.solved_at_reset for episode in episodes)
    assert not any(e.ending.solved_at_reset for e in result(ToySimulator(), roots(world, 1)))


def test_a_reset_that_fails_is_an_error_even_when_nothing_else_runs() -> None:
    for slots in (1, 3):
        world = Faulty(ToySimulator(num_slots=slots), {(0, 0): "raise", (1, 0): "report"})

        def one_by_one(world: World = world) -> Protocol:
            ended = []
            for rollout in roots(world, 2, ("expert",)):
                ended += yield [rollout]
            return ended

        assert {episode.status for episode in run(one_by_one(), world, POLICIES)} == {"error"}


class Talkative(Wrong):
    """Reports an extra for one kind of instruction only."""

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        step = POLICIES["expert"].act(observation, instruction, memory, keys)
        return replace(step, extras=self.spoil(len(keys), instruction, keys))


def test_extras_may_differ_between_episodes_and_not_within_one() -> None:
    def by_task(n: int, instruction: Sequence[str], keys: Sequence[StepKey]) -> dict[str, np.ndarray]:
        return {"certainty": np.ones(n)} if "right" in instruction[0] else {}

    for order in (1, -1):
        world = ToySimulator(num_slots=1)
        episodes = result(world, roots(world, 1, ("p",))[::order], {"p": Talkative(by_task)})
        assert {episode.status for episode in episodes} == {"done"}
        for episode in episodes:
            assert list(episode.policy) == (["certainty"] if "right" in episode.rollout.start.task else [])

    def by_step(n: int, instruction: Sequence[str], keys: Sequence[StepKey]) -> dict[str, np.ndarray]:
        return {"late": np.ones(n)} if keys[0].step > 3 else {}

    (episode, *_) = result(ToySimulator(), roots(ToySimulator(), 1, ("p",)), {"p": Talkative(by_step)})
    assert (episode.status, episode.ending.blame, episode.length) == ("error", "policy", 4)


@pytest.mark.parametrize(
    "extras",
    [
        {"said": np.array(["a", "b", "c", "d"])},
        {"scalar": np.float64(1.0)},
        {"rows": np.ones(7)},
    ],
    ids=["text", "scalar", "rows"],
)
def test_extras_that_cannot_be_recorded_are_the_policys_error(extras: dict[str, Any]) -> None:
    world = ToySimulator(num_slots=4)
    policies = {"p": Talkative(lambda n, *_: extras)}
    episodes = result(world, roots(world, 1, ("p",)), policies)
    assert {(episode.status, episode.ending.blame) for episode in episodes} == {("error", "policy")}


@pytest.mark.parametrize("memory", [{"x": np.zeros(3)}, {"y": np.zeros(4)}, {"x": np.zeros(4, dtype=np.int8)}, {}])
def test_a_memory_that_changes_is_the_policys_error(memory: Any) -> None:
    class Forgetful(Wrong):
        def initial_memory(self, n: int) -> Memory:
            return {"x": np.zeros(n)}

        def act(
            self, observation: Observation, instruction: Sequence[str], memory_in: Memory, keys: Sequence[StepKey]
        ) -> PolicyStep:
            return replace(POLICIES["expert"].act(observation, instruction, {}, keys), memory=memory)

    world = ToySimulator(num_slots=2)
    episodes = result(world, roots(world, 1, ("p",)), {"p": Forgetful(None)})
    assert {(episode.status, episode.ending.blame) for episode in episodes} == {("error", "policy")}


class Shifty(ToySimulator):
    """Shows something else after the reset than at it."""

    def __init__(self, change: Any, num_slots: int = 2):
        super().__init__(num_slots=num_slots)
        self.change = change

    def step(self, slots: Sequence[int], actions: Any, keys: Sequence[StepKey]) -> Any:
        return self.change(super().step(slots, actions, keys))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: replace(s, observation={}), "observation 'state' is missing"),
        (lambda s: replace(s, observation={"state": s.observation["state"].astype(int)}), "observation 'state'"),
        (lambda s: replace(s, signals={**s.signals, "goal": s.signals["goal"].astype(np.float32)}), "signal 'goal'"),
        (lambda s: replace(s, success=s.success.astype(float)), "success is float64"),
        (lambda s: replace(s, terminated=s.terminated[:1]), r"terminated is bool\[1\]"),
        (lambda s: replace(s, reward=s.reward[:, None]), r"reward is float64\[2, 1\]"),
        (lambda s: replace(s, reward=np.append(s.reward, 0.0)), r"reward is float64\[3\]"),
        (lambda s: replace(s, reward=[float("nan")] * 2), r"reward is \[nan, nan\]"),
        (lambda s: replace(s, reward=s.reward.astype(object)), r"reward is object"),
        (lambda s: replace(s, observation={"state": s.observation["state"].tolist()}), r"observation 'state' is \[\["),
        (lambda s: replace(s, signals={**s.signals, "goal": 3.0}), "signal 'goal' is 3.0"),
        (lambda s: replace(s, failures={7: "broken"}), "failures has 'broken' of row 7"),
        (lambda s: replace(s, failures={0: None}), "failures has None of row 0"),
        (lambda s: replace(s, lost=frozenset({9})), r"lost names slots \['9'\] of 2"),
    ],
)
def test_a_world_that_shows_something_else_than_before_is_named(change: Any, named: str) -> None:
    world = Shifty(change)
    with pytest.raises(ConfigError, match=rf"world 'toy' breaks its contract .*{named}"):
        result(world, roots(world, 1, ("expert",)))


class Named(ToySimulator):
    """Shows a signal more, from the reset on."""

    def __init__(self, signals: dict[str, Any]):
        super().__init__(num_slots=2)
        self.more = signals

    def reset(self, *arguments: Any) -> Any:
        shown = super().reset(*arguments)
        return replace(shown, signals={**shown.signals, **self.more})


@pytest.mark.parametrize(
    ("signals", "named"),
    [
        ({"goal/left": np.zeros(2)}, "'goal' cannot be an array and hold others"),
        ({"a\0b": np.zeros(2)}, "cannot be a name in a trace"),
        ({"\ud800": np.zeros(2)}, "cannot be a name in a trace"),
        ({3: np.zeros(2)}, "3 cannot be a name in a trace"),
        ({"text": np.array(["a", "b"])}, "signal 'text' is of dtype <U1"),
        ({"when": np.zeros(2, "datetime64[s]")}, "signal 'when' is of dtype datetime64"),
    ],
)
def test_what_a_trace_cannot_hold_is_refused_before_anything_is_recorded(signals: dict[Any, Any], named: str) -> None:
    world = Named(signals)
    with pytest.raises(ConfigError, match=named):
        result(world, roots(world, 1, ("expert",)))


def test_a_world_that_shows_another_form_than_it_declares_is_named() -> None:
    world = ToySimulator(num_slots=2)
    world.observation_space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(-1, 1, (3,), np.float32)})
    with pytest.raises(ConfigError, match=r"observation 'state' is float64.*a row is declared as float32\[3\]"):
        result(world, roots(world, 1, ("expert",)))


def test_a_policy_that_exits_ends_its_episode_and_not_the_run() -> None:
    class Quitter(Wrong):
        def act(
            self, observation: Observation, instruction: Sequence[str], memory_in: Memory, keys: Sequence[StepKey]
        ) -> PolicyStep:
            sys.exit(0)

    world = ToySimulator(num_slots=2)
    episodes = result(world, roots(world, 1, ("p", "expert")), {"p": Quitter(None), "expert": POLICIES["expert"]})
    ended = {(episode.rollout.policy, episode.status) for episode in episodes}
    assert ended == {("p", "error"), ("expert", "done")}


def test_a_branch_cannot_follow_an_end_that_is_one() -> None:
    world = ToySimulator()

    def follow(horizon: int) -> Protocol:
        (parent,) = yield [Rollout(world.start("reach-left", 3), seed=8, horizon=horizon, policy="expert")]
        (child,) = yield [parent.rollout.branch(parent.length, horizon=parent.length + 5)]
        return parent, child

    solved_at = run(follow_to_success(world), world, POLICIES)
    with pytest.raises(ValueError, match="cannot branch"):
        run(follow(solved_at), world, POLICIES)
    parent, child = run(follow(solved_at - 3), world, POLICIES)
    assert parent.length == solved_at - 3
    assert child.length == 3


def follow_to_success(world: World) -> Protocol:
    (episode,) = yield [Rollout(world.start("reach-left", 3), seed=8, horizon=60, policy="expert")]
    assert episode.succeeded
    return episode.length


def test_a_start_from_a_snapshot_keeps_its_task_and_its_world() -> None:
    world = ToySimulator()

    def other(start: Start, **fields: Any) -> Protocol:
        (parent,) = yield [Rollout(start, seed=8, horizon=30, policy="expert", snapshot_steps=(5,))]
        ref = SnapshotRef("", parent.id, 5)
        yield [Rollout(replace(start, snapshot=ref, **fields), seed=1, horizon=20, policy="expert")]

    start = world.start("push-left", 3)
    with pytest.raises(ValueError, match="cannot begin from a state of task 'push-left'"):
        run(other(start, task="reach-right"), world, POLICIES)
    with pytest.raises(UnsupportedError, match=r"dynamics\.puck_mass"):
        run(other(start, perturbations=(Perturbation("dynamics.puck_mass", 5.0),)), world, POLICIES)


def test_whole_numbers_are_not_made_of_broken_ones() -> None:
    class Counting(ToySimulator):
        def __init__(self) -> None:
            super().__init__(num_slots=2)
            self.action_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)

        def step(self, slots: Sequence[int], actions: Any, keys: Sequence[StepKey]) -> Any:
            self.check_actions(slots, actions, keys)
            return self._time_step(slots)

    world = Counting()
    for value, status in ((3.0, "done"), (300.7, "error"), (2.5, "error"), (-1.0, "error")):
        policies = {"p": Wrong(lambda action, _, value=value: np.full(action.shape, value))}
        episodes = result(world, roots(world, 1, ("p",)), policies)
        assert {episode.status for episode in episodes} == {status}, value


def test_a_policy_that_cannot_begin_is_that_episodes_error() -> None:
    class Amnesiac(Wrong):
        calls = 0

        def initial_memory(self, n: int) -> Memory:
            self.calls += 1
            if self.calls > 2:
                raise RuntimeError("no memory left")
            return {}

    world = ToySimulator(num_slots=1)
    episodes = result(world, roots(world, 1, ("p",)), {"p": Amnesiac(lambda action, _: action)})
    assert [episode.status for episode in episodes] == ["done", "error", "error", "error"]
    assert {episode.ending.blame for episode in episodes[1:]} == {"policy"}


def test_an_error_is_told_in_brief_with_the_place_in_ones_own_code() -> None:
    def spoil(action: np.ndarray, instruction: Sequence[str]) -> np.ndarray:
        return np.stack([action, action[:0]])

    world = ToySimulator()
    (episode, *_) = result(world, roots(world, 1, ("wrong",)), {"wrong": Wrong(spoil)})
    said = in_brief(episode.error)
    assert said.startswith("ValueError: all input arrays must have the same shape")
    assert re.search(r"test_rollout\.py:\d+\)$", said)
    assert in_brief("one\ntwo lines\n") == "two lines"
    assert "\n" not in in_brief('Traceback:\n  File "a.py", line 3, in f\n    g()\nValueError: first\nsecond\n')
    assert in_brief('Traceback:\n  File "a.py", line 3, in f\n    g()\nValueError: first\nsecond\n').endswith(
        "ValueError: first second (a.py:3)"
    )
