"""Whether a recorded episode is what the index says: every attribute, the shapes of all arrays, and the outcome."""

import math
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5o, h5s

from simeval.episode import Episode
from simeval.errors import TraceError
from simeval.metrics import EpisodeSummary, summarise
from simeval.reader import Run
from simeval.trace import storable
from simeval.types import Rollout

_FLAGS = ("terminated", "truncated", "success")
_ROWS_BEYOND_LENGTH = {"observation": 1, "signals": 1, "policy": 0}


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


def audit(group: h5py.Group, episode: Episode) -> np.ndarray | None:
    """Check a recorded episode against what the index says of it; returns its success ``[T]``, or none of an error.

    Raises ``ValueError`` or ``KeyError`` that says what disagrees. The arrays of an error may be cut anywhere, and are
    not looked at.
    """
    for name, value in episode.attrs.items():
        claimed, found = storable(value), _attribute(group.id, name)
        if claimed != found and not (claimed != claimed and found != found):
            raise ValueError(f"its {name} is {found!r} in the trace and {claimed!r} in the index; one was altered")
    if episode.status != "done":
        return None
    for name in ("action", *_FLAGS):
        _check_rows(_dataset(group.id, name), name, episode.length, flags=name in _FLAGS)
    for name, beyond in _ROWS_BEYOND_LENGTH.items():
        if name.encode() in group.id:
            _check_group(h5g.open(group.id, name.encode()), name, episode.length + beyond)
    reward, success = _column(group, "reward"), _column(group, "success")
    held = episode.ending.held if episode.rollout.parent is not None else 0
    summary = summarise(reward, success, episode.ending.success_hold, held)
    if not agree(summary, episode.summary):
        raise ValueError(f"its arrays give {shown(summary)}, its attributes say {shown(episode.summary)}")
    return success


def _attribute(group: h5g.GroupID, name: str) -> Any:
    """An attribute read through the low-level interface, which costs half of ``group.attrs[name]``."""
    try:
        attribute = h5a.open(group, name.encode())
    except KeyError:
        raise KeyError(f"it has no attribute {name!r}") from None
    value = np.empty(attribute.shape, attribute.dtype)
    attribute.read(value)
    item = value.item()
    return item.decode() if isinstance(item, bytes) else item


def _dataset(group: h5g.GroupID, name: str) -> h5d.DatasetID:
    try:
        return h5d.open(group, name.encode())
    except KeyError:
        raise KeyError(f"it has no array {name!r}") from None


def _check_rows(dataset: h5d.DatasetID, name: str, rows: int, flags: bool = False) -> None:
    shape = dataset.shape
    if not shape or shape[0] != rows or (flags and len(shape) > 1):
        raise ValueError(f"its {name} has shape {shape}; expected {rows} rows")
    if flags and dataset.dtype != np.bool_:
        raise ValueError(f"its {name} is {dataset.dtype}, not bool")


def _check_group(group: h5g.GroupID, path: str, rows: int) -> None:
    for name in group:
        found = h5o.open(group, name)
        inner = f"{path}/{name.decode()}"
        if isinstance(found, h5d.DatasetID):
            _check_rows(found, inner, rows)
        elif isinstance(found, h5g.GroupID):
            _check_group(found, inner, rows)


def _column(group: h5py.Group, name: str) -> np.ndarray:
    """A dataset read through the low-level interface, which costs a third of ``group[name][...]``."""
    dataset = _dataset(group.id, name)
    array = np.empty(dataset.shape, dataset.dtype)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"its {name} is {array.dtype}, not numbers")
    if array.size:
        dataset.read(h5s.ALL, h5s.ALL, array)
    return array


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
