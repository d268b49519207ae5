"""Checks of a World's manners: what it declares, what it returns, what it refuses."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from simeval.errors import ActionError, ConfigError, SnapshotError, UnsupportedError
from simeval.noise import Key
from simeval.testing.bench import Bench, fork_step, label
from simeval.testing.checks import (
    Row,
    Violation,
    advance,
    proceed,
    record,
    require_equal,
    take_row,
    world_stream,
)
from simeval.types import Snapshot, Start, TimeStep, is_picture
from simeval.world import World

_UNSEEN = 10
"""Steps without a look."""


def declares_itself(bench: Bench) -> str:
    """It declares slots, tasks, spaces and a fingerprint."""
    world = bench.world
    problems = []
    if world.num_slots != 3:
        problems.append(f"built with 3 slots, num_slots is {world.num_slots}")
    if not isinstance(world.tasks, tuple) or not world.tasks or len(set(world.tasks)) != len(world.tasks):
        problems.append(f"tasks must be a tuple of distinct names; it is {world.tasks!r}")
    if not isinstance(world.observation_space, gymnasium.spaces.Dict) or not world.observation_space.spaces:
        problems.append(f"observation_space must be a Dict with a key; it is {world.observation_space}")
    if not isinstance(world.action_space, gymnasium.spaces.Box) or world.action_space.dtype.kind != "f":
        problems.append(f"action_space must be a Box of floats; it is {world.action_space}")
    if not (np.isfinite(world.control_dt) and world.control_dt > 0):
        problems.append(f"control_dt must be a positive time [s]; it is {world.control_dt!r}")
    for name in ("name", "fingerprint"):
        text = getattr(world, name)
        if not isinstance(text, str) or not text or "\n" in text:
            problems.append(f"{name} must be one line of text; it is {text!r}")
    if world.success_hold < 0:
        problems.append(f"success_hold counts steps, or is 0 for no success; it is {world.success_hold}")
    problems += [f"the horizon of {task!r} is {world.horizon(task)}" for task in bench.tasks if world.horizon(task) < 1]
    if problems:
        raise Violation("; ".join(problems))
    return world.fingerprint


def starts_are_plain(bench: Bench) -> str:
    """Starts are plain data with an instruction."""
    instructions = set()
    for task in bench.tasks:
        start = bench.start(task, 0)
        if start.task != task:
            raise Violation(f"the start of {task!r} says task {start.task!r}")
        if not start.instruction.strip():
            raise Violation(f"the start of {task!r} has no instruction")
        if start != bench.start(task, 0):
            raise Violation(f"two starts of {task!r} drawn by one seed differ")
        if Start.from_json(start.to_json()) != start:
            raise Violation(f"the start of {task!r} does not survive JSON: {start}")
        if bench.world.starts(task, 3, bench.seed)[:2] != bench.world.starts(task, 2, bench.seed):
            raise Violation(f"a longer list of starts of {task!r} does not begin with the shorter one")
        instructions.add(start.instruction)
    return "; ".join(sorted(instructions)[:3])


def fits_spaces(bench: Bench) -> str:
    """Observations, rewards, flags and signals fit their spaces."""
    world, first = bench.world, bench.episodes[0].rows[0]
    for episode in bench.episodes:
        for step, row in enumerate(episode.rows):
            _require_row_fits(world, row, f"{label(episode)}, observation {step}")
            _require_same_signals(first, row, f"{label(episode)}, observation {step}")
        starts = [episode.start, bench.start(episode.start.task, 100)]
        streams = [world_stream(start) for start in starts]
        result = world.reset([0, 2], starts, [stream.key(0) for stream in streams])
        _require_fits(world, result, 2, f"{label(episode)}, reset")
        _require_fits(world, world.restore([1], world.snapshot([0])), 1, f"{label(episode)}, restore")
        for step in range(min(episode.length, 50)):
            actions = np.repeat(episode.actions[step][None], 2, axis=0)
            result = world.step([0, 2], actions, [stream.key(step + 1) for stream in streams])
            _require_fits(world, result, 2, f"{label(episode)}, step {step}")
            if any(result.terminated) or any(result.truncated):
                break
    signals = [name.removeprefix("signals/") for name in first if name.startswith("signals/")]
    return f"observations {', '.join(world.observation_space.spaces)}; signals {', '.join(sorted(signals)) or 'none'}"


_VALUES = {"reward": np.float64, "terminated": np.bool_, "truncated": np.bool_, "success": np.bool_}


def _require_row_fits(world: World, row: Row, where: str) -> None:
    spaces = world.observation_space.spaces
    given = [name.removeprefix("observation/") for name in row if name.startswith("observation/")]
    if set(given) != spaces.keys():
        raise Violation(f"{where}: observation keys are {sorted(given)}, declared {sorted(spaces)}")
    for key, space in spaces.items():
        value = row[f"observation/{key}"]
        if value.shape != (space.shape or ()) or value.dtype != space.dtype:
            raise Violation(f"{where}: {key} is {value.dtype}{list(value.shape)}, its space {space}")
        if not space.contains(value):
            raise Violation(f"{where}: {key} is outside its space{_outside(space, value)}")
    for name, dtype in _VALUES.items():
        if row[name].dtype != dtype or row[name].shape:
            raise Violation(f"{where}: {name} is {row[name].dtype}{list(row[name].shape)}, not {np.dtype(dtype)}")
    if not np.isfinite(row["reward"]):
        raise Violation(f"{where}: reward is {row['reward']}")
    _require_success_defined(world, row["success"], where)


def _require_same_signals(first: Row, row: Row, where: str) -> None:
    kinds = [
        {name: f"{value.dtype}{list(value.shape)}" for name, value in each.items() if name.startswith("signals/")}
        for each in (first, row)
    ]
    for name in kinds[0].keys() | kinds[1].keys():
        before, now = (kind.get(name, "absent") for kind in kinds)
        if before != now:
            raise Violation(f"{where}: {name} is {now}; in the first time step of all it is {before}")


def _require_success_defined(world: World, success: Any, where: str) -> None:
    if world.success_hold == 0 and np.any(success):
        raise Violation(
            f"{where}: success is true, though success_hold is 0: the world says that it defines no success"
        )


def _require_fits(world: World, step: TimeStep, count: int, where: str) -> None:
    for name in _VALUES:
        value = getattr(step, name)
        if np.shape(value) != (count,):
            raise Violation(f"{where}: {name} has shape {list(np.shape(value))}, expected [{count}]")
    for kind, values in (("observation", step.observation), ("signal", step.signals)):
        for key, value in values.items():
            if np.shape(value)[:1] != (count,):
                raise Violation(f"{where}: {kind} {key} has shape {list(np.shape(value))} for {count} slots")
    for row in range(count):
        _require_row_fits(world, take_row(step, row), where)


def _outside(space: gymnasium.Space, value: np.ndarray) -> str:
    if not isinstance(space, gymnasium.spaces.Box):
        return ""
    inside = ((value >= space.low) & (value <= space.high)).reshape(-1)
    if inside.all():
        return ""
    index = int(np.flatnonzero(~inside)[0])
    low, high = space.low.reshape(-1)[index], space.high.reshape(-1)[index]
    return f": value {index} is {value.reshape(-1)[index]}, allowed {low} to {high}"


def refuses_bad_actions(bench: Bench) -> str:
    """Bad actions are refused by slot and step, and move nothing."""
    world, shape = bench.world, bench.world.action_space.shape
    for episode in bench.episodes:
        fork = fork_step(episode)
        advance(world, 2, episode, fork)
        for what, bad in _bad_actions(world, episode.actions[fork]).items():
            try:
                world.step([2], bad, bench.key(episode, fork + 1))
            except ActionError as error:
                named = "slot 2" in str(error) and f"step {fork}" in str(error)
                if not named:
                    raise Violation(f"{what}: the error does not name slot 2 and step {fork}: {error}") from None
                continue
            raise Violation(f"{label(episode)}: an action {what} was accepted")
        (tail,) = proceed(world, [2], episode, fork)
        require_equal(episode.rows[fork + 1 :], tail, f"{label(episode)}, after refused actions")
    return f"shape other than {shape}, not a number, infinite, out of bounds"


def _bad_actions(world: World, action: np.ndarray) -> dict[str, np.ndarray]:
    space = world.action_space
    bad: dict[str, Any] = {"of one number too many": np.append(action.reshape(-1), 0.0)[None].astype(space.dtype)}
    for what, value in (("not a number", np.nan), ("infinite", np.inf)):
        broken = action.copy()
        broken.reshape(-1)[-1] = value
        bad[what] = broken[None]
    if np.isfinite(space.high).all():
        bad["out of bounds"] = (space.high + np.maximum(np.abs(space.high), 1.0) * 0.01).astype(space.dtype)[None]
    return bad


def refuses_unknown_task(bench: Bench) -> str:
    """An unknown task is refused by name."""
    name = f"{bench.world.tasks[0]}-no-such"
    stream = Key(0).stream("world")
    calls: dict[str, Callable[[], object]] = {
        "start": lambda: bench.world.start(name, 0),
        "horizon": lambda: bench.world.horizon(name),
        "reset": lambda: bench.world.reset([0], [Start(name, "no such", seed=0)], [stream.key(0)]),
    }
    message = ""
    for call, body in calls.items():
        try:
            body()
        except ConfigError as error:
            message = str(error)
            if name not in message:
                raise Violation(f"{call}: the error does not repeat the name that was received: {error}") from None
            continue
        raise Violation(f"{call} accepted task {name!r}")
    return message[:100]


def refuses_foreign(bench: Bench) -> str:
    """A snapshot of another World is refused."""
    episode = bench.episodes[0]
    row = advance(bench.world, 0, episode, fork_step(episode))
    (snapshot,) = bench.world.snapshot([0])
    try:
        bench.world.restore([0], [Snapshot(f"another {snapshot.world}", snapshot.state)])
    except SnapshotError as error:
        (tail,) = proceed(bench.world, [0], episode, fork_step(episode))
        require_equal([row, *episode.rows[fork_step(episode) + 1 :]], [row, *tail], "after the refusal")
        return str(error)[:100]
    raise Violation("a snapshot with another fingerprint was restored")


def advances_unseen(bench: Bench) -> str:
    """What is not looked at goes on as what is, and what is looked at is all there."""
    episode = bench.episodes[0]
    fork = fork_step(episode)
    advance(bench.world, 0, episode, fork)
    bench.world.fork(0, [1])
    pictures = [key for key, space in bench.world.observation_space.items() if is_picture(space)]
    for step in range(fork, min(episode.length, fork + _UNSEEN)):
        looks = [False, step % 2 == 0]
        actions, keys = np.repeat(episode.actions[step][None], 2, axis=0), [episode.stream.key(step + 1)] * 2
        result = bench.world.advance([0, 1], actions, keys, looks)
        for row, look in enumerate(looks):
            hidden = () if look else tuple(f"observation/{key}" for key in pictures)
            expected, seen = (
                {name: value for name, value in each.items() if name not in hidden}
                for each in (episode.rows[step + 1], take_row(result, row))
            )
            require_equal([expected], [seen], f"advanced to step {step + 1} {'looked at' if look else 'unseen'}")
    return f"without {', '.join(pictures)}" if pictures else "it has no pictures to leave out"


def renders(bench: Bench) -> str:
    """A picture is uint8 RGB, and taking it changes nothing."""
    episode = bench.episodes[0]
    fork = fork_step(episode)
    advance(bench.world, 0, episode, fork)
    try:
        picture = bench.world.render([0])
    except UnsupportedError:
        return "draws no pictures"
    if picture.dtype != np.uint8 or picture.ndim != 4 or picture.shape[0] != 1 or picture.shape[3] != 3:
        raise Violation(f"render gave {picture.dtype}{list(picture.shape)}, expected uint8 [1, H, W, 3]")
    (tail,) = proceed(bench.world, [0], episode, fork)
    require_equal(episode.rows[fork + 1 :], tail, "after a picture was taken")
    return f"{picture.shape[1]} by {picture.shape[2]} pixels"


def closes_twice(bench: Bench) -> str:
    """Closing twice is harmless."""
    world = bench.factory(1)
    record(world, 0, bench.episodes[0].start, bench.episodes[0].actions[:1])
    world.close()
    world.close()
    return ""
