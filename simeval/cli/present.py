"""What a person sees after a run: videos, the report, and one table."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from simeval.cli.build import close_all, has_worlds, rebuild_world, recorded_config, world_configs
from simeval.episode import Episode
from simeval.errors import SimevalError, UnsupportedError
from simeval.filming import film
from simeval.matched_analysis import studies_of
from simeval.outcomes import read_outcomes
from simeval.reader import Run
from simeval.report import report
from simeval.score import score
from simeval.tables import print_table
from simeval.video import captioned, write_video
from simeval.world import World

_FRAMES_PER_SECOND = 20
"""Of simulated time; a video shorter than ``_SHORTEST`` seconds is slowed down."""
_SHORTEST, _SLOWEST = 3.0, 5.0


def present(path: Path, videos: int) -> None:
    """Score a run, film some of its episodes, write its report, and print the table and the report's path."""
    run = Run(path)
    scores = score(run)
    if videos:
        for note in make_videos(run, videos):
            print(f"note: {note}")
    page = report(run)
    print_table(scores, Console())
    print(f"report: {page}")


def make_videos(run: Run, count: int) -> Iterator[str]:
    """Film up to ``count`` successes and failures per World, task and policy; yields what could not be done.

    Where a World defines no success, as many episodes of the lowest and of the highest return. Of a matched study, as
    many instances that fail, and that succeed, only together, and as many losses of each axis, beside the unperturbed.
    """
    studies = studies_of(read_outcomes(run))
    watched = [run[outcome.id] for study in studies for outcome in study.notable(count)]
    chosen = watched or _chosen(run, count)
    config = recorded_config(run)
    if not has_worlds(config):
        yield "no videos: the run does not say how its World is built (it was made by a script)"
        return
    for name, entry in world_configs(config).items():
        episodes = [episode for episode in chosen if episode.rollout.world == name]
        episodes = [episode for episode in episodes if not video_path(run, episode).exists()]
        if not episodes:
            continue
        try:
            world = rebuild_world(entry, num_slots=1)
        except SimevalError as error:
            yield f"no videos of world {name!r}: {error}"
            continue
        try:
            yield from _film_all(run, world, episodes)
        finally:
            close_all({f"world {name!r}": world})


def video_path(run: Run, episode: Episode) -> Path:
    """Where an episode's video is kept."""
    return run.path / "videos" / f"{episode.id}.mp4"


def _film_all(run: Run, world: World, episodes: list[Episode]) -> Iterator[str]:
    every = max(1, round(1 / (world.control_dt * _FRAMES_PER_SECOND)))
    shown = track(
        episodes,
        description=f"filming {world.name}",
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    for episode in shown:
        try:
            frames = film(episode, world, every)
        except UnsupportedError as error:
            yield f"no videos: {error}"
            return
        except SimevalError as error:
            yield f"no video of {episode.id}: {error}"
            continue
        fps = min(1 / (world.control_dt * every), max(_SLOWEST, len(frames) / _SHORTEST))
        write_video(video_path(run, episode), _captioned(episode, frames, every), fps)


def _captioned(episode: Episode, frames: np.ndarray, every: int) -> np.ndarray:
    rollout = episode.rollout
    held = np.concatenate([[episode.ending.solved_at_reset], episode.success])
    steps = np.minimum(np.arange(len(frames)) * every, episode.length)
    lamp = held[steps] if episode.ending.success_hold else None
    return captioned(frames, f"{rollout.policy}: {rollout.start.task}", rollout.start.instruction, lamp)


def _chosen(run: Run, count: int) -> list[Episode]:
    taken: Counter[tuple[str, str, str, bool]] = Counter()
    chosen = []
    by_return: dict[tuple[str, str, str], list[Episode]] = defaultdict(list)
    for episode in run:
        rollout = episode.rollout
        if episode.status != "done" or rollout.parent is not None or not episode.length:
            continue
        place = (rollout.world, rollout.start.task, rollout.policy)
        cell = (*place, episode.succeeded)
        if not episode.ending.success_hold:
            by_return[place].append(episode)
        elif taken[cell] < count:
            taken[cell] += 1
            chosen.append(episode)
    for episodes in by_return.values():
        ranked = sorted(episodes, key=lambda episode: episode.total_reward)
        chosen.extend({episode.id: episode for episode in (*ranked[:count], *ranked[-count:])}.values())
    return chosen
