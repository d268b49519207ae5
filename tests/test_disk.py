"""A disk that takes no more is an error in one line, and leaves what was there as it was."""

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simeval.errors import TraceError
from simeval.folder import Manifest, resume
from simeval.reader import Run
from simeval.report import report
from simeval.score import score
from simeval.testing.runs import made_episodes, write_made_run
from simeval.video import write_video

_EMPTY = Manifest({}, {}, {})
WRITERS: dict[str, tuple[str, Callable[[Run], Any]]] = {
    "score": ("scores.json", score),
    "report": ("report.html", report),
    "resume": ("run.json", lambda run: resume(run.path, _EMPTY)),
    "video": (
        "videos/x.mp4",
        lambda run: write_video(run.path / "videos" / "x.mp4", np.zeros((9, 64, 64, 3), "u1"), 5),
    ),
}


@contextlib.contextmanager
def _full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    session = {"versions": {}, "config": {}}
    return write_made_run(tmp_path / "run", made_episodes({"p": 0.5}, ["t"], 3), info={"sessions": [session]})


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_an_error_in_one_line_that_leaves_what_was_there(run: Run, writer: str) -> None:
    name, write = WRITERS[writer]
    if writer == "report":
        score(run)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    size = len((run.path / "scores.json").read_bytes()) + 10 if writer == "report" else 200
    with _full_disk(size), pytest.raises(TraceError, match=f"{name} cannot be written") as caught:
        write(run)
    assert "\n" not in str(caught.value)
    after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == {path: raw for path, raw in before.items() if path.name != ".lock"}
    write(run)
    assert (run.path / name).exists()


def test_a_folder_that_takes_no_file_is_an_error_too(run: Run) -> None:
    (run.path / "scores.json").mkdir()
    with pytest.raises(TraceError, match=r"scores.json cannot be written \(Is a directory\)"):
        score(run)
