"""A trace file opened for reading: its table of episodes, and its columns, checked to have their episodes' rows."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5s, h5t, h5z

from simeval.errors import TraceError
from simeval.heap import check_heaps
from simeval.noise import NOISE_LAYOUT
from simeval.shard import ALIGN, SCHEMA, aligned
from simeval.tape import Frames, rows_of

_ALIGN = ALIGN.encode()
_READ_BYTES = 1 << 30
"""The most that one call of the system surely reads."""


class ShardArray:
    """A dataset, whose rows are read from where they are in the file if HDF5 keeps them there as they are."""

    def __init__(self, path: Path, file: h5f.FileID, name: str):
        self.name = name
        self._path = path
        self._id = h5d.open(file, name.encode())
        self.dtype: np.dtype = self._id.dtype
        self.shape: tuple[int, ...] = self._id.shape
        self._offset: int | None = self._id.get_offset() if self.dtype.kind in "biufS" else None
        self._descriptor: int = file.get_vfd_handle()

    def read(self, begin: int, end: int) -> np.ndarray:
        """Rows ``begin:end``; ``TraceError`` where the file is damaged."""
        if self.dtype.kind == "O":
            check_heaps(self._path)
        try:
            if not 0 <= begin <= end <= self.shape[0]:
                raise ValueError(f"rows {begin} to {end} of {self.shape[0]}")
            out = np.empty((end - begin, *self.shape[1:]), self.dtype)
            if self._offset is not None and 0 < out.nbytes <= _READ_BYTES:
                place = self._offset + begin * (out.nbytes // len(out))
                if os.preadv(self._descriptor, [out.reshape(-1).view(np.uint8).data], place) < out.nbytes:
                    raise OSError("it ends too early")
            elif out.size:
                space = self._id.get_space()
                space.select_hyperslab((begin, *(0 for _ in out.shape[1:])), out.shape)
                self._id.read(h5s.create_simple(out.shape), space, out)
            return out
        except (OSError, ValueError, TypeError) as error:
            raise TraceError(f"{self._path}: {self.name} cannot be read ({error}); the file is damaged") from None

    def frames(self, begin: int, end: int, rows: int) -> Frames:
        """Rows ``begin:end`` as they are compressed in the file, ``begin`` being the first of a chunk of ``rows``."""
        zeros = [0] * (len(self.shape) - 1)
        try:
            chunks = tuple(self._id.read_direct_chunk((row, *zeros))[1] for row in range(begin, end, rows))
        except (OSError, ValueError) as error:
            raise TraceError(f"{self._path}: {self.name} cannot be read ({error}); the file is damaged") from None
        return Frames((end - begin, *self.shape[1:]), self.dtype, rows, chunks)

    def align(self) -> int:
        """The rows of a chunk of frames (see ``simeval.shard``); 0 where rows are stored as they are."""
        if not h5a.exists(self._id, _ALIGN):
            return 0
        properties = self._id.get_create_plist()
        chunked = properties.get_layout() == h5d.CHUNKED
        filters = [properties.get_filter(index)[0] for index in range(properties.get_nfilters())]
        if not chunked or filters != [h5z.FILTER_DEFLATE]:
            raise TraceError(f"{self._path}: {self.name} is not in deflated chunks, as it was written; it was altered")
        return int(properties.get_chunk()[0])


@dataclass(frozen=True, slots=True)
class ShardColumn:
    """The arrays of one path, of all episodes of a layout, end to end.

    ``starts`` and ``rows`` say where in ``data`` an episode is, by its row in the shard's table; they mean nothing for
    episodes of other layouts. ``align`` is 0, or for frames the rows of a chunk.
    """

    data: ShardArray
    align: int
    starts: np.ndarray
    rows: np.ndarray


class Shard:
    """A trace file opened for reading. An episode is a row of its table; its arrays are in the columns of a layout."""

    def __init__(self, path: Path, file: h5py.File):
        self.path = path
        self._file: h5f.FileID = file.id
        self.ids: list[str] = [item.decode(errors="replace") for item in self._array("episodes/id", "S").tolist()]
        self._row_of = {name: row for row, name in enumerate(self.ids)}
        self.layout, self.length, action_row, observation_row = (
            self._array(f"episodes/{name}", "i", len(self.ids))
            for name in ("layout", "length", "action_row", "observation_row")
        )
        self._columns: dict[int, dict[str, ShardColumn]] = {}
        for number in set(self.layout.tolist()):
            at = np.flatnonzero(self.layout == number)
            self._check_places(at, action_row[at], self.length[at])
            self._check_places(at, observation_row[at], self.length[at] + 1)

    def row(self, rollout_id: str) -> int:
        """The row of an episode in the table; ``TraceError`` if the shard does not hold it."""
        try:
            return self._row_of[rollout_id]
        except KeyError:
            raise TraceError(f"{self.path} holds no episode {rollout_id}; the index and the trace disagree") from None

    def table(self, name: str) -> list[Any]:
        """A column of the table: a value per episode."""
        values = self._array(f"episodes/{name}", "OSbif", len(self.ids)).tolist()
        return [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]

    def contents(self) -> list[str]:
        """The digests of each episode's arrays, as JSON text: empty in traces from before they were kept."""
        kept = b"content" in h5g.open(self._file, b"episodes")
        return self.table("content") if kept else [""] * len(self.ids)

    def columns(self, layout: int) -> Mapping[str, ShardColumn]:
        """Path -> column, of a layout; ``TraceError`` where one has not the rows of its episodes."""
        if layout not in self._columns:
            try:
                self._columns[layout] = self._opened(layout)
            except (KeyError, ValueError, RuntimeError, OSError) as error:
                raise TraceError(
                    f"{self.path}: group {layout}, where its episodes' arrays are, cannot be read ({error}); the file "
                    "was altered"
                ) from None
        return self._columns[layout]

    def column(self, layout: int, path: str) -> ShardColumn:
        """A column that every layout has; ``TraceError`` where it is missing."""
        try:
            return self.columns(layout)[path]
        except KeyError:
            raise TraceError(f"{self.path}: group {layout} has no array {path!r}; the file was altered") from None

    @cached_property
    def snapshots(self) -> dict[int, dict[int, tuple[int, int]]]:
        """Row of an episode -> step -> where the bytes of its checkpoint begin and end."""
        found: dict[int, dict[int, tuple[int, int]]] = {}
        if b"snapshots" in h5g.open(self._file, b"/"):
            steps = self._array("snapshots/step", "i")
            rows = self._array("snapshots/episode", "i", len(steps))
            begin = self._array("snapshots/begin", "i", len(steps) + 1)
            for row, step, *place in zip(*(a.tolist() for a in (rows, steps, begin[:-1], begin[1:])), strict=True):
                found.setdefault(row, {})[step] = place[0], place[1]
        return found

    def snapshot(self, begin: int, end: int) -> bytes:
        """The bytes ``begin:end`` of the checkpoints."""
        return self._dataset("snapshots/data", "u").read(begin, end).tobytes()

    def _check_places(self, members: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> None:
        wrong = np.flatnonzero(np.diff(starts, prepend=0) != np.append(0, rows[:-1]))
        if len(wrong):
            names = [self.ids[row] for row in members[max(0, wrong[0] - 1) : wrong[0] + 1]]
            raise TraceError(
                f"{self.path}: the arrays of episode {' and '.join(names)} would overlap or leave a gap; the file was "
                "altered"
            )

    def _opened(self, layout: int) -> dict[str, ShardColumn]:
        prefix = f"{layout}/"
        try:
            names = list(_datasets(self._file, prefix))
        except KeyError:
            raise TraceError(
                f"{self.path} has no group {layout}, where its table has episodes; the file was altered"
            ) from None
        at = np.flatnonzero(self.layout == layout)
        places: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, int]] = {}
        columns = {}
        for name in names:
            dataset = ShardArray(self.path, self._file, name)
            path = name.removeprefix(prefix)
            key = rows_of(path, 0), dataset.align()
            if key not in places:
                rows, starts = self.length + key[0], np.zeros_like(self.length)
                taken = aligned(rows[at], key[1])
                starts[at] = np.cumsum(taken) - taken
                places[key] = starts, rows, int(taken.sum())
            starts, rows, total = places[key]
            if not dataset.shape or dataset.shape[0] != total:
                raise TraceError(
                    f"{self.path}: array {name} has shape {dataset.shape}; its {len(at)} episodes have {total} rows: "
                    "the file was altered"
                )
            columns[path] = ShardColumn(dataset, key[1], starts, rows)
        return columns

    def _array(self, name: str, kinds: str, rows: int | None = None) -> np.ndarray:
        array = self._dataset(name, kinds, rows)
        return array.read(0, array.shape[0])

    def _dataset(self, name: str, kinds: str, rows: int | None = None) -> ShardArray:
        try:
            dataset = ShardArray(self.path, self._file, name)
        except KeyError:
            raise TraceError(f"{self.path} has no array {name!r}; the file was altered") from None
        if len(dataset.shape) != 1 or dataset.dtype.kind not in kinds or rows not in (None, dataset.shape[0]):
            raise TraceError(
                f"{self.path}: array {name!r} is {dataset.dtype} of shape {dataset.shape}, which it cannot be; the "
                "file was altered"
            )
        return dataset


def _datasets(file: h5f.FileID, prefix: str) -> Iterator[str]:
    """Names of the datasets in a group, in order; ``KeyError`` where it is none."""
    group = h5g.open(file, prefix.encode())
    for index in range(group.get_num_objs()):
        name = prefix + group.get_objname_by_idx(index).decode()
        kind = group.get_objtype_by_idx(index)
        if kind == h5g.DATASET:
            yield name
        elif kind == h5g.GROUP:
            yield from _datasets(file, name + "/")


def _told(path: Path, file: h5py.File, name: str) -> Any:
    """An attribute of the file; bytes as text."""
    try:
        if name not in file.attrs:
            return None
        kind = h5a.open(file.id, name.encode()).get_type()
        if isinstance(kind, h5t.TypeStringID) and kind.is_variable_str():
            check_heaps(path)
        value = file.attrs[name]
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise TraceError(f"{path}: its {name} cannot be read ({error}); the file is damaged") from None
    return value.decode(errors="replace") if isinstance(value, bytes) else value


@contextlib.contextmanager
def open_shard(path: Path, run_id: str | None = None) -> Iterator[Shard]:
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
        attributes = {name: _told(path, file, name) for name in ("schema", "run_id", "noise_layout")}
        schema = attributes["schema"]
        if schema != SCHEMA:
            raise TraceError(
                f"{path} is not a {SCHEMA} trace (its schema is {schema!r}); other formats need `simeval import`"
            )
        for name, expected in (("run_id", run_id), ("noise_layout", NOISE_LAYOUT)):
            if expected is not None and attributes[name] != expected:
                raise TraceError(
                    f"{path} has {name} {attributes[name]!r} where {expected!r} is expected: it belongs to another "
                    "run or version; take it out of the folder"
                )
        yield Shard(path, file)
