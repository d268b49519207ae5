"""Whether recorded episodes are what was recorded: the values of their rows, their arrays by digest, the outcomes."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simeval.content import (
    checkpoint_digest,
    checkpoint_path,
    content_from,
    content_text,
    digest,
    frames_digest,
    is_of_frames,
)
from simeval.episode import Ending, Episode
from simeval.errors import TraceError
from simeval.metrics import EpisodeSummary, summarise
from simeval.reader import Run
from simeval.shard import episode_row
from simeval.shard_reader import Shard, ShardArray
from simeval.types import Rollout

_FLAGS = ("terminated", "truncated", "success")


def indexed_rollout(run: Run, rollout_id: str) -> Rollout:
    """The rollout that the index has under ``rollout_id``; ``TraceError`` unless it hashes to that id."""
    return _checked(run, rollout_id, lambda: run.rollout(rollout_id))


def indexed_episode(run: Run, rollout_id: str) -> Episode:
    """The finished episode that the index has under ``rollout_id``; ``TraceError`` unless it hashes to that id."""
    return _checked(run, rollout_id, lambda: run[rollout_id])


def _checked(run: Run, rollout_id: str, read: Any) -> Any:
    try:
        found = read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(
            f"{run.path}: the index line of episode {rollout_id} cannot be read ({error!r}); it was altered"
        ) from None
    if found.id != rollout_id:
        raise TraceError(f"{run.path}: the index has the rollout {found.id} under the id {rollout_id}; it was altered")
    return found


def audit(shard: Shard, episodes: Mapping[int, Episode]) -> Iterator[tuple[Episode, np.ndarray | None]]:
    """Check rows of a shard against what the index says of them; gives each with its success ``[T]``, none of an error.

    All that has digests is read and compared, but for frames and checkpoints, of many bytes (:func:`audit_bulk`):
    those have to be there. Raises ``TraceError`` that says what disagrees, naming the episode where it is one's alone.
    """
    claimed = {
        row: {**episode_row(episode.rollout, episode.ending), "content": content_text(episode.content)}
        for row, episode in episodes.items()
    }
    for name in next(iter(claimed.values()), ()):
        found = shard.contents() if name == "content" else shard.table(name)
        if name == "ending":
            found = [_up_to_date(text) for text in found]
        for row, values in claimed.items():
            if not _same(found[row], values[name]):
                raise _altered(
                    shard,
                    episodes[row].id,
                    f"its {name} is {found[row]!r} in the trace and {values[name]!r} in the index",
                )
    by_layout: dict[int, list[int]] = defaultdict(list)
    for row in episodes:
        by_layout[int(shard.layout[row])].append(row)
    for layout, rows in by_layout.items():
        yield from _audit_layout(shard, layout, {row: episodes[row] for row in rows})


def _audit_layout(
    shard: Shard, layout: int, episodes: Mapping[int, Episode]
) -> Iterator[tuple[Episode, np.ndarray | None]]:
    for name in ("action", *_FLAGS):
        data = shard.column(layout, name).data
        if name in _FLAGS and (len(data.shape) > 1 or data.dtype != np.bool_):
            raise _misshapen(shard, data, "a truth value a step")
    reward = shard.column(layout, "reward")
    if len(reward.data.shape) > 1 or reward.data.dtype.kind not in "fiub":
        raise _misshapen(shard, reward.data, "a number a step")
    rewards = reward.data.read(0, reward.data.shape[0])
    successes = shard.column(layout, "success").data.read(0, len(rewards))
    _audit_content(shard, layout, episodes)
    for row, episode in episodes.items():
        if episode.status != "done":
            yield episode, None
            continue
        begin = int(reward.starts[row])
        steps = slice(begin, begin + episode.length)
        held = episode.ending.held if episode.rollout.parent is not None else 0
        try:
            summary = summarise(rewards[steps], successes[steps], episode.ending.success_hold, held)
        except (TypeError, ValueError) as error:
            raise _altered(shard, episode.id, f"its outcome cannot be computed ({error})") from None
        if not agree(summary, episode.summary):
            raise _altered(
                shard, episode.id, f"its arrays give {shown(summary)}, its row says {shown(episode.summary)}"
            )
        yield episode, successes[steps]


def _audit_content(shard: Shard, layout: int, episodes: Mapping[int, Episode]) -> None:
    """Compare the arrays of episodes with their digests, where the trace keeps any."""
    columns = shard.columns(layout)
    digested = {row: episode for row, episode in episodes.items() if episode.content}
    for row, episode in digested.items():
        kept = {checkpoint_path(step) for step in shard.snapshots.get(row, {})}
        there = {*columns, *kept}
        for path in sorted(there ^ episode.content.keys()):
            what = "which was recorded, is gone" if path in episode.content else "was not recorded"
            raise _altered(shard, episode.id, f"its {path} (arrays in group {layout}) {what}")
    for path, column in columns.items() if digested else ():
        if column.data.dtype.hasobject:
            raise _misshapen(shard, column.data, "of numbers")
        rows = None if column.align else column.data.read(0, column.data.shape[0])
        for row, episode in digested.items():
            begin, recorded = int(column.starts[row]), episode.content[path]
            end = begin + int(column.rows[row])
            if not (is_of_frames(recorded) if rows is None else digest(rows[begin:end]) == recorded):
                raise _altered(shard, episode.id, f"its {path} has other values, or another type")


def audit_bulk(shard: Shard) -> int:
    """Compare frames and checkpoints with their digests in the shard's own table; returns how many there were.

    ``TraceError`` names the episode. What else there is, the table included, is :func:`audit`'s to check.
    """
    compared = 0
    for row, text in enumerate(shard.contents()):
        try:
            content = content_from(json.loads(text or "{}"))
        except ValueError as error:
            raise _altered(shard, shard.ids[row], f"its content cannot be read ({error})") from None
        columns = shard.columns(int(shard.layout[row])) if content else {}
        for path, column in columns.items():
            if column.align:
                begin = int(column.starts[row])
                frames = column.data.frames(begin, begin + int(column.rows[row]), column.align)
                if frames_digest(frames) != content.get(path):
                    raise _altered(shard, shard.ids[row], f"its {path} has other frames")
                compared += 1
        for step, place in shard.snapshots.get(row, {}).items() if content else ():
            if checkpoint_digest(shard.snapshot(*place)) != content.get(checkpoint_path(step)):
                raise _altered(shard, shard.ids[row], f"its checkpoint of step {step} has other bytes")
            compared += 1
    return compared


def _up_to_date(ending: str) -> str:
    """An ending as it would be written now: a trace may be older than some of its fields."""
    try:
        return json.dumps(Ending.from_json(json.loads(ending)).to_json())
    except (KeyError, TypeError, ValueError, AttributeError):
        return ending


def _same(found: Any, claimed: Any) -> bool:
    return found == claimed or (found != found and claimed != claimed)


def _altered(shard: Shard, rollout_id: str, what: str) -> TraceError:
    return TraceError(f"{shard.path}: episode {rollout_id} is not what was recorded: {what}; it was altered")


def _misshapen(shard: Shard, data: ShardArray, expected: str) -> TraceError:
    return TraceError(
        f"{shard.path}: array {data.name} is {data.dtype} of shape {data.shape}, and should be {expected}; the file "
        "was altered"
    )


def agree(found: EpisodeSummary, claimed: EpisodeSummary) -> bool:
    """Whether two summaries say the same, returns up to rounding."""
    same_return = math.isclose(found.total_reward, claimed.total_reward, rel_tol=1e-9, abs_tol=1e-9)
    same_return |= math.isnan(found.total_reward) and math.isnan(claimed.total_reward)
    return same_return and (found.success, found.success_step, found.length) == (
        claimed.success,
        claimed.success_step,
        claimed.length,
    )


def shown(summary: EpisodeSummary) -> str:
    """A summary for an error message."""
    steps = "" if summary.success_step is None else f" at step {summary.success_step}"
    return f"success={summary.success}{steps}, length={summary.length}, return={summary.total_reward:.9g}"
