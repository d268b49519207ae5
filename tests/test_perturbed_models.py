"""What perturbations do to a MuJoCo model: physics, geometry and light as they should be."""

import copy

import mujoco
import numpy as np
import pytest

from envs.perturbed import Parts, changes_of, edit
from envs.perturbed.appearance import pixels, retexture
from envs.perturbed.kinematics import displace, reach, rotation_of
from envs.perturbed.parts import sliding_bodies
from envs.perturbed.placement import Standing, displacement, move_things
from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key
from simeval.types import Perturbation

XML = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <asset>
    <texture name="wood" type="2d" builtin="checker" rgb1="0.6 0.4 0.2" rgb2="0.5 0.3 0.1" width="32" height="32"/>
    <material name="wood" texture="wood"/>
    <material name="red" rgba="0.8 0.1 0.1 1"/>
  </asset>
  <worldbody>
    <light pos="0 -1 1" dir="0 1 -1" directional="true" diffuse="0.4 0.4 0.4"/>
    <camera name="fixed" pos="0 -1 0.5" xyaxes="1 0 0 0 0.447213595 0.894427191"/>
    <geom name="table" type="box" size="1 1 0.05" pos="0 0 -0.05" material="wood"/>
    <body name="thing" pos="0.3 0 0.1"><freejoint/><geom name="thing" type="box" size="0.03 0.03 0.03" mass="{mass}"
      material="red"/></body>
    <body name="arm" pos="0 0 0.1">
      <joint name="j0" axis="0 0 1"/><geom type="capsule" fromto="0 0 0 0 0 0.3" size="0.03"/>
      <body pos="0 0 0.3"><joint name="j1" axis="0 1 0" range="-1.5 1.5"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0" size="0.03"/>
        <body pos="0.3 0 0"><joint name="j2" axis="0 1 0" range="-2 2"/>
          <geom type="capsule" fromto="0 0 0 0.25 0 0" size="0.03"/>
          <body pos="0.25 0 0"><joint name="j3" axis="1 0 0"/><geom size="0.03"/>
            <body><joint name="j4" axis="0 1 0" range="-2 2"/><geom size="0.03"/>
              <body><joint name="j5" axis="1 0 0"/><geom type="capsule" fromto="0 0 0 0.1 0 0" size="0.02"/>
                <site name="hand" pos="0.1 0 0"/><camera name="wrist" pos="0 0 0.1"/>
              </body></body></body></body></body></body>
  </worldbody>
  <actuator><position joint="j0" kp="50" kv="5"/></actuator>
</mujoco>
"""
ARM = ("j0", "j1", "j2", "j3", "j4", "j5")
BENT = (0.3, -0.4, 0.9, 0.2, 0.5, 0.1)
AXES = frozenset({"camera", "lighting", "appearance", "dynamics", "initial_state.robot"})


def model_of(mass: float = 0.2) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(XML.format(mass=mass))


def parts_of(model: mujoco.MjModel) -> Parts:
    robot = frozenset(range(model.body("arm").id, model.nbody))
    return Parts((0.0, 0.0, 0.0), robot, ((-1, -1), (1, 1)), table=(model.geom("table").id,))


def change_of(axis: str, **params: float):
    ((_, change),) = changes_of("toy", AXES, [Perturbation(axis, 2.0, params)])
    return change


def edited(axis: str, **params: float) -> mujoco.MjModel:
    model = model_of()
    edit(model, parts_of(model), [change_of(axis, **params)])
    return model


def view(model: mujoco.MjModel, camera: str) -> tuple[np.ndarray, np.ndarray]:
    """Where a camera is, and its axes."""
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data.cam(camera).xpos, data.cam(camera).xmat.reshape(3, 3)


def aim(model: mujoco.MjModel) -> np.ndarray:
    """Where the fixed camera's axis meets the table's top."""
    position, axes = view(model, "fixed")
    return position - axes[:, 2] * position[2] / axes[2, 2]


def test_a_camera_goes_round_what_it_looks_at():
    before, _ = view(model_of(), "fixed")
    after, _ = view(edited("camera", azimuth=90.0), "fixed")
    np.testing.assert_allclose(after, [-before[1], before[0], before[2]], atol=1e-6)
    raised, _ = view(edited("camera", elevation=20.0), "fixed")
    assert raised[2] > before[2] + 0.2
    np.testing.assert_allclose(np.linalg.norm(raised), np.linalg.norm(before), atol=1e-6)
    for moved in (edited("camera", azimuth=90.0), edited("camera", elevation=20.0), edited("camera", distance=0.3)):
        np.testing.assert_allclose(aim(moved), aim(model_of()), atol=1e-6)


def test_a_camera_goes_away_looks_aside_and_opens_as_far_as_it_is_told():
    before, axes = view(model_of(), "fixed")
    away, _ = view(edited("camera", distance=0.3), "fixed")
    np.testing.assert_allclose(away - before, 0.3 * axes[:, 2], atol=1e-6)
    np.testing.assert_allclose(aim(edited("camera", look_right=0.1)), [0.1, 0.0, 0.0], atol=1e-3)
    assert aim(edited("camera", look_up=0.1))[1] > 0.1
    assert edited("camera", fov=4.0).cam_fovy[0] == model_of().cam_fovy[0] + 4.0


def test_the_camera_on_the_hand_moves_when_told_to_only():
    still, moved = edited("camera", azimuth=20.0), edited("camera", azimuth=20.0, wrist=1)
    assert (still.cam("wrist").quat == model_of().cam("wrist").quat).all()
    assert (moved.cam("wrist").quat != model_of().cam("wrist").quat).any()


def test_light_is_as_much_brighter_and_warmer_as_said():
    plain, model = model_of(), edited("lighting", exposure=-1.0)
    np.testing.assert_allclose(model.light_diffuse, plain.light_diffuse / 2)
    np.testing.assert_allclose(model.vis.headlight.ambient, plain.vis.headlight.ambient / 2)
    warm = edited("lighting", warmth=1.0).light_diffuse[0]
    np.testing.assert_allclose(warm[0] / warm[2], 2.0, rtol=1e-6)
    steep = edited("lighting", elevation=30.0).light_dir[0]
    np.testing.assert_allclose(np.arcsin(-steep[2] / np.linalg.norm(steep)), np.deg2rad(75.0), atol=1e-6)


def test_masses_change_with_all_that_the_engine_derives_from_them():
    model, heavy = edited("dynamics", mass=2.0), model_of(mass=0.8)
    for name in ("body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0", "dof_M0"):
        np.testing.assert_allclose(getattr(model, name), getattr(heavy, name), rtol=1e-9, err_msg=name)
    assert model.stat.meaninertia == pytest.approx(heavy.stat.meaninertia)
    assert model.stat.extent == model_of().stat.extent


def test_friction_and_motors_change_as_powers_of_two():
    plain = model_of()
    assert (edited("dynamics", friction=-1.0).geom_friction == plain.geom_friction / 2).all()
    strong = edited("dynamics", gain=1.0)
    assert (strong.actuator_gainprm == 2 * plain.actuator_gainprm).all()
    assert (strong.actuator_biasprm == 2 * plain.actuator_biasprm).all()


def test_a_thing_keeps_its_hue_and_the_robot_its_colours():
    plain, model = model_of(), edited("appearance", object_colour=1.0, table_colour=0.5, seed=3)
    red = model.geom("thing").rgba
    assert red[0] > red[1]
    assert red[1] == pytest.approx(red[2])
    assert not np.allclose(red, plain.mat("red").rgba)
    robot = np.isin(model.geom_bodyid, list(parts_of(model).robot))
    assert (model.geom_rgba[robot] == plain.geom_rgba[robot]).all()
    assert not np.allclose(model.geom("table").rgba[:3], 1.0)


def test_textures_are_blended_by_the_amount_and_put_back_exactly():
    model = model_of()
    before: dict[int, np.ndarray] = {}
    change = change_of("appearance", table_texture=0.5, seed=3)
    retexture(model, parts_of(model), change, before)
    assert list(before) == [model.tex("wood").id]
    half = np.abs(pixels(model, 0).astype(float) - before[0]).mean()
    model = model_of()
    retexture(model, parts_of(model), change_of("appearance", table_texture=1.0, seed=3), {})
    assert np.abs(pixels(model, 0).astype(float) - before[0]).mean() == pytest.approx(2 * half, rel=0.1)
    assert (pixels(model_of(), 0) == before[0]).all()


@pytest.mark.parametrize("number", range(10))
def test_the_hand_arrives_within_a_millimetre_wherever_the_arm_can_be(number):
    model = model_of()
    data = mujoco.MjData(model)
    joints, site = [model.joint(name).id for name in ARM], model.site("hand").id
    places = model.jnt_qposadr[joints]
    goal = np.array(BENT) + Key(number).stream("test").event("pose").uniform(-0.4, 0.4, 6)
    data.qpos[places] = goal
    mujoco.mj_forward(model, data)
    position, rotation = data.site_xpos[site].copy(), data.site_xmat[site].reshape(3, 3).copy()
    data.qpos[places] = BENT
    mujoco.mj_forward(model, data)
    off, turned = reach(model, data, site, int(model.site_bodyid[site]), joints, position, rotation)
    assert off < 1e-3
    assert turned < 1e-2
    np.testing.assert_allclose(data.site_xpos[site], position, atol=1e-3)
    assert (data.qpos[places] >= model.jnt_range[joints, 0])[[1, 2, 4]].all()


def test_a_hand_that_cannot_arrive_is_said_to_be_off():
    model = model_of()
    data = mujoco.MjData(model)
    joints = [model.joint(name).id for name in ARM]
    data.qpos[model.jnt_qposadr[joints]] = BENT
    mujoco.mj_forward(model, data)
    failed = displace(model, data, model.site("hand").id, joints, change_of("initial_state.robot", x=2.0))
    assert failed is not None
    assert "mm" in failed


SLED = """
<mujoco>
  <worldbody>
    <body euler="0 0 30">
      <body name="sled" pos="0.1 0 0.02"><joint type="slide" axis="1 0 0" range="-0.1 0.1"/>
        <joint type="slide" axis="0 1 0" range="-0.1 0.1"/><geom size="0.02" mass="0.1"/></body>
      <body name="lift" pos="-0.3 0 0.1"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/>
        <geom size="0.02"/></body>
    </body>
    <body name="door" pos="0.5 0 0"><geom size="0.05"/>
      <body><joint type="hinge" axis="0 0 1"/><geom pos="0.1 0 0" size="0.02"/></body></body>
  </worldbody>
</mujoco>
"""


def test_what_lies_on_slides_moves_as_far_in_the_world_as_said_and_what_is_placed_turns_too():
    model = mujoco.MjModel.from_xml_string(SLED)
    data = mujoco.MjData(model)
    sled, door = model.body("sled").id, model.body("door").id
    parts = Parts((0.0, 0.0, 0.0), frozenset(), ((-1, -1), (1, 1)), placed=(door,))
    assert list(sliding_bodies(model, parts)) == [sled]
    mujoco.mj_forward(model, data)
    before = data.xpos.copy()
    layout = Perturbation("initial_state.layout", 2.0, {"shift": 0.05, "turn": 0.3, "seed": 4})
    ((_, change),) = changes_of("toy", frozenset({"initial_state.layout"}), [layout])
    move_things(model, data, parts, change)
    mujoco.mj_forward(model, data)
    for body in (sled, door):
        offset, angle = displacement(change, body)
        assert np.hypot(*offset) == pytest.approx(0.05)
        np.testing.assert_allclose(data.xpos[body] - before[body], [*offset, 0.0], atol=1e-9)
    assert 2 * np.arctan2(model.body_quat[door][3], model.body_quat[door][0]) == pytest.approx(angle)
    assert (data.xpos[model.body("lift").id] == before[model.body("lift").id]).all()
    nominal = Standing.of(model, data, parts)
    data.qpos[:2] += 0.2
    mujoco.mj_forward(model, data)
    assert "beyond the end of its slide" in Standing.of(model, data, parts).objection(nominal, model, parts)


def test_a_rotation_is_about_its_own_axis():
    np.testing.assert_allclose(rotation_of(0, 0, np.pi / 2) @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(rotation_of(0, 0, 0), np.eye(3))


def test_amounts_of_nothing_change_nothing_and_nonsense_is_refused_by_name():
    zero = Perturbation("camera", 4.0, {"azimuth": 0.0, "redraws": 2})
    assert changes_of("toy", AXES, [zero, Perturbation("dynamics")]) == ()
    model = model_of()
    edit(model, parts_of(model), [])
    assert (copy.copy(model).cam_pos == model_of().cam_pos).all()
    for perturbation, error, said in (
        (Perturbation("camera", 1.0, {"azimut": 1.0}), ConfigError, "did you mean azimuth"),
        (Perturbation("camera", 1.0, {"azimuth": "left"}), ConfigError, r"is a number \[deg\]"),
        (Perturbation("camera", 1.0, {"azimuth": 1.0}, from_step=3), UnsupportedError, "from an episode's reset"),
        (Perturbation("dynamics.gravity"), UnsupportedError, "it applies: appearance, camera"),
        (Perturbation("appearance", 1.0, {"seed": 0.5}), ConfigError, "params.seed"),
    ):
        with pytest.raises(error, match=said):
            changes_of("toy", AXES, [perturbation])
