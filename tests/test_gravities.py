"""Balls and arm: gravity is the start's, physics is what the books say, experts succeed, pictures show the state."""

from functools import partial

import numpy as np
import pytest

from envs.arm import Arm
from envs.balls import Balls
from envs.balls.physics import HIGH, LOW, RADIUS, substep
from envs.balls.pictures import PALETTE
from envs.gravities import Gravities
from policies.arm import ArmExpert
from policies.balls import BallsExpert
from simeval.errors import ConfigError, SnapshotError
from simeval.noise import Key
from simeval.testing import assert_conforms, check_policy, check_world
from simeval.types import Start

WORLDS = pytest.mark.parametrize("build", [Balls, Arm], ids=["balls", "arm"])
DT = 0.005


def keys(count, step=0):
    return [Key(seed).stream("world").key(step) for seed in range(count)]


def begin(world, seed=3):
    (task,) = world.tasks
    return world.reset(range(world.num_slots), world.starts(task, world.num_slots, seed), keys(world.num_slots))


def go(world, steps, action=None):
    slots = range(world.num_slots)
    idle = np.zeros((world.num_slots, 2), np.float32)
    return [world.step(slots, idle if action is None else action, keys(world.num_slots, t + 1)) for t in range(steps)]


def one(positions, velocities, gravity=0.0):
    """A single slot of balls: positions, velocities and accelerations [1, balls, 2]."""
    position, velocity = np.array([positions], dtype=float), np.array([velocities], dtype=float)
    return position, velocity, np.broadcast_to([0.0, -gravity], position.shape)


@pytest.mark.parametrize(
    ("build", "expert"),
    [(Balls, BallsExpert), (partial(Balls, cameras=["side"], image_size=32), None), (Arm, ArmExpert)],
)
def test_worlds_conform(build, expert):
    assert_conforms(check_world(build, policy=expert))


@pytest.mark.slow
def test_the_arm_with_a_camera_conforms():
    assert_conforms(check_world(partial(Arm, cameras=["side"], image_size=32), steps=40))


@pytest.mark.parametrize(("build", "expert"), [(Balls, BallsExpert), (Arm, ArmExpert)])
def test_experts_are_policies(build, expert):
    assert_conforms(check_policy(expert, build))


@pytest.mark.parametrize(
    ("build", "expert"),
    [
        (Balls, BallsExpert),
        (partial(Balls, gravities=[6, 8]), BallsExpert),
        (Arm, ArmExpert),
        (partial(Arm, gravities=14), ArmExpert),
    ],
)
def test_experts_succeed_from_nearly_every_start_and_idleness_does_not(build, expert):
    def share(act):
        world = build(num_slots=100)
        step, held, done = begin(world), np.zeros(100, int), np.zeros(100, bool)
        assert not step.success.any()
        assert all(world.objection(start) is None for start in world.starts(world.tasks[0], 100, 3))
        for t in range(world.horizon(world.tasks[0])):
            step = world.step(range(100), act(step.observation, t), keys(100, t + 1))
            held = np.where(step.success, held + 1, 0)
            done |= held >= world.success_hold
        return done.mean()

    policy = expert()
    assert share(lambda observation, t: policy.act(observation, [""] * 100, {}, keys(100, t)).action) >= 0.95
    assert share(lambda observation, t: np.zeros((100, 2), np.float32)) < 0.3


@WORLDS
def test_gravity_is_drawn_by_the_start_and_the_layout_apart_from_it(build):
    light, heavy = build(num_slots=40, gravities=[2, 3]), build(num_slots=40, gravities=[4, 6, 8])
    first, second = begin(light), begin(heavy)
    assert np.ptp(first.signals["gravity"]) > 0.5
    assert ((first.signals["gravity"] >= 2) & (first.signals["gravity"] <= 3)).all()
    assert set(second.signals["gravity"]) == {4.0, 6.0, 8.0}
    np.testing.assert_array_equal(first.observation["state"], second.observation["state"])
    np.testing.assert_array_equal(first.observation["gravity"][:, 0], first.signals["gravity"].astype(np.float32))
    np.testing.assert_array_equal(
        begin(build(num_slots=40, gravities=[2, 3])).signals["gravity"], first.signals["gravity"]
    )
    assert light.starts(light.tasks[0], 5, 0) == heavy.starts(heavy.tasks[0], 9, 0)[:5]


@WORLDS
def test_a_snapshot_takes_its_gravity_into_a_world_of_others(build):
    light, heavy = build(num_slots=2, gravities=2), build(num_slots=2, gravities=9)
    begin(light)
    begin(heavy)
    heavy.restore([1], light.snapshot([0]))
    ahead, followed = go(light, 30)[-1], go(heavy, 30)[-1]
    np.testing.assert_array_equal(ahead.observation["state"][0], followed.observation["state"][1])
    assert list(followed.signals["gravity"]) == [9.0, 2.0]
    assert light.fingerprint != heavy.fingerprint
    with pytest.raises(SnapshotError, match="cannot be restored"):
        Balls(balls=5).restore([0], light.snapshot([0]))


@pytest.mark.parametrize("gravities", [[], [3, 1], [1, -1, 2], "low", [float("nan")], True, None])
def test_gravities_that_are_none_are_refused(gravities):
    with pytest.raises(ConfigError, match="gravities"):
        Gravities.of(gravities)


def test_other_settings_that_do_not_fit_are_refused_by_name():
    for settings, said in [
        ({"balls": 9}, "6 balls"),
        ({"restitution": 1.5}, "restitution"),
        ({"cameras": "top"}, "side"),
    ]:
        with pytest.raises(ConfigError, match=said):
            Balls(**settings)
    with pytest.raises(ConfigError, match="side"):
        Arm(cameras=["front"])
    for world in (Balls(), Arm()):
        with pytest.raises(ConfigError, match="seed"):
            world.reset([0], [Start(world.tasks[0])], keys(1))


@pytest.mark.parametrize(("build", "too_much"), [(Balls, 11), (Arm, 20)])
def test_a_gravity_that_cannot_be_borne_is_objected_to(build, too_much):
    world = build(gravities=too_much)
    assert "gravity" in world.objection(world.start(world.tasks[0], 0))


@pytest.mark.parametrize("gravity", [1.5, 9.81])
def test_a_ball_falls_by_half_g_t_squared(gravity):
    position, velocity, pull = one([[0.5, 0.9]], [[0.1, 0.0]], gravity)
    time = 0.0
    while position[0, 0, 1] > LOW + 0.1:
        position, velocity = substep(position, velocity, pull, 0.9, DT)
        time += DT
        np.testing.assert_allclose(position[0, 0], [0.5 + 0.1 * time, 0.9 - 0.5 * gravity * time**2], atol=1e-12)
    assert time > 0.2


@pytest.mark.parametrize("restitution", [0.0, 0.7, 1.0])
def test_a_wall_gives_back_its_share_of_the_speed_at_impact(restitution):
    position, velocity, pull = one([[0.5, 0.5]], [[0.3, 0.0]], 4.0)
    flight = []
    for _ in range(400):
        position, velocity = substep(position, velocity, pull, restitution, DT)
        flight.append((position[0, 0, 1] - LOW, velocity[0, 0, 1]))
    height, speed = np.array(flight).T
    bounce = np.flatnonzero((speed[:-1] < 0) & (speed[1:] >= 0))[0]
    highest = height[bounce + 1 :].max()
    assert highest == pytest.approx(restitution**2 * (0.5 - LOW), abs=1e-4)
    sideways, speed, still = one([[HIGH - 0.001, 0.5]], [[1.0, 0.0]])
    place, speed = substep(sideways, speed, still, restitution, DT)
    assert speed[0, 0, 0] == -restitution
    assert place[0, 0, 0] == pytest.approx(HIGH - restitution * 0.004)


@pytest.mark.parametrize("restitution", [0.5, 1.0])
def test_balls_keep_their_momentum_and_part_at_their_share_of_the_speed(restitution):
    position, velocity, pull = one([[0.3, 0.5], [0.3 + 2 * RADIUS + 0.01, 0.53]], [[1.0, 0.2], [-0.5, 0.0]])
    momentum, energy = velocity.sum(axis=1), (velocity**2).sum()
    after, speed = position, velocity
    for _ in range(10):
        after, speed = substep(after, speed, pull, restitution, DT)
    assert not np.allclose(speed, velocity)
    np.testing.assert_allclose(speed.sum(axis=1), momentum, atol=1e-12)
    kick = speed[0, 1] - velocity[0, 1]
    normal = kick / np.linalg.norm(kick)
    closing = (velocity[0, 1] - velocity[0, 0]) @ normal
    assert (speed[0, 1] - speed[0, 0]) @ normal == pytest.approx(-restitution * closing)
    assert (speed**2).sum() <= energy * (1 + 1e-12)
    assert ((speed**2).sum() == pytest.approx(energy)) == (restitution == 1.0)


@pytest.mark.parametrize("restitution", [0.8, 1.0])
def test_no_energy_comes_of_collisions(restitution):
    world = Balls(num_slots=50, balls=5, gravities=[1, 4], restitution=restitution)
    energy = np.array([begin(world).signals["energy"], *(step.signals["energy"] for step in go(world, 200))])
    assert (np.diff(energy, axis=0) <= 2e-4 * energy[0]).all()
    assert (energy[-1] <= energy[0] * (1 + 1e-9)).all()
    if restitution == 1.0:
        np.testing.assert_allclose(energy[-1], energy[0], rtol=1e-3)
    else:
        assert (energy[-1] < 0.5 * energy[0]).all()


def test_balls_come_to_rest_beside_and_upon_one_another_inside_the_box():
    world = Balls(num_slots=50, balls=6, gravities=4)
    begin(world)
    place = go(world, 400)[-1].signals["ball_position"]
    assert (place >= LOW).all()
    assert (place <= HIGH).all()
    apart = np.linalg.norm(place[:, :, None] - place[:, None], axis=-1)[:, ~np.eye(6, dtype=bool)]
    assert apart.min() > 2 * RADIUS - 1e-3


def test_a_picture_shows_each_ball_where_the_state_says():
    world = Balls(num_slots=20, balls=3, cameras=["side"], image_size=64)
    for step in (begin(world), go(world, 9)[-1]):
        for place, picture in zip(
            step.signals["ball_position"], step.observation["image_side"].astype(int), strict=True
        ):
            rows, columns = np.mgrid[:64, :64] + 0.5
            for ball in range(3):
                painted = np.abs(picture - PALETTE[ball]).sum(axis=-1) < 30
                shown = np.array([columns[painted].mean() / 64, 1 - rows[painted].mean() / 64])
                np.testing.assert_allclose(shown, place[ball], atol=0.5 / 64)
                assert painted.sum() == pytest.approx(np.pi * (RADIUS * 64) ** 2, rel=0.25)


def test_the_arm_hangs_still_at_the_bottom():
    world = Arm(num_slots=1)
    begin(world)
    record = np.frombuffer(bytearray(world.snapshot([0])[0].state["record"]), dtype=world.record)
    record["physics"] = 0.0
    hang(world, record)
    last = go(world, 40)[-1].signals
    np.testing.assert_allclose([last["angle"], last["velocity"]], 0.0, atol=1e-12)


def test_the_frequency_of_small_swings_grows_as_the_root_of_gravity():
    assert swings(8.0) / swings(2.0) == pytest.approx(2.0, rel=0.01)


def swings(gravity):
    """Frequency [1/s] of the arm's slower swing without friction, from zero crossings of the shoulder."""
    world = Arm(num_slots=1, gravities=gravity)
    begin(world)
    for model in world.models:
        model.dof_damping[:] = 0.0
    record = np.frombuffer(bytearray(world.snapshot([0])[0].state["record"]), dtype=world.record)
    record["physics"] = 0.0
    record["physics"][:, 1:3] = [0.02, 0.02 * slow_mode(world.models[0])]
    hang(world, record)
    angle = np.array([step.signals["angle"][0, 0] for step in go(world, 400)])
    up = np.flatnonzero((angle[:-1] < 0) & (angle[1:] >= 0))
    exact = up + angle[up] / (angle[up] - angle[up + 1])
    return (len(exact) - 1) / ((exact[-1] - exact[0]) * world.control_dt)


def slow_mode(model):
    """The elbow's share of the shoulder's angle in the slower of the two small swings."""
    (m1, m2), upper, lower = (model.body(name).mass[0] for name in ("upper", "lower")), 0.5, 0.4
    i1, i2 = (model.body(name).inertia[1] for name in ("upper", "lower"))
    absolute = np.array(
        [[i1 + m1 * (upper / 2) ** 2 + m2 * upper**2, m2 * upper * lower / 2], [0, i2 + m2 * (lower / 2) ** 2]]
    )
    absolute[1, 0] = absolute[0, 1]
    stiffness = np.diag([m1 * upper / 2 + m2 * upper, m2 * lower / 2])
    values, vectors = np.linalg.eig(np.linalg.solve(absolute, stiffness))
    first, second = vectors[:, values.argmin()]
    return second / first - 1.0


def hang(world, record):
    (snapshot,) = world.snapshot([0])
    world.restore([0], [type(snapshot)(snapshot.world, {**snapshot.state, "record": record.tobytes()})])


def test_a_picture_of_the_arm_shows_tip_and_target_where_the_state_says():
    world = Arm(num_slots=6, cameras=["side"], image_size=128)
    step = begin(world)
    for row, picture in enumerate(step.observation["image_side"].astype(int)):
        rows, columns = np.mgrid[:128, :128] + 0.5
        red = (picture[..., 0] > 1.8 * picture[..., 1]) & (picture[..., 0] > 1.8 * picture[..., 2])
        shown = np.array([columns[red].mean(), 128 - rows[red].mean()])
        metres = (shown - 64) / 64 * 4.8 * np.tan(np.radians(12))
        np.testing.assert_allclose(metres, step.signals["tip"][row], atol=0.03)
