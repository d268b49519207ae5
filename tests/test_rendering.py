"""Pictures: upright, the same from any renderer, and nothing in the model or the physics changes by them."""

import subprocess
import sys

import mujoco
import numpy as np
import pytest

from envs.rendering import Renderer, RendererPool
from simeval.errors import ConfigError

SCENE = """
<mujoco>
  <asset><texture name="sky" type="skybox" builtin="flat" rgb1="0 0 0" rgb2="0 0 0" width="8" height="8"/></asset>
  <worldbody>
    <light pos="0 0 3" dir="0 0 -1"/>
    <geom type="plane" size="2 2 .1" rgba=".6 .6 .6 1"/>
    <camera name="front" pos="0 -2 .6" xyaxes="1 0 0 0 .2 1"/>
    <body name="ball" pos="0 0 1"><freejoint/><geom size=".15" rgba="1 0 0 1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture
def scene() -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def red_row(image: np.ndarray) -> float:
    """The mean image row of the red ball."""
    red = image.astype(int)
    rows, _ = np.nonzero((red[..., 0] > 60) & (red[..., 1] < 40) & (red[..., 2] < 40))
    assert rows.size
    return float(rows.mean())


def test_what_is_higher_in_the_world_is_higher_in_the_picture(scene):
    model, data = scene
    renderer = Renderer(model, 64)
    above = red_row(renderer.render(data, "front"))
    data.qpos[2] = 0.2
    mujoco.mj_forward(model, data)
    assert above + 5 < red_row(renderer.render(data, "front"))


def test_a_size_may_exceed_the_models_framebuffer_and_need_not_be_square(scene):
    model, data = scene
    image = Renderer(model, (700, 900)).render(data, "front")
    assert image.shape == (700, 900, 3)
    assert image.dtype == np.uint8
    assert image[:350].sum() != image[350:].sum()


def test_drawing_leaves_model_and_physics_alone(scene):
    model, data = scene
    settings = model.vis.quality.offsamples, model.vis.quality.shadowsize, model.vis.global_.offwidth
    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    before, after = np.empty((2, mujoco.mj_stateSize(model, spec)))
    mujoco.mj_getState(model, data, before, spec)
    Renderer(model, 32, "fast").render(data, "front")
    mujoco.mj_getState(model, data, after, spec)
    np.testing.assert_array_equal(before, after)
    assert settings == (model.vis.quality.offsamples, model.vis.quality.shadowsize, model.vis.global_.offwidth)


def test_the_fast_profile_casts_no_shadow(scene):
    model, data = scene
    faithful, fast = (Renderer(model, 64, profile).render(data, "front") for profile in ("faithful", "fast"))
    assert (fast.astype(int) - faithful).max() > 40


def test_renderers_of_many_sizes_take_turns_and_draw_what_each_draws_alone(scene):
    model, data = scene
    alone = {size: Renderer(model, size).render(data, "front") for size in (24, 48, 96)}
    renderers = {size: Renderer(model, size) for size in alone}
    for _ in range(2):
        for size, image in alone.items():
            np.testing.assert_array_equal(renderers[size].render(data, "front"), image)
    first = renderers[24].render(data, "front")
    first[:] = 0
    np.testing.assert_array_equal(renderers[24].render(data, "front"), alone[24])


def test_a_pool_draws_copies_of_a_model_as_they_are_and_keeps_few_renderers(scene):
    model, data = scene
    other = mujoco.MjModel.from_xml_string(SCENE)
    other.geom_rgba[1] = (0, 0, 1, 1)
    pool = RendererPool("fast", capacity=1)
    red = pool.render("ball", model, data, "front", 48)
    blue = pool.render("ball", other, data, "front", 48)
    assert red[..., 0].max() > 100 > 50 > (blue[..., 0].astype(int) - blue[..., 2]).max()
    pool.render("ball", model, data, "front", 32)
    np.testing.assert_array_equal(pool.render("ball", model, data, "front", 48), red)
    pool.close()
    pool.close()


def test_closing_twice_is_harmless_and_a_closed_renderer_says_so(scene):
    model, data = scene
    renderer = Renderer(model, 16)
    renderer.close()
    renderer.close()
    with pytest.raises(RuntimeError, match="closed"):
        renderer.render(data, "front")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda model, data: Renderer(model, 16).render(data, "frnt"), "did you mean front"),
        (lambda model, data: Renderer(model, 16).render(data, 3), "camera id '3'"),
        (lambda model, data: Renderer(model, 16, "quick"), "available: fast, faithful"),
        (lambda model, data: Renderer(model, 0), "at least 1 pixel"),
    ],
)
def test_a_wrong_name_or_size_is_answered_with_what_exists(scene, make, text):
    with pytest.raises(ConfigError, match=text):
        make(*scene)


UNCLOSED = f"""
import threading, weakref
class Early: pass
early = Early(); weakref.finalize(early, str)
import envs, mujoco
from envs.rendering import Renderer
model = mujoco.MjModel.from_xml_string({SCENE!r})
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
kept = Renderer(model, 16); kept.render(data, "front")
dropped = [Renderer(model, 24)]
elsewhere = threading.Thread(target=dropped.clear); elsewhere.start(); elsewhere.join()
def draw(): Renderer(model, 32).render(data, "front")
thread = threading.Thread(target=draw); thread.start(); thread.join()
kept.render(data, "front")
"""


def test_an_interpreter_that_leaves_renderers_open_exits_in_silence():
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


WITHOUT_OPENGL = """
from envs.gymnasium import GymnasiumWorld
from simeval.errors import SimevalError
from simeval.noise import Key
keys = [Key(0).stream("world").key(0)]
for cameras in ((), ("track",)):
    world = GymnasiumWorld("HalfCheetah-v5", cameras=cameras)
    try:
        print(world.reset([0], [world.start("HalfCheetah-v5", 0)], keys).failures)
    except SimevalError as error:
        print(error)
"""


def test_without_opengl_only_pictures_fail_and_the_error_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENGL], capture_output=True, text=True, check=False, env={"MUJOCO_GL": "off"}
    )
    blind, seeing = done.stdout.splitlines()
    assert blind == "{}"
    assert "apt-get install -y libegl1 libgl1-mesa-dri" in seeing
