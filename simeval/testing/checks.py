"""What a conformance suite is made of: named checks, recorded episodes of random actions, bit comparisons."""

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from simeval.noise import Key, Stream
from simeval.policy import SNAPSHOT, Policy, snapshot_column
from simeval.types import Observation, Start, TimeStep
from simeval.world import World


@dataclass(frozen=True, slots=True)
class Check:
    """One sentence about a World or Policy, whether it holds, and what was seen; not ``tried``, it is open."""

    name: str
    passed: bool
    detail: str
    seconds: float
    tried: bool = True


class Violation(Exception):
    """A check's sentence does not hold; the message says what was seen instead."""


class NotTried(Violation):
    """A check has nothing to look at, since an earlier one found nothing; the message says which."""


def assert_conforms(checks: Iterable[Check]) -> None:
    """Raise ``AssertionError`` with every sentence that does not hold: the body of a third party's test."""
    broken = [f"{check.name}: {check.detail}" for check in checks if not check.passed]
    if broken:
        raise AssertionError("\n".join(broken))


def sentence(check: Callable[..., str]) -> str:
    """The name of a check is the first line of its docstring."""
    return (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")


def run_check(name: str, body: Callable[[], str], progress: Callable[[str], None] | None = None) -> Check:
    """Run one check; whatever it raises is its failure, in one line. ``progress`` is told its name before."""
    if progress is not None:
        progress(name)
    began, tried = time.perf_counter(), True
    try:
        passed, detail = True, body()
    except NotTried as nothing:
        passed, detail, tried = False, str(nothing), False
    except Violation as violation:
        passed, detail = False, str(violation)
    except Exception as error:
        passed, detail = False, f"raised {type(error).__name__}: {error}"
    return Check(name, passed, detail, time.perf_counter() - began, tried)


Row = dict[str, np.ndarray]
"""One slot's part of a time step, flat: ``observation/<key>``, ``reward``, …, ``signals/<key>``."""


@dataclass(frozen=True)
class Episode:
    """A recorded episode of random actions: ``actions`` [T, A] and T + 1 rows."""

    start: Start
    actions: np.ndarray
    rows: Sequence[Row]

    @property
    def stream(self) -> Stream:
        """The noise that the World was given."""
        return world_stream(self.start)

    @property
    def length(self) -> int:
        """The number of actions T."""
        return len(self.actions)


def world_stream(start: Start) -> Stream:
    """The noise stream with which the suites run the episode of a start."""
    return Key(start.seed or 0).stream("world")


def take_row(step: TimeStep, row: int) -> Row:
    """Copy one row out of a time step; raises ``Violation`` where the row failed."""
    if row in step.failures:
        raise Violation(f"the simulator broke: {step.failures[row].strip().splitlines()[-1]}")
    flat = {f"observation/{key}": np.array(value[row]) for key, value in step.observation.items()}
    for name in ("reward", "terminated", "truncated", "success"):
        flat[name] = np.array(getattr(step, name)[row])
    flat.update({f"signals/{key}": np.array(value[row]) for key, value in step.signals.items()})
    return flat


def random_actions(space: gymnasium.spaces.Box, count: int, *event: int | str) -> np.ndarray:
    """``count`` actions [count, A] drawn evenly from a bounded space, and from a normal where it is unbounded."""
    draws = Key(0).stream("random-actions").event(*event)
    low, high = np.broadcast_arrays(space.low, space.high)
    bounded = np.isfinite(low) & np.isfinite(high)
    span = np.where(bounded, high, 0.0) - np.where(bounded, low, 0.0)
    even = np.where(bounded, low, 0.0) + draws.random((count, *space.shape)) * span
    free = draws.standard_normal((count, *space.shape))
    return np.clip(np.where(bounded, even, free), low, high).astype(space.dtype)


def record(world: World, slot: int, start: Start, actions: np.ndarray) -> Episode:
    """Run ``actions`` [T, A] from ``start`` in one slot, until the episode ends by itself."""
    stream = world_stream(start)
    rows = [take_row(world.reset([slot], [start], [stream.key(0)]), 0)]
    for step, action in enumerate(actions):
        if ended(rows[-1]):
            break
        rows.append(take_row(world.step([slot], action[None], [stream.key(step + 1)]), 0))
    return Episode(start, actions[: len(rows) - 1], rows)


def drive(world: World, policy: Policy, start: Start, limit: int, beyond: int) -> Episode:
    """Run a bound policy from ``start`` in slot 0: to its end, ``limit`` steps, or ``beyond`` steps at the goal."""
    stream, own = world_stream(start), Key(start.seed or 0).stream("policy")
    result = world.reset([0], [start], [stream.key(0)])
    rows, memory, at_goal = [take_row(result, 0)], policy.initial_memory(1), 0
    actions: list[np.ndarray] = []
    while len(actions) < limit and at_goal < beyond and not ended(rows[-1]):
        step = len(actions)
        acted = policy.act(shown(policy, world, [0], result.observation), [start.instruction], memory, [own.key(step)])
        actions.append(np.array(acted.action[0], dtype=world.action_space.dtype))
        memory = acted.memory
        result = world.step([0], actions[-1][None], [stream.key(step + 1)])
        rows.append(take_row(result, 0))
        at_goal += bool(rows[-1]["success"])
    return Episode(start, np.array(actions).reshape(-1, *world.action_space.shape), rows)


def shown(policy: Policy, world: World, slots: Sequence[int], observation: Observation) -> dict[str, Any]:
    """Copies of what ``policy`` reads of the ``observation`` of ``slots``."""
    found = {key: np.array(observation[key]) for key in policy.observation_keys if key != SNAPSHOT}
    return found | ({SNAPSHOT: snapshot_column(world.snapshot(slots))} if SNAPSHOT in policy.observation_keys else {})


def proceed(world: World, slots: Sequence[int], episode: Episode, begin: int) -> list[list[Row]]:
    """Step each of ``slots``, which stand at step ``begin`` of ``episode``, with its actions to its end."""
    tails: list[list[Row]] = [[] for _ in slots]
    for step in range(begin, episode.length):
        keys = [episode.stream.key(step + 1)] * len(slots)
        result = world.step(slots, np.repeat(episode.actions[step][None], len(slots), axis=0), keys)
        for row, tail in enumerate(tails):
            tail.append(take_row(result, row))
    return tails


def advance(world: World, slot: int, episode: Episode, until: int) -> Row:
    """Reset ``slot`` to the start of ``episode`` and play it up to step ``until``; returns that step's row."""
    part = record(world, slot, episode.start, episode.actions[:until])
    return part.rows[-1]


def ended(row: Row) -> bool:
    """Whether the episode is over at this row."""
    return bool(row["terminated"] or row["truncated"])


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays agree in dtype, shape and every bit."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def require_equal(expected: Sequence[Mapping[str, Any]], seen: Sequence[Mapping[str, Any]], what: str) -> None:
    """Raise ``Violation`` at the first row in which two recordings differ by a single bit."""
    for index, (left, right) in enumerate(zip(expected, seen, strict=False)):
        if left.keys() != right.keys():
            raise Violation(f"{what}: step {index} has {sorted(left)} and then {sorted(right)}")
        for name in left:
            if not same_bits(left[name], right[name]):
                raise Violation(f"{what}: step {index}, {name} {_difference(left[name], right[name])}")
    if len(expected) != len(seen):
        raise Violation(f"{what}: {len(expected)} steps and then {len(seen)}")


def _difference(a: Any, b: Any) -> str:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {a.dtype}{list(a.shape)} and then {b.dtype}{list(b.shape)}"
    if a.dtype.kind not in "fiu":
        return f"is {a} and then {b}" if a.ndim == 0 else f"differs in {np.count_nonzero(a != b)} of {a.size} values"
    gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return f"differs in {np.count_nonzero(a != b)} of {a.size} values, by up to {np.nanmax(gap):.3g}"


@contextmanager
def global_generators(seed: int) -> Iterator[Callable[[], list[str]]]:
    """Seed every global generator; yields a function that names those drawn from since. Puts them back afterwards.

    Covers ``random``, ``numpy.random`` and, where it is loaded already, torch's CPU generator.
    """
    torch = sys.modules.get("torch")
    readers: dict[str, Callable[[], bytes]] = {
        "random": lambda: repr(random.getstate()).encode(),
        "numpy.random": lambda: _legacy_state(),
    }
    kept_random, kept_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    kept_torch = None
    if torch is not None:
        readers["torch"] = lambda: torch.get_rng_state().numpy().tobytes()
        kept_torch = torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if torch is not None:
        torch.manual_seed(seed)
    before = {name: read() for name, read in readers.items()}
    try:
        yield lambda: [name for name, read in readers.items() if read() != before[name]]
    finally:
        random.setstate(kept_random)
        np.random.set_state(kept_numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(kept_torch)


def _legacy_state() -> bytes:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return np.asarray(keys).tobytes() + repr((name, rest)).encode()
