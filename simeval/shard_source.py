"""Episodes in trace files: their arrays read when asked for, from the few shards that are kept open."""

import contextlib
import json
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simeval.content import checkpoint_digest, checkpoint_path, content_from
from simeval.episode import ArraySource, Checkpoint, Ending, Episode, window
from simeval.errors import TraceError
from simeval.shard_reader import Shard, open_shard
from simeval.types import Rollout

_OPEN_SHARDS = 64


class ShardSource(ArraySource):
    """Where an episode's arrays are: in the columns of a shard, opened when asked."""

    def __init__(self, path: Path, rollout_id: str, run_id: str):
        self._path = path
        self._id = rollout_id
        self._run_id = run_id

    def paths(self) -> list[str]:
        """See ``ArraySource.paths``."""
        with _SHARDS.lend(self._path, self._run_id) as shard:
            return list(shard.columns(int(shard.layout[shard.row(self._id)])))

    def read(self, path: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """See ``ArraySource.read``."""
        with _SHARDS.lend(self._path, self._run_id) as shard:
            row = shard.row(self._id)
            column = shard.columns(int(shard.layout[row]))[path]
            start = int(column.starts[row])
            rows = window(path, int(column.rows[row]), begin, end)
            if not column.align:
                return column.data.read(start + rows.start, start + rows.stop)
            first = rows.start - rows.start % column.align
            frames = column.data.frames(start + first, start + rows.stop, column.align)
        try:  # not while the shard is lent: threads decompress side by side
            return frames[rows.start - first : rows.stop - first]
        except (zlib.error, ValueError) as error:
            raise TraceError(f"{self._path}: {path} of {self._id} cannot be read ({error}); it is damaged") from None

    def checkpoint_steps(self) -> list[int]:
        """See ``ArraySource.checkpoint_steps``."""
        with _SHARDS.lend(self._path, self._run_id) as shard:
            return list(shard.snapshots.get(shard.row(self._id), ()))

    def checkpoint(self, step: int) -> Checkpoint:
        """See ``ArraySource.checkpoint``."""
        with _SHARDS.lend(self._path, self._run_id) as shard:
            row = shard.row(self._id)
            kept = shard.snapshots.get(row, {})
            if step not in kept:
                raise KeyError(f"episode {self._id} keeps no checkpoint at step {step}; it has: {list(kept) or 'none'}")
            data, content = shard.snapshot(*kept[step]), shard.contents()[row]
        recorded = json.loads(content or "{}").get(checkpoint_path(step))
        if recorded is not None and checkpoint_digest(data) != recorded:
            raise TraceError(
                f"{self._path}: the checkpoint of {self._id} at step {step} is not what was recorded; the file was "
                "altered or damaged: run the episode again, or branch from another step"
            )
        return Checkpoint.from_bytes(data)


class _ShardCache:
    """The few shards read last, kept open: opening one costs more than reading an episode."""

    def __init__(self, size: int = _OPEN_SHARDS):
        self._size = size
        self._open: OrderedDict[tuple[Path, int], tuple[Shard, contextlib.ExitStack]] = OrderedDict()
        self._lock = threading.RLock()
        os.register_at_fork(  # a child forked while another thread reads can read too
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    @contextlib.contextmanager
    def lend(self, path: Path, run_id: str) -> Iterator[Shard]:
        with self._lock:
            try:
                key = (path, path.stat().st_ino)
            except FileNotFoundError:
                key = (path, 0)
            if key not in self._open:
                stack = contextlib.ExitStack()
                self._open[key] = stack.enter_context(open_shard(path, run_id)), stack
                if len(self._open) > self._size:
                    _, (_, oldest) = self._open.popitem(last=False)
                    oldest.close()
            self._open.move_to_end(key)
            yield self._open[key][0]


_SHARDS = _ShardCache()


def read_episodes(path: Path, run_id: str) -> Iterator[Episode]:
    """The episodes of one shard of a run, their arrays lazy."""
    with open_shard(path, run_id) as shard:
        heads = list(zip(shard.ids, shard.table("rollout"), shard.table("ending"), shard.contents(), strict=True))
    for name, rollout_text, ending_text, content_text in heads:
        try:
            rollout = Rollout.from_json(json.loads(rollout_text))
            ending = Ending.from_json(json.loads(ending_text))
            content = content_from(json.loads(content_text or "{}"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TraceError(
                f"{path}: the row of episode {name} cannot be read ({error!r}); the file was altered"
            ) from None
        if rollout.id != name:
            raise TraceError(f"{path}: episode {name} holds the rollout {rollout.id}; the file was altered")
        yield Episode(rollout, ending, ShardSource(path, name, run_id), content)
