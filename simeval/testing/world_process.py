"""Checks of a World against itself in a fresh process, in which text hashes otherwise and nothing is remembered."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from simeval.testing.bench import Abroad, Bench, WorldFactory, fork_step, label
from simeval.testing.checks import Episode, Row, Violation, advance, proceed, record, require_equal
from simeval.testing.process import in_fresh_process
from simeval.types import Snapshot, Start
from simeval.world import World

_STEPS = 20


def starts_abroad(bench: Bench) -> str:
    """A start, and the episode that begins from it, are the same in a fresh process."""
    abroad = _abroad(bench)
    for here, there in zip(_starts(bench.world, bench.starts()), abroad.starts, strict=True):
        if here != there:
            raise Violation(f"seed and task give {here}, in a fresh process {there}: does it depend on hash()?")
    for episode, rows in zip(bench.episodes, abroad.beginnings, strict=True):
        require_equal(episode.rows[: len(rows)], rows, f"{label(episode)}, begun in a fresh process")
    return f"{len(abroad.starts)} starts, {sum(map(len, abroad.beginnings))} time steps, another PYTHONHASHSEED"


def fresh_process(bench: Bench) -> str:
    """A snapshot goes through HDF5 into a fresh process and continues bit for bit."""
    tails = _abroad(bench).tails
    if isinstance(tails, str):
        raise Violation(f"in a fresh process: {tails}")
    for episode, tail in zip(bench.episodes, tails, strict=True):
        require_equal(episode.rows[fork_step(episode) + 1 :], tail, f"{label(episode)}, continued in a fresh process")
    return f"{sum(map(len, tails))} steps, bit for bit; a snapshot takes up to {_abroad(bench).snapshot_size} bytes"


def _abroad(bench: Bench) -> Abroad:
    """What a fresh process gives, computed once for the checks that ask."""
    if bench.abroad is None:
        with tempfile.TemporaryDirectory() as folder:
            path, size = Path(folder) / "snapshots.h5", 0
            with h5py.File(path, "w") as file:
                for index, episode in enumerate(bench.episodes):
                    advance(bench.world, 1, episode, fork_step(episode))
                    (snapshot,) = bench.world.snapshot([1])
                    data = np.frombuffer(snapshot.to_bytes(), dtype=np.uint8)
                    file.create_dataset(str(index), data=data)
                    size = max(size, len(data))
            work = (bench.factory, bench.starts(), bench.episodes, path)
            starts, beginnings, tails = in_fresh_process(_go_abroad, *work)
            bench.abroad = Abroad(starts, beginnings, tails, size)
    return bench.abroad


def _starts(world: World, asked: Sequence[tuple[str, int]]) -> list[Start]:
    drawn = [world.start(task, seed) for task, seed in asked]
    return [*drawn, *(start for task in dict(asked) for start in world.starts(task, 2, 0))]


def _go_abroad(
    factory: WorldFactory, asked: Sequence[tuple[str, int]], episodes: Sequence[Episode], path: Path
) -> tuple[list[Start], list[Sequence[Row]], list[list[Row]] | str]:
    world = factory(1)
    try:
        starts = _starts(world, asked)
        beginnings = [record(world, 0, episode.start, episode.actions[:_STEPS]).rows for episode in episodes]
        try:
            return starts, beginnings, _continue_snapshots(world, path, episodes)
        except Exception as error:  # a failure of the snapshots, not of the starts: told apart here
            return starts, beginnings, f"{type(error).__name__}: {error}"
    finally:
        world.close()


def _continue_snapshots(world: World, path: Path, episodes: Sequence[Episode]) -> list[list[Row]]:
    tails = []
    with h5py.File(path, "r") as file:
        for index, episode in enumerate(episodes):
            world.restore([0], [Snapshot.from_bytes(file[str(index)][()].tobytes())])
            tails.extend(proceed(world, [0], episode, fork_step(episode)))
    return tails
