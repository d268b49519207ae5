"""A trace file: whatever episodes share it, each is read back as it was, and in parts."""

import multiprocessing
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

from simeval import folder
from simeval.episode import ArraySource, Checkpoint, Ending, Episode
from simeval.errors import TraceError
from simeval.metrics import summarise
from simeval.reader import Run
from simeval.shard import write_shard
from simeval.shard_source import read_episodes
from simeval.tape import Frames, Tape
from simeval.trace import TraceWriter
from simeval.types import Rollout, Snapshot, Start


def _contents(episode: Episode) -> dict[str, np.ndarray]:
    return {path: episode.source.read(path) for path in episode.source.paths()}


def _made(length: int, frames: int = 0, extra: int = 0, snapshots: Sequence[int] = (), name: str = "") -> Episode:
    """An episode of random arrays; with ``frames``, with images in chunks of as many rows, the last one padded."""
    rollout = Rollout(Start(f"task-{length}"), seed=length, horizon=100, policy=f"p{frames}{extra}{name}")
    rng = np.random.default_rng([length, frames, extra])
    arrays: dict[str, np.ndarray | Frames] = {
        "action": rng.random((length, 2), np.float32),
        "reward": rng.random(length),
        **{flag: rng.random(length) < 0.5 for flag in ("terminated", "truncated", "success")},
        "observation/state": rng.random((length + 1, 3)),
        "signals/contact": rng.random((length + 1, 4)) < 0.5,
    }
    if extra:
        arrays["policy/chunk"] = rng.random((length, extra, 2))
    if frames:
        images = rng.integers(0, 255, (length + 1, 6, 5, 3), np.uint8)
        padded = np.concatenate([images, np.zeros((-(length + 1) % frames, 6, 5, 3), np.uint8)])
        chunks = tuple(zlib.compress(padded[i : i + frames].tobytes(), 1) for i in range(0, length + 1, frames))
        arrays["observation/image_top"] = Frames(images.shape, images.dtype, frames, chunks)
    kept = {step: Checkpoint(step, Snapshot("w", {"x": step}), {}, 0).to_bytes() for step in snapshots}
    summary = summarise(arrays["reward"], arrays["success"])
    return Episode(rollout, Ending("done", summary), ArraySource(arrays, kept))


def _sealed(path: Path, episodes: Sequence[Episode]) -> list[Episode]:
    write_shard(path, episodes, "run")
    return list(read_episodes(path, "run"))


MIXED = [
    _made(9, 4, snapshots=[0, 9]),
    _made(5),
    _made(0),
    _made(7, 4, snapshots=[3]),
    _made(6, 3),
    _made(3, extra=2),
    _made(0, 4),
    _made(11, 4),
    _made(8),
]


def test_episodes_of_every_layout_share_a_shard(tmp_path: Path) -> None:
    recorded = _sealed(tmp_path / "000000.h5", MIXED)
    assert [episode.rollout for episode in recorded] == [episode.rollout for episode in MIXED]
    assert [episode.ending for episode in recorded] == [episode.ending for episode in MIXED]
    for episode, original in zip(recorded, MIXED, strict=True):
        expected, found = _contents(original), _contents(episode)
        assert sorted(found) == sorted(expected)
        for path, array in expected.items():
            assert (found[path].dtype, found[path].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found[path], array, err_msg=path)
        steps = original.source.checkpoint_steps()
        assert episode.source.checkpoint_steps() == steps
        for step in steps:
            assert episode.source.checkpoint(step) == original.source.checkpoint(step)
    with h5py.File(tmp_path / "000000.h5") as file:
        assert sorted(file) == ["0", "1", "2", "3", "episodes", "snapshots"]
        assert file["episodes/layout"][...].tolist() == [0, 1, 1, 0, 2, 3, 0, 0, 1]


@pytest.mark.parametrize("in_file", [True, False], ids=["from the file", "in memory"])
def test_a_window_is_those_rows_of_the_whole(tmp_path: Path, in_file: bool) -> None:
    for episode in _sealed(tmp_path / "000000.h5", MIXED) if in_file else MIXED:
        for path, array in _contents(episode).items():
            for begin in range(len(array) + 1):
                for end in range(begin, len(array) + 1):
                    window = episode.window(path, begin, end)
                    assert window.dtype == array.dtype
                    np.testing.assert_array_equal(window, array[begin:end])
            for begin, end in ((0, len(array) + 1), (-1, 1), (2, 1)):
                with pytest.raises(IndexError, match=f"{path} has {len(array)} rows"):
                    episode.window(path, begin, end)
        with pytest.raises(KeyError):
            episode.window("signals/none", 0, 1)


def test_threads_read_at_once(tmp_path: Path) -> None:
    recorded = _sealed(tmp_path / "000000.h5", MIXED) * 20
    with ThreadPoolExecutor(8) as pool:
        for found, original in zip(pool.map(_contents, recorded), MIXED * 20, strict=True):
            for path, array in _contents(original).items():
                np.testing.assert_array_equal(found[path], array, err_msg=path)


def _read_again(episode: Episode, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(episode.window("observation/image_top", 1, 6), expected)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_while_threads_read_can_read(tmp_path: Path) -> None:
    episode = _sealed(tmp_path / "000000.h5", MIXED)[0]
    expected, done = episode.window("observation/image_top", 1, 6), threading.Event()

    def read_on() -> None:
        while not done.is_set():
            _contents(episode)

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for _ in range(10):
            child = multiprocessing.get_context("fork").Process(target=_read_again, args=(episode, expected))
            child.start()
            child.join(20)
            child.kill()
            assert child.exitcode == 0
    finally:
        done.set()
        reader.join()


def test_images_that_are_damaged_or_stored_anew_are_named(tmp_path: Path) -> None:
    path = tmp_path / "000000.h5"
    damaged, *_ = _sealed(path, MIXED[:1])
    with h5py.File(path, "r+") as file:
        file["0/observation/image_top"].id.write_direct_chunk((0, 0, 0, 0), b"nothing")
    with pytest.raises(TraceError, match="image_top"):
        damaged.window("observation/image_top", 0, 2)
    other = tmp_path / "000001.h5"
    repacked, *_ = _sealed(other, MIXED[:1])
    with h5py.File(other, "r+") as file:
        images = file["0/observation/image_top"][...]
        align = file["0/observation/image_top"].attrs["align"]
        del file["0/observation/image_top"]
        file.create_dataset("0/observation/image_top", data=images, chunks=(4, 6, 5, 3), compression="lzf")
        file["0/observation/image_top"].attrs["align"] = align
    with pytest.raises(TraceError, match="image_top is not in deflated chunks"):
        repacked.window("observation/image_top", 0, 2)


def test_an_episode_whose_arrays_are_not_aligned_is_refused(tmp_path: Path) -> None:
    for path, rows in (("action", 6), ("observation/state", 5), ("observation/image_top", 4)):
        episode = _made(5, 4)
        array = _contents(episode)[path]
        episode.source.arrays[path] = np.resize(array, (rows, *array.shape[1:]))
        with pytest.raises(TraceError, match=f"{episode.id} has 5 actions, and its {path}"):
            write_shard(tmp_path / "000000.h5", [episode], "run")
    with pytest.raises(TraceError, match="handed over twice"):
        write_shard(tmp_path / "000000.h5", [MIXED[0], MIXED[0]], "run")
    assert not list(tmp_path.iterdir())


def test_shards_are_bounded_in_episodes_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simeval.trace._SHARD_EPISODES", 5)
    episodes = [_made(9, name=str(index)) for index in range(12)]
    for most_bytes, most in ((1 << 20, 5), (1000, 3)):
        monkeypatch.setattr("simeval.trace._SHARD_BYTES", most_bytes)
        path = tmp_path / str(most)
        folder.create(path, folder.Manifest({}, {}, {}))
        writer = TraceWriter(path, Run(path).run_id, seal_seconds=600)
        for episode in episodes:
            writer.write(Episode(episode.rollout, episode.ending, ArraySource(episode.source.arrays)))
        writer.close()
        assert {episode.id for episode in Run(path)} == {episode.id for episode in episodes}
        for shard in (path / "traces").glob("*.h5"):
            with h5py.File(shard) as file:
                assert 0 < len(file["episodes/id"]) <= most


def test_a_large_action_that_broke_the_world_leaves_no_row(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        tape = Tape(1, pool)
        slots = np.array([0])
        tape.begin([0])
        actions = np.random.default_rng(0).random((3, 1, 70_000))  # a chunk each
        for step, action in enumerate(actions):
            tape.write(slots, {"state": np.full((1, 2), step)}, "observation/")
            tape.write(slots, {"action": action})
            if step < 2:
                tape.advance(slots)
        arrays = tape.finish(0)
    action = arrays["action"]
    assert isinstance(action, Frames)
    assert (action.shape, len(action.chunks)) == ((2, 70_000), 2)
    np.testing.assert_array_equal(action[:], actions[:2, 0])
    np.testing.assert_array_equal(arrays["observation/state"][:, 0], [0, 1, 2])
