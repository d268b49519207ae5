"""The files of a LeRobotDataset v3.0: frames and episodes in parquet, statistics, tasks and features beside them.

Images lie in the parquet files as PNG (features of dtype ``image``): lossless, and LeRobot reads them back bit for bit.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from simeval.episode import Episode
from simeval.errors import UnsupportedError
from simeval.export.statistics import Gathered, Numbers, Pixels, Statistics
from simeval.folder import refused
from simeval.reader import Run

_CHUNK_FILES = 1000
"""Files in a chunk, as LeRobot has it."""
_FILE_MB = 100
"""A file that has grown to this is the last for new episodes [MiB]."""
_EPISODES_AT_ONCE = 64
"""Rows of ``meta/episodes`` written together."""
_OWN = {
    "next.done": "bool",
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
"""Features that every dataset has, numbers of shape [1], and their types."""


@dataclass(frozen=True, slots=True)
class Column:
    """A feature, the path of its array in an episode, and shape and dtype (``image``: uint8 [H, W, 3]) of a frame."""

    feature: str
    path: str
    shape: tuple[int, ...]
    dtype: str

    def frames(self, episode: Episode) -> np.ndarray:
        """[T, *shape], the row after the last action left out; ``UnsupportedError`` for anything else."""
        try:
            array = episode.source.read(self.path)
        except KeyError:
            raise UnsupportedError(
                f"episode {episode.id} has no {self.path}; a LeRobot dataset needs the same in all episodes"
            ) from None
        rows = array[: episode.length]
        shown = rows if self.dtype == "image" else rows.reshape(len(rows), -1)
        if shown.shape[1:] != self.shape:
            raise UnsupportedError(
                f"episode {episode.id}: {self.path} has the shape {array.shape[1:]}, in others it has "
                f"{self.shape}; a LeRobot dataset needs the same in all episodes"
            )
        return shown if self.dtype == "image" else shown.astype(self.dtype)

    def declared(self) -> dict[str, Any]:
        """The feature as ``meta/info.json`` has it."""
        name = self.feature.rpartition(".")[2]
        if self.dtype == "image":
            names = ["height", "width", "channels"]
        else:
            names = [name] if self.shape == (1,) else [f"{name}_{index}" for index in range(self.shape[0])]
        return {"dtype": self.dtype, "shape": list(self.shape), "names": names}


class Writer:
    """Writes some episodes of ``run`` as one dataset; ``fps``: frames per second.

    Two passes: the first looks at every episode and finds the extremes between which the second counts.
    """

    def __init__(self, run: Run, ids: Sequence[str], columns: Sequence[Column], world: str, fps: float):
        self._run, self._ids, self._columns, self._world, self._fps = run, ids, columns, world, fps

    def write(self, folder: Path) -> None:
        """Write the folder, or nothing; ``TraceError`` where the disk refuses."""
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            (temporary / "meta").mkdir(parents=True)
            tasks, gathered = self._survey()
            frames = self._write_frames(temporary, tasks, gathered)
            self._describe(temporary / "meta", frames, tasks, gathered)
            os.rename(temporary, folder)
        except OSError as error:
            raise refused(folder, error) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _episodes(self) -> Iterator[Episode]:
        return (self._run.whole(id_) for id_ in self._ids)

    def _survey(self) -> tuple[dict[str, int], dict[str, Gathered]]:
        """The tasks, numbered, and what is to gather each feature's statistics."""
        tasks: dict[str, int] = {}
        extremes: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        first = 0
        observed: set[str] | None = None
        for number, episode in enumerate(self._episodes()):
            observed = observed or set(episode.observation)
            if set(episode.observation) != observed:
                raise UnsupportedError(
                    f"episode {episode.id} has observations {sorted(episode.observation)}, others have "
                    f"{sorted(observed)}; a LeRobot dataset needs the same in all episodes"
                )
            tasks.setdefault(_task(episode), len(tasks))
            arrays = {c.feature: c.frames(episode) for c in self._columns if c.dtype != "image"}
            arrays |= self._own(episode, number, first, tasks)
            for feature, frames in arrays.items():
                low, high = extremes.get(feature, (frames[0], frames[0]))
                extremes[feature] = np.minimum(low, frames.min(0)), np.maximum(high, frames.max(0))
            first += episode.length
        pixels: dict[str, Gathered] = {c.feature: Pixels() for c in self._columns if c.dtype == "image"}
        return tasks, pixels | {feature: Numbers(*ends) for feature, ends in extremes.items()}

    def _write_frames(self, root: Path, tasks: Mapping[str, int], gathered: Mapping[str, Gathered]) -> int:
        first = 0
        with _Files(root / "data") as data, _Files(root / "meta" / "episodes") as about:
            rows: list[dict[str, Any]] = []
            for number, episode in enumerate(self._episodes()):
                arrays = {column.feature: column.frames(episode) for column in self._columns}
                arrays |= self._own(episode, number, first, tasks)
                statistics = {feature: gathered[feature].add(frames) for feature, frames in arrays.items()}
                chunk, file = data.append(_table(arrays))
                rows.append(
                    {
                        "episode_index": number,
                        "tasks": [_task(episode)],
                        "length": episode.length,
                        "data/chunk_index": chunk,
                        "data/file_index": file,
                        "dataset_from_index": first,
                        "dataset_to_index": first + episode.length,
                        **_origin(episode),
                        **_flat(statistics),
                    }
                )
                first += episode.length
                if len(rows) == _EPISODES_AT_ONCE or number == len(self._ids) - 1:
                    about.append(_episode_table(rows, *about.place()))
                    rows = []
        return first

    def _own(self, episode: Episode, number: int, first: int, tasks: Mapping[str, int]) -> dict[str, np.ndarray]:
        """LeRobot's own features [T, 1] of the dataset's ``number``-th episode, which begins at frame ``first``."""
        steps = np.arange(episode.length)
        values = {
            "next.done": steps == episode.length - 1,
            "timestamp": steps / self._fps,
            "frame_index": steps,
            "episode_index": np.full_like(steps, number),
            "index": first + steps,
            "task_index": np.full_like(steps, tasks[_task(episode)]),
        }
        return {name: values[name].astype(dtype)[:, None] for name, dtype in _OWN.items()}

    def _describe(self, folder: Path, frames: int, tasks: Mapping[str, int], gathered: Mapping[str, Gathered]) -> None:
        import pandas

        own = {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _OWN.items()}
        info = {
            "codebase_version": "v3.0",
            "robot_type": self._world,
            "total_episodes": len(self._ids),
            "total_frames": frames,
            "total_tasks": len(tasks),
            "chunks_size": _CHUNK_FILES,
            "data_files_size_in_mb": _FILE_MB,
            "video_files_size_in_mb": 200,
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._ids)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": None,
            "features": {column.feature: column.declared() for column in self._columns} | own,
        }
        (folder / "info.json").write_text(json.dumps(info, indent=4))
        statistics = {
            feature: {name: value.tolist() for name, value in each.result().items()}
            for feature, each in gathered.items()
        }
        (folder / "stats.json").write_text(json.dumps(statistics, indent=4))
        table = pandas.DataFrame({"task_index": list(tasks.values())}, index=list(tasks))
        table.to_parquet(folder / "tasks.parquet", engine="pyarrow")


class _Files:
    """Parquet files ``chunk-000/file-000.parquet`` and so on; every table appended is a row group of one of them."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._number = 0
        self._file: BinaryIO | None = None
        self._writer: Any = None

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def place(self) -> tuple[int, int]:
        """Numbers of the chunk and of the file that the next table goes to."""
        if self._file is not None and self._file.tell() >= _FILE_MB * 2**20:
            self._close()
            self._number += 1
        return divmod(self._number, _CHUNK_FILES)

    def append(self, table: Any) -> tuple[int, int]:
        """Write a table; returns its place."""
        import pyarrow.parquet

        chunk, file = self.place()
        if self._file is None:
            path = self._folder / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb")
            self._writer = pyarrow.parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        return chunk, file

    def _close(self) -> None:
        if self._file is not None:
            self._writer.close()
            self._file.close()
            self._file = None


def _task(episode: Episode) -> str:
    return episode.rollout.start.instruction or episode.rollout.start.task


def _origin(episode: Episode) -> dict[str, Any]:
    """Where an episode is from; LeRobot passes such columns on."""
    return {
        "simeval/rollout": episode.id,
        "simeval/policy": episode.rollout.policy,
        "simeval/task": episode.rollout.start.task,
        "simeval/success": episode.succeeded,
    }


def _flat(statistics: Mapping[str, Statistics]) -> dict[str, Any]:
    return {
        f"stats/{feature}/{name}": value.tolist()
        for feature, named in statistics.items()
        for name, value in named.items()
    }


def _episode_table(rows: list[dict[str, Any]], chunk: int, file: int) -> Any:
    import pyarrow

    where = {"meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file}
    return pyarrow.Table.from_pylist([row | where for row in rows])


def _table(arrays: Mapping[str, np.ndarray]) -> Any:
    """Features [T, …] as the table that Hugging Face datasets would make of them."""
    import pyarrow

    picture = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    columns: list[Any] = []
    features: dict[str, Any] = {}
    for name, frames in arrays.items():
        if frames.ndim == 4:
            columns.append(pyarrow.array([{"bytes": _png(frame), "path": None} for frame in frames], picture))
            features[name] = {"_type": "Image"}
            continue
        numbers = pyarrow.array(np.ascontiguousarray(frames).ravel())
        value = {"dtype": str(frames.dtype), "_type": "Value"}
        one = frames.shape[1] == 1
        columns.append(numbers if one else pyarrow.FixedSizeListArray.from_arrays(numbers, frames.shape[1]))
        features[name] = value if one else {"feature": value, "length": frames.shape[1], "_type": "Sequence"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pyarrow.Table.from_arrays(columns, names=list(arrays)).replace_schema_metadata(metadata)


def _png(frame: np.ndarray) -> bytes:
    import cv2

    return cv2.imencode(".png", frame[..., ::-1])[1].tobytes()
