"""A trace file: its layout (schema ``simeval-trace/1``), and how one is written.

A shard keeps the arrays of its episodes end to end, one HDF5 dataset per path: HDF5's cost is per object, not per byte.

    /           attrs: schema, noise_layout, run_id
    /episodes/  one row per episode: id; layout, action_row, observation_row (where its arrays are); length; rollout and
                ending (JSON, which say everything); content (JSON, the digests of its arrays: ``simeval.content``);
                task, instruction, policy, status, success, return (to look at)
    /<layout>/  the columns of the episodes whose arrays have the same paths, dtypes and row shapes: of an episode with
                ``length`` T, rows ``action_row`` to ``action_row + T`` of what is per action, and rows
                ``observation_row`` to ``observation_row + T + 1`` of ``observation/`` and ``signals/``
    /snapshots/ episode (its row in the table), step, begin (and end, of its bytes), data

Images were compressed while their episode ran, and are stored as those chunks: each episode begins at a row of its own,
the next multiple of the dataset's attribute ``align``, and the rows up to there are padding.
"""

import json
import os
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from h5py import h5d, h5g, h5p, h5s, h5t

from simeval.content import Content, checkpoint_digest, checkpoint_path, content_text, digest, frames_digest
from simeval.episode import Ending, Episode
from simeval.errors import TraceError
from simeval.noise import NOISE_LAYOUT
from simeval.tape import Frames, rows_of
from simeval.types import Rollout

SCHEMA = "simeval-trace/1"

ALIGN = "align"
"""Attribute of an image dataset: the rows of one chunk, at a multiple of which every episode begins."""

_NUMBERS = {"success": np.bool_, "length": np.int64, "return": np.float64}
"""The columns of the table that are not text."""
_NESTED = h5p.create(h5p.LINK_CREATE)
_NESTED.set_create_intermediate_group(True)


class Column(NamedTuple):
    """What the arrays of one path have in common; ``align`` is 0, or for frames the rows of a chunk."""

    path: str
    dtype: np.dtype
    row: tuple[int, ...]
    align: int


Layout = tuple[Column, ...]


def episode_row(rollout: Rollout, ending: Ending) -> dict[str, str | bool | int | float]:
    """An episode's row in the table of its shard: all of it as JSON, and what a person looks for in an HDF5 viewer."""
    return {
        "rollout": json.dumps(rollout.to_json()),
        "ending": json.dumps(ending.to_json()),
        "task": _storable(rollout.start.task),
        "instruction": _storable(rollout.start.instruction),
        "policy": _storable(rollout.policy),
        "status": ending.status,
        "success": ending.summary.success,
        "length": ending.summary.length,
        "return": ending.summary.total_reward,
    }


def _text(values: Iterable[str]) -> np.ndarray:
    """Texts as bytes of one length, padded by NUL: HDF5 hangs on a damaged heap, where it keeps texts of any length."""
    return np.array([value.encode() for value in values], dtype="S")


def _storable(text: str) -> str:
    """Text as HDF5 can hold it: NUL and lone surrogates are escaped."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def aligned(rows: np.ndarray, align: int) -> np.ndarray:
    """The rows [N] that episodes with ``rows`` [N] rows take up in a column: up to the next multiple of ``align``."""
    return -(-rows // align) * align if align else rows


def write_shard(path: Path, episodes: Sequence[Episode], run_id: str) -> list[Content]:
    """Write a shard holding ``episodes`` at ``path``, flushed to disk, complete or not at all; returns their contents.

    It is built in memory and written in one go: HDF5 does not survive a disk that fills up under it. ``TraceError``
    for an episode whose arrays do not fit its length.
    """
    with h5py.File(path.name, "w", driver="core", backing_store=False) as file:
        for name, value in (("schema", SCHEMA), ("noise_layout", NOISE_LAYOUT), ("run_id", run_id)):
            file.attrs[name] = np.bytes_(value.encode())
        contents = _write_episodes(file.id, episodes)
        file.flush()
        image = file.id.get_file_image()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as out:
        out.write(image)
        out.flush()
        os.fsync(out.fileno())
    os.rename(temporary, path)
    _sync_folder(path.parent)
    return contents


def _write_episodes(file: h5g.GroupID, episodes: Sequence[Episode]) -> list[Content]:
    members: dict[Layout, list[int]] = {}
    for row, episode in enumerate(episodes):
        members.setdefault(layout_of(episode), []).append(row)
    table: dict[str, np.ndarray] = {
        "id": _text([episode.id for episode in episodes]),
        **{name: np.empty(len(episodes), np.int64) for name in ("layout", "action_row", "observation_row")},
    }
    if len(set(table["id"].tolist())) < len(episodes):
        raise TraceError(
            "an episode was handed over twice for one trace file; its world or protocol asked for it twice"
        )
    rows = [episode_row(episode.rollout, episode.ending) for episode in episodes]
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        table[name] = np.array(values, _NUMBERS[name]) if name in _NUMBERS else _text(map(str, values))
    contents: list[dict[str, str]] = [{} for _ in episodes]
    for number, (layout, at) in enumerate(members.items()):
        table["layout"][at] = number
        table["action_row"][at] = _starts(table["length"][at])
        table["observation_row"][at] = _starts(table["length"][at] + 1)
        written = _write_columns(file, f"{number}/", layout, [episodes[row] for row in at])
        for row, content in zip(at, written, strict=True):
            contents[row] = content
    for content, kept in zip(contents, _write_snapshots(file, episodes), strict=True):
        content.update(kept)
    table["content"] = _text(map(content_text, contents))
    for name, column in table.items():
        _write_array(file, f"episodes/{name}", column)
    return [*contents]


def layout_of(episode: Episode) -> Layout:
    """What an episode's arrays have in common with others'; ``TraceError`` where one has not T rows (or T + 1)."""
    columns = []
    for path, array in sorted(episode.source.arrays.items()):
        expected = rows_of(path, episode.length)
        if not array.shape or array.shape[0] != expected:
            raise TraceError(
                f"episode {episode.id} has {episode.length} actions, and its {path} has shape {array.shape} where "
                f"{expected} rows belong; whatever recorded it is wrong"
            )
        align = array.rows_per_chunk if isinstance(array, Frames) else 0
        columns.append(Column(path, array.dtype, array.shape[1:], align))
    return tuple(columns)


def _starts(rows: np.ndarray) -> np.ndarray:
    return np.cumsum(rows) - rows


def _write_columns(file: h5g.GroupID, prefix: str, layout: Layout, episodes: Sequence[Episode]) -> list[dict[str, str]]:
    """Write the columns of a layout; returns the digests of each episode's arrays."""
    contents: list[dict[str, str]] = [{} for _ in episodes]
    for column in layout:
        arrays = [episode.source.arrays[column.path] for episode in episodes]
        if column.align:
            frames = [item for item in arrays if isinstance(item, Frames)]
            _write_frames(file, prefix + column.path, column, frames)
            digests = [frames_digest(item) for item in frames]
        else:
            rows = np.concatenate([item for item in arrays if isinstance(item, np.ndarray)])
            _write_array(file, prefix + column.path, rows)
            ends = np.cumsum([len(item) for item in arrays if isinstance(item, np.ndarray)])
            digests = [digest(part) for part in np.split(rows, ends[:-1])]
        for content, found in zip(contents, digests, strict=True):
            content[column.path] = found
    return contents


def _write_snapshots(file: h5g.GroupID, episodes: Sequence[Episode]) -> list[dict[str, str]]:
    """Write the checkpoints; returns the digests of each episode's."""
    contents: list[dict[str, str]] = [{} for _ in episodes]
    kept = [
        (row, step, episode.source.checkpoints[step])
        for row, episode in enumerate(episodes)
        for step in episode.source.checkpoint_steps()
    ]
    if kept:
        rows, steps, parts = zip(*kept, strict=True)
        _write_array(file, "snapshots/episode", np.array(rows, dtype=np.int64))
        _write_array(file, "snapshots/step", np.array(steps, dtype=np.int64))
        _write_array(file, "snapshots/begin", np.cumsum([0, *map(len, parts)], dtype=np.int64))
        _write_array(file, "snapshots/data", np.frombuffer(b"".join(parts), dtype=np.uint8))
    for row, step, data in kept:
        contents[row][checkpoint_path(step)] = checkpoint_digest(data)
    return contents


@cache
def _kind(dtype: np.dtype, in_file: bool = True) -> h5t.TypeID:
    """A dtype in the file, or in memory; text is UTF-8 in both."""
    if dtype.kind == "S":
        dtype = h5py.string_dtype("utf-8", dtype.itemsize)
    return h5t.py_create(dtype, logical=in_file)


@lru_cache(256)
def _space(shape: tuple[int, ...]) -> h5s.SpaceID:
    return h5s.create_simple(shape)


def _write_array(file: h5g.GroupID, path: str, array: np.ndarray) -> None:
    array = np.ascontiguousarray(array)
    dataset = h5d.create(file, path.encode(), _kind(array.dtype), _space(array.shape), lcpl=_NESTED)
    if array.size:
        dataset.write(h5s.ALL, h5s.ALL, array, _kind(array.dtype, in_file=False))


def _write_frames(file: h5g.GroupID, path: str, column: Column, episodes: Sequence[Frames]) -> None:
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_chunk((column.align, *column.row))
    properties.set_deflate(1)
    chunks = [chunk for frames in episodes for chunk in frames.chunks]
    space = h5s.create_simple((len(chunks) * column.align, *column.row), (h5s.UNLIMITED, *column.row))
    dataset = h5d.create(file, path.encode(), _kind(column.dtype), space, properties, lcpl=_NESTED)
    for index, chunk in enumerate(chunks):
        dataset.write_direct_chunk((index * column.align, *(0 for _ in column.row)), chunk)
    h5py.Dataset(dataset).attrs[ALIGN] = column.align


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
