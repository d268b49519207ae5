"""Perturbations of the tabletop: exact, graded, over with their episode; unfair starts are objected to."""

from dataclasses import replace

import numpy as np
import pytest
from perturbed_worlds import (
    AXES,
    LOOKS,
    actions_of,
    check_all_at_once,
    check_identity,
    drawn,
    mean_distance,
    perturbed,
    rows_of,
)

from envs.perturbed import changes_of
from envs.perturbed.placement import displacement
from envs.tabletop import Tabletop
from envs.tabletop.conditions import Kind
from envs.tabletop.scene import layout
from envs.tabletop.world import _beginning
from policies.tabletop import TabletopExpert
from simeval.errors import ConfigError
from simeval.noise import Key
from simeval.testing import WORLD_CHECKS, assert_conforms, check_world
from simeval.testing.checks import drive, require_equal
from simeval.types import Perturbation, Start

TIP = slice(0, 3)
KEY = Key(0).stream("world").key(0)


@pytest.fixture(scope="module")
def world():
    made = Tabletop(num_slots=3, cameras=("front", "wrist"), image_size=48, threads=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def blind():
    return Tabletop(num_slots=1)


def tip_of(world: Tabletop, start: Start) -> np.ndarray:
    return world.reset([0], [start], [KEY]).observation["state"][0, TIP]


@pytest.mark.parametrize("axis", sorted(Tabletop.perturbation_axes))
def test_an_identity_changes_no_bit(world, axis):
    check_identity(world, world.start("sort", 1), axis, 6)


def test_perturbations_end_with_their_episode_and_go_with_its_snapshots(world):
    check_all_at_once(world, world.start("pick_place_colour", 2), 10, sorted(world.perturbation_axes))


@pytest.mark.parametrize("axis", LOOKS)
def test_pictures_change_more_at_a_higher_level(world, axis):
    start = world.start("sort", 1)
    little, much = (mean_distance(world, start, axis, level, "image_front", 1) for level in (2.0, 8.0))
    assert much > 1.5 * little > 0


@pytest.mark.parametrize("axis", ["initial_state.robot", "initial_state.layout", "dynamics"])
def test_states_change_more_at_a_higher_level(blind, axis):
    start, steps = blind.start("sort", 1), 40 if axis == "dynamics" else 1
    little, much = (mean_distance(blind, start, axis, level, "state", steps) for level in (2.0, 8.0))
    assert much > 1.5 * little > 0


def test_more_distractors_are_in_view_at_a_higher_level(world):
    start = world.start("pick_place_colour", 1)

    def shown(*perturbations: Perturbation) -> int:
        step = world.reset([0], [perturbed(start, *perturbations)], [KEY])
        return int(step.signals["object_present"][0].sum())

    added = [np.mean([shown(drawn("appearance.distractors", n, k)) for k in range(5)]) - shown() for n in (2.0, 8.0)]
    assert added[1] > added[0] > 0


def test_the_gripper_begins_where_it_is_told_to(world):
    start = world.start("reach", 3)
    moved = perturbed(start, Perturbation("initial_state.robot", 2.0, {"x": 0.04, "y": -0.05, "z": 0.03}))
    assert world.objection(moved) is None
    np.testing.assert_allclose(tip_of(world, moved) - tip_of(world, start), [0.04, -0.05, 0.03], atol=1e-3)


def test_it_objects_to_what_is_out_of_reach_stuck_or_solved(world):
    start = world.start("stack", 4)
    assert world.objection(start) is None
    high = perturbed(start, Perturbation("initial_state.robot", 2.0, {"z": 0.4}))
    assert "cannot begin at" in world.objection(high)
    assert "mm deep in" in world.objection(_onto(world, start))
    assert "outside the workspace" in world.objection(
        perturbed(start, Perturbation("initial_state.layout", 2.0, {"shift": 0.5, "seed": 1}))
    )


def _onto(world: Tabletop, start: Start) -> Start:
    """The gripper begins with a finger in an object."""
    step = world.reset([0], [start], [KEY])
    state, present = step.observation["state"][0], np.flatnonzero(step.signals["object_present"][0])[0]
    aside = 0.048 * np.array([-np.sin(state[6]), np.cos(state[6]), 0.0])
    way = (step.signals["object_pose"][0, present, :3] + aside - state[TIP]).astype(float)
    return perturbed(start, Perturbation("initial_state.robot", 2.0, dict(zip("xyz", way.tolist(), strict=True))))


def test_it_objects_to_a_task_that_a_shift_has_solved(world):
    """The puck of a pushing task is moved into the zone: the shift and the seed that do it are searched for."""
    start = world.start("push", 5)
    reset = world.reset([0], [start], [KEY])
    assert reset.success[0] == 0
    for seed in range(4000):
        shift = Perturbation("initial_state.layout", 8.0, {"shift": _distance(start), "seed": seed})
        if _lands_in_its_zone(start, shift):
            assert world.objection(perturbed(start, shift)) == "the task is solved at the start"
            return
    raise AssertionError("no seed moves the puck towards its zone")


def _goal(start: Start) -> tuple[np.ndarray, np.ndarray, int]:
    draft, _ = _beginning(start, [])
    ((_, puck, zone),) = [condition for condition in draft.conditions if condition[0] == Kind.IN_ZONE]
    return draft.objects[puck][1], draft.zones[zone][1], puck


def _distance(start: Start) -> float:
    place, zone, _ = _goal(start)
    return float(np.hypot(*(zone - place)))


def _lands_in_its_zone(start: Start, shift: Perturbation) -> bool:
    place, zone, puck = _goal(start)
    ((_, change),) = changes_of("tabletop", Tabletop.perturbation_axes, [shift])
    return bool(np.hypot(*(place + displacement(change, puck)[0] - zone)) < 0.02)


def test_objecting_leaves_slots_alone(world):
    rows_of(world, world.start("stack", 4), 3)
    before = world.snapshot([0])[0].to_bytes()
    world.objection(perturbed(world.start("stow", 4), drawn("initial_state.layout", 8.0)))
    assert world.snapshot([0])[0].to_bytes() == before


def test_a_batch_of_perturbed_slots_is_as_each_alone(world):
    start = world.start("tower", 6)
    starts = [perturbed(start, drawn("dynamics", 8.0, number)) for number in range(2)] + [start]
    alone = [rows_of(world, each, 12)[-1] for each in starts]
    actions = actions_of(world, 12)
    result = world.reset([2, 0, 1], starts, [Key(each.seed).stream("world").key(0) for each in starts])
    for step in range(12):
        keys = [Key(each.seed).stream("world").key(step + 1) for each in starts]
        result = world.step([2, 0, 1], np.stack([actions[step]] * 3), keys)
    for row, expected in enumerate(alone):
        assert result.observation["state"][row].tobytes() == expected["observation/state"].tobytes()
    assert world.models[1] is world._scene.model
    assert world.models[0] is not world._scene.model


@pytest.mark.parametrize("task", ["pick_place_shape", "push", "open_drawer", "sort"])
def test_distractors_are_none_that_the_sentence_could_mean(world, task):
    start = world.start(task, 7)
    plain = world.reset([0], [start], [KEY])
    crowded = perturbed(start, Perturbation("appearance.distractors", 8.0, {"count": 3, "seed": 5}))
    shown = world.reset([0], [crowded], [KEY])
    before, after = plain.signals["object_present"][0], shown.signals["object_present"][0]
    added = np.flatnonzero(after & ~before)
    assert 1 <= len(added) <= 3
    poses = (step.signals["object_pose"][0][before] for step in (plain, shown))
    np.testing.assert_allclose(*poses, atol=1e-6)
    record = world._records([0])[0]
    colours = record["object_colour"]
    assert set(colours[added]).isdisjoint(colours[np.flatnonzero(before)])
    shapes = np.array(layout()["object_shapes"])
    named = [a for kind, a, _ in record["conditions"] if kind in (Kind.HELD, Kind.IN_ZONE, Kind.STACKED)]
    if task == "pick_place_shape":
        assert set(shapes[added]).isdisjoint(shapes[named])
    assert world.objection(crowded) is None


def test_unknown_components_are_refused_before_anything_moves(world):
    start = world.start("reach", 1)
    with pytest.raises(ConfigError, match="did you mean mass"):
        world.reset([0], [perturbed(start, Perturbation("dynamics", 2.0, {"masss": 1.0}))], [KEY])


@pytest.mark.slow
def test_the_expert_manages_among_distractors_and_with_another_start(blind):
    """Perturbed starts to which there is no objection can be solved: the expert reads the state, as it is perturbed."""
    solved = 0
    for number, task in enumerate(("pick_place_colour", "push", "stack", "press_button", "open_drawer") * 3):
        changes = [drawn(axis, 4.0, number) for axis in sorted(AXES) if axis != "dynamics"]
        start = perturbed(blind.start(task, number), *changes)
        if blind.objection(start) is not None:
            start = replace(start, perturbations=tuple(p for p in changes if not p.axis.startswith("initial_state")))
        episode = drive(blind, TabletopExpert(), start, blind.horizon(task), 1)
        solved += any(row["success"] for row in episode.rows)
    assert solved >= 13


@pytest.mark.slow
def test_perturbations_conform():
    sentences = [sentence for sentence in WORLD_CHECKS if "erturbation" in sentence]
    made = {"cameras": ("front",), "image_size": 32}
    checks = check_world(lambda slots: Tabletop(num_slots=slots, **made), tasks=("stow",), steps=25, only=sentences)
    assert_conforms(checks)


def test_two_changes_of_one_axis_are_both_made(world):
    start = world.start("sort", 1)
    once = perturbed(start, Perturbation("lighting", 2.0, {"exposure": -1.0}))
    halves = perturbed(start, *[Perturbation("lighting", 2.0, {"exposure": -0.5})] * 2)
    require_equal(rows_of(world, once, 1), rows_of(world, halves, 1), "two halves")
