"""Perturbations of Meta-World: exact, graded, over with their episode; unfair starts are objected to."""

from functools import partial

import numpy as np
import pytest
from perturbed_worlds import LOOKS, check_all_at_once, check_identity, drawn, mean_distance, perturbed, rows_of

from envs.metaworld import MetaWorld
from simeval.errors import UnsupportedError
from simeval.noise import Key
from simeval.testing import WORLD_CHECKS, assert_conforms, check_world
from simeval.testing.checks import require_equal
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
def test_perturbations_conform():
    sentences = [sentence for sentence in WORLD_CHECKS if "erturbation" in sentence]
    assert_conforms(check_world(partial(MetaWorld, "push-v3"), steps=15, only=sentences))


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


def test_a_task_without_things_that_stand_free_has_no_layout_to_change():
    drawers = MetaWorld("drawer-open-v3")
    start = perturbed(drawers.start("drawer-open-v3", 0), drawn("initial_state.layout", 2.0))
    with pytest.raises(UnsupportedError, match="task 'drawer-open-v3' has none"):
        drawers.objection(start)
