"""What hosting a World in worker processes costs and gains; the last line is one JSON object.

    python benchmarks/host.py [overhead] [images] [workers]

overhead: per call of ``step``, of a World that does nothing itself, 1 and 8 slots. images: what comes through shared
memory each second, and the same arrays pickled through a pipe. workers: robosuite Lift in one worker and in two.
What is compared alternates; each figure is the best block's median, so that other load disturbs least.
"""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import gymnasium
import numpy as np

from simeval import HostedWorld, Key, Snapshot, Start, StepKey, TimeStep, World
from simeval.types import Array

STREAM = Key(0).stream("world")
BLOCKS, CALLS = 12, 200


class Still(World):
    """A World that nothing happens in: ``state`` [64] and, where asked for, an image."""

    name, tasks, control_dt, fingerprint = "still", ("stand",), 0.1, "still"

    def __init__(self, num_slots: int, image_size: int = 0):
        self.num_slots = num_slots
        shown: dict[str, gymnasium.Space] = {"state": gymnasium.spaces.Box(-1, 1, (64,), np.float64)}
        if image_size:
            shown["image_front"] = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(shown)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)
        self._shown = {key: np.zeros((num_slots, *space.shape), space.dtype) for key, space in shown.items()}

    def start(self, task: str, seed: int) -> Start:
        """See ``World.start``."""
        return Start(task, seed=seed)

    def horizon(self, task: str) -> int:
        """See ``World.horizon``."""
        return 100

    def reset(self, slots: Sequence[int], starts: Sequence[Start], keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.reset``."""
        return self._time_step(slots)

    def step(self, slots: Sequence[int], actions: Array, keys: Sequence[StepKey]) -> TimeStep:
        """See ``World.step``."""
        return self._time_step(slots)

    def snapshot(self, slots: Sequence[int]) -> list[Snapshot]:
        """See ``World.snapshot``."""
        return [Snapshot("still", {})] * len(slots)

    def restore(self, slots: Sequence[int], snapshots: Sequence[Snapshot]) -> TimeStep:
        """See ``World.restore``."""
        return self._time_step(slots)

    def _time_step(self, slots: Sequence[int]) -> TimeStep:
        count = len(slots)
        no = np.zeros(count, bool)
        return TimeStep({key: value[:count] for key, value in self._shown.items()}, np.zeros(count), no, no, no)


def begin(world: World) -> None:
    starts = [world.start(world.tasks[0], seed) for seed in range(world.num_slots)]
    world.reset(range(world.num_slots), starts, [STREAM.key(0)] * world.num_slots)


def stepper(world: World) -> Callable[[], object]:
    """One ``step`` of all slots with small random actions."""
    slots = list(range(world.num_slots))
    actions = np.random.default_rng(0).uniform(-0.1, 0.1, (len(slots), *world.action_space.shape)).astype(np.float32)
    keys = [STREAM.key(1)] * len(slots)
    return lambda: world.step(slots, actions, keys)


def best(*calls: Callable[[], object], blocks: int = BLOCKS, count: int = CALLS) -> list[float]:
    """Seconds per call of each: the least of the medians of blocks, which alternate."""
    least = [float("inf")] * len(calls)
    for _ in range(blocks):
        for index, call in enumerate(calls):
            taken = []
            for _ in range(count):
                began = time.perf_counter()
                call()
                taken.append(time.perf_counter() - began)
            least[index] = min(least[index], float(np.median(taken)))
    return least


def overhead() -> dict[str, float]:
    result = {}
    for count in (1, 8):
        world, own = HostedWorld({"_target_": "host.Still", "num_slots": count}), Still(count)
        try:
            begin(world)
            hosted, here = best(stepper(world), stepper(own))
        finally:
            world.close()
        result[f"overhead_us_{count}_slots"] = round(1e6 * (hosted - here), 1)
    return result


def images() -> dict[str, float]:
    count, side = 8, 256
    world = HostedWorld({"_target_": "host.Still", "num_slots": count, "image_size": side})
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=answer_through_pipe, args=(there, count, side), daemon=True)
    other.start()

    def ask() -> None:
        here.send("step")
        here.recv()

    try:
        begin(world)
        ask()
        shared, piped = best(stepper(world), ask, count=30)
    finally:
        world.close()
        other.kill()
    size = count * side * side * 3 / 1e6
    return {
        "shared_memory_mb_per_s": round(size / shared),
        "pipe_mb_per_s": round(size / piped),
        "shared_memory_over_pipe": round(piped / shared, 2),
    }


def answer_through_pipe(connection: Connection, count: int, side: int) -> None:
    world = Still(count, side)
    slots = list(range(count))
    while True:
        connection.recv()
        connection.send(world._time_step(slots).observation)


def workers() -> dict[str, float]:
    config = {"_target_": "envs.robosuite.Robosuite", "task": "Lift", "num_slots": 8}
    worlds = [HostedWorld(config, processes=processes) for processes in (1, 2)]
    try:
        for world in worlds:
            begin(world)
        one, two = best(*map(stepper, worlds), blocks=20, count=3)
    finally:
        for world in worlds:
            world.close()
    return {
        "lift_steps_per_s_one_worker": round(8 / one, 1),
        "lift_steps_per_s_two_workers": round(8 / two, 1),
        "two_workers_over_one": round(one / two, 2),
    }


def main(names: Sequence[str]) -> None:
    parts = {"overhead": overhead, "images": images, "workers": workers}
    result: dict[str, float] = {"load_before": round(os.getloadavg()[0], 2), "cores": os.cpu_count() or 0}
    for name in names or parts:
        print(name, found := parts[name]())
        result |= found
    print(json.dumps(result | {"load_after": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main(sys.argv[1:])
