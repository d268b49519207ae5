"""Success of the scripted tabletop expert by task: ``python benchmarks/tabletop_expert.py [--starts N] [task ...]``."""

import argparse
import statistics

from envs.tabletop import TASKS, Tabletop
from policies.tabletop import TabletopExpert
from simeval import Engine, Rollout, together


def _is_small(path: str) -> bool:
    return not path.startswith(("observation/", "signals/"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--starts", type=int, default=200)
    arguments = parser.parse_args()
    world = Tabletop(num_slots=64)
    print("| task | starts | success | median length | longest | horizon | starts that failed |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with Engine({"world": world}, {"world": {"policy": TabletopExpert()}}, keep=_is_small) as engine:
        for task in arguments.tasks:
            horizon = world.horizon(task)
            starts = world.starts(task, arguments.starts, seed=0)
            rollouts = [Rollout(start, seed=index, horizon=horizon) for index, start in enumerate(starts)]
            episodes = engine.run(together(rollouts))
            lengths = [episode.length for episode in episodes if episode.succeeded]
            failed = [index for index, episode in enumerate(episodes) if not episode.succeeded]
            print(
                f"| {task} | {len(episodes)} | {len(lengths) / len(episodes):.1%} | {statistics.median(lengths):.0f} "
                f"| {max(lengths)} | {horizon} | {failed} |",
                flush=True,
            )
    world.close()


if __name__ == "__main__":
    main()
