"""What the tests of perturbed Worlds share: drawn perturbations, episodes, and how far two are apart."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from simeval.noise import Key
from simeval.testing.checks import Row, proceed, random_actions, record, require_equal, take_row
from simeval.types import Perturbation, Snapshot, Start
from simeval.world import World

_FILES = ("camera", "lighting", "appearance", "distractors", "robot", "layout", "dynamics")


def axes() -> dict:
    """The shipped axes that Worlds apply themselves, by name."""
    loaded = [
        OmegaConf.create(files("configs").joinpath("perturbation", f"{name}.yaml").read_text()) for name in _FILES
    ]
    return {axis.name: axis for axis in map(instantiate, loaded)}


AXES = axes()
LOOKS = ("camera", "lighting", "appearance")


def drawn(axis: str, level: float, number: int = 0) -> Perturbation:
    return AXES[axis].draw(level, Key(number).stream("test").event(axis, int(level)))


def perturbed(start: Start, *perturbations: Perturbation) -> Start:
    return replace(start, perturbations=perturbations)


def identity(axis: str) -> Perturbation:
    """A perturbation that names every component and changes nothing."""
    return Perturbation(axis, 2.0, {**dict.fromkeys(drawn(axis, 2.0).params, 0), "redraws": 3})


def actions_of(world: World, steps: int) -> np.ndarray:
    """Random actions, each held for five steps, so that things move."""
    return np.repeat(random_actions(world.action_space, -(-steps // 5), "perturbed"), 5, axis=0)[:steps]


def rows_of(world: World, start: Start, steps: int, slot: int = 0) -> Sequence[Row]:
    return record(world, slot, start, actions_of(world, steps)).rows


def distance(one: Row, other: Row, key: str) -> float:
    """The mean difference of an observation."""
    name = f"observation/{key}"
    return float(np.abs(one[name].astype(np.float64) - other[name]).mean())


def mean_distance(world: World, start: Start, axis: str, level: float, key: str, steps: int, draws: int = 5) -> float:
    """How far an observation is from the unperturbed one after so many steps, on average over draws to which the
    World does not object."""
    plain = rows_of(world, start, steps)[-1]
    found: list[float] = []
    for number in range(20 * draws):
        changed = perturbed(start, drawn(axis, level, number))
        if axis.startswith("initial_state") and world.objection(changed) is not None:
            continue
        found.append(distance(plain, rows_of(world, changed, steps)[-1], key))
        if len(found) == draws:
            return float(np.mean(found))
    raise AssertionError(f"the World objects to nearly every draw of {axis} at {level}")


def check_identity(world: World, start: Start, axis: str, steps: int) -> None:
    require_equal(rows_of(world, start, steps), rows_of(world, perturbed(start, identity(axis)), steps), axis)


def check_all_at_once(world: World, start: Start, steps: int, axes: Sequence[str]) -> None:
    """All axes in slot 0 end with their episode, leave slot 1 alone and go with a snapshot into it."""
    changed = perturbed(start, *(drawn(axis, 4.0) for axis in axes))
    plain = rows_of(world, start, steps)
    expected = rows_of(world, changed, steps)
    require_equal(plain, rows_of(world, start, steps), "an episode after a perturbed one")
    fork = steps // 2
    actions = actions_of(world, steps)
    record(world, 0, changed, actions[:fork])
    require_equal(plain, rows_of(world, start, steps, slot=1), "beside a perturbed episode")
    (snapshot,) = world.snapshot([0])
    restored = take_row(world.restore([1], [Snapshot.from_bytes(snapshot.to_bytes())]), 0)
    episode = record(world, 0, changed, actions)
    (tail,) = proceed(world, [1], episode, fork)
    require_equal(expected[fork:], [restored, *tail], "restored beside")
