"""Actuation effects: gain, bias, misalignment, lag, noise and delay of an action on its way."""

import math
from collections.abc import Sequence
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from simeval.conventions import Conventions
from simeval.errors import UnsupportedError
from simeval.noise import Key
from simeval.perturbation import effect_of
from simeval.types import Perturbation, WorldSpec

DT = 0.05


def spec(action: Sequence[str] | None, size: int, frame: str | None = "world", high: float = 1.0) -> WorldSpec:
    return WorldSpec(
        "arm",
        gymnasium.spaces.Dict({}),
        gymnasium.spaces.Box(-high, high, (size,), np.float32),
        DT,
        ("move",),
        Conventions(action=None if action is None else tuple(action), action_frame=frame),
    )


TABLETOP = spec(("dx", "dy", "dz", "dyaw", "grip"), 5)
LIBERO = spec(("hand_displacement", "hand_turn", "gripper"), 7, "base")
METAWORLD = spec(("hand_displacement", "gripper_effort"), 4)
UNDECLARED = spec(None, 3)


def sent(actions: np.ndarray, where: WorldSpec = METAWORLD, axis: str = "actuation", **params: object) -> np.ndarray:
    """Actions ``[T, A]`` as the World receives them."""
    effect = effect_of(Perturbation(axis, params=params), where)
    memory, out = effect.initial_memory(), []
    for step, action in enumerate(actions.astype(np.float32)):
        before = action.copy()
        received, memory = effect.action(action, memory, Key(1).stream("perturbation").key(step))
        np.testing.assert_array_equal(action, before)
        assert (received.dtype, received.shape) == (np.float32, action.shape)
        assert ((received >= where.action_space.low) & (received <= where.action_space.high)).all()
        out.append(received)
    return np.stack(out)


def wave(steps: int, size: int) -> np.ndarray:
    return 0.5 * np.sin(0.3 * np.arange(steps)[:, None] + np.arange(size)[None]).astype(np.float32)


def test_a_gain_is_a_power_of_two_clipped_to_the_action_space_and_leaves_the_gripper():
    actions = np.array([[0.1, -0.2, 0.9, 0.4]])
    np.testing.assert_allclose(sent(actions, gain=1.0), [[0.2, -0.4, 1.0, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(sent(actions, gain=-1.0), [[0.05, -0.1, 0.45, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(sent(actions[:, :3], UNDECLARED, gain=1.0), [[0.2, -0.4, 1.0]], rtol=1e-6)


@pytest.mark.parametrize("where", [METAWORLD, TABLETOP, LIBERO])
def test_misalignment_turns_the_displacement_about_the_vertical_and_nothing_else(where):
    size = where.action_space.shape[0]
    ahead = np.zeros((1, size))
    ahead[0, 0], ahead[0, 2], ahead[0, -1] = 0.5, 0.3, -0.7
    turned = sent(ahead, where, misalignment=math.pi / 2)[0]
    expected = ahead[0].copy()
    expected[:2] = 0, 0.5
    np.testing.assert_allclose(turned, expected, atol=1e-7)


@pytest.mark.parametrize(
    "where",
    [
        UNDECLARED,
        spec(("hand_displacement",), 3, "hand"),
        spec(("hand_displacement", "gripper"), 7),
        spec(("force",), 1),
    ],
    ids=["undeclared", "in the hand's frame", "other numbers", "no displacement"],
)
def test_misalignment_is_refused_where_no_displacement_is_declared(where):
    with pytest.raises(UnsupportedError, match="does not declare which numbers of an action"):
        effect_of(Perturbation("actuation", params={"misalignment": 0.1}), where)


def test_a_bias_is_constant_of_its_size_and_settled_by_its_seed():
    bias = sent(np.zeros((4, 7)), LIBERO, bias=0.1, seed=5)
    assert (bias == bias[0]).all()
    assert np.sqrt((bias[0, :6] ** 2).mean()) == pytest.approx(0.1, rel=1e-6)
    assert bias[0, 6] == 0
    assert not np.allclose(bias[0], sent(np.zeros((1, 7)), LIBERO, bias=0.1, seed=6)[0])
    half = spec(None, 3, high=10.0)
    assert np.sqrt((sent(np.zeros((1, 3)), half, bias=0.1)[0] ** 2).mean()) == pytest.approx(1.0, rel=1e-6)


def test_bias_and_noise_need_bounds():
    with pytest.raises(UnsupportedError, match="not bounded"):
        effect_of(Perturbation("actuation", params={"noise": 0.1}), spec(None, 3, high=np.inf))


def test_a_lag_answers_a_command_as_its_time_constant_says():
    step = np.zeros((30, 4))
    step[:, 0], step[:, 3] = 0.8, 1.0
    answer = sent(step, lag=0.2)
    times = DT * (1 + np.arange(30))
    np.testing.assert_allclose(answer[:, 0], 0.8 * (1 - np.exp(-times / 0.2)), rtol=1e-5)
    np.testing.assert_array_equal(answer[:, 3], step[:, 3])


def test_noise_has_its_size_and_is_another_at_each_step():
    noise = sent(np.zeros((500, 4)), noise=0.1)
    assert noise[:, :3].std() == pytest.approx(0.1, rel=0.06)
    assert not noise[:, 3].any()
    assert abs(np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]) < 0.15


def test_a_delay_is_the_same_commands_so_many_steps_later():
    actions = wave(20, 4)
    late = sent(actions, axis="dynamics.delay", steps=3)
    np.testing.assert_array_equal(late[3:], actions[:-3])
    assert not late[:3].any()


def test_no_command_is_the_nearest_to_0_that_the_world_takes():
    positive = WorldSpec(
        "valve", gymnasium.spaces.Dict({}), gymnasium.spaces.Box(0.2, 1.0, (1,), np.float32), DT, ("a",)
    )
    assert sent(np.ones((1, 1)), positive, axis="dynamics.delay", steps=1)[0, 0] == np.float32(0.2)
    assert sent(np.ones((1, 1)), positive, lag=1e6)[0, 0] == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["actuation", "delay"])
def test_a_severer_actuation_moves_actions_farther(name):
    axis, actions = instantiate(OmegaConf.load(f"configs/perturbation/{name}.yaml")), wave(40, 7)

    def mean(level: float) -> float:
        drawn = [axis.draw(level, np.random.default_rng(seed)) for seed in range(10)]
        return float(np.mean([np.abs(sent(actions, LIBERO, one.axis, **one.params) - actions).mean() for one in drawn]))

    assert all(less < more for less, more in pairwise([0.0, *map(mean, axis.severities)]))
    for component, scale in getattr(axis, "scales", {}).items():
        moved = [np.abs(sent(actions, LIBERO, **{component: scale * level}) - actions).mean() for level in (2, 4, 8)]
        assert all(less < more for less, more in pairwise([0.0, *moved]))
