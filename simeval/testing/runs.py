"""Made-up recorded runs, written by the real trace writer: for tests of whatever reads runs, and for benchmarks."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simeval.episode import ArraySource, Ending, Episode
from simeval.metrics import EpisodeSummary, summarise
from simeval.noise import NOISE_LAYOUT, Key
from simeval.reader import Run
from simeval.shard import SCHEMA
from simeval.trace import TraceWriter
from simeval.types import Rollout, Start


def made_rollout(policy: str, task: str, index: int, **fields: Any) -> Rollout:
    """The rollout of ``policy`` from the ``index``-th start of ``task``: policies share their starts and seeds."""
    seed = Key(0).integer("made", task, index) >> 32
    start = Start(task=task, instruction=f"{task.replace('-', ' ')}, please", seed=seed)
    return Rollout(start, seed=seed, policy=policy, horizon=fields.pop("horizon", 200), **fields)


def made_episode(
    rollout: Rollout,
    succeeds: bool,
    *,
    length: int = 30,
    success_hold: int = 1,
    solved_at_reset: bool = False,
    error: str = "",
    image_size: int = 0,
) -> Episode:
    """An episode with ``length`` steps whose last ``success_hold`` are successful if it ``succeeds``.

    With ``success_hold`` 0 no success is defined; one that ``succeeds`` merely has the higher return.

    Arrays are random walks keyed by the rollout; with ``image_size`` there is a camera ``image_front`` that shows a
    square on its way to a goal.
    """
    generator = rollout.key("made").stream("made").event(rollout.policy)
    success = np.zeros(length, dtype=bool)
    if succeeds and success_hold:
        success[-success_hold:] = True
    approach = np.linspace(0.0, 1.0 if succeeds else generator.uniform(0.2, 0.8), length)
    reward = np.clip(approach + 0.05 * generator.standard_normal(length), 0.0, 1.0)
    arrays = {
        "observation/state": np.cumsum(generator.standard_normal((length + 1, 8)), axis=0).astype(np.float32),
        "signals/distance": np.append(1.0, 1.0 - approach),
        "action": generator.uniform(-1, 1, (length, 4)).astype(np.float32),
        "reward": reward,
        "terminated": np.zeros(length, dtype=bool),
        "truncated": np.arange(length) == length - 1,
        "success": success,
    }
    if image_size:
        arrays["observation/image_front"] = np.stack([_picture(image_size, x) for x in (0.0, *approach)])
    summary = summarise(reward, success, success_hold)
    if error:
        summary = EpisodeSummary(False, None, length, summary.total_reward)
    ending = Ending(
        status="error" if error else "done",
        summary=summary,
        success_hold=success_hold,
        solved_at_reset=solved_at_reset,
        error=error,
        wall_s=0.01 * length,
    )
    return Episode(rollout, ending, ArraySource(arrays))


def _picture(size: int, progress: float) -> np.ndarray:
    image = np.full((size, size, 3), 225, dtype=np.uint8)
    side, goal = size // 8, size - size // 4
    image[goal : goal + side, goal : goal + side] = (60, 160, 90)
    at = int(progress * goal)
    image[at : at + side, at : at + side] = (200, 80, 60)
    return image


def write_made_run(
    folder: str | Path,
    episodes: Iterable[Episode],
    *,
    pending: Iterable[Rollout] = (),
    dropped: Mapping[Rollout, str] | None = None,
    info: Mapping[str, Any] | None = None,
) -> Run:
    """A run folder holding ``episodes``, with rollouts that were requested and never finished, or dropped."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    manifest = {
        "schema": SCHEMA,
        "noise_layout": NOISE_LAYOUT,
        "run_id": folder.name,
        "config": {},
        "worlds": {},
        "policies": {},
        "sessions": [],
        **(info or {}),
    }
    (folder / "run.json").write_text(json.dumps(manifest))
    writer = TraceWriter(folder, folder.name)
    try:
        for episode in episodes:
            writer.request(episode.rollout)
            writer.write(episode)
        for rollout in pending:
            writer.request(rollout)
        for rollout, reason in (dropped or {}).items():
            writer.drop(rollout, reason)
    finally:
        writer.close()
    return Run(folder)


def made_episodes(rates: Mapping[str, float], tasks: Iterable[str], starts: int, **fields: Any) -> Iterator[Episode]:
    """Episodes of several policies on shared starts; start by start, an easier one for one is easier for all.

    ``rates`` maps a policy to its success rate; ``fields`` go to :func:`made_episode`.
    """
    for task in tasks:
        for index in range(starts):
            luck = Key(index).stream("made").event("luck", task).random()
            for policy, rate in rates.items():
                rollout = made_rollout(policy, task, index)
                own = Key(index).stream("made").event("own", task, policy).random()
                succeeds = 0.7 * luck + 0.3 * own < rate
                length = 20 + int(30 * own) if succeeds else 60
                yield made_episode(rollout, succeeds, **{"length": length, **fields})
