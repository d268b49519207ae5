"""The tabletop expert solves every task, and only because it is told which."""

import numpy as np
import pytest

from envs.tabletop import TASKS, Tabletop
from envs.tabletop.scene import layout
from policies.tabletop import TabletopExpert
from policies.tabletop.language import parse
from policies.tabletop.scene import Scene
from simeval import Episode, Rollout, run, together
from simeval.errors import InstructionError
from simeval.noise import Key
from simeval.testing import assert_conforms, check_policy
from simeval.types import Start

STARTS = 5


@pytest.fixture(scope="module")
def world():
    world = Tabletop(num_slots=64)
    yield world
    world.close()


def episodes(world: Tabletop, starts: list[Start]) -> list[Episode]:
    rollouts = [Rollout(start, seed=index, horizon=world.horizon(start.task)) for index, start in enumerate(starts)]
    return run(together(rollouts), world, TabletopExpert())


@pytest.fixture(scope="module")
def solved(world):
    """Episodes of the expert by task."""
    every = episodes(world, [start for task in TASKS for start in world.starts(task, STARTS, seed=11)])
    return {task: [episode for episode in every if episode.rollout.start.task == task] for task in TASKS}


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_solves(task, world, solved):
    assert sum(episode.succeeded for episode in solved[task]) >= STARTS - 1
    assert np.median([episode.length for episode in solved[task]]) <= world.horizon(task) * 0.6


@pytest.mark.parametrize("task", TASKS)
def test_stages_only_grow_and_end_complete_and_reward_ends_at_one(task, solved):
    for episode in solved[task]:
        stage, total = episode.signals["stage"], episode.signals["num_stages"]
        assert (np.diff(stage) >= 0).all()
        assert ((episode.reward >= 0) & (episode.reward <= 1)).all()
        if episode.succeeded:
            assert stage[-1] == total[-1]
            assert episode.reward[-1] == 1.0


def test_three_tasks_at_least_have_three_stages(solved):
    long = [task for task in TASKS if solved[task][0].signals["num_stages"][0] >= 3]
    assert len(long) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_expert_solves_at_least_95_percent_of_200_starts(task, world):
    assert sum(episode.succeeded for episode in episodes(world, world.starts(task, 200, seed=0))) >= 190


def test_the_expert_told_the_sentence_of_another_task_fails(world):
    tasks = list(TASKS)
    told = [
        Start(task, world.start(tasks[(index + 3) % len(tasks)], 5).instruction, seed=5)
        for index, task in enumerate(tasks)
    ]
    assert sum(episode.succeeded for episode in episodes(world, told)) == 0


@pytest.mark.parametrize("task", ["reach", "push", "pick_place_colour", "press_button", "open_drawer"])
def test_the_expert_told_of_another_thing_of_the_same_kind_fails(task, world):
    starts = [_told_of_another(world, start) for start in world.starts(task, 4, seed=2)]
    assert sum(episode.succeeded for episode in episodes(world, starts)) == 0


def _told_of_another(world: Tabletop, start: Start) -> Start:
    """The start with another thing of the scene named in place of the first that the sentence names."""
    step = world.reset([0], [start], [Key(0).stream("world").key(0)])
    scene, reference = Scene(step.observation["state"][0]), parse(start.instruction).references[0]
    if reference.side is not None:
        other = {"left": "right", "right": "left"}[reference.side]
        return Start(start.task, start.instruction.replace(reference.side, other), seed=start.seed)
    kind = reference.role.rstrip("0123456789")
    mine, rows = reference.find(scene), scene[f"{kind}_colour"]
    shapes = scene["object_shape"] if kind == "object" else np.ones((len(rows), 1))
    others = [i for i in range(len(rows)) if i != mine and rows[i].any() and (shapes[i] == shapes[mine]).all()]
    colour = list(layout()["colours"])[int(rows[others[0]].argmax())]
    words = start.instruction.replace(f"the {reference.colour} ", f"the {colour} ", 1)
    assert parse(words) != parse(start.instruction)
    return Start(start.task, words, seed=start.seed)


def test_every_sentence_is_read_as_the_goal_that_was_drawn(world):
    for task in TASKS:
        for start in world.starts(task, 20, seed=8):
            sentence = parse(start.instruction)
            assert {sentence.task, task} <= {task, "pick_place_colour", "pick_place_shape"}


def test_a_sentence_outside_the_grammar_is_refused(world):
    with pytest.raises(InstructionError, match="cannot read the instruction 'fold the towel'"):
        parse("fold the towel")


def test_a_sentence_about_nothing_in_the_scene_leaves_the_expert_waiting(world):
    (episode,) = episodes(world, [Start("reach", "put the red block on the green zone", seed=1)])
    assert not episode.succeeded
    assert not np.any(episode.action)


def test_the_expert_conforms():
    assert_conforms(check_policy(TabletopExpert, lambda num_slots: Tabletop(num_slots=num_slots)))
