"""What a fork costs: median times [µs] to snapshot a slot, to restore it into another one, and both; sizes [bytes].

    python benchmarks/forks.py [--repeats 300]

One row for each task, taken amid an episode of random actions, without rendering; the size is that of a persisted
snapshot. LIBERO runs in its own interpreter (`make libero`), so that its forks include the way there
and back. The last line is one JSON object: figure -> number.
"""

import argparse
import json

from simeval.cli.build import build_world, resolved, world_configs
from simeval.cli.compose import compose_config
from simeval.testing.certificate import cost

SUITES: dict[str, tuple[str, ...]] = {
    "tabletop": ("stack",),
    "metaworld": ("push-v3", "door-open-v3", "hammer-v3"),
    "robosuite": ("Lift", "Stack", "Door", "PickPlaceCan", "Wipe", "TwoArmLift"),
    "libero": ("0", "5"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--suites", nargs="*", default=list(SUITES), choices=SUITES)
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    print("| suite | task | snapshot [µs] | restore [µs] | fork [µs] | persisted [bytes] |\n" + "| --- " * 6 + "|")
    for suite in arguments.suites:
        for task in SUITES[suite]:
            (entry,) = world_configs(compose_config("run", [f"world={suite}", f"world.task={task}"])).values()
            world = build_world(resolved(entry), num_slots=2)
            measured = cost(world, world.tasks[0], arguments.repeats)
            world.close()
            times = measured.snapshot_us, measured.restore_us, measured.fork_us
            print(f"| {suite} | {task} | {' | '.join(f'{time:.0f}' for time in times)} | {measured.size} |", flush=True)
            figures |= {f"{suite}_{task}_fork_us": round(measured.fork_us, 1), f"{suite}_{task}_bytes": measured.size}
        figures[f"{suite}_fork_us"] = max(figures[f"{suite}_{task}_fork_us"] for task in SUITES[suite])
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
