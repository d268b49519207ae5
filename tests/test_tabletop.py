"""The tabletop World: exact, batched, and a goal that only the sentence tells."""

from collections.abc import Sequence
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from long_forks import differences, expert_choice

from envs.tabletop import TASKS, Tabletop
from envs.tabletop.conditions import ZONE_RADIUS
from envs.tabletop.scene import field_slices, layout
from policies.tabletop import TabletopExpert
from simeval.errors import ActionError, ConfigError, UnsupportedError
from simeval.noise import Key, StepKey
from simeval.testing import WORLD_CHECKS, assert_conforms, check_world
from simeval.types import Perturbation, Start, TimeStep

UNPERTURBED = [sentence for sentence in WORLD_CHECKS if "erturbation" not in sentence]
STREAM = Key(0).stream("world")
FIELDS = field_slices(layout()["state"])


def make(num_slots: int, **settings) -> Tabletop:
    return Tabletop(num_slots=num_slots, **settings)


def keys(count: int, step: int = 0) -> list[StepKey]:
    return [STREAM.key(step)] * count


def reset(world: Tabletop, starts: Sequence[Start]) -> TimeStep:
    return world.reset(range(len(starts)), starts, keys(len(starts)))


def named(state: np.ndarray, name: str) -> np.ndarray:
    place, shape = FIELDS[name]
    return state[..., place].reshape(*state.shape[:-1], *shape)


def random_actions(steps: int, count: int, seed: int = 0) -> np.ndarray:
    return Key(seed).stream("test").event("actions").uniform(-1, 1, (steps, count, 5)).astype(np.float32)


def row_bytes(step: TimeStep, row: int) -> bytes:
    arrays = [*step.observation.values(), step.reward, step.success, *step.signals.values()]
    return b"".join(np.ascontiguousarray(array[row]).tobytes() for array in arrays)


def grasping(world: Tabletop) -> TimeStep:
    """Slot 0 of ``world``, stepped by the expert until it holds a block over the table."""
    start, expert = world.start("stack", 1), TabletopExpert()
    step, memory = reset(world, [start]), expert.initial_memory(1)
    for t in range(60):
        if step.signals["stage"][0] == 1:
            return step
        acted = expert.act(step.observation, [start.instruction], memory, keys(1, t))
        memory = acted.memory
        step = world.step([0], acted.action, keys(1, t + 1))
    raise AssertionError("the expert never held the block")


def test_it_conforms():
    assert_conforms(check_world(make, tasks=("stow",), steps=25, only=UNPERTURBED))


@pytest.mark.slow
def test_it_conforms_with_cameras():
    assert_conforms(
        check_world(
            partial(make, cameras=("front", "wrist"), image_size=32), tasks=("sort",), steps=10, only=UNPERTURBED
        )
    )


@pytest.mark.slow
def test_every_task_conforms():
    assert_conforms(check_world(make, tasks=tuple(TASKS), steps=50, only=UNPERTURBED))


def test_a_fork_in_the_middle_of_a_grasp_continues_bit_for_bit_for_200_random_steps():
    world = make(3, threads=2)
    grasping(world)
    world.fork(0, [2])
    (snapshot,) = world.snapshot([0])
    elsewhere = make(1, threads=1)
    elsewhere.restore([0], [type(snapshot).from_bytes(snapshot.to_bytes())])
    touched = 0
    for t, action in enumerate(random_actions(200, 1)):
        pair = world.step([0, 2], np.repeat(action, 2, axis=0), keys(2, t + 1))
        alone = elsewhere.step([0], action, keys(1, t + 1))
        touched += bool((pair.signals["touch"][0] > 0).any())
        assert row_bytes(pair, 0) == row_bytes(pair, 1) == row_bytes(alone, 0), f"step {t}"
    assert touched > 3


@pytest.mark.parametrize(("num_slots", "threads"), [(1, 1), (3, 2), (16, 1), (16, 2)])
def test_an_episode_has_the_same_bits_with_any_number_of_slots_and_threads(num_slots, threads):
    starts = [make(1).start(task, 5) for task in ("push", "sort", "put_in_drawer")]
    actions = random_actions(40, 3)
    world, reference = make(num_slots, threads=threads), make(1, threads=1)
    for first in range(0, 3, num_slots):
        group = list(range(first, min(first + num_slots, 3)))
        slots = [num_slots - 1 - index for index in range(len(group))]
        ours = [world.reset(slots, [starts[i] for i in group], keys(len(group)))]
        ours += [world.step(slots, actions[t, group], keys(len(group), t + 1)) for t in range(40)]
        for row, index in enumerate(group):
            alone = [reset(reference, [starts[index]])]
            alone += [reference.step([0], actions[t, [index]], keys(1, t + 1)) for t in range(40)]
            assert [row_bytes(step, row) for step in ours] == [row_bytes(step, 0) for step in alone]


def test_reset_forgets_whatever_ran_before():
    used, fresh = make(2), make(2)
    start = used.start("pick_place_shape", 9)
    reset(used, [used.start("stow", 1), used.start("push", 2)])
    for t, actions in enumerate(random_actions(30, 2)):
        used.step([0, 1], actions, keys(2, t + 1))
    assert row_bytes(used.reset([1], [start], keys(1)), 0) == row_bytes(reset(fresh, [start]), 0)


@pytest.mark.parametrize("disturb", [np.nan, np.inf, 1e9])
def test_a_slot_that_goes_bad_fails_alone_and_can_be_reset(disturb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    starts = [make(1).start("tower", seed) for seed in range(3)]
    world, undisturbed = make(3), make(3)
    reset(world, starts), reset(undisturbed, starts)
    world._slots["physics"][1, world._qvel.start + 5] = disturb
    actions = random_actions(2, 3)
    step, expected = (w.step([0, 1, 2], actions[0], keys(3, 1)) for w in (world, undisturbed))
    assert set(step.failures) == {1}
    assert [row_bytes(step, row) for row in (0, 2)] == [row_bytes(expected, row) for row in (0, 2)]
    with pytest.raises(RuntimeError, match="slot 1 has no episode"):
        world.step([1], actions[1, :1], keys(1, 2))
    again = world.reset([1], [starts[1]], keys(1))
    assert not again.failures
    assert row_bytes(again, 0) == row_bytes(reset(undisturbed, starts), 1)
    assert not list(tmp_path.iterdir()), "MuJoCo left a log file behind"


def test_bad_actions_name_slot_and_step_and_move_nothing():
    world = make(4)
    reset(world, [world.start("reach", 0)] * 4)
    before = world.snapshot([3])[0].to_bytes()
    actions = np.zeros((2, 5), np.float32)
    actions[1, 4] = 1.5
    with pytest.raises(ActionError, match=r"slot 3, step 6: action\[4\] is 1.5"):
        world.step([0, 3], actions, keys(2, 7))
    assert world.snapshot([3])[0].to_bytes() == before


def test_what_does_not_exist_is_refused_by_name():
    with pytest.raises(ConfigError, match="did you mean stack"):
        make(1, task="stacks")
    with pytest.raises(ConfigError, match="camera"):
        make(1, cameras=("back",))
    with pytest.raises(ConfigError, match="render_profile"):
        make(1, render_profile="slow")
    for wrong in ({"num_slots": 0}, {"threads": 0}, {"task": []}, {"image_size": 0}, {"success_hold": 0}):
        with pytest.raises(ConfigError):
            Tabletop(**wrong)
    world = make(1, task=["reach", "push"])
    assert world.tasks == ("reach", "push")
    with pytest.raises(ConfigError, match="available: reach, push"):
        world.start("stack", 0)
    with pytest.raises(ConfigError, match="seed"):
        reset(world, [Start("reach", "move the gripper to the red zone", index=3)])
    with pytest.raises(UnsupportedError, match=r"dynamics\.gravity"):
        reset(world, [Start("reach", seed=1, perturbations=(Perturbation("dynamics.gravity"),))])


@pytest.mark.parametrize("task", TASKS)
def test_layouts_are_apart_at_rest_within_reach_and_unsolved(task):
    world = make(40)
    step = reset(world, world.starts(task, 40, seed=3))
    assert not step.failures
    assert not step.success.any()
    assert (step.reward < 0.7).all()
    assert (step.signals["stage"] == 0).all()
    assert not step.signals["contact"].any()
    state = step.observation["state"]
    radius = world._scene.radius
    for row in range(40):
        objects = np.flatnonzero(named(state[row], "object_present"))
        zones = np.flatnonzero(named(state[row], "zone_present"))
        places, clear = named(state[row], "object_position")[:, :2], named(state[row], "zone_position")[:, :2]
        assert (np.abs(places[objects]) < (0.22, 0.28)).all()
        assert (np.abs(named(state[row], "object_velocity")[objects]) < 0.01).all()
        for a, b in combinations(objects, 2):
            assert np.hypot(*(places[a] - places[b])) > radius[a] + radius[b] + 0.02
        for a, b in combinations(zones, 2):
            assert np.hypot(*(clear[a] - clear[b])) > 2 * ZONE_RADIUS
        assert all(np.hypot(*(places[a] - clear[b])) > ZONE_RADIUS + 0.02 for a in objects for b in zones)


def test_the_sentence_varies_in_its_words_and_in_what_it_names():
    world = make(1)
    for task in TASKS:
        sentences = {start.instruction for start in world.starts(task, 60, seed=0)}
        assert len(sentences) > (5 if "drawer" in task else 14), task


def test_the_goal_comes_from_the_seed_not_from_the_sentence():
    world = make(1)
    start = world.start("pick_place_colour", 4)
    told_otherwise = Start(start.task, "put the red block on the green zone", seed=start.seed)
    assert row_bytes(reset(world, [start]), 0) == row_bytes(reset(world, [told_otherwise]), 0)


def test_state_has_one_layout_for_all_tasks_and_agrees_with_the_signals():
    world = make(len(TASKS))
    step = reset(world, [world.start(task, 7) for task in TASKS])
    state, present = step.observation["state"], step.signals["object_present"]
    assert state.shape == (len(TASKS), sum(int(np.prod(shape)) for _, shape in layout()["state"]))
    assert state.dtype == np.float32
    poses = np.concatenate([named(state, "object_position"), named(state, "object_quaternion")], axis=2)
    np.testing.assert_array_equal(poses[present], step.signals["object_pose"][present].astype(np.float32))
    assert (poses[~present] == 0).all()
    np.testing.assert_array_equal(named(state, "object_colour").sum(axis=2), present)
    expected = np.concatenate([named(state, name) for name in layout()["proprio"]], axis=1)
    np.testing.assert_array_equal(step.observation["proprio"], expected)


def test_the_gripper_moves_as_far_as_its_action_says_and_stops_at_its_leash():
    world = make(1)
    step = reset(world, [world.start("press_button", 0)])
    begin = named(step.observation["state"][0], "tip_position")
    action = np.array([[0.5, -0.5, 0, 0, -1]], np.float32)
    for t in range(6):
        step = world.step([0], action, keys(1, t + 1))
    for t in range(6, 10):
        step = world.step([0], np.array([[0, 0, 0, 0, -1]], np.float32), keys(1, t + 1))
    moved = named(step.observation["state"][0], "tip_position") - begin
    np.testing.assert_allclose(moved, [0.06, -0.06, 0.0], atol=1e-3)
    for t in range(10, 60):
        step = world.step([0], np.array([[0, 0, -1, 0, 1]], np.float32), keys(1, t + 1))
    state = step.observation["state"][0]
    assert named(state, "opening")[0] < 0.002
    assert 0 < named(state, "tip_position")[2] < 0.02


def test_pressing_buttons_out_of_turn_starts_the_sequence_over():
    world = make(1)
    start = world.start("press_sequence", 2)
    order = world.start("press_sequence", 2).instruction
    state = reset(world, [start]).observation["state"][0]
    colours = [list(layout()["colours"])[i] for i in named(state, "button_colour").argmax(axis=1)]
    turn = sorted(range(3), key=lambda button: order.index(f"the {colours[button]} button"))
    stages = []
    for button in (turn[0], turn[2], turn[0], turn[1], turn[0], turn[1], turn[2]):
        step = _press(world, named(state, "button_position")[button])
        stages.append(int(step.signals["stage"][0]))
    assert stages == [1, 0, 1, 2, 1, 2, 3]
    assert step.success[0]


def _press(world: Tabletop, place: np.ndarray) -> TimeStep:
    zero = np.zeros((1, 5), np.float32)
    step = world.step([0], zero, keys(1, 1))
    for height in (0.05, 0.0, 0.05):
        for _ in range(25):
            change = (place + np.array([0, 0, height]) - named(step.observation["state"][0], "tip_target")) / 0.02
            step = world.step([0], np.append(np.clip(change, -1, 1), (0, 1))[None].astype(np.float32), keys(1, 1))
    return step


def test_each_picture_shows_its_own_episode():
    world = make(3, cameras=("front", "wrist"), image_size=48)
    starts = [world.start("sort", 1), world.start("sort", 2), world.start("sort", 1)]
    step = reset(world, starts)
    for image in (step.observation["image_front"], step.observation["image_wrist"], world.render([0, 1, 2])):
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image[0], image[2])
        assert (image[0] != image[1]).any()
        assert image.std() > 10
    again = world.fork(1, [0])
    assert row_bytes(again, 0) == row_bytes(step, 1)
    world.close()


@pytest.mark.slow
def test_forks_follow_experts_and_random_actions_for_500_steps():
    factories = {task: partial(Tabletop, task) for task in TASKS}
    assert differences(factories, expert_choice(TabletopExpert()), here=20) == {}
    assert differences({task: factories[task] for task in list(TASKS)[::4]}, here=20) == {}
