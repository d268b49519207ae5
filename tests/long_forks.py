"""A fork followed for hundreds of steps, in its process and in a fresh one, and a reset after it: for slow tests."""

import gc
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from simeval import Policy, Snapshot, World
from simeval.noise import Key
from simeval.testing.checks import take_row
from simeval.testing.process import in_fresh_process
from simeval.types import TimeStep

BEFORE, AFTER = 40, 500
STREAM = Key(0).stream("world")

Factory = Callable[..., World]
"""Builds a World of one task; takes ``num_slots``."""
Choice = Callable[[TimeStep, int], np.ndarray]
"""The action [1, A] at a step, given what was seen."""


def random_choice(world: World) -> Choice:
    """Actions drawn evenly, each held for five steps, so that things are pushed about."""
    space, key = world.action_space, Key(1).stream("actions")
    low, high = np.clip(space.low, -1, 1), np.clip(space.high, -1, 1)
    return lambda _, step: key.event(step // 5).uniform(low, high)[None].astype(np.float32)


def bits(step: TimeStep) -> bytes:
    """A digest of all that a time step of one slot shows."""
    row = take_row(step, 0)
    content = b"".join(name.encode() + array.dtype.str.encode() + array.tobytes() for name, array in row.items())
    return hashlib.blake2b(content, digest_size=16).digest()


def going_on(world: World, slot: int, actions: Sequence[np.ndarray], first: int) -> list[bytes]:
    """What the slot shows from step ``first`` on."""
    return [bits(world.step([slot], action, [STREAM.key(first + i + 1)])) for i, action in enumerate(actions)]


def beginning(world: World, slot: int, action: np.ndarray) -> list[bytes]:
    """What an episode shows at its reset and under ``action`` for five steps."""
    step = world.reset([slot], [world.start(world.tasks[0], 2)], [STREAM.key(0)])
    return [bits(step), *going_on(world, slot, [action] * 5, 0)]


def _abroad(works: Mapping[str, tuple[Factory, bytes, list[np.ndarray]]]) -> dict[str, tuple[list[bytes], list[bytes]]]:
    shown = {}
    for name, (factory, data, actions) in works.items():
        world = factory(num_slots=1)
        begun = beginning(world, 0, actions[0])
        bits(world.restore([0], [Snapshot.from_bytes(data)]))
        shown[name] = begun, going_on(world, 0, actions, BEFORE)
        world.close()
    return shown


def differences(
    factories: Mapping[str, Factory],
    choice: Callable[[World], Choice] = random_choice,
    here: int = AFTER,
    after: int = AFTER,
) -> dict[str, str]:
    """Case -> where it went wrong, for those that did.

    A fork is taken after ``BEFORE`` steps, and must follow its parent for ``after`` steps in a fresh process and for
    ``here`` steps in another slot that has run something else. Another episode must begin in the parent's slot, after
    all that, as it does in a slot that has run nothing, here and in the fresh process.
    """
    wrong: dict[str, str] = {}
    works, expected = {}, {}
    for name, factory in factories.items():
        world = factory(num_slots=2)
        choose = choice(world)
        step = world.reset([0], [world.start(world.tasks[0], 1)], [STREAM.key(0)])
        actions, shown = [], []
        for number in range(BEFORE + after):
            actions.append(choose(step, number))
            if number == BEFORE:
                data = world.snapshot([0])[0].to_bytes()
                clean = beginning(world, 1, actions[-1])
            step = world.step([0], actions[-1], [STREAM.key(number + 1)])
            shown.append(bits(step))
        if beginning(world, 0, actions[BEFORE]) != clean:
            wrong[name] = f"begins otherwise after {BEFORE + after} steps of another episode"
        bits(world.restore([1], [Snapshot.from_bytes(data)]))
        tail = going_on(world, 1, actions[BEFORE : BEFORE + here], BEFORE)
        if at := first_difference(shown[BEFORE : BEFORE + here], tail):
            wrong[name] = f"in its process, {at}"
        world.close()
        works[name], expected[name] = (factory, data, actions[BEFORE:]), (clean, shown[BEFORE:])
        gc.collect()
    for name, (begun, tail) in in_fresh_process(partial(_abroad, works)).items():
        if begun != expected[name][0]:
            wrong[name] = "begins otherwise in a fresh process"
        if at := first_difference(expected[name][1], tail):
            wrong[name] = f"in a fresh process, {at}"
    return wrong


def first_difference(expected: Sequence[bytes], seen: Sequence[bytes]) -> str:
    """Where two recordings part; empty where they do not."""
    places = (i for i, (a, b) in enumerate(zip(expected, seen, strict=True)) if a != b)
    at = next(places, None)
    return "" if at is None else f"{at} steps after the fork"


def expert_choice(policy: Policy) -> Callable[[World], Choice]:
    """What an expert does."""

    def choice(world: World) -> Choice:
        policy.bind(world.spec)
        instruction, memory = world.start(world.tasks[0], 1).instruction, policy.initial_memory(1)

        def choose(step: TimeStep, number: int) -> np.ndarray:
            nonlocal memory
            if number == 0:
                memory = policy.initial_memory(1)
            acted = policy.act(step.observation, [instruction], memory, [Key(1).stream("policy").key(number)])
            memory = acted.memory
            return np.asarray(acted.action, dtype=world.action_space.dtype)

        return choose

    return choice
