"""Imagining in batches, against one episode at a time; and what a fork costs.

    python benchmarks/imagination.py --checkpoint trained/m

``batch_vs_single``: control steps per second of 64 slots computed together, over those of 64 Worlds of one slot, each
stepped by itself. ``fork_us``: a snapshot and its restoration into another slot. Sides take turns, and the fastest of
each is kept; the last line is a JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from simeval.noise import Key
from worldmodels.world import LearnedWorld


def best(*sides: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of the fastest run of each side."""
    found = [float("inf")] * len(sides)
    for _ in range(repeats):
        for place, side in enumerate(sides):
            began = time.perf_counter()
            side()
            found[place] = min(found[place], time.perf_counter() - began)
    return found


def begun(checkpoint: str, slots: int) -> LearnedWorld:
    """A World whose slots were reset."""
    world = LearnedWorld(checkpoint, num_slots=slots, batch_size=slots)
    starts = [world.start(world.tasks[seed % len(world.tasks)], seed) for seed in range(slots)]
    world.reset(list(range(slots)), starts, [Key(seed).stream("world").key(0) for seed in range(slots)])
    return world


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="tabletop", help="a folder, or the name of a model that ships")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    count = 64
    together, alone = begun(arguments.checkpoint, count), [begun(arguments.checkpoint, 1) for _ in range(count)]
    action = np.zeros((count, *together.action_space.shape), together.action_space.dtype)
    keys = [Key(seed).stream("world").key(1) for seed in range(count)]

    def batch() -> None:
        together.step(list(range(count)), action, keys)

    def single() -> None:
        for row, world in enumerate(alone):
            world.step([0], action[:1], keys[row : row + 1])

    quick, slow = best(batch, single, repeats=arguments.repeats)

    def fork() -> None:
        together.restore([1], together.snapshot([0]))

    (forking,) = best(fork, repeats=10 * arguments.repeats)
    print(f"64 slots: {count / quick:.0f} steps/s together, {count / slow:.0f} one by one; fork {1e6 * forking:.0f} µs")
    print(json.dumps({"batch_vs_single": round(slow / quick, 1), "fork_us": round(1e6 * forking, 1)}))


if __name__ == "__main__":
    main()
