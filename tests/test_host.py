"""Hosted Worlds: in another process, or another interpreter, everything is bit for bit what it is in this one."""

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosted_worlds import Counter

from policies.basic import Uniform
from simeval import Engine, HostedWorld, Key, MemoryStore, Rollout, Snapshot, World, run
from simeval.episode import Episode
from simeval.errors import ConfigError, HostError, LostError, MissingPackageError, SnapshotError
from simeval.schedule import Protocol
from simeval.testing import ToySimulator, assert_conforms, check_world, toy_policies

TOY = {"_target_": "simeval.testing.ToySimulator", "num_slots": 5, "cameras": ["top"], "image_size": 24}
COUNTER = {"_target_": "hosted_worlds.Counter", "num_slots": 4}
STREAM = Key(1).stream("world")
DECLARED = (*World.__annotations__, "snapshot_fingerprint", "spec")


def arrays_of(episode: Episode) -> dict[str, np.ndarray]:
    return {path: episode.source.read(path) for path in episode.source.paths()}


def assert_same(one: Episode, other: Episode) -> None:
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    for path, array in first.items():
        assert array.dtype == second[path].dtype
        np.testing.assert_array_equal(array, second[path], err_msg=path)
    assert replace(one.ending, wall_s=0) == replace(other.ending, wall_s=0)


def toy_study(world: World) -> Protocol:
    roots = [
        Rollout(world.start(task, seed), seed=seed, horizon=40, policy="gaussian", snapshot_steps=(0, 7, 20))
        for seed in range(3)
        for task in world.tasks
    ]
    parents = yield roots
    children = yield [parent.rollout.branch(9, fresh=["policy"], seed=5) for parent in parents if parent.length > 9]
    return [*parents, *children]


def counted(world: World, count: int = 10, keep: tuple[int, ...] = (), fork: bool = False) -> list[Episode]:
    """Episodes of ``count`` seeds under uniform actions, or what is forked from them at the first step kept."""
    rollouts = [
        Rollout(world.start("count", seed), seed=seed, horizon=world.horizon("count"), snapshot_steps=keep)
        for seed in range(count)
    ]

    def protocol() -> Protocol:
        episodes = yield rollouts
        return (yield [episode.rollout.branch(keep[0]) for episode in episodes]) if fork else episodes

    return run(protocol(), world, Uniform())


@functools.cache
def undisturbed(keep: tuple[int, ...] = (), fork: bool = False) -> list[Episode]:
    return counted(Counter(num_slots=4), keep=keep, fork=fork)


# The same, wherever it runs


@functools.cache
def toy_reference() -> list[Episode]:
    return run(toy_study(ToySimulator()), ToySimulator(3, cameras=("top",), image_size=24), toy_policies())


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_hosted_run_is_bit_identical_to_one_in_this_process(processes: int) -> None:
    world = HostedWorld(TOY, processes=processes)
    try:
        assert len(set(world.pids)) == processes
        episodes = run(toy_study(world), world, toy_policies())
    finally:
        world.close()
    assert len(episodes) > 20
    for one, other in zip(toy_reference(), episodes, strict=True):
        assert_same(one, other)


def test_a_hosted_world_declares_what_the_world_declares() -> None:
    world, own = HostedWorld(TOY, processes=2), ToySimulator(5, cameras=("top",), image_size=24)
    try:
        for name in DECLARED:
            assert getattr(world, name) == getattr(own, name), name
        assert world.starts("push-left", 4, 7) == own.starts("push-left", 4, 7)
        assert world.horizon("push-left") == own.horizon("push-left")
        assert world.observation_space["state"].low.dtype == np.float64
    finally:
        world.close()


def test_errors_are_the_worlds_own() -> None:
    world, own = HostedWorld(TOY, processes=2), ToySimulator(5, cameras=("top",), image_size=24)
    keys = [STREAM.key(0)] * 5
    starts = [own.start(own.tasks[0], seed) for seed in range(5)]
    unfit = replace(starts[0], seed=None)
    calls: list[Callable[[World], object]] = [
        lambda w: w.step([4], np.zeros((1, 2), np.float32), keys[:1]),
        lambda w: w.snapshot([3]),
        lambda w: w.start("no-such", 0),
        lambda w: w.reset([0, 9], starts[:2], keys[:2]),
        lambda w: w.reset([3], [unfit], keys[:1]),
        lambda w: w.reset([3], [replace(starts[0], task="no-such")], keys[:1]),
        lambda w: w.reset(range(5), starts, keys) and w.step([4], np.full((1, 2), 7.0), [STREAM.key(1)]),
        lambda w: w.step([4], np.zeros((1, 3)), [STREAM.key(1)]),
        lambda w: w.restore([1], [Snapshot("another", {})]),
    ]
    try:
        for call in calls:
            with pytest.raises(Exception) as here:  # noqa: PT011
                call(own)
            with pytest.raises(type(here.value)) as there:
                call(world)
            assert str(there.value) == str(here.value)
    finally:
        world.close()


def test_what_a_hosted_world_returns_shares_memory_with_nothing() -> None:
    world = HostedWorld({**COUNTER, "image_size": 16}, processes=2)
    try:
        starts = [world.start("count", seed) for seed in range(4)]
        first = world.reset(range(4), starts, [STREAM.key(0)] * 4)
        kept = {key: value.copy() for key, value in first.observation.items()}
        for value in first.observation.values():
            assert value.flags.owndata or value.base.flags.owndata
        for step in range(1, 4):
            world.step(range(4), np.ones((4, 1), np.float32), [STREAM.key(step)] * 4)
        for key, value in first.observation.items():
            np.testing.assert_array_equal(value, kept[key])
        np.testing.assert_array_equal(world.render([3, 0, 1])[:, 0, 0, 0], [6, 3, 4])
    finally:
        world.close()


def test_any_order_and_choice_of_slots_gives_rows_in_the_order_asked() -> None:
    world, own = HostedWorld(COUNTER, processes=3), Counter(4)
    try:
        for slots in ([3, 0], [2], [1, 3, 2, 0]):
            starts = [own.start("count", 10 * slot) for slot in slots]
            hosted = world.reset(slots, starts, [STREAM.key(0)] * len(slots))
            np.testing.assert_array_equal(hosted.observation["state"][:, 0], [10 * slot for slot in slots])
        snapshots = world.snapshot([0, 3])
        assert [snapshot.state["seed"] for snapshot in snapshots] == [0, 30]
        assert Snapshot.from_bytes(snapshots[1].to_bytes()).state["seed"] == 30
        moved = world.restore([1, 2, 3], [snapshots[1], snapshots[0], snapshots[1]])
        np.testing.assert_array_equal(moved.observation["state"][:, 0], [30, 0, 30])
        np.testing.assert_array_equal(world.fork(2, [0, 3]).observation["state"][:, 0], [0, 0])
        with pytest.raises(SnapshotError):
            world.restore([0], [Snapshot("other", {})])
    finally:
        world.close()


def test_shared_memory_grows_with_what_is_asked_of_it() -> None:
    world = HostedWorld({**COUNTER, "num_slots": 16, "image_size": 96}, processes=1)
    try:
        starts = [world.start("count", seed) for seed in range(16)]
        for count in (1, 16, 2):
            result = world.reset(range(count), starts[:count], [STREAM.key(0)] * count)
            assert result.observation["image_front"].shape == (count, 96, 96, 3)
            np.testing.assert_array_equal(
                result.observation["image_front"][:, 5, 5, 1], (100 * np.arange(count)).astype(np.uint8)
            )
    finally:
        world.close()


def hosted(config: dict[str, Any], num_slots: int) -> World:
    return HostedWorld({**config, "num_slots": num_slots}, processes=2)


@pytest.mark.parametrize("config", [COUNTER, pytest.param(TOY, marks=pytest.mark.slow)], ids=["counter", "toy"])
def test_a_hosted_world_conforms(config: dict[str, Any]) -> None:
    assert_conforms(check_world(functools.partial(hosted, config), steps=15))


# Losses


@pytest.mark.parametrize(
    ("way", "where"),
    [("exit", "reset"), ("exit", "step"), ("segfault", "step"), ("kill", "snapshot"), ("exit", "restore")],
)
def test_a_rollout_whose_process_dies_once_runs_again_and_nobody_notices(way: str, where: str, tmp_path: Path) -> None:
    world = HostedWorld({**COUNTER, "deadly": [2, 5], "way": way, "once": str(tmp_path), "where": where}, processes=2)
    try:
        before = world.pids
        episodes = counted(world, keep=(3,), fork=where == "restore")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "5"]
        assert world.pids != before
    finally:
        world.close()
    for one, other in zip(undisturbed((3,), where == "restore"), episodes, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    ("way", "said"),
    [pytest.param("exit", "exited with code 3", marks=pytest.mark.slow), ("segfault", "ended by SIGSEGV")],
)
def test_a_rollout_that_always_ends_its_process_is_an_error_of_the_world_and_the_others_are_done(
    way: str, said: str
) -> None:
    world = HostedWorld({**COUNTER, "deadly": [2, 3, 5], "way": way}, processes=2)
    try:
        episodes = counted(world)
    finally:
        world.close()
    for seed, (one, other) in enumerate(zip(undisturbed(), episodes, strict=True)):
        if seed in (2, 3, 5):
            assert (other.status, other.ending.blame) == ("error", "world")
            assert said in other.error
            assert f"seed {seed} ends this process" in other.error
        else:
            assert_same(one, other)


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow) for way in ("hang", "stop")])
def test_a_worker_that_does_not_answer_is_killed_at_its_deadline(way: str, tmp_path: Path) -> None:
    config = {**COUNTER, "deadly": [4], "way": way, "once": str(tmp_path)}
    world = HostedWorld(config, processes=2, deadline=2.0)
    try:
        episodes = counted(world)
    finally:
        world.close()
    for one, other in zip(undisturbed(), episodes, strict=True):
        assert_same(one, other)
    again = HostedWorld({**config, "once": None}, processes=1, deadline=2.0)
    try:
        (lost,) = [episode for episode in counted(again, 5) if episode.status == "error"]
    finally:
        again.close()
    assert "did not answer to 'step' within 2 s and was killed" in lost.error


@pytest.mark.parametrize(
    ("sent", "due"),
    [
        pytest.param(signal.SIGKILL, {3: 0, 15: 1, 19: 2}, id="killed"),
        pytest.param(signal.SIGSTOP, {9: 1}, id="stopped", marks=pytest.mark.slow),
    ],
)
def test_workers_lost_while_a_run_is_going_change_nothing(sent: signal.Signals, due: dict[int, int]) -> None:
    world = HostedWorld({**TOY, "num_slots": 6}, processes=3, deadline=2.0)
    seen = 0

    def disturb(episode: Episode) -> None:
        nonlocal seen
        seen += 1
        if seen in due:
            os.kill(world.pids[due[seen]], sent)

    try:
        first = world.pids
        with Engine({"world": world}, {"world": toy_policies()}, MemoryStore(), on_episode=disturb) as engine:
            episodes = engine.run(toy_study(world))
        assert [pid != was for pid, was in zip(world.pids, first, strict=True)] == [i in due.values() for i in range(3)]
    finally:
        world.close()
    for one, other in zip(toy_reference(), episodes, strict=True):
        assert_same(one, other)


def test_slots_of_a_dead_process_are_lost_until_they_begin_anew() -> None:
    world = HostedWorld(COUNTER, processes=2)
    try:
        starts = [world.start("count", seed) for seed in range(4)]
        actions = np.zeros((4, 1), np.float32)
        world.reset(range(4), starts, [STREAM.key(0)] * 4)
        (snapshot,) = world.snapshot([0])
        os.kill(world.pids[0], signal.SIGKILL)
        result = world.step([0, 1], actions[:2], [STREAM.key(1)] * 2)
        assert result.lost == {0, 2}
        assert list(result.failures) == [0]
        assert "ended by SIGKILL in 'step'" in result.failures[0]
        assert result.observation["state"][1, 0] == 1
        assert world.step([2, 3], actions[:2], [STREAM.key(1)] * 2).lost == {2}
        for call in (world.snapshot, world.render):
            with pytest.raises(LostError, match="SIGKILL") as error:
                call([3, 2])
            assert error.value.slots == {2}
        assert world.restore([2], [snapshot]).observation["state"][0, 0] == 0
        again = world.step([2, 0], actions[:2], [STREAM.key(1)] * 2)
        assert (again.lost, list(again.failures)) == ({0}, [1])
    finally:
        world.close()


def test_a_world_that_cannot_be_built_is_told_at_once_and_a_process_that_dies_building_it_too() -> None:
    with pytest.raises(ConfigError, match="a toy world; available: top"):
        HostedWorld({**TOY, "cameras": ["side"]}, processes=2)
    with pytest.raises(HostError, match=r"exited with code 9 in 'build'; its World was never built"):
        HostedWorld({"_target_": "hosted_worlds.suicidal", "num_slots": 1}, label="world 'gone'")


# No process is left behind

PARENT = """
import signal, sys, time
from simeval import HostedWorld
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background ignores
world = HostedWorld({"_target_": "hosted_worlds.Counter", "num_slots": 2}, processes=2)
print(*world.pids, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(sent: signal.Signals) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    with parent.stdout, parent.stderr:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2, parent.stderr.read()
    assert all(_alive(pid) for pid in pids)
    if sent == signal.SIGKILL:
        os.kill(pids[0], signal.SIGSTOP)  # even one that cannot do anything about it itself
    parent.send_signal(sent)
    parent.wait()
    until = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_closing_ends_every_process_and_twice_is_harmless() -> None:
    world = HostedWorld(COUNTER, processes=2)
    pids = world.pids
    world.close()
    world.close()
    assert not any(_alive(pid) for pid in pids)


# Another interpreter


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a virtual environment that has nothing but numpy, gymnasium and msgpack."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    installed = Path(np.__file__).parent.parent
    needed = ("numpy", "numpy.libs", "gymnasium", "msgpack", "cloudpickle", "farama_notifications")
    for name in (*needed, "typing_extensions.py"):
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    return folder / "bin" / "python"


def test_a_world_in_another_interpreter_sees_simeval_and_none_of_this_ones_packages(bare: Path) -> None:
    world = HostedWorld(COUNTER, processes=2, python=str(bare))
    try:
        episodes = counted(world)
    finally:
        world.close()
    for one, other in zip(undisturbed(), episodes, strict=True):
        assert_same(one, other)
    loaded = HostedWorld({"_target_": "hosted_worlds.Loaded", "num_slots": 1}, python=str(bare))
    loaded.close()
    assert loaded.fingerprint == f"{bare} [] None"


def test_what_another_interpreter_lacks_is_said_with_the_command_to_install_it(bare: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingPackageError, match=rf"needs h5py, which.*pip install h5py.*{bare} -m pip"):
        HostedWorld({"_target_": "hosted_worlds.needy", "num_slots": 1}, python=str(bare), label="world 'x'")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    empty = tmp_path / "bin" / "python"
    said = rf"world 'x': .*lacks numpy gymnasium msgpack; install with: {empty} -m pip install numpy gymnasium msgpack"
    with pytest.raises(HostError, match=said):
        HostedWorld(COUNTER, python=str(empty), label="world 'x'")


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"host.python=/no/such/python: there is no such program"):
        HostedWorld(COUNTER, python="/no/such/python")
    for program in ("true", "false"):
        with pytest.raises(HostError, match=f"host.python=\\S*/{program} is not a Python interpreter; name the python"):
            HostedWorld(COUNTER, python=program)


# What is built


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("os.system", "is no World"),
        ("simeval.world.World.no_such", "there is no"),
        ("no_such_module.World", "there is no|no_such_module"),
        ("hosted_worlds.WAYS", "is no World"),
    ],
)
def test_a_worker_builds_worlds_and_nothing_else(target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HostedWorld({"_target_": target, "num_slots": 1})


def test_worlds_within_worlds_are_built_and_nothing_else_is() -> None:
    inner = {"_target_": "simeval.testing.ToySimulator", "num_slots": 2}
    world = HostedWorld({"_target_": "hosted_worlds.Wrapped", "num_slots": 2, "world": inner})
    try:
        assert world.fingerprint == ToySimulator(2).fingerprint
    finally:
        world.close()
    with pytest.raises(ConfigError, match=r"_target_ os\.getcwd is no World"):
        HostedWorld({"_target_": "hosted_worlds.Wrapped", "num_slots": 2, "world": {"_target_": "os.getcwd"}})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"processes": 0}, "host.processes"),
        ({"processes": True}, "host.processes"),
        ({"deadline": -1}, "host.deadline"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HostedWorld(COUNTER, **settings)
    with pytest.raises(ConfigError, match="needs num_slots"):
        HostedWorld({"_target_": "hosted_worlds.Counter"})


def test_no_more_processes_than_slots_are_started() -> None:
    world = HostedWorld({**COUNTER, "num_slots": 1}, processes=3)
    try:
        assert len(world.pids) == 1
    finally:
        world.close()
