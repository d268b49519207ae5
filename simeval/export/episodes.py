"""What every export begins with: the episodes that there are to export, and names made of theirs."""

import re

from simeval.errors import TraceError
from simeval.outcomes import read_outcomes
from simeval.reader import Run


def finished_by_world(run: Run, succeeded: bool = False) -> dict[str, list[str]]:
    """World -> ids of its episodes that are no errors and have a step; with ``succeeded``, of those that succeeded.

    Raises ``TraceError`` where there is none, and, naming the episode, where one is not what was recorded.
    """
    read_outcomes(run)
    worlds: dict[str, list[str]] = {}
    for episode in run:
        if episode.status == "done" and episode.length and (episode.succeeded or not succeeded):
            worlds.setdefault(episode.rollout.world, []).append(episode.id)
    if not worlds:
        raise TraceError(f"{run.path} has no {'successful' if succeeded else 'finished'} episode to export")
    return worlds


def as_name(text: str) -> str:
    """``text`` with a dash for everything that is no letter, digit, dash or underscore."""
    return re.sub(r"[^-_0-9A-Za-z]", "-", text)
