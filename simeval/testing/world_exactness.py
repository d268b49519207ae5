"""Checks of a World's exactness: noise, slots, forks, snapshots and memory, bit for bit."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simeval.testing.bench import Bench, fork_step, label
from simeval.testing.checks import (
    Violation,
    advance,
    global_generators,
    proceed,
    random_actions,
    record,
    require_equal,
    same_bits,
    take_row,
    world_stream,
)
from simeval.types import Snapshot, TimeStep

_MISUSE_STEPS = 10


def repeats(bench: Bench) -> str:
    """An episode is a function of its start, actions and keys alone."""
    for episode in bench.episodes:
        again = record(bench.world, 0, episode.start, episode.actions)
        require_equal(episode.rows, again.rows, f"{label(episode)}, run again after other episodes")
    return f"{sum(e.length for e in bench.episodes)} steps, bit for bit"


def any_slot(bench: Bench) -> str:
    """An episode is the same in any slot, whatever the neighbours do."""
    for episode in bench.episodes:
        world, task = bench.world, episode.start.task
        starts = [bench.start(task, 200), episode.start, bench.start(bench.tasks[0], 201)]
        slots, streams = [1, 2, 0], [world_stream(start) for start in starts]
        result = world.reset(slots, starts, [stream.key(0) for stream in streams])
        rows = [take_row(result, 1)]
        others = random_actions(world.action_space, 2 * episode.length, "neighbours", task).reshape(
            episode.length, 2, *world.action_space.shape
        )
        active = [True, True, True]
        for step in range(episode.length):
            keys = [stream.key(step + 1) for stream in streams]
            actions = np.stack([others[step, 0], episode.actions[step], others[step, 1]])
            order = [row for row in ((0, 1, 2), (2, 1, 0), (1, 0))[step % 3] if active[row]]
            result = world.step([slots[row] for row in order], actions[order], [keys[row] for row in order])
            rows.append(take_row(result, order.index(1)))
            for row in (0, 2):
                if row in order and (result.terminated[order.index(row)] or result.truncated[order.index(row)]):
                    active[row] = False
        require_equal(episode.rows, rows, f"{label(episode)}, in slot 2 among busy neighbours")
    return "slot 2 of 3, neighbours stepped together and apart, in changing order"


def any_slot_count(bench: Bench) -> str:
    """An episode is the same whatever the number of slots."""
    single = bench.factory(1)
    try:
        if single.fingerprint != bench.world.fingerprint:
            raise Violation(f"the fingerprint depends on the number of slots: {single.fingerprint!r}")
        for episode in bench.episodes:
            again = record(single, 0, episode.start, episode.actions)
            require_equal(episode.rows, again.rows, f"{label(episode)}, in a World of one slot")
    finally:
        single.close()
    return "1 and 3 slots"


def seeds_differ(bench: Bench) -> str:
    """Different seeds give different starts."""
    for task in bench.tasks:
        seen: set[bytes] = set()
        starts = list(dict.fromkeys(bench.start(task, index) for index in range(4)))
        if len(starts) < 2:
            raise Violation(f"task {task!r}: 4 seeds gave one start")
        for index, start in enumerate(starts):
            row = take_row(bench.world.reset([index % 3], [start], [world_stream(start).key(0)]), 0)
            seen.add(b"".join(row[name].tobytes() for name in sorted(row) if name.startswith(("obs", "sig"))))
        if len(seen) < len(starts):
            raise Violation(f"task {task!r}: {len(starts)} starts gave {len(seen)} different first time steps")
    return f"4 seeds for each of {len(bench.tasks)} tasks"


def fork_continues(bench: Bench) -> str:
    """A fork continues bit for bit as its parent."""
    followed = 0
    for episode in bench.episodes:
        for fork in dict.fromkeys((fork_step(episode), 0, episode.length // 3, 2 * episode.length // 3)):
            limit = episode if fork else replace(episode, actions=episode.actions[:20], rows=episode.rows[:21])
            advance(bench.world, 0, episode, fork)
            bench.world.fork(0, [1, 2])
            for slot, tail in zip((2, 1), proceed(bench.world, [2, 1], limit, fork), strict=True):
                what = f"{label(episode)}, forked at step {fork} into slot {slot}"
                require_equal(limit.rows[fork + 1 :], tail, what)
            followed += limit.length - fork
    return f"{followed} steps after the forks, bit for bit"


def fork_leaves_parent(bench: Bench) -> str:
    """A stepped fork leaves its parent alone."""
    for episode in bench.episodes:
        world, fork = bench.world, fork_step(episode)
        advance(world, 0, episode, fork)
        world.fork(0, [1])
        other = random_actions(world.action_space, _MISUSE_STEPS, "other", episode.start.task)
        for step, action in enumerate(other):
            result = world.step([1], action[None], bench.key(episode, fork + step + 1))
            if result.terminated[0] or result.truncated[0]:
                break
        (tail,) = proceed(world, [0], episode, fork)
        require_equal(episode.rows[fork + 1 :], tail, f"{label(episode)}, after its fork was stepped")
    return f"forks stepped elsewhere for {_MISUSE_STEPS} steps"


def restore_returns_step(bench: Bench) -> str:
    """Restore returns the time step of the snapshot."""
    for episode in bench.episodes:
        for fork in (0, fork_step(episode), episode.length):
            row = advance(bench.world, 0, episode, fork)
            (snapshot,) = bench.world.snapshot([0])
            what = f"{label(episode)}, restored to step {fork}"
            advance(bench.world, 0, bench.episodes[0], min(3, bench.episodes[0].length))
            require_equal([row], [take_row(bench.world.restore([0], [snapshot]), 0)], what)
            require_equal([row], [take_row(bench.world.restore([2], [snapshot]), 0)], f"{what} in slot 2")
    return "at the reset, in the middle and at the end of every episode"


def snapshot_is_value(bench: Bench) -> str:
    """A snapshot is a value."""
    episode = bench.episodes[0]
    fork = fork_step(episode)
    advance(bench.world, 0, episode, fork)
    (snapshot,) = bench.world.snapshot([0])
    before = snapshot.to_bytes()
    if Snapshot.from_bytes(before).to_bytes() != before:
        raise Violation("Snapshot.from_bytes(snapshot.to_bytes()) has other bytes")
    proceed(bench.world, [0], episode, fork)
    if snapshot.to_bytes() != before:
        raise Violation("the snapshot changed while its slot went on: it shares memory with the World")
    bench.world.restore([0], [snapshot])
    proceed(bench.world, [0], episode, fork)
    if snapshot.to_bytes() != before:
        raise Violation("the snapshot changed after it was restored: the World took over its memory")
    bench.world.restore([1], [Snapshot.from_bytes(before)])
    if bench.world.snapshot([1])[0].to_bytes() != before:
        raise Violation("a snapshot of a restored slot differs from the snapshot that was restored")
    return f"{len(before)} bytes"


def no_shared_memory(bench: Bench) -> str:
    """Returned arrays share memory with nothing.

    Everything that goes in or comes out is overwritten as soon as it has; the episode must not notice.
    """
    for episode in bench.episodes:
        world = bench.world
        result = world.reset([1, 0], [episode.start] * 2, bench.key(episode, 0) * 2)
        rows, kept = [take_row(result, 0)], _arrays(result)
        for step, action in enumerate(episode.actions):
            copies = [array.copy() for array in kept]
            actions = np.repeat(action[None], 2, axis=0)
            result = world.step([1, 0], actions, bench.key(episode, step + 1) * 2)
            if not same_bits(actions, np.repeat(action[None], 2, axis=0)):
                raise Violation(f"{label(episode)}, step {step}: the World wrote into the actions it was given")
            if not all(same_bits(a, b) for a, b in zip(kept, copies, strict=True)):
                raise Violation(f"{label(episode)}, step {step}: the step altered arrays that were returned before it")
            fresh = _arrays(result)
            _require_apart(fresh, kept, f"{label(episode)}, step {step}")
            rows.append(take_row(result, 0))
            for array in (*kept, actions):
                _overwrite(array)
            kept = fresh
        require_equal(episode.rows, rows, f"{label(episode)}, with every array overwritten after use")
    return "every array overwritten after use"


def _arrays(step: TimeStep) -> list[np.ndarray]:
    values = [*step.observation.values(), step.reward, step.terminated, step.truncated, step.success]
    return [value for value in (*values, *step.signals.values()) if isinstance(value, np.ndarray)]


def _require_apart(fresh: Sequence[np.ndarray], earlier: Sequence[np.ndarray], where: str) -> None:
    for index, array in enumerate(fresh):
        for other in (*fresh[index + 1 :], *earlier):
            if np.may_share_memory(array, other) and np.shares_memory(array, other):
                raise Violation(f"{where}: two returned arrays share memory ({array.dtype}{list(array.shape)})")


def _overwrite(array: np.ndarray) -> None:
    if array.flags.writeable:
        array[...] = np.nan if array.dtype.kind == "f" else ~array


def no_global_random(bench: Bench) -> str:
    """No global random generator is drawn from."""
    for episode in bench.episodes:
        with global_generators(4217) as drawn:
            again = record(bench.world, 1, episode.start, episode.actions)
            (snapshot,) = bench.world.snapshot([1])
            bench.world.restore([1], [snapshot])
            if names := drawn():
                raise Violation(f"{label(episode)}: the World draws from or seeds {', '.join(names)}")
        require_equal(episode.rows, again.rows, f"{label(episode)}, with global generators seeded otherwise")
    return "random, numpy.random and, if loaded, torch"
