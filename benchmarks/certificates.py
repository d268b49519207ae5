"""Certifies the forks of every suite that is installed here, task by task, and prints the table of docs/worlds.md.

    python benchmarks/certificates.py [--suites metaworld robosuite …] [--steps 500] [--write docs/worlds.md]
                                      [--parts certificates.jsonl] [--costs]

``--write`` replaces the rows of the suites that were certified in the table of that file, between its two markers,
whenever another World of theirs is done. With ``--parts`` each World's certificate is appended to that file, and those
already in it are taken from there: a run that was stopped goes on. Remove the file after a change of code or versions.
``--costs`` certifies nothing: what forks cost is measured again and replaces those two figures in the rows that the
file of ``--write`` has. Use an idle machine.
The last line is one JSON object: suite -> median time of a fork [µs].
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from simeval.cli.build import build_policy, build_world, resolved, world_configs
from simeval.cli.compose import compose_config
from simeval.errors import SimevalError
from simeval.testing import Certificate, Check, Cost, certify
from simeval.testing.certificate import cost
from simeval.world import World

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
LIBERO = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90", "libero_goal_swap")
OTHERWISE = (
    *(("Lift", f"world.controller={name}") for name in ("OSC_POSITION", "JOINT_POSITION", "JOINT_TORQUE", "IK_POSE")),
    *(("Lift", f"world.robots={name}") for name in ("Sawyer", "UR5e", "GR1ArmsOnly", "GR1")),
    *(("TwoArmLift", f"world.robots={name}") for name in ("Baxter", "GR1ArmsOnly")),
)
SUITES: dict[str, list[tuple[str, ...]]] = {
    "tabletop": [("world=tabletop",)],
    "Meta-World": [("world=metaworld",)],
    "robosuite": [("world=robosuite", f"world.task={task}") for task in ROBOSUITE],
    "robosuite, other controllers and robots": [("world=robosuite", f"world.task={t}", how) for t, how in OTHERWISE],
    "LIBERO": [("world=libero", f"world.suite={suite}", "world.task=[0,1]") for suite in LIBERO],
    "Gymnasium MuJoCo v5": [("world=gymnasium", f"world.id={name}-v5") for name in GYMNASIUM],
    **{name: [("world=robotics", f"world.id={each}") for each in ids] for name, ids in ROBOTICS.items()},
    "dm_control": [("world=dm_control", f"world.task={task}") for task in DM_CONTROL],
    "OGBench": [
        ("world=ogbench", f"world.env={env}") for env in ("cube-single", "cube-double", "cube-triple", "scene")
    ],
    "PushT": [("world=pusht",)],
    "balls": [("world=balls",)],
    "arm": [("world=arm",)],
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
        costs = " | ".join(cost_cells([cost for each in self.certificates for cost in each.costs.values()]))
        found = [re.findall(r"([a-z][\w-]*)[ =](\d+\.\d+[\w.]*)", each.dynamics) for each in self.certificates]
        versions = ", ".join(dict.fromkeys(f"{name} {version}" for pairs in found for name, version in pairs))
        steps = f"{min(each.steps for each in self.certificates)} steps"
        return f"| {self.suite} | {exact} | {steps} | {' and '.join(how)} | {costs} | {versions} |"


def cost_cells(costs: Sequence[Cost]) -> tuple[str, str]:
    """The median time of a fork, and the size of the largest snapshot."""
    fork = statistics.median(cost.fork_us for cost in costs)
    return (
        f"{fork:.0f} µs" if fork < 1000 else f"{fork / 1000:.1f} ms",
        f"{max(cost.size for cost in costs) / 1000:.1f} kB",
    )


def with_costs(row: str, costs: Sequence[Cost]) -> str:
    """A row of the table with these costs."""
    cells = row.split(" | ")
    return " | ".join((*cells[:4], *cost_cells(costs), *cells[6:]))


def costs_of(suite: str) -> Iterator[Cost]:
    """What forks cost now, of each task."""
    for settings in SUITES[suite]:
        (entry,) = world_configs(compose_config("run", settings)).values()
        world = build_world(resolved(entry), num_slots=2)
        for task in world.tasks:
            yield cost(world, task)
        world.close()


class Parts:
    """The certificates made so far, by the settings of their World and the number of steps, in a file of JSON lines."""

    def __init__(self, path: Path | None):
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._known = {key: _certificate(told) for key, told in map(json.loads, lines)}

    def find(self, settings: Sequence[str], steps: int) -> Certificate | None:
        """The certificate of that World, if it is made."""
        return self._known.get(_key(settings, steps))

    def add(self, settings: Sequence[str], steps: int, certificate: Certificate) -> None:
        """Note it down."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps((_key(settings, steps), asdict(certificate))) + "\n")


def _key(settings: Sequence[str], steps: int) -> str:
    return " ".join((*settings, f"steps={steps}"))


def _certificate(told: dict) -> Certificate:
    broken = {task: tuple(Check(**check) for check in checks) for task, checks in told["broken"].items()}
    costs = {task: Cost(**cost) for task, cost in told["costs"].items()}
    return Certificate(**{**told, "tasks": tuple(told["tasks"]), "broken": broken, "costs": costs})


def certificates(suite: str, steps: int, parts: Parts) -> Iterator[Certificate]:
    for settings in SUITES[suite]:
        if (known := parts.find(settings, steps)) is not None:
            yield known
            continue
        (entry,) = world_configs(compose_config("run", settings)).values()
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
        parts.add(settings, steps, certificate)
        yield certificate


@dataclass(frozen=True)
class _Factory:
    arguments: dict

    def __call__(self, num_slots: int) -> World:
        return build_world(self.arguments, num_slots=num_slots)


def rows_of(text: str) -> dict[str, str]:
    """Suite -> its row in the table of a file."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    return {line.split("|")[1].strip(): line for line in table.strip().splitlines()[2:]}


def rewritten(text: str, rows: Mapping[str, str]) -> str:
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    kept = rows_of(text) | rows
    return "\n".join((before + BEGIN, *HEAD, *(kept[name] for name in SUITES if name in kept), END + after))


def measure_again(suites: Sequence[str], path: Path) -> dict[str, float]:
    """Replace the costs in the rows of these suites; suite -> median time of a fork [µs]."""
    figures: dict[str, float] = {}
    for suite in suites:
        if (row := rows_of(path.read_text()).get(suite)) is None:
            print(f"{suite}: left out, {path} has no row of it", file=sys.stderr)
            continue
        costs = list(costs_of(suite))
        again = with_costs(row, costs)
        path.write_text(rewritten(path.read_text(), {suite: again}))
        print(again, flush=True)
        figures[suite] = round(statistics.median(cost.fork_us for cost in costs), 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--parts", type=Path)
    parser.add_argument("--costs", action="store_true")
    args = parser.parse_args()
    if args.costs:
        if args.write is None:
            parser.error("--costs needs --write FILE, whose rows it changes")
        print(json.dumps(measure_again(args.suites, args.write)))
        return
    parts = Parts(args.parts)
    rows: dict[str, Row] = {}
    for suite in args.suites:
        found: list[Certificate] = []
        for certificate in certificates(suite, args.steps, parts):
            found.append(certificate)
            rows[suite] = Row(suite, found)
            if args.write:
                args.write.write_text(rewritten(args.write.read_text(), {suite: str(rows[suite])}))
    print("\n".join((*HEAD, *map(str, rows.values()))))
    print(json.dumps({name: round(row.fork_us, 1) for name, row in rows.items()}))


if __name__ == "__main__":
    main()
