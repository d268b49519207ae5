"""Reading a run: its configuration, its table of episodes, and every array, lazily."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simeval.episode import ArraySource, Ending, Episode
from simeval.errors import TraceError, unknown
from simeval.trace import Index, ShardSource, entry_ending, read_episodes
from simeval.types import Rollout

if TYPE_CHECKING:
    import pandas

_COLUMNS = (
    "id",
    "world",
    "task",
    "instruction",
    "policy",
    "status",
    "success",
    "length",
    "return",
    "success_step",
    "solved_at_reset",
    "seed",
    "start_seed",
    "start_index",
    "parent",
    "branch_step",
    "error",
    "wall_s",
)


class Run:
    """A recorded run, opened for reading.

    ``run.episodes`` is a pandas table with a row per rollout requested; ``run[rollout_id]`` an ``Episode`` whose
    arrays are read when asked for; ``iter(run)`` gives the finished episodes in the order in which they were sealed.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        manifest = self.path / "run.json"
        if not manifest.exists():
            what = "is not a run folder (it has no run.json)" if self.path.exists() else "does not exist"
            raise TraceError(f"{self.path} {what}; a run folder is what `simeval run run.dir=…` makes")
        try:
            self.info: dict[str, Any] = json.loads(manifest.read_text())
        except ValueError as error:
            raise TraceError(f"{manifest} is not JSON ({error}); the run folder was altered") from None
        self.refresh()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self._sealed)} of {len(self._rollouts)} episodes)"

    def refresh(self) -> None:
        """Read the index again, for a run that is still being written."""
        self._rollouts: dict[str, dict[str, Any]] = {}
        self._sealed: dict[str, tuple[str, Ending]] = {}
        self._dropped: dict[str, str] = {}
        shards = set()
        for entry in Index(self.path / "episodes.jsonl").read():
            self._rollouts.setdefault(entry["id"], entry["rollout"])
            if entry["event"] == "dropped":
                self._dropped[entry["id"]] = entry["reason"]
            elif "shard" in entry:
                shards.add(entry["shard"])
                self._sealed[entry["id"]] = (entry["shard"], entry_ending(entry))
        for path in sorted((self.path / "traces").glob("*.h5")):
            if path.name not in shards:
                for episode in read_episodes(path):
                    self._rollouts.setdefault(episode.id, episode.rollout.to_json())
                    self._sealed[episode.id] = (path.name, episode.ending)

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration that made the run."""
        return self.info.get("config", {})

    @property
    def requested(self) -> list[str]:
        """Ids of all rollouts requested, in that order."""
        return list(self._rollouts)

    @property
    def dropped(self) -> dict[str, str]:
        """Rollouts that were requested and will not be run, with the reason."""
        return dict(self._dropped)

    @property
    def episodes(self) -> "pandas.DataFrame":
        """One row per requested rollout; ``status`` is ``done``, ``error``, ``dropped`` or ``pending``."""
        import pandas

        rows = [self._row(rollout_id) for rollout_id in self._rollouts]
        return pandas.DataFrame(rows, columns=list(_COLUMNS))

    def __len__(self) -> int:
        return len(self._sealed)

    def __contains__(self, rollout_id: object) -> bool:
        return rollout_id in self._sealed

    def __getitem__(self, rollout_id: str) -> Episode:
        if rollout_id not in self._sealed:
            if rollout_id in self._rollouts:
                raise TraceError(f"rollout {rollout_id} was requested but not finished; resume the run")
            raise unknown(f"rollout of {self.path}", rollout_id, self._sealed)
        shard, ending = self._sealed[rollout_id]
        rollout = Rollout.from_json(self._rollouts[rollout_id])
        return Episode(rollout, ending, ShardSource(self.path / "traces" / shard, rollout_id))

    def __iter__(self) -> Iterator[Episode]:
        return (self[rollout_id] for rollout_id in self._sealed)

    def rollout(self, rollout_id: str) -> Rollout:
        """What was asked for under this id, whether or not it was finished."""
        if rollout_id not in self._rollouts:
            raise unknown(f"rollout of {self.path}", rollout_id, self._rollouts)
        return Rollout.from_json(self._rollouts[rollout_id])

    def whole(self, rollout_id: str) -> Episode:
        """An episode from its root's reset on: a branch with its ancestors' steps before it."""
        episode = self[rollout_id]
        if episode.rollout.parent is None:
            return episode
        parent = self.whole(episode.rollout.parent)
        step = episode.rollout.branch_step
        arrays = {}
        for path in episode.source.paths():
            try:
                before = parent.source.read(path)[:step]
            except KeyError:
                continue
            arrays[path] = np.concatenate([before, episode.source.read(path)])
        return Episode(episode.rollout, episode.ending, ArraySource(arrays))

    def _row(self, rollout_id: str) -> dict[str, Any]:
        rollout = self._rollouts[rollout_id]
        start = rollout["start"]
        row: dict[str, Any] = {
            "id": rollout_id,
            "world": rollout["world"],
            "task": start["task"],
            "instruction": start["instruction"],
            "policy": rollout["policy"],
            "status": "dropped" if rollout_id in self._dropped else "pending",
            "seed": rollout["seed"],
            "start_seed": start.get("seed"),
            "start_index": start.get("index"),
            "parent": rollout["parent"],
            "branch_step": rollout["branch_step"],
            "error": self._dropped.get(rollout_id, ""),
        }
        if rollout_id in self._sealed:
            ending = self._sealed[rollout_id][1]
            row |= {
                "status": ending.status,
                "success": ending.summary.success,
                "length": ending.summary.length,
                "return": ending.summary.total_reward,
                "success_step": ending.summary.success_step,
                "solved_at_reset": ending.solved_at_reset,
                "error": ending.error,
                "wall_s": ending.wall_s,
            }
        return row
