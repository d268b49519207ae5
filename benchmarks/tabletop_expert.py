"""Success of the scripted tabletop expert by task: ``python benchmarks/tabletop_expert.py [starts] [task ...]``."""

import sys

import numpy as np

from envs.tabletop import TASKS, Tabletop
from policies.tabletop import TabletopExpert
from simeval.noise import Key
from simeval.policy import Policy
from simeval.types import Start


def evaluate(
    world: Tabletop, policy: Policy, starts: list[Start], instructions: list[str]
) -> tuple[list[bool], list[int]]:
    """Success and length of one episode per start, the policy being told ``instructions``; batches of ``num_slots``."""
    success, length = [], []
    for first in range(0, len(starts), world.num_slots):
        batch = starts[first : first + world.num_slots]
        told = instructions[first : first + world.num_slots]
        slots = list(range(len(batch)))
        stream = Key(0).stream("world")
        step = world.reset(slots, batch, [stream.key(0)] * len(batch))
        memory = policy.initial_memory(len(batch))
        held = np.zeros(len(batch), dtype=int)
        ended = np.zeros(len(batch), dtype=int)
        for t in range(max(world.horizon(start.task) for start in batch)):
            keys = [stream.key(t + 1)] * len(batch)
            acted = policy.act({"state": step.observation["state"]}, told, memory, keys)
            memory = acted.memory
            step = world.step(slots, acted.action, keys)
            held = np.where(step.success, held + 1, 0)
            inside = np.array([t < world.horizon(start.task) for start in batch])
            ended[(held >= world.success_hold) & (ended == 0) & inside] = t + 1
            if ended.all():
                break
        success += [bool(end) for end in ended]
        length += [int(end) for end in ended]
    return success, length


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    tasks = sys.argv[2:] or list(TASKS)
    world = Tabletop(num_slots=50)
    print(f"{'task':<16}{'starts':>8}{'success':>9}{'median':>8}{'longest':>9}{'horizon':>9}   failed starts")
    for task in tasks:
        starts = world.starts(task, count, seed=0)
        success, length = evaluate(world, TabletopExpert(), starts, [start.instruction for start in starts])
        lengths = [n for n in length if n] or [0]
        failed = [index for index, good in enumerate(success) if not good]
        print(
            f"{task:<16}{count:>8}{np.mean(success):>9.1%}{int(np.median(lengths)):>8}{max(lengths):>9}"
            f"{world.horizon(task):>9}   {failed[:12]}",
            flush=True,
        )
    world.close()


if __name__ == "__main__":
    main()
