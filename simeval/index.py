"""The append-only index of a run folder: what was requested, and in which trace file it was sealed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simeval.episode import Episode
from simeval.errors import TraceError


class Index:
    """``episodes.jsonl``: one JSON object a line, appended only. Later lines about an id stand over earlier ones."""

    def __init__(self, path: Path):
        self.path = path

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """All complete lines, each with its place in the file; a last line cut short by a kill is left out."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            place = 0
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                yield place, self._parsed(line, f"line {number}")
                place += len(line)

    def line(self, place: int) -> dict[str, Any]:
        """The line that begins at ``place``."""
        with open(self.path, "rb") as file:
            file.seek(place)
            return self._parsed(file.readline(), f"the line at byte {place}")

    def _parsed(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not {"event", "id", "rollout"} <= entry.keys():
            raise TraceError(f"{self.path}: {where} is no entry of an index; the file was altered")
        return entry

    def repair(self) -> None:
        """Cut off a last line that a kill left incomplete."""
        if self.path.exists():
            with open(self.path, "r+b") as file:
                raw = file.read()
                file.truncate(raw.rfind(b"\n") + 1)


def index_entry(episode: Episode, shard: str) -> dict[str, Any]:
    """The index line of a sealed episode."""
    return {
        "event": episode.status,
        "id": episode.id,
        "shard": shard,
        "rollout": episode.rollout.to_json(),
        "ending": episode.ending.to_json(),
        "content": dict(episode.content),
    }
