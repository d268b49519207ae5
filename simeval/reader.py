"""Reading a run: its configuration, its table of episodes, and every array, lazily."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simeval.content import content_from
from simeval.episode import ArraySource, Ending, Episode
from simeval.errors import TraceError, unknown
from simeval.index import Index
from simeval.metrics import summarise
from simeval.shard_source import ShardSource, read_episodes
from simeval.types import Rollout

if TYPE_CHECKING:
    import pandas

_MANIFEST = frozenset({"run_id", "config"})

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


def _nested(value: Any, depth: int) -> bool:
    """Whether a value is a mapping of mappings, so many deep."""
    return isinstance(value, dict) and (depth == 1 or all(_nested(inner, depth - 1) for inner in value.values()))


_BELONGS: dict[type, str] = {str: "text", dict: "a mapping", list: "a list"}


def _check_manifest(path: Path, info: Any) -> None:
    """Raise ``TraceError``, naming the entry, unless what is read of a manifest is of the type it was written as."""
    if not isinstance(info, dict) or not info.keys() >= _MANIFEST:
        raise TraceError(f"{path} is no manifest of a run (it lacks some of: {', '.join(sorted(_MANIFEST))})")

    def expect(kind: type, value: Any, *name: object) -> Any:
        if not isinstance(value, kind):
            where = ".".join(map(str, name))
            raise TraceError(f"{path}: {where} is {value!r}, where {_BELONGS[kind]} belongs; the file was altered")
        return value

    expect(str, info["run_id"], "run_id")
    expect(dict, info["config"], "config")
    for world, fingerprint in expect(dict, info.get("worlds", {}), "worlds").items():
        expect(str, fingerprint, "worlds", world)
    for world, policies in expect(dict, info.get("policies", {}), "policies").items():
        for policy, fingerprint in expect(dict, policies, "policies", world).items():
            expect(str, fingerprint, "policies", world, policy)
    for number, session in enumerate(expect(list, info.get("sessions", []), "sessions")):
        expect(dict, session, "sessions", number)
        for part in ("versions", "hardware", "config"):
            expect(dict, session.get(part, {}), "sessions", number, part)


class Run:
    """A recorded run, opened for reading.

    ``run.episodes`` is a pandas table with a row per rollout requested (``success`` is none where the World defines no
    success); ``run[rollout_id]`` an ``Episode`` whose
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
        except (ValueError, OSError) as error:
            raise TraceError(f"{manifest} cannot be read ({error}); the run folder was altered") from None
        _check_manifest(manifest, self.info)
        self.run_id: str = self.info["run_id"]
        self.refresh()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self)} of {len(self.requested)} episodes)"

    def refresh(self) -> None:
        """Read the index again, for a run that is still being written."""
        self._index = Index(self.path / "episodes.jsonl")
        self._requested: dict[str, int] = {}
        self._sealed: dict[str, tuple[str, int]] = {}
        self._dropped: dict[str, str] = {}
        self._adopted: dict[str, Episode] = {}
        shards: dict[str, str] = {}
        for place, entry in self._index.lines():
            rollout_id = entry["id"]
            self._requested.setdefault(rollout_id, place)
            if entry["event"] == "dropped":
                self._dropped[rollout_id] = entry["reason"]
            elif "shard" in entry:
                shard = shards.setdefault(entry["shard"], entry["shard"])
                self._sealed[rollout_id] = (shard, place)
        latest = max(shards, default="")
        for path in sorted((self.path / "traces").glob("*.h5")):
            if path.name not in shards or path.name == latest:  # the latest may be indexed in part
                for episode in read_episodes(path, self.run_id):
                    if episode.id not in self._sealed:
                        self._adopted[episode.id] = episode

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration that made the run."""
        return self.info.get("config", {})

    @property
    def conventions(self) -> dict[str, Any]:
        """What its ``worlds`` and ``policies`` declared of their conventions; empty where it was not recorded."""
        said = self.info.get("conventions", {})
        if not (_nested(said, 1) and _nested(said.get("worlds", {}), 2) and _nested(said.get("policies", {}), 3)):
            raise TraceError(
                f"{self.path / 'run.json'}: its conventions are no names with values; the file was altered"
            )
        return said

    @property
    def requested(self) -> list[str]:
        """Ids of all rollouts requested, in that order."""
        return list(dict.fromkeys((*self._requested, *self._adopted)))

    @property
    def lost(self) -> set[str]:
        """Ids of finished rollouts whose trace file is gone; resuming the run makes them again."""
        there = {path.name for path in (self.path / "traces").glob("*.h5")}
        return {rollout_id for rollout_id, (shard, _) in self._sealed.items() if shard not in there}

    @property
    def dropped(self) -> dict[str, str]:
        """Rollouts that were requested and will not be run, with the reason."""
        return dict(self._dropped)

    @property
    def unfinished(self) -> str | None:
        """What there is of a study that was not gone through to its end, in words; none where it was, or where that was
        not recorded."""
        sessions = self.info.get("sessions", [])
        if not sessions or sessions[-1].get("ended", "") is not None:
            return None
        size = sessions[-1].get("size")
        settled = len(self) + len(self._dropped)
        return f"{settled} of {size} rollouts" if isinstance(size, int) else f"{settled} rollouts"

    @property
    def resumed_by(self) -> str:
        """How to go on with the run, in words."""
        if "run" in self.info.get("config", {}):
            return f"run.dir={self.path} run.resume=true"
        return f"calling evaluate again with path={str(self.path)!r}"

    @property
    def episodes(self) -> "pandas.DataFrame":
        """One row per requested rollout; ``status`` is ``done``, ``error``, ``dropped`` or ``pending``."""
        import pandas

        rows = [self._row(rollout_id) for rollout_id in self.requested]
        return pandas.DataFrame(rows, columns=list(_COLUMNS))

    def __len__(self) -> int:
        return sum(1 for _ in self._finished())

    def __contains__(self, rollout_id: object) -> bool:
        return rollout_id in self._sealed or rollout_id in self._adopted

    def __getitem__(self, rollout_id: str) -> Episode:
        if rollout_id not in self._sealed:
            if rollout_id in self._adopted:
                return self._adopted[rollout_id]
            if rollout_id in self._requested:
                raise TraceError(f"rollout {rollout_id} was requested but not finished; resume the run")
            raise unknown(f"rollout of {self.path}", rollout_id, self._finished())
        shard, place = self._sealed[rollout_id]
        entry = self._index.line(place)
        source = ShardSource(self.path / "traces" / shard, rollout_id, self.run_id)
        with self._altered(rollout_id):
            rollout, ending = Rollout.from_json(entry["rollout"]), Ending.from_json(entry["ending"])
            return Episode(rollout, ending, source, content_from(entry.get("content", {})))

    def __iter__(self) -> Iterator[Episode]:
        return (self[rollout_id] for rollout_id in self._finished())

    def rollout(self, rollout_id: str) -> Rollout:
        """What was asked for under this id, whether or not it was finished."""
        if rollout_id in self._requested:
            with self._altered(rollout_id):
                return Rollout.from_json(self._index.line(self._requested[rollout_id])["rollout"])
        if rollout_id in self._adopted:
            return self._adopted[rollout_id].rollout
        raise unknown(f"rollout of {self.path}", rollout_id, self.requested)

    @contextmanager
    def _altered(self, rollout_id: str) -> Iterator[None]:
        """Whatever an entry of the index lacks or has of another type is told as such."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise TraceError(
                f"{self._index.path}: the entry of {rollout_id} cannot be read ({reason}); the file was altered"
            ) from None

    def _finished(self) -> Iterator[str]:
        yield from self._sealed
        yield from (rollout_id for rollout_id in self._adopted if rollout_id not in self._sealed)

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
            if path == "truncated":
                before = np.zeros_like(before)  # where the parent was cut, its branch went on
            arrays[path] = np.concatenate([before, episode.source.read(path)])
        summary = summarise(arrays["reward"], arrays["success"], episode.ending.success_hold)
        if episode.status == "error":
            summary = replace(summary, success=False, success_step=None)
        ending = replace(episode.ending, summary=summary, held=0, solved_at_reset=parent.ending.solved_at_reset)
        return Episode(episode.rollout, ending, ArraySource(arrays))

    def _row(self, rollout_id: str) -> dict[str, Any]:
        finished = None
        if rollout_id in self:
            finished = self[rollout_id]
        rollout = self.rollout(rollout_id) if finished is None else finished.rollout
        row: dict[str, Any] = {
            "id": rollout_id,
            "world": rollout.world,
            "task": rollout.start.task,
            "instruction": rollout.start.instruction,
            "policy": rollout.policy,
            "status": "dropped" if rollout_id in self._dropped else "pending",
            "seed": rollout.seed,
            "start_seed": rollout.start.seed,
            "start_index": rollout.start.index,
            "parent": rollout.parent,
            "branch_step": rollout.branch_step,
            "error": self._dropped.get(rollout_id, ""),
        }
        if finished is not None:
            row |= {
                "status": finished.status,
                "success": finished.succeeded if finished.ending.success_hold else None,
                "length": finished.length,
                "return": finished.total_reward,
                "success_step": finished.summary.success_step,
                "solved_at_reset": finished.ending.solved_at_reset,
                "error": finished.error,
                "wall_s": finished.ending.wall_s,
            }
        return {name: _in_utf8(value) if isinstance(value, str) else value for name, value in row.items()}


def _in_utf8(text: str) -> str:
    """Text as a table can hold it: what UTF-8 has no letter for (of a file's odd name, say) is escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
