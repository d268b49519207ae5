"""Planning: what candidates earn, how the searches move, and policies that solve tasks in the simulator itself."""

from collections.abc import Sequence
from functools import partial

import gymnasium
import numpy as np
import pytest

from envs.gymnasium import GymnasiumWorld
from envs.tabletop import Tabletop
from policies.basic import Uniform
from policies.planning import CrossEntropy, Imagination, Optimiser, PathIntegral, Planner
from policies.planning.optimisers import coloured
from simeval.errors import ConfigError, LostError, SnapshotError
from simeval.evaluation import evaluate
from simeval.noise import Key, StepKey
from simeval.policy import SNAPSHOT, Policy
from simeval.protocols import together
from simeval.rollout import run
from simeval.testing import ToySimulator, assert_conforms, check_policy
from simeval.types import Rollout, TimeStep, WorldSpec
from simeval.wrappers import Delegate

SMALL = {"horizon": 5, "candidates": 12, "iterations": 2}
SEARCHES = [partial(CrossEntropy, elites=3, **SMALL), partial(PathIntegral, **SMALL)]


def keys(step: int, *seeds: int) -> list[StepKey]:
    return [Key(seed).stream("policy").key(step) for seed in seeds]


# Searching


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("length", [1, 2, 7, 12])
def test_coloured_noise_has_unit_variance_at_every_step(exponent: float, length: int) -> None:
    noise = coloured(np.random.default_rng(0), (20_000, length, 1), exponent)
    np.testing.assert_allclose(noise.std(axis=0), 1.0, atol=0.03)
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=0.03)


def test_coloured_noise_falls_with_frequency_as_it_says() -> None:
    noise = coloured(np.random.default_rng(0), (20_000, 16, 1), 2.0)[..., 0]
    power = (np.abs(np.fft.rfft(noise, axis=1)) ** 2).mean(axis=0)
    np.testing.assert_allclose(power[2:8] / power[1], 1 / np.arange(2, 8) ** 2.0, rtol=0.1)


def near(target: np.ndarray):
    """Values that fall with the distance from a plan of constant actions, of each episode its own."""

    def values(candidates: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [-((tried - goal) ** 2).sum(axis=(1, 2)) for tried, goal in zip(candidates, target, strict=True)]

    return values


@pytest.mark.parametrize(
    "search",
    [
        CrossEntropy(horizon=4, iterations=12, colour=0.0),
        CrossEntropy(horizon=4, iterations=12, colour=0.0, momentum=0.0, kept=0.0, decay=1.0),
        CrossEntropy(horizon=4, iterations=12),
        PathIntegral(horizon=4, iterations=30, deviation=0.3, temperature=0.1),
    ],
)
def test_a_search_finds_the_best_plan_of_each_episode(search: Optimiser) -> None:
    target = np.array([[0.7, -0.2], [-0.5, 0.1]])
    found = search.search(near(target), search.initial_memory(2, 2), keys(0, 1, 2))
    np.testing.assert_allclose(found.plan, np.repeat(target[:, None], 4, axis=1), atol=0.12)
    assert (found.worth <= 0).all()


@pytest.mark.parametrize("make", SEARCHES)
def test_a_search_goes_on_one_step_later_from_where_it_ended(make) -> None:
    search, target = make(), np.array([[0.6]])
    first = search.search(near(target), search.initial_memory(1, 1), keys(0, 1))
    again = search.search(near(target), search.initial_memory(1, 1), keys(1, 1))
    gone_on = search.search(near(target), first.memory, keys(1, 1))
    assert gone_on.worth[0] > again.worth[0]


@pytest.mark.parametrize("make", SEARCHES)
def test_a_search_does_not_choose_what_broke_the_simulation(make) -> None:
    def values(candidates: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.where(tried[:, 0, 0] > 0, -np.inf, tried[:, 0, 0]) for tried in candidates]

    search = make()
    found = search.search(values, search.initial_memory(1, 1), keys(0, 1))
    assert found.plan[0, 0, 0] <= 0
    assert np.isfinite(found.worth).all()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: CrossEntropy(candidates=8, elites=8), "elites are fewer than candidates"),
        (lambda: CrossEntropy(decay=0.5), "decay >= 1"),
        (lambda: PathIntegral(temperature=0), "temperature is a number above 0"),
        (lambda: PathIntegral(colour=-1), "colour is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make()


# Imagining


class Ends(Delegate):
    """The toy simulator, ended at step 2 where the first action is positive: solved, failed or broken."""

    def __init__(self, how: str, num_slots: int = 3):
        super().__init__(ToySimulator(num_slots, gust=0.0))
        self._how = how

    def step(self, slots, actions, keys) -> TimeStep:
        result = self.world.step(slots, actions, keys)
        count = len(slots)
        ends = np.asarray(actions)[:, 0] > 0 if keys[0].step == 2 else np.zeros(count, dtype=bool)
        none = np.zeros(count, dtype=bool)
        return TimeStep(
            result.observation,
            reward=np.where(ends, -3.0, -1.0),
            terminated=ends & (self._how != "broken"),
            truncated=none,
            success=ends & (self._how == "solved"),
            failures=dict.fromkeys(np.flatnonzero(ends).tolist(), "it broke") if self._how == "broken" else {},
        )


@pytest.mark.parametrize(("how", "expected"), [("solved", -1 - 3 * 3), ("failed", -1 - 3 * 3), ("broken", -np.inf)])
@pytest.mark.parametrize("num_slots", [1, 3, 8])
def test_what_an_end_is_worth(how: str, expected: float, num_slots: int) -> None:
    world = Ends(how, num_slots)
    start = world.start("reach-left", 0)
    world.reset([0], [start], [Key(0).stream("world").key(0)])
    (snapshot,) = world.snapshot([0])
    tried = np.stack([np.full((4, 2), value, dtype=np.float32) for value in (0.5, -0.5, 0.2)])
    (values,) = Imagination(world).values([snapshot], keys(0, 1), [tried])
    np.testing.assert_array_equal(values, [expected, -4.0, expected])
    if how == "broken":
        with pytest.raises(RuntimeError, match="it broke"):
            Imagination(world).values([snapshot], keys(0, 1), [tried[:1]])


def test_imagined_noise_is_shared_by_candidates_and_is_not_that_of_the_episode() -> None:
    world = ToySimulator(4, gust=5.0)
    start = world.start("reach-left", 0)
    stream = Key(1).stream("world")
    world.reset([0], [start], [stream.key(0)])
    (snapshot,) = world.snapshot([0])
    tried = np.zeros((4, 3, 2), dtype=np.float32)
    (values,) = Imagination(world).values([snapshot], keys(0, 1), [tried])
    assert len(set(values)) == 1
    (other,) = Imagination(world).values([snapshot], keys(0, 2), [tried])
    assert other[0] != values[0]
    world.restore([0], [snapshot])
    real = sum(world.step([0], tried[0, :1], [stream.key(step)]).reward[0] for step in (1, 2, 3))
    assert values[0] != real


# Acting


@pytest.mark.slow
@pytest.mark.parametrize("make", SEARCHES)
def test_planners_conform(make) -> None:
    def planner() -> Policy:
        return Planner(ToySimulator(16), make())

    assert_conforms(check_policy(planner, ToySimulator, tasks=["reach-left", "push-right"], steps=6))


def test_results_do_not_depend_on_the_slots_of_either_world() -> None:
    def episodes(slots: int, imagined: int) -> list:
        world = ToySimulator(slots)
        planner = Planner(ToySimulator(imagined), CrossEntropy(elites=3, **SMALL))
        rollouts = [Rollout(world.start("reach-left", seed), seed=seed, horizon=6) for seed in range(4)]
        return run(together(rollouts), world, planner)

    first, *others = [episodes(*slots) for slots in ((1, 1), (4, 7), (4, 200))]
    for other in others:
        for one, two in zip(first, other, strict=True):
            np.testing.assert_array_equal(one.action, two.action)
            np.testing.assert_array_equal(one.policy["chunk"], two.policy["chunk"])
            np.testing.assert_array_equal(one.policy["worth"], two.policy["worth"])


def test_the_snapshot_is_shown_to_who_asks_and_is_not_recorded() -> None:
    world = ToySimulator(2)
    (episode,) = evaluate(
        world, Planner(ToySimulator(8), PathIntegral(**SMALL)), episodes=1, tasks=["reach-left"], horizon=3
    )
    assert episode.status == "done"
    assert not [path for path in episode.source.paths() if SNAPSHOT in path]


class Dies(Delegate):
    """The toy simulator, whose slot 1 is lost when its snapshot is asked for the third time."""

    def __init__(self) -> None:
        super().__init__(ToySimulator(3))
        self._asked = 0

    def snapshot(self, slots):
        self._asked += 1 in slots
        if self._asked == 3 and 1 in slots:
            self._asked += 1
            raise LostError("the process ended", [1])
        return self.world.snapshot(slots)


def test_an_episode_whose_state_was_lost_runs_again_and_the_others_go_on() -> None:
    planner = Planner(ToySimulator(8), PathIntegral(**SMALL))
    found = evaluate(Dies(), planner, episodes=3, tasks=["reach-left"], horizon=5)
    expected = evaluate(ToySimulator(3), planner, episodes=3, tasks=["reach-left"], horizon=5)
    for one, other in zip(found, expected, strict=True):
        assert one.status == "done"
        np.testing.assert_array_equal(one.action, other.action)


def test_a_world_that_calls_something_of_its_own_snapshot_is_refused() -> None:
    class Named(Delegate):
        def __init__(self) -> None:
            super().__init__(ToySimulator(1))
            spaces = {**self.observation_space.spaces, SNAPSHOT: gymnasium.spaces.Box(0, 1, (1,))}
            self.observation_space = gymnasium.spaces.Dict(spaces)

    with pytest.raises(ConfigError, match="the engine's to show"):
        evaluate(Named(), Uniform(), episodes=1, tasks=["reach-left"])


def test_worlds_that_do_not_fit_are_refused() -> None:
    planner = Planner(ToySimulator(2), PathIntegral(**SMALL))
    toy = ToySimulator(1).spec
    with pytest.raises(ConfigError, match="the one that is planned in"):
        planner.bind(Tabletop("reach").spec)
    unbounded = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    world = ToySimulator(2)
    world.action_space = unbounded
    spec = WorldSpec(toy.name, toy.observation_space, unbounded, toy.control_dt, toy.tasks)
    with pytest.raises(ConfigError, match="real numbers in bounds"):
        Planner(world, PathIntegral(**SMALL)).bind(spec)
    with pytest.raises(ConfigError, match=r"call bind\(world.spec\)"):
        planner.initial_memory(1)
    (episode,) = evaluate(ToySimulator(1, gust=0.1), planner, episodes=1, tasks=["reach-left"], horizon=2)
    assert episode.status == "error"
    assert SnapshotError.__name__ in episode.error


@pytest.mark.slow
def test_cross_entropy_reaches_and_presses_from_the_simulator_itself() -> None:
    world = Tabletop(["reach", "press_button"], num_slots=4)
    search = CrossEntropy(horizon=8, candidates=24, elites=4, deviation=0.8)
    planner = Planner(Tabletop(["reach", "press_button"], num_slots=96), search)
    episodes = evaluate(world, planner, episodes=1)
    assert [episode.succeeded for episode in episodes] == [True] * 2


def test_path_integral_balances_a_pole() -> None:
    world = GymnasiumWorld("InvertedPendulum-v5", num_slots=2)
    planner = Planner(GymnasiumWorld("InvertedPendulum-v5", num_slots=16), PathIntegral(horizon=8, candidates=16))
    planned, drawn = (evaluate(world, policy, episodes=2, horizon=40) for policy in (planner, Uniform()))
    assert [episode.length for episode in planned] == [40, 40]
    assert max(episode.length for episode in drawn) < 25


@pytest.mark.slow
def test_path_integral_swings_a_pendulum_up() -> None:
    world = GymnasiumWorld("Pendulum-v1", num_slots=2)  # its snapshots restore by replay
    planner = Planner(GymnasiumWorld("Pendulum-v1", num_slots=24), PathIntegral(horizon=15, candidates=24))
    planned, drawn = (evaluate(world, policy, episodes=2, horizon=60) for policy in (planner, Uniform()))
    for one, other in zip(planned, drawn, strict=True):
        assert one.reward[-10:].sum() > 0.4 * other.reward[-10:].sum()
