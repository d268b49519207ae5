"""Where finished episodes go, and where they come back from: memory, or a run folder."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from simeval.episode import ArraySource, Episode
from simeval.reader import Run
from simeval.trace import TraceWriter
from simeval.types import Rollout
from simeval.video import write_video

IMAGES = "observation/image_"
"""How the paths of image observations begin."""


class Store(ABC):
    """What the engine needs of a record: resume is memoisation through :meth:`recall`."""

    @abstractmethod
    def recall(self, rollout_id: str) -> Episode | None:
        """The recorded episode of a rollout, or none."""

    @abstractmethod
    def request(self, rollout: Rollout) -> None:
        """Note that a rollout is about to be run."""

    def drop(self, rollout: Rollout, reason: str) -> None:  # noqa: B027
        """Note that a rollout of the design is not run."""

    @abstractmethod
    def record(self, episode: Episode) -> None:
        """Keep a finished episode."""

    def close(self) -> None:  # noqa: B027
        """Make everything durable."""


class MemoryStore(Store):
    """Keeps whole episodes in memory: for small studies and tests."""

    def __init__(self) -> None:
        self.episodes: dict[str, Episode] = {}

    def recall(self, rollout_id: str) -> Episode | None:
        """See ``Store.recall``."""
        return self.episodes.get(rollout_id)

    def request(self, rollout: Rollout) -> None:
        """See ``Store.request``."""

    def record(self, episode: Episode) -> None:
        """See ``Store.record``."""
        self.episodes[episode.id] = episode


class RunStore(Store):
    """Keeps episodes in a run folder, whose ``run.json`` exists; what it already holds is recalled.

    ``retry_errors`` forgets recorded errors, so that those rollouts run again; the new episode stands for the old.
    ``films`` maps a World's name to frames per second: the images that its policies were shown then go to
    ``videos/<rollout id>/<observation key>.mp4``, which loses some of their detail, instead of into the trace.
    ``lock`` is the right to write, from ``simeval.folder.create`` or ``resume``; without it, it is taken here.
    """

    def __init__(
        self,
        folder: Path,
        retry_errors: bool = False,
        seal_seconds: float = 1.0,
        lock: IO[bytes] | None = None,
        films: Mapping[str, float] | None = None,
    ):
        run = Run(folder)
        self._writer = TraceWriter(folder, run.run_id, seal_seconds, lock)
        run.refresh()
        self._recorded = run
        self._films = dict(films or {})
        self._videos = folder / "videos"
        self._lost = run.lost
        self._retry_errors = retry_errors
        self._fresh: dict[str, Episode] = {}
        self._requested = set(run.requested)

    def recall(self, rollout_id: str) -> Episode | None:
        """See ``Store.recall``."""
        if rollout_id in self._fresh:
            return self._fresh[rollout_id]
        if rollout_id not in self._recorded or rollout_id in self._lost:
            return None
        episode = self._recorded[rollout_id]
        return None if self._retry_errors and episode.status == "error" else episode

    def request(self, rollout: Rollout) -> None:
        """See ``Store.request``."""
        if rollout.id not in self._requested:
            self._requested.add(rollout.id)
            self._writer.request(rollout)

    def drop(self, rollout: Rollout, reason: str) -> None:
        """See ``Store.drop``."""
        if rollout.id not in self._requested:
            self._requested.add(rollout.id)
            self._writer.drop(rollout, reason)

    def record(self, episode: Episode) -> None:
        """See ``Store.record``."""
        self._fresh[episode.id] = episode
        if episode.rollout.world in self._films:
            self._film(episode)
        self._writer.write(episode)

    def _film(self, episode: Episode) -> None:
        arrays = dict(episode.source.arrays)
        for path in [path for path in arrays if path.startswith(IMAGES)]:
            frames = arrays.pop(path)
            target = self._videos / episode.id / f"{path.removeprefix('observation/')}.mp4"
            target.unlink(missing_ok=True)  # of an episode that a kill kept from being sealed
            images = frames[:]
            if len(images):
                write_video(target, images, self._films[episode.rollout.world])
        episode.source = ArraySource(arrays, episode.source.checkpoints)

    def close(self) -> None:
        """See ``Store.close``."""
        self._writer.close()
