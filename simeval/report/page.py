"""Assembling the page: data, videos, template, style and script into one file without a network."""

import base64
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from simeval.episode import Episode
from simeval.folder import write_json, write_text
from simeval.judge_analysis import judged_by
from simeval.matched_words import stories
from simeval.outcomes import COUNTED, Outcome, read_outcomes
from simeval.reader import Run
from simeval.report.data import page_data
from simeval.score import judged, run_scores
from simeval.timing import binding, milliseconds, worth_reading
from simeval.verdicts import read_verdicts
from simeval.video import captioned, write_video

Film = Callable[[Episode], tuple[np.ndarray, float] | None]
"""Frames (uint8 [T or T + 1, H, W, 3]) and frames per second of an episode, or none."""

EMBED_MIB = 12.0
"""Videos up to this size in all are put into the page, so that it can be mailed; the others stay beside it."""


def report(run: Run, *, film: Film | None = None, embed_mib: float = EMBED_MIB, judge: str | None = None) -> Path:
    """Score ``run`` and write its ``report.html``; returns the page's path.

    Every ``videos/<rollout id>.mp4`` of the run folder is shown: embedded while the total stays within ``embed_mib``
    [MiB], alternating between tasks, policies and outcomes, and by relative link beyond that. With ``film``, a success
    and a failure of each task and policy that have no video yet are filmed first; where no success is defined, the
    episodes of the lowest and the highest return. By the verdicts of a ``judge``, where one is named, and then written
    beside these.
    """
    everything = read_outcomes(run)
    verdicts = None if judge is None else read_verdicts(run, judge)
    folder = run.path if verdicts is None else verdicts.folder
    scores = run_scores(run, everything, verdicts=verdicts)
    outcomes = judged(everything if verdicts is None else judged_by(everything, verdicts))
    write_json(folder / "scores.json", scores)
    if film is not None:
        _film_samples(run, outcomes, film)
    embedded, beside = _videos(run.path / "videos", outcomes, embed_mib * 2**20)
    data = page_data(run, scores, outcomes)
    data["videos_beside"] = beside
    data["embed_mib"] = embed_mib
    data["videos_at"] = os.path.relpath(run.path / "videos", folder)
    path = folder / "report.html"
    write_text(path, _render(data, embedded))
    return path


def _render(data: Mapping[str, Any], videos: Mapping[str, str]) -> str:
    import jinja2

    folder = resources.files("simeval.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    timed, quick = worth_reading(data["scores"]["timing"])
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    scripts = [
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("charts.js", "app.js", "matched.js", "fidelity.js", "start.js")
    ]
    return template.render(
        data=data,
        scores=data["scores"],
        general=data["general"],
        stories=stories(data["scores"]["matched"], f"{100 * data['scores']['rule']['confidence']:g} %"),
        payload=_inert(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        style="\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "matched.css")),
        script="\n".join(scripts),
        videos=videos,
        timed=timed,
        quick=quick,
        binding=binding,
        milliseconds=milliseconds,
    )


def _inert(text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _cells(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    cells: dict[tuple[str, Any, str, bool], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        cells[outcome.task, outcome.arm, outcome.status, outcome.succeeded].append(outcome)
    return list(cells.values())


def _film_samples(run: Run, outcomes: Sequence[Outcome], film: Film) -> None:
    for cell in _cells(outcomes):
        paths = [run.path / "videos" / f"{outcome.id}.mp4" for outcome in cell]
        if cell[0].status != COUNTED or any(path.exists() for path in paths):
            continue
        for outcome in _samples(cell):
            episode = run[outcome.id]
            filmed = film(episode)
            if filmed is not None:
                frames, fps = filmed
                title = f"{episode.rollout.policy} on {episode.rollout.start.task}"
                held = np.append(False, episode.success)[-len(frames) :]
                lamp = held if outcome.success_hold and len(held) == len(frames) else None
                path = run.path / "videos" / f"{outcome.id}.mp4"
                write_video(path, captioned(frames, title, episode.rollout.start.instruction, lamp), fps)


def _samples(cell: Sequence[Outcome]) -> list[Outcome]:
    """The first of a cell, or its lowest and highest return where no success is defined."""
    if cell[0].success_hold:
        return [cell[0]]
    ranked = sorted(cell, key=lambda outcome: outcome.summary.total_reward if outcome.summary else 0.0)
    return [ranked[0], ranked[-1]] if len(ranked) > 1 else ranked


def _videos(folder: Path, outcomes: Sequence[Outcome], budget: float) -> tuple[dict[str, str], list[str]]:
    """Base64 of the videos to embed, by rollout id, and the ids of those that stay beside the page."""
    ordered = [o for row in itertools.zip_longest(*_cells(outcomes)) for o in row if o is not None]
    embedded, beside = {}, []
    for outcome in _with_video(folder, ordered):
        path = folder / f"{outcome.id}.mp4"
        budget -= path.stat().st_size * 4 / 3
        if budget >= 0:
            embedded[outcome.id] = base64.b64encode(path.read_bytes()).decode()
        else:
            beside.append(outcome.id)
    return embedded, beside


def _with_video(folder: Path, outcomes: Iterable[Outcome]) -> list[Outcome]:
    names = {path.stem for path in folder.glob("*.mp4")} if folder.is_dir() else set()
    return [outcome for outcome in outcomes if outcome.id in names]
