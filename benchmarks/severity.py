"""How far perturbations go: what each axis that a World applies itself changes, at each of its levels.

    python benchmarks/severity.py [--draws 20] [tabletop metaworld robosuite]

For each World and axis: the mean change of a picture's pixels (of 255) at the reset, for axes that are seen; else how
far what moves has moved [mm]: hand or objects at the reset, for initial states; for dynamics, hand and objects at the
end of an episode in which the actions of the World's expert (or random ones, held) are replayed. And the share of draws
to which the World objects, which are left out. The last line is one JSON object: world -> axis -> what was found.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from simeval.axes import PerturbationAxis
from simeval.cli.build import build_policy, build_world, resolved, world_configs
from simeval.cli.compose import compose_config
from simeval.noise import Key
from simeval.policy import Policy
from simeval.testing.checks import Row, drive, random_actions, record
from simeval.types import Start
from simeval.world import World

AXES = ("camera", "lighting", "appearance", "distractors", "robot", "layout", "dynamics")
STEPS, HOLD = 40, 8
"""Of random actions."""


@dataclass(frozen=True)
class Subject:
    """A World to measure: its settings, its task, its camera, and where in an observation row what moves is."""

    settings: tuple[str, ...]
    task: str
    camera: str
    hand: tuple[str, slice]
    thing: tuple[str, slice]


SUBJECTS = {
    "tabletop": Subject(
        ("world.cameras=[front]",),
        "sort",
        "front",
        ("observation/state", slice(0, 3)),
        ("signals/object_pose", slice(0, 3)),
    ),
    "metaworld": Subject(
        ("world.cameras=[corner4]", "world.task=pick-place-v3"),
        "pick-place-v3",
        "corner4",
        ("observation/state", slice(0, 3)),
        ("signals/object_position", slice(0, 3)),
    ),
    "robosuite": Subject(
        ("world.cameras=[agentview]", "world.task=Lift"),
        "Lift",
        "agentview",
        ("signals/eef_robot0_right", slice(0, 3)),
        ("signals/object_cube", slice(0, 3)),
    ),
}


def pixels(subject: Subject, plain: Row, changed: Row) -> float:
    """Mean change of the picture."""
    name = f"observation/image_{subject.camera}"
    return float(np.abs(changed[name].astype(np.float64) - plain[name]).mean())


def moved(places: Sequence[tuple[str, slice]], plain: Row, changed: Row) -> float:
    """How far the farthest moved [mm]."""
    gaps = [changed[name][..., place] - plain[name][..., place] for name, place in places]
    return 1e3 * max(float(np.linalg.norm(gap, axis=-1).max()) for gap in gaps)


def measures(subject: Subject, axis: str) -> tuple[Callable[[Row, Row], float], bool, str]:
    """How a change along an axis is measured, whether after an episode, and its unit."""
    if axis == "initial_state.robot":
        return partial(moved, [subject.hand]), False, "mm"
    if axis == "initial_state.layout":
        return partial(moved, [subject.thing]), False, "mm"
    if axis == "dynamics":
        return partial(moved, [subject.hand, subject.thing]), True, "mm"
    return partial(pixels, subject), False, "of 255"


def actions_of(world: World, start: Start, expert: Policy | None) -> np.ndarray:
    """What is played where an axis shows in movement only."""
    if expert is None:
        return np.repeat(random_actions(world.action_space, STEPS // HOLD, "severity"), HOLD, axis=0)
    return drive(world, expert.bind(world.spec), start, world.horizon(start.task), 10).actions


def severity(
    world: World, start: Start, axis: PerturbationAxis, subject: Subject, draws: int, actions: np.ndarray
) -> dict[str, object]:
    """Level -> mean change, and the share of draws objected to."""
    measure, played, unit = measures(subject, axis.name)
    actions = actions if played else actions[:0]
    plain = record(world, 0, start, actions).rows[-1]
    found: dict[str, object] = {"unit": unit}
    for level in axis.severities:
        changes, objected = [], 0
        for number in range(draws):
            perturbation = axis.draw(level, Key(number).stream("severity").event(axis.name, int(level)))
            changed = replace(start, perturbations=(perturbation,))
            if axis.name.startswith("initial_state") and world.objection(changed) is not None:
                objected += 1
                continue
            changes.append(measure(plain, record(world, 0, changed, actions).rows[-1]))
        found[f"{level:g}"] = round(float(np.mean(changes)), 2) if changes else None
        found[f"{level:g} objected"] = objected / draws
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    folder = files("configs").joinpath("perturbation")
    axes = [instantiate(OmegaConf.create(folder.joinpath(f"{name}.yaml").read_text())) for name in AXES]
    results: dict[str, dict[str, object]] = {}
    for name in given.worlds:
        subject = SUBJECTS[name]
        (entry,) = world_configs(compose_config("run", [f"world={name}", *subject.settings])).values()
        world = build_world(resolved(entry), num_slots=1)
        start = world.start(subject.task, 1)
        expert = None if entry.get("expert") is None else build_policy(entry["expert"], entry, "expert")
        actions = actions_of(world, start, expert)
        results[name] = {}
        for axis in axes:
            if axis.name in world.perturbation_axes:
                found = results[name][axis.name] = severity(world, start, axis, subject, given.draws, actions)
                print(f"{name:10} {axis.name:24} {found}", flush=True)
        world.close()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
