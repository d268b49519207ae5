"""Gymnasium environments: exact where MuJoCo, replayed otherwise, their noise keyed, refusals by name."""

from functools import partial

import gymnasium
import numpy as np
import pytest

from envs.gymnasium import GymnasiumWorld
from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key
from simeval.testing import assert_conforms, check_world
from simeval.types import Snapshot


class Gusty(gymnasium.Env):
    """A point pushed about by draws from ``np_random`` during steps."""

    observation_space = gymnasium.spaces.Dict(
        {"position": gymnasium.spaces.Box(-np.inf, np.inf, (2,)), "wind": gymnasium.spaces.Box(-np.inf, np.inf, (1,))}
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.standard_normal(2)
        return self._see(0.0), {}

    def step(self, action):
        gust = self.np_random.standard_normal() + self.np_random.random()
        self.position += 0.1 * action + 0.01 * gust
        return self._see(gust), 1.0, False, False, {"is_success": bool(gust > 1.0)}

    def _see(self, gust):
        return {"position": self.position.astype(np.float32), "wind": np.array([gust], np.float32)}


gymnasium.register("Gusty-v0", f"{__name__}:Gusty", max_episode_steps=50)


def world_of(id, num_slots):
    return GymnasiumWorld(id, num_slots=num_slots)


def keys(seed, step, count=1):
    return [Key(seed).stream("world").key(step)] * count


SLOW = [pytest.param(id, marks=pytest.mark.slow) for id in ("Ant-v5", "Hopper-v5", "Humanoid-v5", "Reacher-v5")]


@pytest.mark.parametrize("id", ["HalfCheetah-v5", "Pendulum-v1", "Gusty-v0", *SLOW])
def test_it_conforms(id):
    assert_conforms(check_world(partial(world_of, id)))


def test_episodes_equal_those_of_a_bare_loop_of_the_same_seeds():
    world = world_of("HalfCheetah-v5", 1)
    env = gymnasium.make("HalfCheetah-v5")
    for seed in (3, 4):
        state, _ = env.reset(seed=seed)
        step = world.reset([0], [world.start("HalfCheetah-v5", seed)], keys(0, 0))
        rng = np.random.default_rng(seed)
        for t in range(40):
            np.testing.assert_array_equal(step.observation["state"][0], state)
            action = rng.uniform(-1, 1, 6).astype(np.float32)
            state, reward, *_ = env.step(action)
            step = world.step([0], action[None], keys(0, t + 1))
            assert step.reward[0] == reward


def test_noise_in_steps_is_the_step_keys_and_a_replay_repeats_it_across_a_change_of_keys():
    world = world_of("Gusty-v0", 2)
    still = np.zeros((1, 2), np.float32)
    start = world.start("Gusty-v0", 5)
    world.reset([0], [start], keys(0, 0))
    winds = [world.step([0], still, keys(7, t + 1)).observation["wind"][0, 0] for t in range(6)]
    assert len(set(winds)) == 6
    world.reset([1], [start], keys(0, 0))
    for t in range(3):
        shared = world.step([1], still, keys(7, t + 1))
        assert shared.observation["wind"][0, 0] == winds[t]
    fresh = world.step([1], still, keys(8, 4))
    assert fresh.observation["wind"][0, 0] != winds[3]
    (snapshot,) = world.snapshot([1])
    back = world.restore([0], [Snapshot.from_bytes(snapshot.to_bytes())])
    for key, value in fresh.observation.items():
        np.testing.assert_array_equal(back.observation[key], value)
    assert back.success[0] == fresh.success[0]


def test_success_is_the_environments_or_never():
    gusty, cheetah = world_of("Gusty-v0", 1), world_of("HalfCheetah-v5", 1)
    for world, ever in ((gusty, True), (cheetah, False)):
        task = world.tasks[0]
        step = world.reset([0], [world.start(task, 0)], keys(0, 0))
        assert not step.success[0]
        action = np.zeros((1, *world.action_space.shape), np.float32)
        assert ever == any(world.step([0], action, keys(0, t + 1)).success[0] for t in range(40))


def test_the_time_limit_is_the_horizon_and_not_the_environments():
    world = world_of("Pendulum-v1", 1)
    assert world.horizon("Pendulum-v1") == 200
    world.reset([0], [world.start("Pendulum-v1", 0)], keys(0, 0))
    steps = [world.step([0], np.zeros((1, 1), np.float32), keys(0, t + 1)) for t in range(210)]
    assert not any(step.truncated[0] or step.failures for step in steps)


def test_cameras_of_a_mujoco_environment_are_observations_and_restore_as_they_were():
    world = GymnasiumWorld("HalfCheetah-v5", cameras=("track",), image_size=32)
    step = world.reset([0], [world.start("HalfCheetah-v5", 0)], keys(0, 0))
    for t in range(5):
        step = world.step([0], np.ones((1, 6), np.float32), keys(0, t + 1))
    image = step.observation["image_track"][0]
    assert image.shape == (32, 32, 3)
    assert image.std() > 5
    (snapshot,) = world.snapshot([0])
    world.step([0], -np.ones((1, 6), np.float32), keys(0, 6))
    np.testing.assert_array_equal(world.restore([0], [snapshot]).observation["image_track"][0], image)
    assert world.render([0]).shape[-1] == 3
    world.close()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"id": "HalfCheeta-v5"}, ConfigError, "did you mean HalfCheetah-v5"),
        ({"id": "CartPole-v1"}, UnsupportedError, r"actions Discrete\(2\)"),
        ({"id": "no_such_module:Thing-v0"}, UnsupportedError, "no_such_module"),
        ({"id": "HalfCheetah-v5", "kwargs": {"colour": 1}}, ConfigError, "colour"),
        ({"id": ["HalfCheetah-v5", "Ant-v5"]}, ConfigError, "share their spaces"),
        ({"id": []}, ConfigError, "one or more"),
        ({"id": "Pendulum-v1", "cameras": ["track"]}, UnsupportedError, "leave world.cameras empty"),
        ({"id": "Ant-v5", "cameras": ["trak"]}, ConfigError, "did you mean track"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings, error, text):
    with pytest.raises(error, match=text):
        GymnasiumWorld(**settings)


def test_settings_reach_the_environment_and_the_fingerprint():
    plain = world_of("HalfCheetah-v5", 1)
    wider = GymnasiumWorld("HalfCheetah-v5", kwargs={"exclude_current_positions_from_observation": False})
    assert wider.observation_space["state"].shape[0] == plain.observation_space["state"].shape[0] + 1
    assert wider.fingerprint != plain.fingerprint
