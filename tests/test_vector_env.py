"""Worlds as Gymnasium environments: Gymnasium's own checks, its wrappers, and learners written for it."""

import warnings
from collections.abc import Callable
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from envs.metaworld import MetaWorld
from envs.tabletop import Tabletop
from simeval.errors import ActionError, ConfigError
from simeval.testing import Faulty, ToyExpert, ToySimulator, ToyWorldModel
from simeval.vector import WorldVectorEnv, as_env, as_vector_env
from simeval.world import World

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def actions(env: WorldVectorEnv, steps: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (steps, env.num_envs, 2)).astype(np.float32)


def assert_same(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, dict):
            assert_same(value, right[key])
        elif isinstance(value, np.ndarray) and value.dtype == object:
            for one, other in zip(value, right[key], strict=True):
                if isinstance(one, dict):
                    assert_same(one, other)
                else:
                    assert (one or None) == (other or None)
        else:
            np.testing.assert_array_equal(value, right[key], err_msg=key)


@pytest.mark.parametrize("make", [ToySimulator, ToyWorldModel])
@pytest.mark.parametrize("cameras", [(), ("top",)])
def test_gymnasiums_checker_accepts_a_single_slot(make, cameras):
    env = as_env(make(1, cameras=cameras), render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize("mode", MODES)
def test_it_behaves_as_gymnasiums_own_vector_of_single_slots(mode):
    ours = as_vector_env(ToySimulator(3), tasks=["push-left"], horizon=7, autoreset_mode=mode)
    singles = [lambda: as_env(ToySimulator(1), tasks=["push-left"], horizon=7)] * 3
    theirs = SyncVectorEnv(singles, autoreset_mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    for left, right in zip(ours.reset(seed=[4, 5, 6]), theirs.reset(seed=[4, 5, 6]), strict=True):
        assert_same(left, right)
    for action in actions(ours, 30):
        one, other = ours.step(action), theirs.step(action)
        assert_same(one[0], other[0])
        for index in (1, 2, 3):
            np.testing.assert_array_equal(one[index], other[index])
            assert one[index].dtype == other[index].dtype
        assert_same(one[4], other[4])
        assert one[0] in ours.observation_space


def test_next_step_autoreset_ignores_the_action_after_the_end():
    env = as_vector_env(ToySimulator(2), tasks=["push-left"], horizon=3)
    env.reset(seed=0)
    action = np.ones((2, 2), dtype=np.float32)
    for _ in range(2):
        assert not env.step(action)[3].any()
    assert env.step(action)[3].all()
    _, reward, terminated, truncated, _ = env.step(np.full((2, 2), np.nan))
    np.testing.assert_array_equal(reward, 0)
    assert not (terminated | truncated).any()


def test_same_step_autoreset_gives_the_last_observation_of_the_episode():
    env = as_vector_env(ToySimulator(2), tasks=["push-left"], horizon=3, autoreset_mode="SameStep")
    kept = as_vector_env(ToySimulator(2), tasks=["push-left"], horizon=9)
    env.reset(seed=0)
    kept.reset(seed=0)
    for action in actions(env, 3):
        observation, _, _, truncated, info = env.step(action)
        expected = kept.step(action)[0]
    assert truncated.all()
    assert info["_final_obs"].all()
    np.testing.assert_array_equal(np.stack([row["state"] for row in info["final_obs"]]), expected["state"])
    assert not np.array_equal(observation["state"], expected["state"])


def test_without_autoreset_only_the_masked_slots_begin_anew():
    env = as_vector_env(ToySimulator(3), tasks=["push-left"], horizon=2, autoreset_mode="Disabled")
    env.reset(seed=0)
    action = np.zeros((3, 2), dtype=np.float32)
    env.step(action)
    before = env.step(action)[0]["state"]
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"\[0, 1, 2\]"):
        env.step(action)
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    after, info = env.reset(options={"reset_mask": np.array([True, True, True])})
    assert (after["state"] != before).any(axis=1).all()
    assert info["_task"].all()


def test_stepping_before_reset_is_refused():
    with pytest.raises(gymnasium.error.ResetNeeded):
        as_vector_env(ToySimulator(2)).step(np.zeros((2, 2), dtype=np.float32))


def test_every_slot_and_every_episode_begins_differently_and_reproducibly():
    def beginnings(slots: int, seed: int) -> np.ndarray:
        env = as_vector_env(ToySimulator(slots), tasks=["push-left"], seed=seed, horizon=2)
        found = [env.reset()[0]["state"]]
        for step, action in enumerate(actions(env, 12)):
            observation = env.step(action)[0]["state"]
            if step % 3 == 2:
                found.append(observation)
        return np.stack(found)

    first = beginnings(4, seed=0)
    assert len({row.tobytes() for row in first.reshape(-1, 12)}) == first.shape[0] * 4
    np.testing.assert_array_equal(first, beginnings(4, seed=0))
    np.testing.assert_array_equal(first[:, :2], beginnings(2, seed=0))
    neighbours = {row.tobytes() for row in beginnings(4, seed=1).reshape(-1, 12)}
    assert neighbours.isdisjoint(row.tobytes() for row in first.reshape(-1, 12))


def test_reset_without_a_seed_goes_on_and_with_one_begins_again():
    env = as_vector_env(ToySimulator(2))
    first, second = env.reset(seed=3)[0]["state"], env.reset()[0]["state"]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(env.reset(seed=3)[0]["state"], first)
    np.testing.assert_array_equal(env.reset()[0]["state"], second)
    with pytest.raises(ConfigError, match="3 seeds for 2 slots"):
        env.reset(seed=[1, 2, 3])


def test_tasks_are_gone_through_in_turn():
    env = as_vector_env(ToySimulator(2), horizon=1, autoreset_mode="SameStep")
    seen = [env.reset(seed=0)[1]["task"].tolist()]
    seen += [env.step(np.zeros((2, 2), dtype=np.float32))[4]["task"].tolist() for _ in range(3)]
    assert [slot for slot, _ in seen] == ["reach-left", "reach-right", "push-left", "push-right"]
    assert [slot for _, slot in seen] == ["reach-right", "push-left", "push-right", "reach-left"]


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics_are_those_of_the_episodes(mode):
    env = RecordEpisodeStatistics(as_vector_env(ToySimulator(2), horizon=5, autoreset_mode=mode))
    env.reset(seed=0)
    returns, total = [], np.zeros(2)
    for action in actions(env.env, 6):
        _, reward, _, truncated, info = env.step(action)
        total += reward
        if truncated.all():
            returns.append(total)
            np.testing.assert_allclose(info["episode"]["r"], total)
            np.testing.assert_array_equal(info["episode"]["l"], 5)
            break
    assert len(returns) == 1


def test_returned_arrays_are_not_reused():
    env = as_vector_env(ToySimulator(2))
    observation = env.reset(seed=0)[0]["state"]
    kept = observation.copy()
    observation += 1
    after = env.step(np.zeros((2, 2), dtype=np.float32))[0]["state"]
    np.testing.assert_allclose(after[:, 4:6], kept[:, 4:6], atol=0.05)


def test_bad_arguments_are_refused_by_name():
    with pytest.raises(ConfigError, match="push-lef'"):
        as_vector_env(ToySimulator(1), tasks=["push-lef"])
    with pytest.raises(ConfigError, match="horizon=0"):
        as_vector_env(ToySimulator(1), horizon=0)
    with pytest.raises(ConfigError, match="no task"):
        as_env(ToySimulator(1), tasks=[])
    env = as_vector_env(ToySimulator(1))
    env.reset()
    with pytest.raises(ActionError, match="slot 0"):
        env.step(np.full((1, 2), 3.0))


@pytest.mark.parametrize("bad", [np.full((2, 2), 3.0), np.full((2, 2), np.nan), np.zeros((3, 2)), np.zeros((1, 2))])
def test_refused_actions_leave_no_trace_in_the_noise(bad):
    plain, disturbed = as_vector_env(ToySimulator(2), seed=3), as_vector_env(ToySimulator(2), seed=3)
    plain.reset()
    disturbed.reset()
    for step, action in enumerate(actions(plain, 12)):
        if step in (0, 5, 6):
            with pytest.raises(ActionError):
                disturbed.step(bad.astype(np.float32))
        np.testing.assert_array_equal(plain.step(action)[0]["state"], disturbed.step(action)[0]["state"])


def test_refused_actions_leave_no_trace_in_a_single_environment():
    plain, disturbed = as_env(ToySimulator(1), horizon=4), as_env(ToySimulator(1), horizon=4)
    plain.reset(seed=3)
    disturbed.reset(seed=3)
    for step in range(4):
        with pytest.raises(ActionError):
            disturbed.step(np.full(2, 3.0, dtype=np.float32))
        left, right = (env.step(np.zeros(2, dtype=np.float32)) for env in (plain, disturbed))
        np.testing.assert_array_equal(left[0]["state"], right[0]["state"])
        assert left[3] == right[3] == (step == 3)


def test_a_refused_reset_leaves_the_series_of_episodes_as_it_was():
    plain, disturbed = as_vector_env(ToySimulator(2)), as_vector_env(ToySimulator(2))
    plain.reset(seed=1)
    disturbed.reset(seed=1)
    with pytest.raises(ValueError, match="reset_mask"):
        disturbed.reset(seed=7, options={"reset_mask": np.zeros(2, dtype=bool)})
    np.testing.assert_array_equal(plain.reset()[0]["state"], disturbed.reset()[0]["state"])


def test_a_simulator_that_breaks_stops_the_learner():
    world = ToySimulator(1)
    env = as_env(Faulty(world, {}), tasks=["push-left"])
    env.reset(seed=0)
    seed = env._episodes.world._seeds[0]  # type: ignore[attr-defined]
    env = as_env(Faulty(world, {(seed, 2): "report"}), tasks=["push-left"])
    env.reset(seed=0)
    env.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(RuntimeError, match="a fault was asked for"):
        env.step(np.zeros(2, dtype=np.float32))


def test_pictures_come_from_the_world():
    env = as_vector_env(ToySimulator(2), render_mode="rgb_array")
    env.reset(seed=0)
    assert [frame.shape for frame in env.render()] == [(96, 96, 3)] * 2
    assert as_vector_env(ToySimulator(2)).render() is None


class Informed(gymnasium.vector.VectorObservationWrapper):
    """A flat observation of what a reaching policy needs."""

    def __init__(self, env):
        super().__init__(env)
        self.single_observation_space = gymnasium.spaces.Box(-2, 2, (4,), dtype=np.float32)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations):
        state = observations["state"]
        return np.concatenate([state[:, 8:10] - state[:, :2], state[:, 2:4]], axis=1).astype(np.float32)


def test_a_policy_gradient_loop_learns_through_gymnasiums_wrappers():
    """A CleanRL-style loop: REINFORCE with a linear Gaussian policy on a batch of slots, next-step autoreset."""
    env = RecordEpisodeStatistics(Informed(as_vector_env(ToySimulator(32), tasks=["reach-left"], horizon=25)))
    weights, generator, returns = np.zeros((4, 2)), np.random.default_rng(0), []
    for iteration in range(25):
        observation, _ = env.reset(seed=iteration % 5)
        traces, rewards = [], []
        for _ in range(25):
            noise = 0.3 * generator.standard_normal((32, 2))
            traces.append(observation[:, :, None] * noise[:, None, :])
            observation, reward, *_ = env.step(np.clip(observation @ weights + noise, -1, 1).astype(np.float32))
            rewards.append(reward)
        to_go = np.cumsum(np.array(rewards)[::-1], axis=0)[::-1]
        advantage = to_go - to_go.mean(axis=1, keepdims=True)
        gradient = (np.array(traces) * advantage[..., None, None]).mean(axis=(0, 1))
        weights += 0.3 * gradient / (np.linalg.norm(gradient) + 1e-8)
        returns.append(to_go[0].mean())
    assert np.mean(returns[-5:]) > np.mean(returns[:5]) + 2.0


@pytest.mark.slow
def test_stable_baselines3_trains_on_the_whole_batch():
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    torch = pytest.importorskip("torch")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecMonitor

    from simeval.sb3 import WorldVecEnv

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    env = VecMonitor(WorldVecEnv(ToySimulator(16), tasks=["reach-left"], horizon=25))
    model = stable_baselines3.PPO(
        "MultiInputPolicy", env, n_steps=25, batch_size=200, n_epochs=8, learning_rate=3e-3, seed=0, device="cpu"
    )
    before, _ = evaluate_policy(model, env, n_eval_episodes=16, warn=False)
    model.learn(6 * 25 * 16)
    after, _ = evaluate_policy(model, env, n_eval_episodes=16, warn=False)
    torch.set_num_threads(threads)
    assert after > before + 2.0


def test_stable_baselines3_sees_the_end_of_an_episode():
    pytest.importorskip("stable_baselines3")
    from simeval.sb3 import WorldVecEnv

    env, twin = WorldVecEnv(ToySimulator(2), horizon=3), as_vector_env(ToySimulator(2), horizon=9)
    np.testing.assert_array_equal(env.reset()["state"], twin.reset()[0]["state"])
    expert = ToyExpert()
    for step in range(3):
        action = expert.act(twin._copy(), ["reach the left", "reach the right"], {}, []).action
        observation, _, over, infos = env.step(action)
        expected = twin.step(action)[0]["state"]
        assert over.all() == (step == 2)
    np.testing.assert_array_equal(np.stack([info["terminal_observation"]["state"] for info in infos]), expected)
    assert all(info["TimeLimit.truncated"] for info in infos)
    assert not np.array_equal(observation["state"], expected)


@pytest.mark.parametrize(
    "make", [partial(Tabletop, "reach"), partial(MetaWorld, "reach-v3")], ids=["tabletop", "metaworld"]
)
def test_real_simulators_pass_gymnasiums_checks_and_step_as_vectors(make: Callable[..., World]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box observation space m(in|ax)imum value is.*infinity")
        single = as_env(make(num_slots=1))
        check_env(single, skip_render_check=True)
    single.close()
    envs = as_vector_env(make(num_slots=3), horizon=5)
    observation, _ = envs.reset(seed=2)
    assert observation["state"].shape[0] == 3
    assert len(np.unique(observation["state"], axis=0)) == 3
    for step in range(6):
        *_, truncated, _ = envs.step(envs.action_space.sample())
        assert truncated.all() == (step == 4)
    envs.close()
