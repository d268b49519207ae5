"""Every environment of the suites around MuJoCo, and PushT: forks continue bit for bit, resets are pure."""

import sys
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from dm_control import suite

from envs.dm_control import DmControl
from envs.dm_control import instructions as dm_control_instructions
from envs.gymnasium import GymnasiumWorld
from envs.gymnasium_registry import instruction
from envs.ogbench import ENVIRONMENTS, OGBench
from envs.ogbench import instructions as ogbench_instructions
from policies.ogbench import OGBenchExpert
from simeval.errors import ConfigError, MissingPackageError, SnapshotError
from simeval.noise import Key
from simeval.testing import assert_conforms, check_policy, check_world
from simeval.testing.checks import random_actions, require_equal, take_row
from simeval.types import Snapshot

LIGHT = ((0, 40, 150), 500)
"""At which steps an episode is forked, and for how many steps each fork is followed."""
HEAVY = ((20,), 40)


@dataclass(frozen=True)
class Family:
    """Environments that one World class serves, by id."""

    world: type
    ids: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    forks: tuple[tuple[int, ...], int] = LIGHT

    def build(self, id: str, num_slots: int = 2):
        return self.world(id, num_slots=num_slots, **dict(self.settings))


def variants(names: str, versions: str, suffixes: tuple[str, ...] = ("", "Dense")) -> tuple[str, ...]:
    return tuple(f"{name}{suffix}{versions}" for name in names.split() for suffix in suffixes)


ROBOTICS = (("module", "gymnasium_robotics"),)
BLOCK = "HandManipulateBlock HandManipulateBlockRotateZ HandManipulateBlockRotateParallel HandManipulateBlockRotateXYZ"
TOUCHED = f"{BLOCK} HandManipulateEgg HandManipulateEggRotate HandManipulatePen HandManipulatePenRotate"
HANDS = f"{TOUCHED} HandManipulateBlockFull HandManipulateEggFull HandManipulatePenFull"
MAZES = "UMaze Open Open_Diverse_G Open_Diverse_GR Medium Medium_Diverse_G Medium_Diverse_GR Large Large_Diverse_G"
MAZES = (*MAZES.split(), "Large_Diverse_GR")
LOCOMOTION = "Ant HalfCheetah Hopper Humanoid HumanoidStandup Swimmer Walker2d"
SIMPLE = "InvertedDoublePendulum InvertedPendulum Pusher Reacher"

FAMILIES = {
    "gymnasium": Family(GymnasiumWorld, variants(f"{LOCOMOTION} {SIMPLE}", "-v5", ("",))),
    "adroit": Family(
        GymnasiumWorld,
        variants("AdroitHandDoor AdroitHandHammer AdroitHandPen AdroitHandRelocate", "-v1", ("", "Sparse")),
        ROBOTICS,
    ),
    "point maze": Family(GymnasiumWorld, variants(" ".join(f"PointMaze_{m}" for m in MAZES), "-v3"), ROBOTICS),
    "ant maze": Family(
        GymnasiumWorld, variants(" ".join(f"AntMaze_{m}" for m in MAZES), "-v5"), ROBOTICS, ((20,), 200)
    ),
    "fetch": Family(
        GymnasiumWorld, variants("FetchReach FetchPush FetchSlide FetchPickAndPlace", "-v4"), ROBOTICS, HEAVY
    ),
    "hand reach": Family(GymnasiumWorld, variants("HandReach", "-v3"), ROBOTICS, HEAVY),
    "hand": Family(GymnasiumWorld, variants(HANDS, "-v1"), ROBOTICS, HEAVY),
    "touch": Family(
        GymnasiumWorld,
        variants(
            TOUCHED,
            "-v1",
            tuple(f"_{kind}TouchSensors{dense}" for kind in ("Boolean", "Continuous") for dense in ("", "Dense")),
        ),
        ROBOTICS,
        HEAVY,
    ),
    "dm_control": Family(DmControl, tuple(dm_control_instructions()), forks=((0, 30), 60)),
    "ogbench": Family(
        OGBench, ("cube-single", "cube-double", "cube-triple", "cube-quadruple", "cube-octuple", "scene"), forks=HEAVY
    ),
    "pusht": Family(GymnasiumWorld, ("PushT-v0",), (("module", "envs.pusht"),)),
}
QUICK = {
    "HalfCheetah-v5",
    "FetchPush-v4",
    "AdroitHandRelocate-v1",
    "PointMaze_UMaze-v3",
    "cheetah-run",
    "cartpole-swingup",
    "PushT-v0",
}
CASES = [
    pytest.param(name, id, id=id, marks=() if id in QUICK else (pytest.mark.slow,))
    for name, family in FAMILIES.items()
    for id in family.ids
]


def keys(step, seed=7):
    return [Key(seed).stream("world").key(step)]


def follow(world, slot, actions, first):
    """Rows of the time steps that ``actions`` give in ``slot`` from step ``first`` on, past any end of the episode."""
    return [take_row(world.step([slot], action[None], keys(first + t + 1)), 0) for t, action in enumerate(actions)]


def require_exact_forks(world, task, forks, steps):
    """Forks into a slot that was elsewhere continue bit for bit, through bytes; its next reset is the first one's."""
    actions = random_actions(world.action_space, max(forks) + steps, "suites", task)
    start = world.start(task, 11)
    rows, snapshots = [take_row(world.reset([0], [start], keys(0)), 0)], {}
    for t, action in enumerate(actions):
        if t in forks:
            snapshots[t] = world.snapshot([0])[0].to_bytes()
        rows += follow(world, 0, action[None], t)
    world.reset([1], [world.start(task, 12)], keys(0, seed=8))
    follow(world, 1, actions[::-1][:7], 0)
    for fork, data in snapshots.items():
        back = take_row(world.restore([1], [Snapshot.from_bytes(data)]), 0)
        require_equal([rows[fork]], [back], f"{task}, restored to step {fork}")
        tail = follow(world, 1, actions[fork : fork + steps], fork)
        require_equal(rows[fork + 1 : fork + 1 + steps], tail, f"{task}, forked at step {fork}")
    again = [take_row(world.reset([1], [start], keys(0)), 0), *follow(world, 1, actions[:10], 0)]
    require_equal(rows[:11], again, f"{task}, reset after other episodes")


@pytest.mark.parametrize(("family", "id"), CASES)
def test_forks_are_exact_and_resets_pure(family, id):
    forks, steps = FAMILIES[family].forks
    world = FAMILIES[family].build(id)
    try:
        require_exact_forks(world, world.tasks[-1], forks, steps)
    finally:
        world.close()


def test_a_goal_world_conforms():
    assert_conforms(check_world(partial(FAMILIES["point maze"].build, "PointMaze_UMazeDense-v3"), steps=60))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "id"),
    [
        ("adroit", "AdroitHandDoor-v1"),
        ("dm_control", "walker-walk"),
        ("fetch", "FetchPickAndPlace-v4"),
        ("touch", "HandManipulatePen_BooleanTouchSensors-v1"),
        ("pusht", "PushT-v0"),
    ],
)
def test_worlds_of_every_kind_conform(family, id):
    assert_conforms(check_world(partial(FAMILIES[family].build, id), steps=60))


@pytest.mark.slow
def test_ogbench_conforms_under_its_expert():
    world = partial(OGBench, "cube-single", "all")
    assert_conforms(check_world(world, tasks=["cube-single-task3"], steps=20, policy=OGBenchExpert))


@pytest.mark.slow
@pytest.mark.parametrize("env", ["cube-double", "scene"])
def test_the_ogbench_expert_reaches_every_goal(env):
    world = OGBench(env)
    expert = OGBenchExpert().bind(world.spec)
    for task in world.tasks:
        step = world.reset([0], [world.start(task, 5)], keys(0))
        assert not step.success[0]
        for t in range(world.horizon(task)):
            action = expert.act(step.observation, [""], {}, keys(t)).action
            step = world.step([0], action, keys(t + 1))
            if step.success[0]:
                break
        assert step.success[0], task
        assert step.terminated[0]
    world.close()


@pytest.mark.slow
def test_the_ogbench_expert_is_a_policy():
    assert_conforms(check_policy(OGBenchExpert, partial(OGBench, "cube-single", "all"), tasks=["cube-single-task1"]))


def test_every_task_of_the_suites_has_a_sentence_and_no_sentence_is_without_a_task():
    assert {f"{domain}-{task}" for domain, task in suite.ALL_TASKS} == set(dm_control_instructions())
    assert {f"{env}-task{n}" for env in ENVIRONMENTS for n in range(1, 6)} == set(ogbench_instructions())
    sentences = {
        instruction(f"gymnasium_robotics:{id}") for name in ("fetch", "touch", "adroit") for id in FAMILIES[name].ids
    }
    assert len(sentences) == 16
    assert not any("return" in sentence for sentence in sentences)


def test_a_dm_control_episode_equals_a_bare_one_of_the_same_seed():
    world = DmControl("finger-turn_hard")
    bare = suite.load("finger", "turn_hard", task_kwargs={"random": 21})
    step, expected = world.reset([0], [world.start("finger-turn_hard", 21)], keys(0)), bare.reset()
    for t, action in enumerate(random_actions(world.action_space, 60, "bare")):
        for key, value in expected.observation.items():
            np.testing.assert_array_equal(step.observation[key][0], value)
        step, expected = world.step([0], action[None], keys(t + 1)), bare.step(action)
        assert step.reward[0] == expected.reward
    assert world.success_hold == 0
    assert world.horizon("finger-turn_hard") == 1000


def test_the_terrain_of_an_episode_goes_with_its_snapshot():
    world = DmControl("quadruped-escape", num_slots=2)
    terrain = lambda slot: world._current[slot][1].model.hfield_data  # noqa: E731
    world.reset([0, 1], [world.start("quadruped-escape", seed) for seed in (1, 2)], keys(0) * 2)
    assert not np.array_equal(terrain(0), terrain(1))
    world.fork(0, [1])
    np.testing.assert_array_equal(terrain(0), terrain(1))


def test_drawing_a_fetch_world_shows_the_goal_and_leaves_the_physics_alone():
    settings = {"module": "gymnasium_robotics"}
    plain = GymnasiumWorld("FetchPush-v4", **settings)
    drawn = GymnasiumWorld("FetchPush-v4", cameras=("external_camera_0",), image_size=32, **settings)
    worlds = (plain, drawn)
    start = plain.start("FetchPush-v4", 3)
    steps = [world.reset([0], [start], keys(0)) for world in worlds]
    for t, action in enumerate(random_actions(plain.action_space, 20, "drawn")):
        np.testing.assert_array_equal(steps[0].observation["observation"], steps[1].observation["observation"])
        steps = [world.step([0], action[None], keys(t + 1)) for world in worlds]
    before = drawn.render([0])
    drawn._current[0][1].env.unwrapped.goal += 0.1
    assert (before != drawn.render([0])).any()
    for world in worlds:
        world.close()


def test_pusht_gives_the_same_reward_in_every_episode_and_says_that_it_replays():
    world = FAMILIES["pusht"].build("PushT-v0")
    assert world.restores_by_replay
    assert world.horizon("PushT-v0") == 300
    assert world.control_dt == 0.1
    assert not DmControl("cheetah-run").restores_by_replay


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: DmControl("cheetah-rum"), "did you mean cheetah-run"),
        (lambda: DmControl(["cheetah-run", "walker-run"]), "share their spaces"),
        (lambda: DmControl("cheetah-run", cameras=("sid",)), "did you mean side"),
        (lambda: OGBench("cube-singel"), "did you mean cube-single"),
        (lambda: OGBench("scene", task="scene-task6"), "did you mean scene-task"),
        (lambda: GymnasiumWorld("FetchPsh-v4", module="gymnasium_robotics"), "did you mean FetchPush-v4"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(build, text):
    with pytest.raises(ConfigError, match=text):
        build()


def test_snapshots_of_another_task_or_version_are_refused_by_name(monkeypatch):
    world = DmControl("cheetah-run")
    world.reset([0], [world.start("cheetah-run", 1)], keys(0))
    (snapshot,) = world.snapshot([0])
    with pytest.raises(SnapshotError, match=r"cheetah-run.*walker-run"):
        DmControl("walker-run").restore([0], [snapshot])
    older = replace(snapshot, world=snapshot.world.replace("mujoco 3.", "mujoco 2."))
    with pytest.raises(SnapshotError, match=r"mujoco 2\."):
        world.restore([0], [older])


@pytest.mark.parametrize(
    ("missing", "build", "extra"),
    [
        ("gymnasium_robotics", lambda: GymnasiumWorld("FetchPush-v4", module="gymnasium_robotics"), "robotics"),
        ("gym_pusht", lambda: GymnasiumWorld("PushT-v0", module="envs.pusht"), "pusht"),
        ("dm_control", lambda: DmControl("cheetah-run"), "dm_control"),
        ("ogbench", lambda: OGBench("scene"), "ogbench"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch, missing, build, extra):
    for module in [name for name in sys.modules if name.partition(".")[0] == missing or name == "envs.pusht"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingPackageError, match=rf"pip install simeval\[{extra}\]"):
        build()
