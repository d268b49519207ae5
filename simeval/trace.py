"""Writing a run's trace: shards and the run folder's append-only index, so that a kill loses nothing sealed.

A shard is written to a temporary name, flushed to disk, renamed, and only then indexed. What was finished but not yet
in a shard is lost by a kill and runs again on resume, with the same result.
"""

import fcntl
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from simeval.episode import Episode
from simeval.errors import TraceError
from simeval.index import Index, index_entry
from simeval.shard import write_shard
from simeval.shard_source import ShardSource, read_episodes
from simeval.tape import Frames
from simeval.types import Rollout

_SHARD_EPISODES = 256
_SHARD_BYTES = 64 << 20


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
            if self._due():
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
            try:
                self._check()
                while self._pending:
                    self._seal()
                self._flush()
            finally:
                self._log.close()
        except OSError as error:
            raise TraceError(
                f"{self._index.path} cannot be written: {error}; free some space and resume the run"
            ) from error
        finally:
            self._lock_file.close()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._due, self._seal_seconds)
                if self._closing or self._failure is not None:
                    return
            try:
                self._seal()
            except BaseException as error:
                self._failure = error
                return

    def _due(self) -> bool:
        return self._closing or len(self._pending) >= _SHARD_EPISODES or self._pending_bytes >= _SHARD_BYTES

    def _seal(self) -> None:
        with self._sealing:
            with self._wake:
                count, size = 0, 0
                while count < min(len(self._pending), _SHARD_EPISODES) and size < _SHARD_BYTES:
                    size += _size(self._pending[count])
                    count += 1
                batch, self._pending = self._pending[:count], self._pending[count:]
                self._pending_bytes -= size
            if not batch:
                self._flush()
                return
            path = self._traces / f"{self._sequence:06d}.h5"
            if path.exists():
                raise TraceError(f"{path} exists already; another process writes to this run folder")
            try:
                contents = write_shard(path, batch, self.run_id)
            except OSError as error:
                raise TraceError(f"{path} cannot be written: {error}; free some space and resume the run") from error
            self._sequence += 1
            for episode, content in zip(batch, contents, strict=True):
                episode.content = content
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
    """Bytes of an unsealed episode's arrays, as compressed as they are, and of its checkpoints."""
    arrays = episode.source.arrays.values()
    frames = sum(sum(map(len, array.chunks)) for array in arrays if isinstance(array, Frames))
    plain = sum(array.nbytes for array in arrays if not isinstance(array, Frames))
    return frames + plain + sum(map(len, episode.source.checkpoints.values()))


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
