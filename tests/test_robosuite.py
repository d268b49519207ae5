"""robosuite tasks as Worlds: pure resets, exact snapshots, the package's own numbers, upright pictures."""

import re
from functools import partial
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
from long_forks import differences

from envs.robosuite import INSTRUCTIONS, Robosuite, _load_robosuite
from simeval.errors import ConfigError, MissingPackageError, SnapshotError
from simeval.noise import Key
from simeval.perturbation import effect_of
from simeval.testing import WORLD_CHECKS, assert_conforms, check_world
from simeval.types import Perturbation, Snapshot, Start

UNPERTURBED = [sentence for sentence in WORLD_CHECKS if "erturbation" not in sentence]
STREAM = Key(0).stream("world")
TASKS = {
    "cubes": ("Lift", "Stack", "Door", "Wipe", "ToolHang"),
    "many": ("NutAssembly", "NutAssemblySingle", "PickPlace", "PickPlaceSingle"),
    "two arms": ("TwoArmLift", "TwoArmPegInHole", "TwoArmHandover", "TwoArmTransport"),
}
VARIANTS = (
    *("NutAssemblySquare", "NutAssemblyRound"),
    *("PickPlaceMilk", "PickPlaceBread", "PickPlaceCereal", "PickPlaceCan"),
)
CONTROLLERS = ("OSC_POSITION", "JOINT_POSITION", "JOINT_TORQUE", "IK_POSE")
FRESH_PROCESS = "A snapshot goes through HDF5 into a fresh process and continues bit for bit"


@pytest.fixture(scope="module")
def lift():
    world = Robosuite("Lift", num_slots=2)
    yield world
    world.close()


@pytest.fixture(scope="module")
def door():
    world = Robosuite("Door", num_slots=1)
    yield world
    world.close()


def actions_of(world, count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(world.action_space.low, world.action_space.high, (count, *world.action_space.shape))


def reset(world, slot=0, seed=1):
    return world.reset([slot], [world.start(world.tasks[0], seed)], [STREAM.key(0)])


def run(world, actions, slot=0):
    steps = [world.step([slot], action[None], [STREAM.key(i + 1)]) for i, action in enumerate(actions)]
    assert not any(step.failures for step in steps), steps[-1].failures
    return [bits(step) for step in steps]


def bits(step):
    flags = step.reward, step.terminated, step.truncated, step.success
    arrays = {**step.observation, **{f"signal {name}": value for name, value in step.signals.items()}}
    return tuple(flag.tobytes() for flag in flags), {name: value.tobytes() for name, value in arrays.items()}


@pytest.mark.parametrize("task", ["lift", pytest.param("door", marks=pytest.mark.slow)])
def test_an_episode_is_a_function_of_its_start_whatever_ran_before(task, request):
    world = request.getfixturevalue(task)
    actions = actions_of(world, 15)
    first = bits(reset(world)), run(world, actions)
    reset(world, seed=2)
    run(world, actions_of(world, 7, seed=3))
    assert (bits(reset(world)), run(world, actions)) == first


def test_a_simulator_used_before_and_one_just_built_agree_in_any_slot(lift):
    actions = actions_of(lift, 15)
    first = bits(reset(lift, slot=0)), run(lift, actions, slot=0)
    assert (bits(reset(lift, slot=1)), run(lift, actions, slot=1)) == first


def test_simulators_of_a_task_begin_with_equal_models_that_are_their_own(lift):
    for slot in (0, 1):
        reset(lift, slot)
    one, other = (lift._current[slot][1]._model for slot in (0, 1))
    bodies = other.body_mass.copy()
    assert np.array_equal(one.body_mass, bodies)
    one.body_mass[:] = 0
    assert np.array_equal(other.body_mass, bodies)
    one.body_mass[:] = bodies


def test_seeds_lay_the_objects_out_differently(lift):
    places = {reset(lift, seed=seed).signals["object_cube"][0, :3].tobytes() for seed in range(5)}
    assert len(places) == 5


@pytest.mark.parametrize(("at", "steps"), [(0, 20), (1, 20), (30, 60)])
def test_a_snapshot_continues_to_the_bit_in_its_slot_and_in_another(lift, at, steps):
    reset(lift)
    then = run(lift, actions_of(lift, at))[-1] if at else bits(reset(lift))
    snapshot = Snapshot.from_bytes(lift.snapshot([0])[0].to_bytes())
    actions = actions_of(lift, steps, seed=4)
    expected = run(lift, actions)
    reset(lift, slot=1, seed=9)
    for slot, count in ((0, 20), (1, steps)):
        assert bits(lift.restore([slot], [snapshot])) == then
        assert run(lift, actions[:count], slot) == expected[:count]


def test_a_moved_door_and_its_model_come_back(door):
    reset(door, seed=1)
    run(door, actions_of(door, 10))
    (snapshot,) = door.snapshot([0])
    expected = run(door, actions_of(door, 40, seed=2))
    reset(door, seed=2)
    door.restore([0], [snapshot])
    assert run(door, actions_of(door, 40, seed=2)) == expected


@pytest.mark.slow
def test_snapshots_continue_in_a_fresh_process():
    assert_conforms(check_world(partial(Robosuite, "Lift"), steps=20, only=[FRESH_PROCESS]))


@pytest.mark.parametrize("task", ["lift", pytest.param("door", marks=pytest.mark.slow)])
def test_numbers_are_those_of_robosuite_stepped_by_itself(task, request):
    import robosuite

    world = request.getfixturevalue(task)
    quiet = {"has_renderer": False, "has_offscreen_renderer": False, "use_camera_obs": False, "hard_reset": False}
    env = robosuite.make(world.tasks[0], robots="Panda", seed=0, horizon=500, **quiet)
    env.reset()
    seed = int(Key(7).stream("start").event("robosuite", 0).integers(2**63))
    env.rng.bit_generator.state = np.random.PCG64(seed).state
    observation, step = env.reset(), reset(world, seed=7)
    for i, action in enumerate(actions_of(world, 30)):
        assert np.array_equal(step.observation["proprio"][0], observation["robot0_proprio-state"])
        own = np.concatenate([observation["robot0_proprio-state"], observation["object-state"]])
        assert np.array_equal(step.observation["state"][0], own)
        step = world.step([0], action[None].astype(np.float32), [STREAM.key(i + 1)])
        observation, reward, _, _ = env.step(action.astype(np.float32).astype(np.float64))
        assert step.reward[0] == reward
        assert step.success[0] == env._check_success()
    env.close()


def test_an_unstable_simulation_fails_alone_and_its_slot_can_be_used_again(lift, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warning to a file in the working directory
    actions = actions_of(lift, 3)
    expected = bits(reset(lift, slot=1)), run(lift, actions, slot=1)
    reset(lift, slot=0)
    first = bits(reset(lift, slot=1))
    lift._current[0][1]._data.qvel[:] = 1e12
    both = np.stack([actions[0]] * 2)
    step = lift.step([0, 1], both, [STREAM.key(1)] * 2)
    assert set(step.failures) == {0}
    assert "unstable" in step.failures[0]
    assert (first, [_row(step, 1), *run(lift, actions[1:], slot=1)]) == (expected[0], expected[1])
    assert bits(reset(lift, slot=0)) == expected[0]


def _row(step, row):
    flags = (getattr(step, name)[row : row + 1] for name in ("reward", "terminated", "truncated", "success"))
    arrays = {**step.observation, **{f"signal {name}": value for name, value in step.signals.items()}}
    return tuple(f.tobytes() for f in flags), {name: value[row].tobytes() for name, value in arrays.items()}


def test_lifting_the_cube_is_a_success_and_a_reset_is_none(lift):
    assert not reset(lift).success[0]
    data = lift._current[0][1]._data
    data.qpos[-5] += 0.2  # the cube's height, last free joint
    step = lift.step([0], np.zeros((1, 7), np.float32), [STREAM.key(1)])
    assert step.success[0]
    assert step.reward[0] > 0
    assert step.signals["object_cube"][0, 2] > 0.9


def test_proprioception_is_the_part_of_the_state_that_shows_no_object(lift):
    first = reset(lift, seed=1)
    assert np.array_equal(first.observation["state"][0, :50], first.observation["proprio"][0])
    before = first.observation["proprio"].copy(), first.observation["state"].copy()
    lift._current[0][1]._data.qpos[-6] += 0.05
    after = lift.step([0], np.zeros((1, 7), np.float32), [STREAM.key(1)]).observation
    moved = np.abs(after["state"][0, 50:53] - before[1][0, 50:53])
    assert moved[1] == pytest.approx(0.05, abs=1e-3)
    assert np.abs(after["proprio"] - before[0])[0, :7].max() < 1e-3


def test_nothing_is_drawn_when_nobody_asks_for_images(lift):
    reset(lift)
    simulator = lift._current[0][1]
    assert simulator._env.sim._render_context_offscreen is None
    assert not lift._renderers._renderers


@pytest.mark.slow
def test_camera_images_are_upright_and_show_the_cube_where_it_is():
    world = Robosuite("Lift", cameras=("agentview",), image_size=96)
    step = reset(world, seed=3)
    image = step.observation["image_agentview"][0].astype(int)
    red = (image[..., 0] > 1.8 * image[..., 1]) & (image[..., 0] > 60)
    rows, columns = np.nonzero(red)
    data, model = world._current[0][1]._data, world._current[0][1]._model
    camera = model.camera("agentview").id
    inside = data.cam_xmat[camera].reshape(3, 3).T @ (step.signals["object_cube"][0, :3] - data.cam_xpos[camera])
    focal = 48 / np.tan(np.radians(model.cam_fovy[camera]) / 2)
    column, row = 48 + focal * inside[0] / -inside[2], 48 - focal * inside[1] / -inside[2]
    assert abs(rows.mean() - row) < 4
    assert abs(columns.mean() - column) < 4
    (snapshot,) = world.snapshot([0])
    run(world, actions_of(world, 5))
    assert np.array_equal(
        world.restore([0], [snapshot]).observation["image_agentview"], step.observation["image_agentview"]
    )
    assert world.render([0]).shape == (1, 256, 256, 3)
    world.close()


@pytest.mark.slow
def test_tasks_of_different_spaces_cannot_share_a_world():
    with pytest.raises(ConfigError, match=r"'Lift' and 'Stack' differ.*state \(60,\)"):
        Robosuite(["Lift", "Stack"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "Lfit"}, "did you mean Lift"),
        ({"robots": "Pandas"}, "did you mean Panda"),
        ({"cameras": ["agentvew"]}, "did you mean agentview"),
        ({"render_profile": "quick"}, "render_profile"),
        ({"task": "TwoArmLift", "robots": "Panda"}, "cannot build 'TwoArmLift' with robots"),
        ({"num_slots": 0}, "num_slots is a whole number"),
        ({"controller": "OSC_POS"}, "did you mean OSC_POSE"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest_names(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Robosuite(**arguments)


def test_a_start_without_a_seed_and_a_foreign_snapshot_are_refused(lift):
    with pytest.raises(ConfigError, match="drawn by a seed"):
        lift.reset([0], [Start("Lift")], [STREAM.key(0)])
    reset(lift)
    (snapshot,) = lift.snapshot([0])
    with pytest.raises(SnapshotError, match="cannot be restored"):
        lift.restore([0], [Snapshot("another world", snapshot.state)])


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({"mujoco": "3.3.0"}, "robosuite is not installed; install it with: pip install"),
        ({"robosuite": "1.4.0", "mujoco": "3.3.0"}, "found is 1.4.0.*pip install"),
        ({"robosuite": "1.5.2", "mujoco": "3.10.0"}, "found is 3.10.0.*pip install"),
    ],
)
def test_a_missing_or_unfit_package_is_named_with_its_pip_line(installed, message, monkeypatch):
    def version(package):
        if package not in installed:
            raise PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr("envs.robosuite.version", version)
    with pytest.raises(MissingPackageError, match=message):
        _load_robosuite.__wrapped__()


def test_every_registered_task_has_an_instruction():
    import robosuite

    assert set(robosuite.ALL_ENVIRONMENTS) == set(INSTRUCTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("group", TASKS)
def test_forks_follow_their_parents_for_500_steps_and_resets_forget_them(group):
    assert differences({task: partial(Robosuite, task) for task in TASKS[group]}, here=20) == {}


@pytest.mark.slow
def test_forks_of_the_variants_of_tasks_follow_their_parents_and_resets_forget_them():
    assert differences({task: partial(Robosuite, task) for task in VARIANTS}, here=20, after=100) == {}


@pytest.mark.slow
def test_forks_follow_their_parents_under_other_controllers_and_robots():
    cases = {name: partial(Robosuite, "Lift", controller=name) for name in CONTROLLERS}
    cases["Sawyer"] = partial(Robosuite, "Lift", robots="Sawyer", controller="JOINT_POSITION")
    cases["Baxter"] = partial(Robosuite, "TwoArmLift", robots="Baxter")
    cases["GR1"] = partial(Robosuite, "Lift", robots="GR1")
    assert differences(cases, here=20, after=100) == {}


def test_the_long_runs_cover_every_task():
    assert {*VARIANTS, *(task for tasks in TASKS.values() for task in tasks)} == set(INSTRUCTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Lift", "Wipe"])
def test_tasks_conform(task):
    assert_conforms(check_world(partial(Robosuite, task), steps=60, only=UNPERTURBED))


@pytest.mark.parametrize(
    ("here", "there"),
    [("controller=None", "controller='IK_POSE'"), ("mujoco=", "mujoco=0."), ("capture/", "capture/0")],
)
def test_a_snapshot_of_another_controller_or_version_is_refused_by_name(here, there, lift):
    reset(lift)
    (snapshot,) = lift.snapshot([0])
    foreign = Snapshot(snapshot.world.replace(here, there), snapshot.state)
    with pytest.raises(SnapshotError, match=re.escape(there) + r".*cannot be restored in.*" + re.escape(here)):
        lift.restore([0], [foreign])


def test_a_snapshot_of_a_task_that_the_world_does_not_have_is_refused_by_name(lift):
    reset(lift)
    (snapshot,) = lift.snapshot([0])
    with pytest.raises(SnapshotError, match="taken in task 'Stack', which world 'robosuite' does not have"):
        lift.restore([0], [Snapshot(snapshot.world, {**snapshot.state, "task": "Stack"})])


def _qpos(snapshot):
    return snapshot.state["simulator"]["capture"]["physics"]["state"][1:]


def test_the_declared_parts_of_an_action_do_what_they_say(lift):
    said = lift.conventions
    assert (said.action, said.action_frame) == (("hand_displacement", "hand_turn", "gripper"), "base")
    assert said.gripper == "plus_closes"

    def moved(direction, grip):
        before = reset(lift).signals["eef_robot0_right"][0, :3].copy()
        for step in range(10):
            result = lift.step([0], np.array([[*direction, 0, 0, 0, 0, grip]], np.float32), [STREAM.key(step + 1)])
        return result.signals["eef_robot0_right"][0, :3] - before, lift.snapshot([0])[0]

    ahead, closed = moved((0.5, 0), 1.0)
    aside, opened = moved((0, 0.5), -1.0)
    assert ahead[0] > 5 * abs(ahead[1])
    assert aside[1] > 5 * abs(aside[0])
    fingers = [np.abs(_qpos(snapshot)[7:9]).sum() for snapshot in (closed, opened)]
    assert fingers[0] < 0.5 * fingers[1]
    effect_of(Perturbation("actuation", params={"misalignment": 0.1}), lift.spec)  # which says what it turns


@pytest.mark.slow
def test_actions_that_move_two_hands_or_joints_declare_no_displacement():
    for arguments in ({"task": "Lift", "controller": "JOINT_POSITION"}, {"task": "TwoArmLift"}):
        world = Robosuite(num_slots=1, **arguments)
        assert world.conventions.action is world.conventions.action_frame is None
        world.close()
