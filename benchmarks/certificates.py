"""Certifies the forks of every suite that is installed here, task by task, and prints the table of docs/worlds.md.

    python benchmarks/certificates.py [--suites metaworld robosuite …] [--steps 500] [--write docs/worlds.md]

``--write`` replaces the rows of the suites that were certified in the table of that file, between its two markers. The
last line is one JSON object: suite -> median time of a fork [µs].
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simeval.cli.build import build_policy, build_world, resolved, world_configs
from simeval.cli.compose import compose_config
from simeval.errors import SimevalError
from simeval.testing import Certificate, certify

BEGIN, END = "<!-- certificates -->", "<!-- end of certificates -->"
HEAD = (
    "| suite | tasks, exact of checked | followed | restored by | a fork, median | a snapshot, at most | bound to |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)
ROBOSUITE = (
    *("Lift", "Stack", "Door", "Wipe", "ToolHang", "NutAssembly", "NutAssemblySquare", "NutAssemblyRound"),
    *("NutAssemblySingle", "PickPlace", "PickPlaceSingle", "PickPlaceMilk", "PickPlaceBread", "PickPlaceCereal"),
    *("PickPlaceCan", "TwoArmLift", "TwoArmPegInHole", "TwoArmHandover", "TwoArmTransport"),
)
GYMNASIUM = (
    *("Reacher", "Pusher", "InvertedPendulum", "InvertedDoublePendulum", "HalfCheetah", "Hopper", "Swimmer"),
    *("Walker2d", "Ant", "Humanoid", "HumanoidStandup"),
)
ROBOTICS = {
    "Fetch": ("FetchReach-v4", "FetchPush-v4", "FetchSlide-v4", "FetchPickAndPlace-v4"),
    "Shadow hand": (
        *("HandReach-v3", "HandManipulateBlock-v1", "HandManipulateEgg-v1", "HandManipulatePen-v1"),
        "HandManipulateBlock_ContinuousTouchSensors-v1",
    ),
    "Adroit": ("AdroitHandDoor-v1", "AdroitHandHammer-v1", "AdroitHandPen-v1", "AdroitHandRelocate-v1"),
    "Maze": ("PointMaze_UMaze-v3", "PointMaze_Medium-v3", "PointMaze_Large-v3", "AntMaze_UMaze-v5"),
}
DM_CONTROL = (
    *("acrobot-swingup", "ball_in_cup-catch", "cartpole-balance", "cartpole-swingup", "cheetah-run", "finger-spin"),
    *("finger-turn_hard", "fish-swim", "hopper-hop", "humanoid-walk", "manipulator-bring_ball", "pendulum-swingup"),
    *("point_mass-easy", "quadruped-run", "quadruped-escape", "reacher-hard", "stacker-stack_2", "swimmer-swimmer6"),
    *("walker-walk", "dog-run", "lqr-lqr_2_1"),
)
LIBERO = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
SUITES: dict[str, list[tuple[str, ...]]] = {
    "tabletop": [("world=tabletop",)],
    "Meta-World": [("world=metaworld",)],
    "robosuite": [("world=robosuite", f"world.task={task}") for task in ROBOSUITE],
    "LIBERO": [("world=libero", f"world.suite={suite}", "world.task=[0,1]") for suite in LIBERO],
    "Gymnasium MuJoCo v5": [("world=gymnasium", f"world.id={name}-v5") for name in GYMNASIUM],
    **{name: [("world=robotics", f"world.id={each}") for each in ids] for name, ids in ROBOTICS.items()},
    "dm_control": [("world=dm_control", f"world.task={task}") for task in DM_CONTROL],
    "OGBench": [
        ("world=ogbench", f"world.env={env}") for env in ("cube-single", "cube-double", "cube-triple", "scene")
    ],
    "PushT": [("world=pusht",)],
}
"""Suite -> the settings of its Worlds; all tasks of each are certified."""


@dataclass(frozen=True)
class Row:
    """A row of the table: a suite and the certificates of its Worlds."""

    suite: str
    certificates: Sequence[Certificate]

    @property
    def fork_us(self) -> float:
        """The median over tasks [µs]."""
        return statistics.median(cost.fork_us for each in self.certificates for cost in each.costs.values())

    def __str__(self) -> str:
        tasks = sum(len(each.tasks) for each in self.certificates)
        broken = [task for each in self.certificates for task in each.broken]
        exact = f"{tasks - len(broken)} of {tasks}" + (f" (not {', '.join(broken)})" if broken else "")
        how = sorted({"replay" if each.by_replay else "state" for each in self.certificates})
        fork = f"{self.fork_us:.0f} µs" if self.fork_us < 1000 else f"{self.fork_us / 1000:.1f} ms"
        size = max(each.size for each in self.certificates) / 1000
        found = [re.findall(r"([a-z][\w-]*)[ =](\d+\.\d+[\w.]*)", each.dynamics) for each in self.certificates]
        versions = ", ".join(dict.fromkeys(f"{name} {version}" for pairs in found for name, version in pairs))
        steps = f"{min(each.steps for each in self.certificates)} steps"
        return f"| {self.suite} | {exact} | {steps} | {' and '.join(how)} | {fork} | {size:.1f} kB | {versions} |"


def certificates(suite: str, steps: int) -> Iterator[Certificate]:
    for settings in SUITES[suite]:
        for entry in world_configs(compose_config("run", settings)).values():
            expert = None if entry.get("expert") is None else partial(build_policy, entry["expert"], entry, "expert")
            began = time.perf_counter()
            try:
                certificate = certify(_Factory(resolved(entry)), steps=steps, policy=expert)
            except SimevalError as error:
                print(f"{' '.join(settings)}: left out, {error}", file=sys.stderr)
                continue
            print(f"{certificate} [{time.perf_counter() - began:.0f} s]", flush=True)
            for task, checks in certificate.broken.items():
                for check in checks:
                    print(f"  {task}: {check.name}: {check.detail}", flush=True)
            yield certificate


@dataclass(frozen=True)
class _Factory:
    arguments: dict

    def __call__(self, num_slots: int):
        return build_world(self.arguments, num_slots=num_slots)


def rewritten(text: str, rows: Sequence[Row]) -> str:
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    kept = {line.split("|")[1].strip(): line for line in table.strip().splitlines()[2:]}
    kept |= {row.suite: str(row) for row in rows}
    return "\n".join((before + BEGIN, *HEAD, *(kept[name] for name in SUITES if name in kept), END + after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    rows = [Row(suite, found) for suite in args.suites if (found := list(certificates(suite, args.steps)))]
    print("\n".join((*HEAD, *map(str, rows))))
    if args.write:
        args.write.write_text(rewritten(args.write.read_text(), rows))
    print(json.dumps({row.suite: round(row.fork_us, 1) for row in rows}))


if __name__ == "__main__":
    main()
