"""The trace on disk: HDF5 shards and the run folder's append-only index, written so that a kill loses nothing sealed.

A shard is written to a temporary name, flushed to disk, renamed, and only then indexed. What was finished but not yet
in a shard is lost by a kill and runs again on resume, with the same result.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5p, h5s, h5t

from simeval.episode import ArraySource, Checkpoint, Ending, Episode, ending_of, episode_attrs
from simeval.errors import TraceError
from simeval.noise import NOISE_LAYOUT
from simeval.tape import Frames
from simeval.types import Rollout

SCHEMA = "simeval-trace/1"

_TEXT = h5py.string_dtype()
_NESTED = h5p.create(h5p.LINK_CREATE)
_NESTED.set_create_intermediate_group(True)
_SHARD_EPISODES = 256
_SHARD_BYTES = 64 << 20


def write_shard(path: Path, episodes: list[Episode], run_id: str) -> None:
    """Write a shard holding ``episodes`` at ``path``, flushed to disk, complete or not at all.

    It is built in memory and written in one go: HDF5 does not survive a disk that fills up under it.
    """
    with h5py.File(path.name, "w", driver="core", backing_store=False) as file:
        file.attrs["schema"] = SCHEMA
        file.attrs["noise_layout"] = NOISE_LAYOUT
        file.attrs["run_id"] = run_id
        for episode in episodes:
            _write_episode(h5g.create(file.id, episode.id.encode()), episode)
        file.flush()
        image = file.id.get_file_image()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as out:
        out.write(image)
        out.flush()
        os.fsync(out.fileno())
    os.rename(temporary, path)
    _sync_folder(path.parent)


def _write_episode(group: h5g.GroupID, episode: Episode) -> None:
    for name, value in episode_attrs(episode.rollout, episode.ending).items():
        _write_attr(group, name, value)
    source = episode.source
    parents: dict[str, h5g.GroupID] = {"": group}
    for path in source.paths():
        folder, _, name = path.rpartition("/")
        if folder not in parents:
            parents[folder] = h5g.create(group, folder.encode(), lcpl=_NESTED)
        array = source.arrays[path]
        if isinstance(array, Frames):
            _write_frames(parents[folder], name, array)
        else:
            _write_array(parents[folder], name, array)
    steps = source.checkpoint_steps()
    if steps:
        data = [np.frombuffer(source.checkpoints[step], dtype=np.uint8) for step in steps]
        snapshots = h5g.create(group, b"snapshots")
        _write_array(snapshots, "step", np.array(steps, dtype=np.int64))
        _write_array(snapshots, "offset", np.cumsum([0, *(len(item) for item in data)], dtype=np.int64))
        _write_array(snapshots, "data", np.concatenate(data))


@cache
def _kind(dtype: np.dtype, in_file: bool = True) -> h5t.TypeID:
    """A dtype in the file, or in memory: the same but for text."""
    return h5t.py_create(dtype, logical=in_file)


@lru_cache(256)
def _space(shape: tuple[int, ...]) -> h5s.SpaceID:
    return h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)


def _write_attr(group: h5g.GroupID, name: str, value: str | bool | int | float) -> None:
    value = storable(value)
    array = np.array(value, dtype=_TEXT if isinstance(value, str) else None)
    attribute = h5a.create(group, name.encode(), _kind(array.dtype), _space(()))
    attribute.write(array, _kind(array.dtype, in_file=False))


def storable(value: str | bool | int | float) -> str | bool | int | float:
    """An attribute as HDF5 can hold it: text without NUL and lone surrogates, which are escaped."""
    if not isinstance(value, str):
        return value
    return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def _write_array(group: h5g.GroupID, name: str, array: np.ndarray) -> None:
    array = np.ascontiguousarray(array)
    kind = _kind(array.dtype)
    dataset = h5d.create(group, name.encode(), kind, _space(array.shape))
    if array.size:
        dataset.write(h5s.ALL, h5s.ALL, array, kind)


def _write_frames(group: h5g.GroupID, name: str, frames: Frames) -> None:
    chunk = (frames.rows_per_chunk, *frames.shape[1:])
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk(chunk)
    properties.set_deflate(1)
    space = h5s.create_simple(frames.shape, (h5s.UNLIMITED, *frames.shape[1:]))
    dataset = h5d.create(group, name.encode(), _kind(frames.dtype), space, properties)
    for index, data in enumerate(frames.chunks):
        dataset.write_direct_chunk((index * frames.rows_per_chunk, *([0] * (len(chunk) - 1))), data)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_shard(path: Path, run_id: str | None = None) -> Iterator[h5py.File]:
    """A shard opened for reading; ``TraceError`` for a missing, truncated or foreign file, or one of another run."""
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise TraceError(
            f"trace file {path} is missing; put it back, or resume the run to make its episodes again"
        ) from None
    except OSError as error:
        raise TraceError(
            f"trace file {path} cannot be read ({error}); it is truncated or not HDF5: move it out of the folder and "
            "resume the run to make its episodes again"
        ) from None
    with file:
        schema = file.attrs.get("schema")
        if schema != SCHEMA:
            raise TraceError(
                f"{path} is not a {SCHEMA} trace (its schema is {schema!r}); other formats need `simeval import`"
            )
        for name, expected in (("run_id", run_id), ("noise_layout", NOISE_LAYOUT)):
            if expected is not None and file.attrs.get(name) != expected:
                raise TraceError(
                    f"{path} has {name} {file.attrs.get(name)!r} where {expected!r} is expected: it belongs to another "
                    "run or version; take it out of the folder"
                )
        yield file


class ShardSource(ArraySource):
    """Where an episode's arrays are: in a group of a shard, opened when asked."""

    def __init__(self, path: Path, group: str, run_id: str):
        self._path = path
        self._group = group
        self._run_id = run_id

    def paths(self) -> list[str]:
        """See ``ArraySource.paths``."""
        found: list[str] = []

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and not name.startswith("snapshots/"):
                found.append(name)

        with self._open() as group:
            group.visititems(visit)
        return found

    def read(self, path: str) -> np.ndarray:
        """See ``ArraySource.read``."""
        with self._open() as group:
            if path not in group:
                raise KeyError(path)
            try:
                return group[path][...]
            except OSError as error:
                raise TraceError(
                    f"{self._path}: {self._group}/{path} cannot be read ({error}); the file is damaged"
                ) from None

    def checkpoint_steps(self) -> list[int]:
        """See ``ArraySource.checkpoint_steps``."""
        with self._open() as group:
            return [int(step) for step in group["snapshots/step"][...]] if "snapshots" in group else []

    def checkpoint(self, step: int) -> Checkpoint:
        """See ``ArraySource.checkpoint``."""
        steps = self.checkpoint_steps()
        if step not in steps:
            raise KeyError(f"episode {self._group} keeps no checkpoint at step {step}; it has: {steps or 'none'}")
        index = steps.index(step)
        with self._open() as group:
            begin, end = group["snapshots/offset"][index : index + 2]
            return Checkpoint.from_bytes(group["snapshots/data"][begin:end].tobytes())

    @contextlib.contextmanager
    def _open(self) -> Iterator[h5py.Group]:
        with _SHARDS.lend(self._path, self._run_id) as file:
            if self._group not in file:
                raise TraceError(f"{self._path} holds no episode {self._group}; the index and the trace disagree")
            yield file[self._group]


class _ShardCache:
    """The few shards read last, kept open: opening one costs more than reading an episode."""

    def __init__(self, size: int = 4):
        self._size = size
        self._open: OrderedDict[tuple[Path, int], contextlib.ExitStack] = OrderedDict()
        self._files: dict[tuple[Path, int], h5py.File] = {}
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def lend(self, path: Path, run_id: str) -> Iterator[h5py.File]:
        with self._lock:
            try:
                key = (path, path.stat().st_ino)
            except FileNotFoundError:
                key = (path, 0)
            if key not in self._open:
                stack = contextlib.ExitStack()
                self._files[key] = stack.enter_context(open_shard(path, run_id))
                self._open[key] = stack
                if len(self._open) > self._size:
                    old, oldest = self._open.popitem(last=False)
                    del self._files[old]
                    oldest.close()
            self._open.move_to_end(key)
            yield self._files[key]


_SHARDS = _ShardCache()


def read_episodes(path: Path, run_id: str) -> Iterator[Episode]:
    """The episodes of one shard of a run, their arrays lazy."""
    with open_shard(path, run_id) as file:
        heads = [(name, dict(group.attrs)) for name, group in file.items()]
    for name, attrs in heads:
        try:
            rollout, ending = ending_of(attrs)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(
                f"{path}: the attributes of episode {name} cannot be read ({error!r}); the file was altered"
            ) from None
        if rollout.id != name:
            raise TraceError(f"{path}: episode {name} holds the rollout {rollout.id}; the file was altered")
        yield Episode(rollout, ending, ShardSource(path, name, run_id))


class Index:
    """``episodes.jsonl``: one JSON object a line, appended only. Later lines about an id stand over earlier ones."""

    def __init__(self, path: Path):
        self.path = path

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All complete lines, each with its place in the file; a last line cut short by a kill is left out."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            place = 0
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield place, self._parsed(line, f"line {number}")
                place += len(line)

    def line(self, place: int) -> dict[str, Any]:
        """The line that begins at ``place``."""
        with open(self.path, "rb") as file:
            file.seek(place)
            return self._parsed(file.readline(), f"the line at byte {place}")

    def _parsed(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not {"event", "id", "rollout"} <= entry.keys():
            raise TraceError(f"{self.path}: {where} is no entry of an index; the file was altered")
        return entry

    def repair(self) -> None:
        """Cut off a last line that a kill left incomplete."""
        if self.path.exists():
            with open(self.path, "r+b") as file:
                raw = file.read()
                file.truncate(raw.rfind(b"\n") + 1)


class TraceWriter:
    """Writes a run folder: one writer at a time, episodes sealed into shards by a background thread.

    A finished episode is sealed within ``seal_seconds``, and then survives anything that the disk survives.
    """

    def __init__(self, folder: Path, run_id: str, seal_seconds: float = 1.0, lock: IO[bytes] | None = None):
        self.folder = folder
        self.run_id = run_id
        self._seal_seconds = seal_seconds
        self._traces = folder / "traces"
        self._traces.mkdir(parents=True, exist_ok=True)
        self._lock_file = lock_folder(folder) if lock is None else lock
        self._index = Index(folder / "episodes.jsonl")
        self._index.repair()
        for leftover in self._traces.glob(".*.tmp"):
            leftover.unlink()
        self._sequence = (
            max((int(path.stem) for path in self._traces.glob("*.h5") if path.stem.isdigit()), default=-1) + 1
        )
        self._log: IO[bytes] = open(self._index.path, "ab")  # noqa: SIM115 - held for the life of the writer
        self._pending: list[Episode] = []
        self._pending_bytes = 0
        self._failure: BaseException | None = None
        self._closing = False
        self._wake = threading.Condition()
        self._sealing = threading.Lock()
        self._adopt_unindexed()
        self._thread = threading.Thread(target=self._run, name="simeval-trace", daemon=True)
        self._thread.start()

    def request(self, rollout: Rollout) -> None:
        """Note that ``rollout`` was asked for, so that nothing that was requested can vanish without a line."""
        self._append({"event": "requested", "id": rollout.id, "rollout": rollout.to_json()})

    def drop(self, rollout: Rollout, reason: str) -> None:
        """Note that ``rollout`` was requested and will not be run."""
        self._append({"event": "dropped", "id": rollout.id, "rollout": rollout.to_json(), "reason": reason})

    def write(self, episode: Episode) -> None:
        """Hand over a finished episode; returns at once, raises what an earlier write ran into."""
        with self._wake:
            self._check()
            self._pending.append(episode)
            self._pending_bytes += _size(episode)
            if len(self._pending) >= _SHARD_EPISODES or self._pending_bytes >= _SHARD_BYTES:
                self._wake.notify()
        while self._pending_bytes >= 4 * _SHARD_BYTES and self._failure is None:
            self._seal()

    def close(self) -> None:
        """Seal what is pending and release the folder."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        self._thread.join()
        try:
            self._check()
            while self._pending:
                self._seal()
            self._flush()
        finally:
            self._log.close()
            self._lock_file.close()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait(self._seal_seconds)
                if self._closing or self._failure is not None:
                    return
            try:
                self._seal()
                while len(self._pending) >= _SHARD_EPISODES:
                    self._seal()
            except BaseException as error:
                self._failure = error
                return

    def _seal(self) -> None:
        with self._sealing:
            with self._wake:
                batch, self._pending = self._pending[:_SHARD_EPISODES], self._pending[_SHARD_EPISODES:]
                self._pending_bytes = sum(map(_size, self._pending))
            if not batch:
                self._flush()
                return
            path = self._traces / f"{self._sequence:06d}.h5"
            if path.exists():
                raise TraceError(f"{path} exists already; another process writes to this run folder")
            try:
                write_shard(path, batch, self.run_id)
            except OSError as error:
                raise TraceError(f"{path} cannot be written: {error}; free some space and resume the run") from error
            self._sequence += 1
            for episode in batch:
                self._append(index_entry(episode, path.name))
                episode.source = ShardSource(path, episode.id, self.run_id)
            self._flush()

    def _adopt_unindexed(self) -> None:
        """Index the shards that were renamed into place just before a kill."""
        known = {(entry["shard"], entry["id"]) for _, entry in self._index.lines() if "shard" in entry}
        shards = {shard for shard, _ in known}
        latest = max(shards, default="")
        for path in sorted(self._traces.glob("*.h5")):
            if path.name not in shards or path.name == latest:  # the latest may be indexed in part
                for episode in read_episodes(path, self.run_id):
                    if (path.name, episode.id) not in known:
                        self._append(index_entry(episode, path.name))
        self._flush()

    def _append(self, entry: Mapping[str, Any]) -> None:
        self._log.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")

    def _flush(self) -> None:
        self._log.flush()
        os.fsync(self._log.fileno())

    def _check(self) -> None:
        if self._failure is not None:
            raise TraceError(f"the trace in {self.folder} cannot be written: {self._failure}") from self._failure


def _size(episode: Episode) -> int:
    """Bytes of an unsealed episode's arrays, as compressed as they are."""
    return sum(
        sum(map(len, array.chunks)) if isinstance(array, Frames) else array.nbytes
        for array in episode.source.arrays.values()
    )


def index_entry(episode: Episode, shard: str) -> dict[str, Any]:
    """The index line of a sealed episode."""
    return {
        "event": episode.status,
        "id": episode.id,
        "shard": shard,
        "rollout": episode.rollout.to_json(),
        "ending": episode.ending.to_json(),
    }


def entry_ending(entry: Mapping[str, Any]) -> Ending:
    """The ending that an index line of a sealed episode holds."""
    return Ending.from_json(entry["ending"])


def lock_folder(folder: Path) -> IO[bytes]:
    """The right to write in a run folder, held until the file that is returned is closed; ``TraceError`` if taken."""
    file = open(folder / ".lock", "ab")  # noqa: SIM115 - the lock lives as long as the file is open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise TraceError(
            f"{folder} is being written by another process; wait for it to end or choose another run.dir"
        ) from None
    return file
