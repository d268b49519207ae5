"""Perturbations of robosuite: exact, over with their episode; unfair starts are objected to."""

import numpy as np
import pytest
from perturbed_worlds import LOOKS, check_all_at_once, check_identity, drawn, mean_distance, perturbed, rows_of

from envs.robosuite import Robosuite
from simeval.errors import UnsupportedError
from simeval.noise import Key
from simeval.testing.checks import require_equal
from simeval.types import Perturbation, Start

pytestmark = pytest.mark.slow

KEY = Key(0).stream("world").key(0)


@pytest.fixture(scope="module")
def world():
    made = Robosuite("Lift", num_slots=2, cameras=("agentview",), image_size=48)
    yield made
    made.close()


def hand_of(world: Robosuite, start: Start) -> np.ndarray:
    return world.reset([0], [start], [KEY]).signals["eef_robot0_right"][0]


def test_identities_change_no_bit(world):
    for axis in sorted(world.perturbation_axes):
        check_identity(world, world.start("Lift", 1), axis, 3)


def test_perturbations_end_with_their_episode_and_go_with_its_snapshots(world):
    check_all_at_once(world, world.start("Lift", 2), 6, sorted(world.perturbation_axes))


@pytest.mark.parametrize("axis", LOOKS)
def test_looks_change_pictures_more_at_a_higher_level_and_nothing_else(world, axis):
    start = world.start("Lift", 1)
    little, much = (mean_distance(world, start, axis, level, "image_agentview", 0, 3) for level in (2.0, 8.0))
    assert much > little > 0
    plain, changed = rows_of(world, start, 3), rows_of(world, perturbed(start, drawn(axis, 8.0)), 3)
    for row in (*plain, *changed):
        del row["observation/image_agentview"]
    require_equal(plain, changed, axis)


def test_the_hand_begins_within_a_millimetre_of_where_it_is_told_to_and_stays(world):
    start = world.start("Lift", 3)
    for number in range(4):
        change = drawn("initial_state.robot", 4.0, number)
        moved = perturbed(start, change)
        assert world.objection(moved) is None
        begun = hand_of(world, moved)
        np.testing.assert_allclose((begun - hand_of(world, start))[:3], [change.params[a] for a in "xyz"], atol=1e-3)
        hand_of(world, moved)
        still = np.zeros((1, 7), np.float32)
        after = [world.step([0], still, [Key(0).stream("world").key(step + 1)]) for step in range(5)][-1]
        np.testing.assert_allclose(after.signals["eef_robot0_right"][0, :3], begun[:3], atol=5e-3)


@pytest.mark.parametrize("axis", ["initial_state.robot", "initial_state.layout", "dynamics"])
def test_states_change_more_at_a_higher_level(world, axis):
    """Measured in metres and radians of hand and cube, after random actions where only movement tells."""
    start, steps = world.start("Lift", 1), 30 if axis == "dynamics" else 0
    little, much = (mean_distance(world, start, axis, level, "state", steps, 4) for level in (2.0, 8.0))
    assert much > 1.5 * little > 0


def test_a_door_is_placed_elsewhere_and_turned_with_all_that_hangs_on_it():
    doors = Robosuite("Door", num_slots=2)
    start = doors.start("Door", 1)
    changed = perturbed(start, drawn("initial_state.layout", 4.0))
    before, after = (doors.reset([0], [each], [KEY]) for each in (start, changed))
    offset = after.signals["object_Door"][0] - before.signals["object_Door"][0]
    assert np.linalg.norm(offset[:2]) == pytest.approx(changed.perturbations[0].params["shift"])
    assert (offset[3:] != 0).any()
    assert (before.observation["state"] != after.observation["state"]).any()
    check_identity(doors, start, "initial_state.layout", 3)
    check_all_at_once(doors, start, 6, ["initial_state.layout"])
    far = perturbed(start, Perturbation("initial_state.layout", 8.0, {"shift": 0.9, "seed": 1}))
    assert "outside the workspace" in doors.objection(far)


@pytest.mark.parametrize("task", ["Wipe", "TwoArmPegInHole"])
def test_a_task_without_things_has_no_layout_to_change(task):
    bare = Robosuite(task)
    moved = perturbed(bare.start(task, 0), drawn("initial_state.layout", 2.0))
    with pytest.raises(UnsupportedError, match=f"task '{task}' has none that can be moved"):
        bare.objection(moved)
    assert "none that can be moved" in bare.reset([0], [moved], [KEY]).failures[0]
    bare.close()


def test_it_objects_to_what_is_out_of_reach_or_stuck(world):
    start = world.start("Lift", 4)
    assert world.objection(start) is None
    assert "cannot begin at" in world.objection(perturbed(start, Perturbation("initial_state.robot", 8.0, {"x": 1.0})))
    step = world.reset([0], [start], [KEY])
    way = step.signals["object_cube"][0, :3] + [0.0, 0.045, 0.0] - step.signals["eef_robot0_right"][0, :3]
    onto = perturbed(start, Perturbation("initial_state.robot", 8.0, dict(zip("xyz", way.tolist(), strict=True))))
    assert "mm deep in" in world.objection(onto)
