"""Checks of the perturbations that a World applies itself: they act, and they end with their episode."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from simeval.errors import SimevalError
from simeval.testing.bench import Bench, Witness, fork_step, label
from simeval.testing.checks import (
    Episode,
    Violation,
    advance,
    proceed,
    random_actions,
    record,
    require_equal,
    same_bits,
    take_row,
)
from simeval.types import Perturbation, Snapshot, is_picture

_LEVELS = (2.0, 0.5)
_STRONG: dict[str, dict[str, float]] = {
    "camera": {"azimuth": 10.0, "distance": 0.1, "wrist": 1.0},
    "lighting": {"exposure": -1.5, "warmth": 0.5, "elevation": 20.0},
    "appearance": {
        "object_colour": 0.5,
        "table_colour": 0.5,
        "table_texture": 0.5,
        "background_texture": 0.5,
        "seed": 7,
    },
    "appearance.distractors": {"count": 2, "seed": 7},
    "initial_state.robot": {"x": 0.02, "y": -0.02, "z": 0.02, "yaw": 0.1},
    "initial_state.layout": {"shift": 0.03, "turn": 0.5, "seed": 7},
    "dynamics": {"mass": 1.0, "friction": -1.0, "gain": -0.5},
}
"""What is tried of the axes that Worlds have in common (docs/perturbations.md)."""
_ONLY_SEEN = frozenset({"camera", "lighting", "appearance"})
"""Axes that change pictures alone."""
_HELD_EPISODES = 12
_HELD, _HOLD = 25, 8


def perturbations_act(bench: Bench) -> str:
    """Every perturbation axis that it declares changes something."""
    seen = []
    for axis in sorted(bench.world.perturbation_axes):
        witness = _witness(bench, axis)
        if isinstance(witness, str):
            seen.append(f"{axis} not tried: {witness}")
            continue
        seen.append(f"{axis} at {witness.perturbation.level:g}")
        if not witness.visible:
            if _last_state(bench, witness.plain) == _last_state(bench, witness.perturbed):
                raise Violation(f"{axis} changed no bit of any episode, nor of its last state")
            seen[-1] += " (in its state only)"
    return "; ".join(seen) or "declares none"


def perturbations_end(bench: Bench) -> str:
    """A perturbation acts on its own episode alone, and goes with its snapshots."""
    world, tried = bench.world, []
    for axis in sorted(world.perturbation_axes):
        witness = _witness(bench, axis)
        if isinstance(witness, str):
            continue
        tried.append(axis)
        plain, perturbed = witness.plain, witness.perturbed
        what = f"{label(plain)}, {axis} at {witness.perturbation.level:g}"

        def require_plain(slot: int, when: str, plain: Episode = plain, what: str = what) -> None:
            again = record(world, slot, plain.start, plain.actions)
            require_equal(plain.rows, again.rows, f"{what}: an episode without it {when}")

        record(world, 0, perturbed.start, plain.actions)
        require_plain(0, "after it in the same slot")
        again = record(world, 1, perturbed.start, plain.actions)
        require_equal(perturbed.rows, again.rows, f"{what}: run again in another slot")
        fork = fork_step(perturbed)
        row = advance(world, 0, perturbed, fork)
        (snapshot,) = world.snapshot([0])
        require_plain(2, "in the slot beside")
        restored = take_row(world.restore([2], [snapshot]), 0)
        (tail,) = proceed(world, [2], perturbed, fork)
        require_equal([row, *perturbed.rows[fork + 1 :]], [restored, *tail], f"{what}: continued from a snapshot")
        require_plain(2, "after a snapshot with it was restored there")
        (snapshot,) = _plain_snapshot(bench, plain)
        record(world, 0, perturbed.start, plain.actions)
        world.restore([0], [snapshot])
        (tail,) = proceed(world, [0], plain, fork_step(plain))
        require_equal(plain.rows[fork_step(plain) + 1 :], tail, f"{what}: a snapshot without it, restored after it")
    return ", ".join(tried) or "none to try"


def _plain_snapshot(bench: Bench, plain: Episode) -> list[Snapshot]:
    advance(bench.world, 1, plain, fork_step(plain))
    return bench.world.snapshot([1])


def _witness(bench: Bench, axis: str) -> Witness | str:
    """An episode in which the axis shows, the first where it shows in none; or why it is refused. Found once."""
    if axis not in bench.witnesses:
        bench.witnesses[axis] = _find_witness(bench, axis)
    return bench.witnesses[axis]


def _find_witness(bench: Bench, axis: str) -> Witness | str:
    given = [perturbation for perturbation in bench.perturbations if perturbation.axis == axis]
    pictures = any(is_picture(space) for space in bench.world.observation_space.values())
    blind = axis in _ONLY_SEEN and not pictures
    first: Witness | None = None
    refusal = ""
    strong = [Perturbation(axis, 8.0, _STRONG[axis])] if axis in _STRONG else []
    for perturbation in given or strong or [Perturbation(axis, level) for level in _LEVELS]:
        refused = 0
        for plain in _episodes(bench):
            if refused == len(bench.episodes):
                break
            start = replace(plain.start, perturbations=(perturbation,))
            try:
                perturbed = record(bench.world, 0, start, plain.actions)
            except (SimevalError, Violation) as error:  # what this axis does not take, or not in this task
                refusal = str(error)
                refused += 1
                continue
            witness = Witness(perturbation, plain, perturbed, _differ(plain, perturbed))
            if witness.visible or blind:
                return witness
            first = first or witness
    return first or refusal


def _episodes(bench: Bench) -> Iterator[Episode]:
    """The reference episodes, and then more of held random actions, which move things farther."""
    yield from bench.episodes
    if not bench.held_episodes:
        bench.held_episodes.extend(_record_held(bench))
    yield from bench.held_episodes


def _record_held(bench: Bench) -> Iterator[Episode]:
    world = bench.factory(1)  # one in which nothing was ever perturbed
    try:
        for index in range(_HELD_EPISODES):
            task = bench.tasks[index % len(bench.tasks)]
            actions = np.repeat(random_actions(world.action_space, _HELD, "held", task, index), _HOLD, axis=0)
            episode = record(world, 0, bench.start(task, 300 + index), actions)
            if episode.length:
                yield episode
    finally:
        world.close()


def _differ(plain: Episode, perturbed: Episode) -> bool:
    return plain.length != perturbed.length or any(
        left.keys() != right.keys() or not all(same_bits(left[name], right[name]) for name in left)
        for left, right in zip(plain.rows, perturbed.rows, strict=True)
    )


def _last_state(bench: Bench, episode: Episode) -> bytes:
    advance(bench.world, 0, episode, episode.length)
    return bench.world.snapshot([0])[0].to_bytes()
