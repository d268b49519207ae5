"""Meta-World: the package's own episodes to the bit, resets that forget, exact snapshots, upright pictures."""

import importlib.util
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from long_forks import differences, expert_choice

from envs.metaworld import CAMERAS, MetaWorld, instructions
from policies.metaworld import MetaWorldExpert
from simeval.errors import ConfigError, InstructionError, MissingPackageError
from simeval.noise import Key
from simeval.protocols import together
from simeval.rollout import run
from simeval.testing import WORLD_CHECKS, assert_conforms, check_policy, check_world
from simeval.types import Rollout, Start

UNPERTURBED = [sentence for sentence in WORLD_CHECKS if "erturbation" not in sentence]
REPOSITORY = Path(__file__).parents[1]
ALL_TASKS = tuple(instructions())


def world_of(task, num_slots, cameras=()):
    return MetaWorld(task, num_slots=num_slots, cameras=cameras, image_size=48)


def keys(step):
    return [Key(0).stream("world").key(step)]


def move(world, direction, steps, first=0):
    action = np.array([[*direction, 0]], dtype=np.float32)
    for step in range(first, first + steps):
        result = world.step([0], action, keys(step + 1))
    return result


def benchmark():
    spec = importlib.util.spec_from_file_location("equality", REPOSITORY / "benchmarks" / "metaworld_equality.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_it_conforms_with_goals_and_objects_that_are_views_of_the_simulation():
    assert_conforms(check_world(partial(world_of, "door-lock-v3"), steps=100, only=UNPERTURBED))


@pytest.mark.slow
def test_tasks_conform_in_one_world():
    tasks = ("assembly-v3", "lever-pull-v3", "sweep-v3")
    assert_conforms(check_world(partial(world_of, tasks), tasks=tasks, only=UNPERTURBED))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_forks_follow_experts_for_500_steps_in_every_task_and_resets_forget_them(part):
    factories = {task: partial(MetaWorld, task) for task in ALL_TASKS[part::5]}
    assert differences(factories, expert_choice(MetaWorldExpert()), here=20) == {}


@pytest.mark.slow
def test_forks_follow_random_actions_for_500_steps_and_resets_forget_them():
    assert differences({task: partial(MetaWorld, task) for task in ALL_TASKS[::13]}) == {}


@pytest.mark.slow
def test_it_conforms_with_cameras():
    assert_conforms(check_world(partial(world_of, "push-v3", cameras=("corner4",)), steps=40, only=UNPERTURBED))


def test_the_experts_conform():
    assert_conforms(check_policy(MetaWorldExpert, partial(world_of, "push-v3")))


def test_episodes_are_those_of_a_bare_loop_over_the_package():
    table = benchmark().compare(["push-v3", "door-open-v3"], seeds=2, slots=3)
    assert [row["different"] for row in table.values()] == [0, 0]


@pytest.mark.slow
def test_episodes_of_twenty_tasks_and_four_seeds_are_those_of_a_bare_loop():
    equality = benchmark()
    table = equality.compare(equality._TASKS, seeds=4, slots=8)
    assert len(table) == 20
    assert {task: row["different"] for task, row in table.items() if row["different"]} == {}


def test_experts_succeed():
    tasks = ["reach-v3", "drawer-close-v3", "button-press-topdown-v3", "window-open-v3", "sweep-into-v3"]
    world = MetaWorld(tasks, num_slots=4)
    rollouts = [Rollout(start, 0, 500) for task in tasks for start in world.starts(task, 2, seed=1)]
    episodes = run(together(rollouts), world, MetaWorldExpert())
    assert all(episode.succeeded for episode in episodes)


def test_a_reset_forgets_fixtures_counters_and_success():
    world = world_of("drawer-close-v3", 1)
    expert = MetaWorldExpert()
    start, other = (world.start("drawer-close-v3", seed) for seed in (1, 2))
    first = world.reset([0], [start], keys(0))
    picture = world.render([0])
    step = world.reset([0], [other], keys(0))
    assert not np.array_equal(step.observation["state"], first.observation["state"])
    for t in range(150):
        step = world.step([0], expert.act(step.observation, [other.instruction], {}, keys(t)).action, keys(t + 1))
    assert step.success[0]
    again = world.reset([0], [start], keys(0))
    assert not again.success[0]
    np.testing.assert_array_equal(again.observation["state"], first.observation["state"])
    np.testing.assert_array_equal(world.render([0]), picture)
    world.close()


def fingertip_row(step, camera):
    image = step.observation[f"image_{camera}"][0].astype(int)
    rows, _ = np.nonzero((image[..., 2] > 120) & (image[..., 1] > 120) & (image[..., 0] < 60))
    return rows.mean()


def test_pictures_are_upright():
    cameras = [camera for camera in CAMERAS if camera.startswith("corner")]
    world = MetaWorld("reach-v3", cameras=cameras, image_size=96)
    below = world.reset([0], [world.start("reach-v3", 0)], keys(0))
    above = move(world, (0, 0, 1), 15)
    assert len(cameras) == 4
    for camera in cameras:
        assert fingertip_row(above, camera) < fingertip_row(below, camera) - 1
    world.close()


def test_a_restored_picture_is_the_one_that_was_seen():
    world = world_of("door-open-v3", 2, cameras=("corner4",))
    world.reset([0], [world.start("door-open-v3", 3)], keys(0))
    seen = move(world, (0.3, 1, -0.2), 20).observation["image_corner4"][0]
    (snapshot,) = world.snapshot([0])
    move(world, (0, 0, 1), 20)
    np.testing.assert_array_equal(world.restore([1], [snapshot]).observation["image_corner4"][0], seen)
    world.close()


def test_no_renderer_is_made_when_nobody_asks_for_pictures(monkeypatch):
    monkeypatch.setattr("envs.rendering.Renderer.__init__", None)
    world = world_of("reach-v3", 1)
    world.reset([0], [world.start("reach-v3", 0)], keys(0))
    assert not move(world, (1, 0, 0), 3).failures


def test_the_horizon_is_the_engines_and_not_a_counter_of_the_package():
    world = world_of("reach-v3", 1)
    world.reset([0], [world.start("reach-v3", 0)], keys(0))
    late = move(world, (0, 0, 0), 503)
    assert not late.failures
    assert not late.truncated[0]


def test_a_simulation_that_becomes_unstable_is_a_failure_of_its_slot():
    world = world_of("reach-v3", 1)
    start = world.start("reach-v3", 0)
    sound = world.reset([0], [start], keys(0)).observation["state"]
    world._current[0][1]._env.data.qvel[:] = 1e12
    assert "unstable" in move(world, (0, 0, 0), 1).failures[0]
    np.testing.assert_array_equal(world.reset([0], [start], keys(0)).observation["state"], sound)


def test_signals_tell_where_things_are():
    world = world_of("pick-place-v3", 1)
    step = world.reset([0], [world.start("pick-place-v3", 4)], keys(0))
    state, signals = step.observation["state"][0], step.signals
    np.testing.assert_array_equal(signals["object_position"][0, 0], state[4:7])
    np.testing.assert_array_equal(signals["goal_position"][0], state[36:39])
    assert np.linalg.norm(signals["tcp_position"][0] - state[:3]) < 0.1
    step = move(world, (0, 0, 0), 1)
    assert step.signals["obj_to_target"][0] == pytest.approx(np.linalg.norm(state[4:7] - state[36:39]), abs=0.01)


def test_every_task_of_the_package_has_its_own_instruction():
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert list(instructions()) == list(ALL_V3_ENVIRONMENTS)
    assert len(set(instructions().values())) == 50
    assert MetaWorld().tasks == tuple(instructions())


def test_an_unknown_instruction_is_answered_with_the_nearest_one():
    with pytest.raises(InstructionError, match=r"nearest is 'Push the open door shut\.'"):
        MetaWorldExpert().act({"state": np.zeros((1, 39))}, ["push open doors shut"], {}, keys(0))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"task": "pick-plac-v3"}, "did you mean pick-place-v3"),
        ({"task": ["reach-v3", "reach-v3"]}, "different"),
        ({"task": []}, "one or more"),
        ({"cameras": ["corner9"]}, "did you mean corner"),
        ({"render_profile": "quick"}, "available: fast, faithful"),
    ],
)
def test_a_wrong_setting_is_answered_with_what_exists(settings, text):
    with pytest.raises(ConfigError, match=text):
        MetaWorld(**settings)


@pytest.mark.parametrize("start", [Start("reach-v3"), Start("reach-v3", seed=-1), Start("reach-v3", seed=2**32)])
def test_a_start_without_a_seed_of_the_package_is_refused(start):
    with pytest.raises(ConfigError, match=r"seed in 0\.\.2\*\*32 - 1"):
        world_of("reach-v3", 1).reset([0], [start], keys(0))


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(MissingPackageError, match=r"pip install simeval\[metaworld\]"):
        MetaWorld("reach-v3")
