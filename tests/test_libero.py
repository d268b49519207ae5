"""LIBERO in its own interpreter: exact forks, pure resets, the reference loops' episodes, conventions."""

import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from envs.libero.conventions import CONVENTIONS, axis_angle, resolve
from envs.libero.suites import SUITES
from policies.libero import LiberoPickPlace
from simeval import Run, Snapshot, Start
from simeval.cli import main
from simeval.errors import ConfigError
from simeval.host import HostedWorld
from simeval.noise import Key
from simeval.testing.checks import Row, require_equal, take_row
from simeval.world import World

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / os.environ.get("SIMEVAL_LIBERO_PYTHON", ".venv-libero/bin/python")
STEPS, FORK = 500, 20

hosted = [
    pytest.mark.libero,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"LIBERO needs an interpreter of its own ({PYTHON}): make libero"),
]


def in_libero(test: Any) -> Any:
    for mark in hosted:
        test = mark(test)
    return test


@contextmanager
def libero(suite: str, task: Any, **settings: Any) -> Iterator[World]:
    config = {"_target_": "envs.libero.Libero", "suite": suite, "task": task, "num_slots": 1, **settings}
    world = HostedWorld(config, python=str(PYTHON), label="world 'libero'")
    try:
        yield world
    finally:
        world.close()


def begin(world: World, start: Start) -> Row:
    return take_row(world.reset([0], [start], [Key(3).stream("world").key(0)]), 0)


def go_on(world: World, actions: Sequence[np.ndarray], first: int = 0) -> list[Row]:
    stream = Key(3).stream("world")
    return [
        take_row(world.step([0], action[None], [stream.key(first + step + 1)]), 0)
        for step, action in enumerate(actions)
    ]


def random_actions(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 7)).astype(np.float32)


@in_libero
@pytest.mark.parametrize("which", [0, 1], ids=("a_fixed_state", "a_fresh_seed"))
@pytest.mark.parametrize(
    ("suite", "tasks"),
    [
        ("libero_spatial", (0, 4)),
        ("libero_object", (0, 6)),
        ("libero_goal", (0, 7)),
        ("libero_10", (2, 8)),
        ("libero_90", (3, 60)),
        ("libero_goal_swap", (1, 9)),
    ],
)
def test_an_episode_is_a_function_of_its_start_and_its_forks_go_on_bit_for_bit(
    suite: str, tasks: tuple[int, int], which: int
) -> None:
    actions = random_actions(FORK + STEPS)
    with libero(suite, tasks[which]) as world:
        task = world.tasks[0]
        start = world.starts(task, 3, 0)[2] if which == 0 else world.start(task, 11)
        first = begin(world, start)
        go_on(world, actions[:FORK])
        (snapshot,) = world.snapshot([0])
        tail = go_on(world, actions[FORK:], FORK)
        world.restore([0], [snapshot])
        again = STEPS if which == 0 else 100
        require_equal(tail[:again], go_on(world, actions[FORK:][:again], FORK), "restored in the same process")
        begin(world, world.start(task, 12))
        go_on(world, random_actions(5, 1))
        require_equal([first], [begin(world, start)], "begun again after other episodes")
    with libero(suite, tasks[which]) as fresh:
        fresh.restore([0], [Snapshot.from_bytes(snapshot.to_bytes())])
        require_equal(tail, go_on(fresh, actions[FORK:], FORK), "restored in a fresh process")
        require_equal([first], [begin(fresh, start)], "begun in a fresh process")


@in_libero
def test_a_fork_under_the_grasp_goes_on_bit_for_bit() -> None:
    with libero("libero_spatial", 0) as world:
        (start,) = world.starts(world.tasks[0], 1, 0)
        policy = LiberoPickPlace().bind(world.spec)
        row, memory, actions = begin(world, start), policy.initial_memory(1), []
        stream = Key(3).stream("policy")
        rows, snapshot = [], None
        for step in range(world.horizon(start.task)):
            if memory["phase"][0] == 3 and snapshot is None:
                fork, (snapshot,) = step, world.snapshot([0])
            state = {"state": row["observation/state"][None]}
            decided = policy.act(state, [start.instruction], memory, [stream.key(step)])
            memory, (action,) = decided.memory, decided.action
            (row,) = go_on(world, [action], step)
            actions.append(action)
            rows.append(row)
        assert snapshot is not None
        assert any(row["success"] for row in rows)
        world.restore([0], [snapshot])
        require_equal(rows[fork:], go_on(world, actions[fork:], fork), "restored while the bowl is held")


REFERENCE = """
import sys
import numpy as np
from libero.libero.envs import OffScreenRenderEnv
problem, states, index, seed, size, actions, out = sys.argv[1:]
env = OffScreenRenderEnv(bddl_file_name=problem, camera_heights=int(size), camera_widths=int(size))
env.seed(int(seed))
env.reset()
seen = [env.set_init_state(np.load(states)["states"][int(index)])]
for _ in range(10):
    seen = [env.step([0, 0, 0, 0, 0, 0, -1])[0]]
for action in np.load(actions):
    seen.append(env.step(action.tolist())[0])
keys = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "agentview_image", "robot0_eye_in_hand_image")
np.savez(out, **{key: np.stack([each[key] for each in seen]) for key in keys})
sys.stdout.flush()
import os
os._exit(0)
"""
"""What the loops of openpi, OpenVLA and LeRobot do until their first actions are taken, by LIBERO's own wrapper."""


@in_libero
@pytest.mark.parametrize(
    ("suite", "task", "index", "preset"), [("libero_goal", 0, 0, "openpi"), ("libero_10", 3, 2, "lerobot")]
)
def test_an_episode_is_the_reference_loops_own_bit_for_bit(
    suite: str, task: int, index: int, preset: str, tmp_path: Path
) -> None:
    actions = random_actions(4)
    np.save(tmp_path / "actions.npy", actions)
    size = CONVENTIONS[preset].render_size
    convention = {"preset": preset, "resize": "none", "image_size": size}
    with libero(suite, task, convention=convention, cameras=["agentview", "wrist"]) as world:
        rows = [begin(world, world.starts(world.tasks[0], index + 1, 0)[index]), *go_on(world, actions)]
        name = world.tasks[0]
    folder = next(PYTHON.parents[1].glob("lib/python*/site-packages/libero/libero"))
    given = (
        str(folder / "bddl_files" / suite / f"{name}.bddl"),
        str(folder / "init_files" / suite / f"{name}.pruned_init.npz"),
        str(index),
        str(CONVENTIONS[preset].placement(index)),
        str(size),
        str(tmp_path / "actions.npy"),
        str(tmp_path / "seen.npz"),
    )
    environment = {**os.environ, "MUJOCO_GL": "egl", "LIBERO_CONFIG_PATH": str(tmp_path)}
    subprocess.run([str(PYTHON), "-c", REFERENCE, *given], check=True, capture_output=True, env=environment)
    seen = np.load(tmp_path / "seen.npz")
    for step, row in enumerate(rows):
        rotation = axis_angle(seen["robot0_eef_quat"][step])
        proprio = np.concatenate([seen["robot0_eef_pos"][step], rotation, seen["robot0_gripper_qpos"][step]])
        np.testing.assert_array_equal(row["observation/proprio"], proprio, f"step {step}")
        for camera, drawn in (("agentview", "agentview_image"), ("wrist", "robot0_eye_in_hand_image")):
            rotated = seen[drawn][step][::-1, ::-1]
            np.testing.assert_array_equal(row[f"observation/image_{camera}"], rotated, f"{camera}, step {step}")


@in_libero
def test_starts_are_the_fixed_states_in_order_and_then_fresh_ones() -> None:
    with libero("libero_spatial_lan", [1, "pick_up_the_black_bowl_on_the_stove_and_place_it_on_the_plate"]) as world:
        starts = world.starts(world.tasks[0], 53, 0)
        assert [start.index for start in starts[:50]] == list(range(50))
        assert all(start.index is None and start.seed is not None for start in starts[50:])
        assert starts[0].instruction == "take black bowl next to ramekin and place on plate"
        assert starts == [*world.starts(world.tasks[0], 51, 0), *starts[51:]]
        assert world.horizon(world.tasks[1]) == 220
        with pytest.raises(ConfigError, match=r"fixed initial states 0\.\.49; received index 50"):
            begin(world, Start(world.tasks[0], index=50))
        with pytest.raises(ConfigError, match="fixed state's index or from a seed"):
            begin(world, Start(world.tasks[0]))
    with libero("libero_spatial", 2, initial_states="fresh") as world:
        assert all(start.index is None for start in world.starts(world.tasks[0], 3, 0))


@in_libero
def test_every_suite_is_shipped_whole() -> None:
    script = "from envs.libero.suites import *; print(*(f'{s} {len(tasks_of(s))}' for s in SUITES), sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(PYTHON), "-c", script], check=True, capture_output=True, text=True, env=environment)
    counts = dict(line.split() for line in done.stdout.splitlines() if line.startswith("libero_"))
    assert counts == {suite: "90" if suite == "libero_90" else "10" for suite in SUITES}


@in_libero
def test_a_run_goes_from_the_command_line_to_a_report(tmp_path: Path) -> None:
    settings = ["world=libero", "world.task=[0,1]", f"world.host.python={PYTHON}", "policy=uniform"]
    limits = ["protocol.episodes=1", "protocol.horizon=4", f"run.dir={tmp_path / 'run'}"]
    assert main(["run", *settings, *limits]) == 0
    episodes = Run(tmp_path / "run").episodes
    assert list(episodes["status"]) == ["done", "done"]
    assert len(set(episodes["task"])) == 2
    assert (tmp_path / "run" / "report.html").exists()
    assert "placement_seed=7" in (tmp_path / "run" / "run.json").read_text()


def test_an_absent_interpreter_is_told_with_what_makes_it() -> None:
    with pytest.raises(ConfigError, match=r"nowhere/python.*make libero"):
        HostedWorld({"_target_": "envs.libero.Libero", "num_slots": 1}, python="nowhere/python", label="world 'libero'")


def test_the_rotation_keeps_the_quaternions_sign() -> None:
    half = math.radians(170) / 2
    turn = np.array([0, math.sin(half), 0, math.cos(half)])
    np.testing.assert_allclose(axis_angle(turn), [0, math.radians(170), 0])
    np.testing.assert_allclose(axis_angle(-turn), [0, -math.radians(190), 0])
    np.testing.assert_array_equal(axis_angle(np.array([0.0, 0, 0, 1])), np.zeros(3))


def test_the_gripper_means_what_the_convention_says() -> None:
    action = np.array([0.1, 0, 0, 0, 0, 0, 0.9], np.float32)
    assert resolve("openpi").action(action)[6] == pytest.approx(0.9)
    assert resolve("openvla").action(action)[6] == -1
    assert resolve("openvla").action(action * 0)[6] == 1
    assert resolve("openvla").bounds()[0][6] == 0


def test_pictures_are_turned_and_resized_as_the_convention_says() -> None:
    drawn = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
    smooth = np.array(Image.fromarray(drawn).resize((16, 16)).resize((256, 256)))
    expected = np.array(Image.fromarray(smooth[:, ::-1]).resize((224, 224), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(resolve("openpi").picture(smooth), expected)
    upright = resolve({"preset": "openpi", "orientation": "upright", "resize": "none", "image_size": 256})
    np.testing.assert_array_equal(upright.picture(smooth), smooth)
    plain = resolve({"preset": "openvla", "jpeg": False, "crop_area": 1.0})
    expected = np.array(Image.fromarray(smooth[:, ::-1]).resize((224, 224), Image.Resampling.LANCZOS))
    assert np.abs(plain.picture(smooth).astype(int) - expected).max() <= 1
    cropped = resolve({"preset": "openvla", "jpeg": False}).picture(np.full_like(smooth, 77))
    assert cropped.shape == (224, 224, 3)
    assert (cropped == 77).all()
    assert resolve("lerobot").picture(np.zeros((360, 360, 3), np.uint8)).shape == (360, 360, 3)


def test_the_crop_is_the_centre_enlarged() -> None:
    ramp = np.repeat(np.linspace(0, 255, 224).astype(np.uint8)[None, :, None], 224, axis=0).repeat(3, axis=2)
    picture = resolve({"preset": "openvla", "jpeg": False, "render_size": 224}).picture(ramp).astype(int)
    margin = 255 * (1 - math.sqrt(0.9)) / 2
    assert abs(picture[100, 0, 0] - (255 - margin)) <= 2
    assert abs(picture[100, -1, 0] - margin) <= 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("openpie", "did you mean openpi"),
        ({"preset": "openpi", "setle_steps": 3}, "did you mean settle_steps"),
        ({"resize": "nearest"}, "available: pad_bilinear, lanczos3, none"),
        ({"resize": "none"}, "image_size 224 is not render_size 256"),
        ({"crop_area": 0}, "received 0"),
    ],
)
def test_a_convention_that_does_not_exist_is_refused(asked: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(asked)
