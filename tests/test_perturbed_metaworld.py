"""Perturbations of Meta-World: exact, graded, over with their episode; unfair starts are objected to."""

from functools import partial

import numpy as np
import pytest
from perturbed_worlds import (
    LOOKS,
    actions_of,
    check_all_at_once,
    check_identity,
    drawn,
    mean_distance,
    perturbed,
    rows_of,
)

from envs.metaworld import MetaWorld, instructions
from policies.metaworld import MetaWorldExpert
from simeval.noise import Key
from simeval.testing import WORLD_CHECKS, assert_conforms, check_world
from simeval.testing.checks import drive, require_equal
from simeval.types import Perturbation, Start

TASK = "pick-place-v3"
HAND, OBJECT = slice(0, 3), slice(4, 7)
KEY = Key(0).stream("world").key(0)


@pytest.fixture(scope="module")
def world():
    made = MetaWorld(TASK, num_slots=2, cameras=("corner4",), image_size=48)
    yield made
    made.close()


def state_of(world: MetaWorld, start: Start) -> np.ndarray:
    return world.reset([0], [start], [KEY]).observation["state"][0]


@pytest.mark.parametrize("axis", sorted(MetaWorld("reach-v3").perturbation_axes))
def test_an_identity_changes_no_bit(world, axis):
    check_identity(world, world.start(TASK, 1), axis, 3)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["push-v3", "drawer-open-v3"])
def test_perturbations_conform(task):
    sentences = [sentence for sentence in WORLD_CHECKS if "erturbation" in sentence]
    assert_conforms(check_world(partial(MetaWorld, task), steps=15, only=sentences))


def test_perturbations_end_with_their_episode_and_go_with_its_snapshots(world):
    check_all_at_once(world, world.start(TASK, 2), 8, sorted(world.perturbation_axes))


@pytest.mark.parametrize("axis", LOOKS)
def test_looks_change_pictures_and_nothing_else(world, axis):
    start = world.start(TASK, 1)
    plain, changed = rows_of(world, start, 3), rows_of(world, perturbed(start, drawn(axis, 8.0)), 3)
    for before, after in zip(plain, changed, strict=True):
        assert (before.pop("observation/image_corner4") != after.pop("observation/image_corner4")).any()
    require_equal(plain, changed, axis)


@pytest.mark.slow
@pytest.mark.parametrize("axis", LOOKS)
def test_pictures_change_more_at_a_higher_level(world, axis):
    start = world.start(TASK, 1)
    little, much = (mean_distance(world, start, axis, level, "image_corner4", 1, 4) for level in (2.0, 8.0))
    assert much > 1.5 * little > 0


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["initial_state.robot", "initial_state.layout", "dynamics"])
def test_states_change_more_at_a_higher_level(world, axis):
    start, steps = world.start(TASK, 1), 15 if axis == "dynamics" else 1
    little, much = (mean_distance(world, start, axis, level, "state", steps, 4) for level in (2.0, 8.0))
    assert much > 1.5 * little > 0


@pytest.mark.slow
def test_what_is_fixed_is_moved_farther_at_a_higher_level():
    doors = MetaWorld("door-open-v3")
    start = doors.start("door-open-v3", 1)
    little, much = (mean_distance(doors, start, "initial_state.layout", n, "state", 1, 4) for n in (2.0, 8.0))
    assert much > 1.5 * little > 0


def test_the_hand_begins_within_a_millimetre_of_where_it_is_told_to_and_stays(world):
    start = world.start(TASK, 3)
    for number in range(6):
        change = drawn("initial_state.robot", 4.0, number)
        moved = perturbed(start, change)
        if world.objection(moved) is not None:
            continue
        offset = state_of(world, moved)[HAND] - state_of(world, start)[HAND]
        np.testing.assert_allclose(offset, [change.params[axis] for axis in "xyz"], atol=1e-3)
        still = np.zeros((1, 4), np.float32)
        state_of(world, moved)
        after = [world.step([0], still, [Key(0).stream("world").key(step + 1)]) for step in range(5)][-1]
        np.testing.assert_allclose(after.observation["state"][0, HAND], state_of(world, moved)[HAND], atol=5e-3)


def test_it_objects_to_what_is_out_of_reach_or_stuck(world):
    start = world.start(TASK, 4)
    assert world.objection(start) is None
    far = perturbed(start, Perturbation("initial_state.robot", 8.0, {"y": 0.6}))
    assert "the hand" in world.objection(far)
    state = state_of(world, start)
    way = state[OBJECT] + [0.0, 0.05, 0.045] - state[HAND]
    onto = perturbed(start, Perturbation("initial_state.robot", 8.0, dict(zip("xyz", way.tolist(), strict=True))))
    assert "mm deep in" in world.objection(onto)
    gone = perturbed(start, Perturbation("initial_state.layout", 8.0, {"shift": 0.9, "seed": 1}))
    assert "outside the workspace" in world.objection(gone)


def test_it_objects_to_what_is_solved(world):
    reach = MetaWorld("reach-v3")
    start = reach.start("reach-v3", 0)
    state = state_of(reach, start)
    way = 0.95 * (state[36:39] - state[HAND])
    solved = perturbed(start, Perturbation("initial_state.robot", 8.0, dict(zip("xyz", way.tolist(), strict=True))))
    assert reach.objection(start) is None
    assert reach.objection(solved) == "the task is solved at the start"


FIXED = (
    *("button-press-topdown-v3", "button-press-topdown-wall-v3", "button-press-v3", "button-press-wall-v3"),
    *("dial-turn-v3", "door-close-v3", "door-lock-v3", "door-open-v3", "door-unlock-v3", "drawer-close-v3"),
    *("drawer-open-v3", "faucet-close-v3", "faucet-open-v3", "handle-press-side-v3", "handle-press-v3"),
    *("handle-pull-side-v3", "handle-pull-v3", "lever-pull-v3", "window-close-v3", "window-open-v3"),
    *("coffee-button-v3", "peg-unplug-side-v3"),
)
SLIDING = ("plate-slide-v3", "plate-slide-side-v3", "plate-slide-back-v3", "plate-slide-back-side-v3")
GOAL = slice(36, 39)


def moved_starts(world: MetaWorld, task: str, count: int, level: float = 8.0) -> list[tuple[Start, Perturbation]]:
    """So many starts with another layout to which there is no objection, and what makes each another."""
    found = []
    for number in range(20 * count):
        change = drawn("initial_state.layout", level, number)
        moved = perturbed(world.start(task, number % count), change)
        if len(found) < count and world.objection(moved) is None:
            found.append((moved, change))
    assert len(found) == count
    return found


QUICK = ("door-open-v3", "drawer-close-v3", "window-close-v3", "dial-turn-v3")


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=() if task in QUICK else pytest.mark.slow) for task in FIXED]
)
def test_what_is_fixed_to_the_table_moves_with_its_goal_and_the_hand_stays(task):
    fixed = MetaWorld(task, num_slots=2)
    for start, change in moved_starts(fixed, task, 3):
        before, after = state_of(fixed, perturbed(start)), state_of(fixed, start)
        shift = after[GOAL] - before[GOAL]
        assert np.linalg.norm(shift[:2]) == pytest.approx(change.params["shift"], rel=1e-6)
        assert shift[2] == pytest.approx(0.0, abs=1e-9)
        np.testing.assert_allclose(after[OBJECT] - before[OBJECT], shift, atol=1e-3)
        np.testing.assert_allclose(after[HAND], before[HAND], atol=1e-3)
        expected = rows_of(fixed, start, 4)
        state_of(fixed, start)
        (snapshot,) = fixed.snapshot([0])
        state_of(fixed, perturbed(start))
        fixed.restore([0], [snapshot])
        tail = fixed.step([0], actions_of(fixed, 1), [KEY])
        assert tail.observation["state"][0].tobytes() == expected[1]["observation/state"].tobytes()
    check_identity(fixed, fixed.start(task, 1), "initial_state.layout", 3)


@pytest.mark.parametrize("task", SLIDING)
def test_a_puck_on_slides_is_moved_along_them_and_its_goal_stays(task):
    sliding = MetaWorld(task)
    for start, change in moved_starts(sliding, task, 3):
        before, after = state_of(sliding, perturbed(start)), state_of(sliding, start)
        assert np.linalg.norm((after - before)[OBJECT]) == pytest.approx(change.params["shift"], rel=1e-6)
        np.testing.assert_array_equal(after[GOAL], before[GOAL])
    if task != "plate-slide-back-v3":  # there the puck begins amid its slides
        said = [sliding.objection(perturbed(start, drawn("initial_state.layout", 8.0, n))) for n in range(10)]
        assert any("puck begins" in why and "beyond the end of its slide" in why for why in said if why)


@pytest.mark.slow
def test_experts_solve_what_is_not_objected_to():
    """A moved door, drawer, button or puck can be reached, and success is judged where it now is."""
    solved, count = 0, 0
    for task in FIXED + SLIDING:
        moved = MetaWorld(task)
        expert = MetaWorldExpert().bind(moved.spec)
        for start, _ in moved_starts(moved, task, 2):
            solved += any(row["success"] for row in drive(moved, expert, start, moved.horizon(task), 1).rows)
            count += 1
    assert solved >= 0.85 * count


def test_it_objects_to_what_is_out_of_the_hand_s_reach_or_in_the_wall():
    drawers = MetaWorld("drawer-open-v3")
    start = drawers.start("drawer-open-v3", 0)
    said = {}
    for seed in range(40):
        for shift in (0.05, 0.6):
            moved = perturbed(start, Perturbation("initial_state.layout", 8.0, {"shift": shift, "seed": seed}))
            said.setdefault(shift, set()).add(drawers.objection(moved))
    assert any(why and "mm deep in" in why for why in said[0.05])
    assert None in said[0.05]
    assert all(why is not None for why in said[0.6])
    assert any("out of the hand's reach" in why for why in said[0.6])


@pytest.mark.parametrize("task", sorted(instructions()))
@pytest.mark.slow
def test_every_task_has_a_layout_to_change(task):
    any_world = MetaWorld(task)
    ((start, _),) = moved_starts(any_world, task, 1)
    assert (state_of(any_world, start)[OBJECT] != state_of(any_world, perturbed(start))[OBJECT]).any()
