"""The tape: what happens in every slot, written down step by step with one array assignment per key and tick."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

_FRAME_BYTES = 2048
"""Rows larger than this are compressed while the episode runs, so that memory does not grow with its images."""
_CHUNK_BYTES = 1 << 19
"""About how many raw bytes go into one compressed chunk."""

ESSENTIAL = frozenset({"action", "reward", "terminated", "truncated", "success"})
"""What every outcome and replay is computed from: recorded whatever else is kept."""

PER_OBSERVATION = ("observation/", "signals/")
"""Paths with one row per observation (T + 1); all others have one row per action (T)."""


def rows_of(path: str, length: int) -> int:
    """The rows that an array has in an episode of ``length`` actions."""
    return length + 1 if path.startswith(PER_OBSERVATION) else length


@dataclass(frozen=True, slots=True)
class Frames:
    """A large array ``[length, *shape]`` as zlib-compressed chunks of ``rows_per_chunk`` rows (the last one padded)."""

    shape: tuple[int, ...]
    dtype: np.dtype
    rows_per_chunk: int
    chunks: tuple[bytes, ...]

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Some rows, of which only the chunks they are in are decompressed."""
        begin, end, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, end - begin), *self.shape[1:]), self.dtype)
        for first in range(begin - begin % self.rows_per_chunk, end, self.rows_per_chunk):
            raw = zlib.decompress(self.chunks[first // self.rows_per_chunk])
            chunk = np.frombuffer(raw, self.dtype).reshape(self.rows_per_chunk, *self.shape[1:])
            low, high = max(begin, first), min(end, first + self.rows_per_chunk)
            out[low - begin : high - begin] = chunk[low - first : high - first]
        return out


Recorded = Mapping[str, np.ndarray | Frames]
"""Path (``observation/state``, ``action``, …) -> the episode's array."""


def _compress(chunk: np.ndarray) -> bytes:
    return zlib.compress(chunk.data, 1)


_BlockKey = tuple[str, np.dtype, tuple[int, ...]]


class _FrameColumn:
    """The frames of one slot and key: a chunk being filled, and the chunks handed to the compressors."""

    def __init__(self, row: np.ndarray, pool: ThreadPoolExecutor):
        self._rows_per_chunk = max(1, _CHUNK_BYTES // row.nbytes)
        self._pool = pool
        self._chunk = np.zeros((self._rows_per_chunk, *row.shape), row.dtype)
        self._filled = 0
        self._length = 0
        self._done: list[Future[bytes]] = []

    def append(self, row: np.ndarray) -> None:
        self._chunk[self._filled] = row
        self._filled += 1
        self._length += 1
        if self._filled == self._rows_per_chunk:
            self._hand_over()

    def finish(self, length: int) -> Frames:
        if self._length < length:
            raise ValueError(f"{self._length} frames recorded where {length} were expected")
        if self._filled:
            self._hand_over()
        shape = (length, *self._chunk.shape[1:])
        needed = -(-length // self._rows_per_chunk)  # an action that the World broke on leaves a row more
        chunks = tuple(future.result() for future in self._done[:needed])
        return Frames(shape, self._chunk.dtype, self._rows_per_chunk, chunks)

    def _hand_over(self) -> None:
        chunk = self._chunk
        self._done.append(self._pool.submit(_compress, chunk))
        self._chunk = np.zeros_like(chunk)
        self._filled = 0


class Tape:
    """Records the slots of one World. Small arrays live in one block per key, ``[num_slots, capacity, …]``."""

    def __init__(self, num_slots: int, pool: ThreadPoolExecutor, keep: Callable[[str], bool] = lambda path: True):
        self._pool = pool
        self._keep = keep
        self._blocks: dict[_BlockKey, np.ndarray] = {}
        self._rows = np.zeros(num_slots, dtype=np.int64)
        self._paths: list[dict[str, _BlockKey]] = [{} for _ in range(num_slots)]
        self._frames: list[dict[str, _FrameColumn]] = [{} for _ in range(num_slots)]
        self._capacity = 64

    def begin(self, slots: Sequence[int]) -> None:
        """Start afresh in ``slots``; their first observation is written next."""
        for slot in slots:
            self._rows[slot] = 0
            self._paths[slot] = {}
            self._frames[slot] = {}

    def write(self, slots: np.ndarray, arrays: Mapping[str, Any], prefix: str = "") -> None:
        """Write row i of each array at the current step of ``slots[i]``."""
        rows = self._rows[slots]
        top = int(rows.max(initial=0))
        if top >= self._capacity:
            self._grow(top)
        opening = [int(slot) for slot in slots[rows == 0]]
        for name, value in arrays.items():
            path = prefix + name
            if path not in ESSENTIAL and not self._keep(path):
                continue
            array = np.asarray(value)
            if array[0].nbytes > _FRAME_BYTES:
                self._write_frames(path, slots, array)
                continue
            key = (path, array.dtype, array.shape[1:])
            block = self._blocks.get(key)
            if block is None:
                block = np.zeros((len(self._rows), self._capacity, *array.shape[1:]), array.dtype)
                self._blocks[key] = block
            block[slots, rows] = array
            for slot in opening:
                self._paths[slot][path] = key

    def advance(self, slots: np.ndarray) -> None:
        """Move ``slots`` on to their next step."""
        self._rows[slots] += 1

    def finish(self, slot: int) -> dict[str, np.ndarray | Frames]:
        """The arrays of the episode in ``slot``: T + 1 observations and T of everything else."""
        length = int(self._rows[slot])
        out: dict[str, np.ndarray | Frames] = {}
        for path, key in self._paths[slot].items():
            out[path] = self._blocks[key][slot, : rows_of(path, length)].copy()
        for path, column in self._frames[slot].items():
            out[path] = column.finish(rows_of(path, length))
        self.begin([slot])
        return out

    def _write_frames(self, path: str, slots: np.ndarray, array: np.ndarray) -> None:
        for row, slot in enumerate(slots):
            columns = self._frames[slot]
            if path not in columns:
                columns[path] = _FrameColumn(array[row], self._pool)
            columns[path].append(array[row])

    def _grow(self, top: int) -> None:
        while self._capacity <= top:
            self._capacity *= 2
        for key, block in self._blocks.items():
            grown = np.zeros((block.shape[0], self._capacity, *block.shape[2:]), block.dtype)
            grown[:, : block.shape[1]] = block
            self._blocks[key] = grown
