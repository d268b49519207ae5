"""The trace: complete, aligned, atomic; a kill loses nothing sealed; foreign and damaged files are refused."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from simeval import folder
from simeval.episode import Episode
from simeval.errors import SimevalError, TraceError
from simeval.noise import StepKey
from simeval.protocols import MonteCarlo, Setting
from simeval.reader import Run
from simeval.rollout import Engine
from simeval.schedule import Protocol
from simeval.store import MemoryStore, RunStore, Store
from simeval.testing import Faulty, ToySimulator, toy_policies
from simeval.types import Rollout, TimeStep

POLICIES = toy_policies()


def make_folder(path: Path) -> Path:
    folder.create(path, folder.Manifest({"seed": 0}, {"world": "toy"}, {"world": {"expert": "ToyExpert"}}))
    return path


def study(
    store: Store, slots: int = 4, episodes: int = 3, cameras: tuple[str, ...] = (), every: int = 0
) -> list[Episode]:
    world = ToySimulator(num_slots=slots, cameras=cameras, image_size=32)
    setting = Setting({"world": world}, {"world": ["expert", "gaussian"]}, seed=1)
    with Engine({"world": world}, {"world": POLICIES}, store) as engine:
        return engine.run(MonteCarlo(episodes=episodes, snapshot_every=every).protocol(setting))


def contents(episode: Episode) -> dict[str, np.ndarray]:
    return {path: episode.source.read(path) for path in episode.source.paths()}


def assert_same_run(run: Run, reference: list[Episode]) -> None:
    assert {episode.id for episode in run} == {episode.id for episode in reference}
    for episode in reference:
        recorded = run[episode.id]
        assert replace(recorded.ending, wall_s=0) == replace(episode.ending, wall_s=0)
        expected, found = contents(episode), contents(recorded)
        assert expected.keys() == found.keys()
        for path, array in expected.items():
            assert array.dtype == found[path].dtype
            np.testing.assert_array_equal(array, found[path], err_msg=path)


def test_what_is_read_back_is_what_happened(tmp_path: Path) -> None:
    reference = study(MemoryStore(), cameras=("top",), every=10)
    study(RunStore(make_folder(tmp_path / "run")), cameras=("top",), every=10)
    run = Run(tmp_path / "run")
    assert_same_run(run, reference)
    for episode in reference:
        recorded = run[episode.id]
        assert recorded.observation["image_top"].dtype == np.uint8
        assert len(recorded.observation["state"]) == len(recorded.signals["goal"]) == recorded.length + 1
        assert len(recorded.action) == len(recorded.reward) == len(recorded.success) == recorded.length
        assert recorded.source.checkpoint_steps() == [s for s in range(0, 150, 10) if s <= episode.length]
        for step in recorded.source.checkpoint_steps():
            assert recorded.source.checkpoint(step).to_bytes() == episode.source.checkpoint(step).to_bytes()


def test_a_damaged_checkpoint_is_not_branched_from(tmp_path: Path) -> None:
    study(RunStore(make_folder(tmp_path / "run")), every=10)
    (shard, *_) = sorted((tmp_path / "run" / "traces").glob("*.h5"))
    with h5py.File(shard, "r+") as file:
        data = file["snapshots/data"]
        kept = data[()]
        kept[len(kept) // 2 :: 97] ^= 1
        data[...] = kept
    damaged = 0
    for episode in Run(tmp_path / "run"):
        for step in episode.source.checkpoint_steps():
            with contextlib.suppress(TraceError):
                episode.source.checkpoint(step)
                continue
            damaged += 1
    assert damaged


def test_the_table_has_a_row_per_rollout(tmp_path: Path) -> None:
    episodes = study(RunStore(make_folder(tmp_path / "run")))
    table = Run(tmp_path / "run").episodes.set_index("id")
    assert len(table) == len(episodes) == 24
    for episode in episodes:
        row = table.loc[episode.id]
        assert (row["task"], row["policy"], row["status"]) == (
            episode.rollout.start.task,
            episode.rollout.policy,
            "done",
        )
        assert (row["success"], row["length"], row["return"]) == (
            episode.succeeded,
            episode.length,
            episode.total_reward,
        )


def test_any_hdf5_reader_sees_the_documented_layout(tmp_path: Path) -> None:
    study(RunStore(make_folder(tmp_path / "run"), seal_seconds=600), episodes=1, cameras=("top",))
    (first, *_) = study(MemoryStore(), episodes=1, cameras=("top",))
    (shard,) = (tmp_path / "run" / "traces").glob("*.h5")
    with h5py.File(shard) as file:
        assert file.attrs["schema"] == b"simeval-trace/1"
        table = {name: column[...] for name, column in file["episodes"].items()}
        row = table["id"].tolist().index(first.id.encode())
        columns = file[str(table["layout"][row])]
        assert Rollout.from_json(json.loads(table["rollout"][row])) == first.rollout
        assert table["task"][row].decode() == first.rollout.start.task
        assert table["length"][row] == first.length
        actions = slice(table["action_row"][row], table["action_row"][row] + first.length)
        observations = slice(table["observation_row"][row], table["observation_row"][row] + first.length + 1)
        np.testing.assert_array_equal(columns["action"][actions], first.action)
        np.testing.assert_array_equal(columns["observation/state"][observations], first.observation["state"])
        images = columns["observation/image_top"]
        align = images.attrs["align"]
        assert images.compression == "gzip"
        assert images.chunks[0] == align
        before = table["length"][:row][table["layout"][:row] == table["layout"][row]]
        begin = int(np.sum(-(-(before + 1) // align) * align))
        np.testing.assert_array_equal(images[begin : begin + first.length + 1], first.observation["image_top"])


def test_a_branch_is_stitched_to_its_parent(tmp_path: Path) -> None:
    world = ToySimulator()

    def protocol() -> Protocol:
        (parent,) = yield [Rollout(world.start("push-left", 3), seed=8, horizon=60, policy="gaussian")]
        (child,) = yield [parent.rollout.branch(11)]
        (grandchild,) = yield [child.rollout.branch(30)]
        return parent, grandchild

    store = RunStore(make_folder(tmp_path / "run"))
    with Engine({"world": world}, {"world": POLICIES}, store) as engine:
        parent, grandchild = engine.run(protocol())
    run = Run(tmp_path / "run")
    assert len(run[grandchild.id].action) == parent.length - 30
    for path, array in contents(run.whole(grandchild.id)).items():
        np.testing.assert_array_equal(array, contents(parent)[path], err_msg=path)


def test_a_resumed_run_runs_only_what_is_missing(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    study(RunStore(path), episodes=2)
    before = {shard: shard.stat().st_mtime_ns for shard in (path / "traces").iterdir()}
    reference = study(MemoryStore(), episodes=3)
    study(RunStore(path), episodes=3, slots=7)
    assert_same_run(Run(path), reference)
    assert {shard: shard.stat().st_mtime_ns for shard in before} == before


def test_errors_are_recalled_unless_they_are_to_be_retried(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    world = ToySimulator()
    rollout = Rollout(world.start("reach-left", 1), seed=0, horizon=30, policy="expert")

    def ask() -> Protocol:
        return (yield [rollout])

    with Engine({"world": Faulty(world, {(1, 4): "raise"})}, {"world": POLICIES}, RunStore(path)) as engine:
        assert engine.run(ask())[0].status == "error"
    with Engine({"world": world}, {"world": POLICIES}, RunStore(path)) as engine:
        assert engine.run(ask())[0].status == "error"
    with Engine({"world": world}, {"world": POLICIES}, RunStore(path, retry_errors=True)) as engine:
        assert engine.run(ask())[0].status == "done"
    assert list(Run(path).episodes["status"]) == ["done"]


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_trace
store = test_trace.RunStore(Path(sys.argv[1]), seal_seconds=0.05)
print("ready", flush=True)
test_trace.study(store, episodes=int(sys.argv[3]), cameras=("top",))
"""


@pytest.mark.slow
def test_killed_at_ten_random_moments_and_resumed_it_is_the_same_run(tmp_path: Path) -> None:
    episodes = 40
    reference = study(MemoryStore(), episodes=episodes, cameras=("top",))
    path = make_folder(tmp_path / "run")
    rng = np.random.default_rng(0)
    command = [sys.executable, "-c", CHILD, str(path), str(Path(__file__).parent), str(episodes)]
    progress = []
    for _ in range(10):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            process.wait(rng.uniform(0.02, 0.4))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        progress.append(len(Run(path)))
    assert progress == sorted(progress)
    assert 0 < progress[0] < len(reference), "the kills fell before or after the work; change their times"
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    run = Run(path)
    assert_same_run(run, reference)
    sealed = []
    for shard in (path / "traces").glob("*.h5"):
        with h5py.File(shard) as file:
            sealed += file["episodes/id"][...].tolist()
    assert len(sealed) == len(set(sealed)) == len(reference)
    assert not list((path / "traces").glob(".*"))


def test_a_shard_that_a_kill_left_unindexed_is_adopted(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    reference = study(RunStore(path))
    index = path / "episodes.jsonl"
    lines = index.read_text().splitlines(keepends=True)
    requested = [line for line in lines if '"requested"' in line]
    index.write_text("".join(requested) + lines[-1][:40])
    assert len(Run(path)) == len(reference)
    world = ToySimulator()
    with Engine({"world": world}, {"world": POLICIES}, RunStore(path)) as engine:
        assert engine.steps == 0
    assert_same_run(Run(path), reference)
    assert len([line for line in index.read_text().splitlines() if '"done"' in line]) == len(reference)


def test_a_run_folder_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    before = (path / "run.json").read_bytes()
    with pytest.raises(TraceError, match=r"holds a run; nothing is overwritten.*run\.resume=true"):
        make_folder(path)
    assert (path / "run.json").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(TraceError, match="not empty"):
        make_folder(tmp_path / "other")
    assert os.listdir(tmp_path / "other") == ["notes.txt"]


def test_two_writers_cannot_share_a_folder(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    store = RunStore(path)
    with pytest.raises(TraceError, match="another process"):
        RunStore(path)
    store.close()
    RunStore(path).close()


def test_a_run_of_another_world_or_policy_cannot_be_resumed(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    other = folder.Manifest({}, {"world": "toy/2"}, {"world": {"expert": "ToyExpert"}})
    with pytest.raises(TraceError, match=r"world 'world' was \[toy\] and is \[toy/2\]"):
        folder.resume(path, other)
    with pytest.raises(TraceError, match="policy 'expert'"):
        folder.resume(path, folder.Manifest({}, {"world": "toy"}, {"world": {"expert": "Other"}}))


def test_what_was_in_a_file_that_is_gone_is_made_again(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    study(RunStore(path, seal_seconds=600), episodes=1)
    (gone,) = (path / "traces").glob("*.h5")
    reference = study(RunStore(path, seal_seconds=600), episodes=2)
    gone.unlink()
    assert len(Run(path).lost) == 8
    study(RunStore(path), episodes=2)
    assert not Run(path).lost
    assert_same_run(Run(path), study(MemoryStore(), episodes=2))
    assert len(reference) == 16


@pytest.mark.parametrize("damage", ["truncated", "foreign", "other schema", "gone"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, damage: str) -> None:
    path = make_folder(tmp_path / "run")
    (first, *_) = study(RunStore(path, seal_seconds=600))
    (shard,) = (path / "traces").glob("*.h5")
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:1000])
    elif damage == "foreign":
        shard.write_bytes(b"not HDF5")
    elif damage == "gone":
        shard.unlink()
    else:
        with h5py.File(shard, "r+") as file:
            file.attrs["schema"] = "robomimic"
    with pytest.raises(SimevalError, match=shard.name):
        _ = Run(path)[first.id].action


def test_a_file_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = make_folder(tmp_path / "one"), make_folder(tmp_path / "other")
    study(RunStore(one), episodes=1)
    study(RunStore(other), episodes=1)
    (shard, *_) = (other / "traces").glob("*.h5")
    (one / "traces" / "000077.h5").write_bytes(shard.read_bytes())
    with pytest.raises(TraceError, match=r"000077\.h5 has run_id .* belongs to another run"):
        Run(one)


def test_an_index_cut_in_the_middle_of_a_shard_is_completed(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    reference = study(RunStore(path, seal_seconds=600))
    index = path / "episodes.jsonl"
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(lines[:-5]))
    assert len(Run(path)) == len(reference)
    RunStore(path).close()
    assert_same_run(Run(path), reference)
    assert sum('"done"' in line for line in index.read_text().splitlines()) == len(reference)


def test_a_whole_branch_is_summed_up_as_a_whole(tmp_path: Path) -> None:
    world = ToySimulator()

    def protocol() -> Protocol:
        (parent,) = yield [Rollout(world.start("push-left", 3), seed=8, horizon=20, policy="gaussian")]
        (child,) = yield [parent.rollout.branch(parent.length, horizon=30)]
        return child

    with Engine({"world": world}, {"world": POLICIES}, RunStore(make_folder(tmp_path / "run"))) as engine:
        child = engine.run(protocol())
    whole = Run(tmp_path / "run").whole(child.id)
    assert whole.length == len(whole.action) == 20 + child.length
    assert whole.total_reward == pytest.approx(whole.reward.sum())
    assert list(np.flatnonzero(whole.truncated)) == [whole.length - 1]


def test_any_text_and_nested_names_are_kept(tmp_path: Path) -> None:
    class Speaking(ToySimulator):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space["images/top"] = self.observation_space["state"]

        def _time_step(self, slots: Sequence[int]) -> TimeStep:
            step = super()._time_step(slots)
            return replace(step, observation={**step.observation, "images/top": step.observation["state"].copy()})

        def step(self, slots: Sequence[int], actions: Any, keys: Sequence[StepKey]) -> TimeStep:
            if keys[0].step > 3:
                raise RuntimeError("broken\0 \udcff é")
            return super().step(slots, actions, keys)

    world = Speaking()
    start = replace(world.start("push-left", 3), instruction="pousse \0 le <b>palet</b> é")

    def protocol() -> Protocol:
        return (yield [Rollout(start, seed=8, horizon=20, policy="expert")])

    with Engine({"world": world}, {"world": POLICIES}, RunStore(make_folder(tmp_path / "run"))) as engine:
        (episode,) = engine.run(protocol())
    recorded = Run(tmp_path / "run")[episode.id]
    assert recorded.status == "error"
    assert recorded.rollout.start.instruction == start.instruction
    assert Run(tmp_path / "run").episodes["error"][0].endswith("broken\0 \\udcff é\n")
    assert recorded.observation["images/top"].shape == (episode.length + 1, 12)
    (shard,) = (tmp_path / "run" / "traces").glob("*.h5")
    with h5py.File(shard) as file:
        assert "broken\0 \udcff é" in json.loads(file["episodes/ending"][0])["error"]
        assert file["episodes/instruction"].asstr()[0] == "pousse \\0 le <b>palet</b> é"


@pytest.mark.parametrize("line", ['{"x":1}', "[1]", "nonsense", "[" * 100_000])
def test_an_index_that_was_altered_is_named(tmp_path: Path, line: str) -> None:
    path = make_folder(tmp_path / "run")
    with open(path / "episodes.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(TraceError, match=r"episodes\.jsonl: line 1"):
        Run(path)


def test_a_disk_that_fills_up_stops_the_run_and_loses_nothing_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_folder(tmp_path / "run")
    study(RunStore(path), episodes=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("simeval.trace.write_shard", full)
        with pytest.raises(TraceError, match="No space left on device"):
            study(RunStore(path), episodes=2)
    assert len(Run(path)) == 8
    study(RunStore(path), episodes=2)
    assert_same_run(Run(path), study(MemoryStore(), episodes=2))


def test_an_index_that_the_disk_refuses_is_named_and_gone_on_with(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "run")
    store = RunStore(path)
    log = store._writer._log
    store._writer._log = open("/dev/full", "ab")  # noqa: SIM115
    with pytest.raises(TraceError, match=r"episodes\.jsonl cannot be written.*No space left.*resume the run"):
        study(store, episodes=1)
    log.close()
    study(RunStore(path), episodes=1)
    assert_same_run(Run(path), study(MemoryStore(), episodes=1))


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        Run(tmp_path / "nowhere")
    with pytest.raises(TraceError, match=r"no run\.json"):
        Run(tmp_path)
    with pytest.raises(SimevalError, match="unknown rollout"):
        _ = Run(make_folder(tmp_path / "run"))["0" * 20]
