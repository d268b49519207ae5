"""Episodes whose images were recorded as videos (``record.images=video``), shown as if they were in the trace."""

from pathlib import Path

import numpy as np

from simeval.episode import ArraySource, Checkpoint, Episode, window
from simeval.errors import TraceError
from simeval.reader import Run


def with_films(run: Run, episode: Episode) -> Episode:
    """``episode`` with the images that lie beside its trace, decoded when asked for; itself where there are none."""
    films = {
        f"observation/{path.stem}": path for path in sorted((run.path / "videos" / episode.id).glob("image_*.mp4"))
    }
    missing = {key: path for key, path in films.items() if key not in episode.source.paths()}
    if not missing:
        return episode
    return Episode(episode.rollout, episode.ending, _WithFilms(episode.source, missing), episode.content)


class _WithFilms(ArraySource):
    """A source and films: path of an array -> the video that holds it."""

    def __init__(self, source: ArraySource, films: dict[str, Path]):
        self._source = source
        self._films = films

    def paths(self) -> list[str]:
        """See ``ArraySource.paths``."""
        return [*self._source.paths(), *self._films]

    def read(self, path: str, begin: int = 0, end: int | None = None) -> np.ndarray:
        """See ``ArraySource.read``."""
        if path not in self._films:
            return self._source.read(path, begin, end)
        frames = _decoded(self._films[path])
        return frames[window(path, len(frames), begin, end)]

    def checkpoint_steps(self) -> list[int]:
        """See ``ArraySource.checkpoint_steps``."""
        return self._source.checkpoint_steps()

    def checkpoint(self, step: int) -> Checkpoint:
        """See ``ArraySource.checkpoint``."""
        return self._source.checkpoint(step)


def _decoded(path: Path) -> np.ndarray:
    import cv2

    video, frames = cv2.VideoCapture(str(path)), []
    try:
        while (taken := video.read())[0]:
            frames.append(taken[1][..., ::-1])
    finally:
        video.release()
    if not frames:
        raise TraceError(f"{path} cannot be read as a video; it is damaged: run the episode again")
    return np.stack(frames)
