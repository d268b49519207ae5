"""Gymnasium's registry: environments made by id, with the packages that they need, and what is known of each."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import packages_distributions, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from simeval.errors import ConfigError, MissingPackageError, UnsupportedError, unknown

_EXTRAS = {
    "gymnasium_robotics": ("Gymnasium-Robotics", "simeval[robotics]"),
    "gym_pusht": ("gym-pusht", "simeval[pusht]"),
}
"""Top-level modules -> what they are called, and what installs them."""

_ENGINES = {"gym_pusht": ("pymunk", "shapely")}
"""Packages by which a module's environments compute, beside gymnasium, mujoco and numpy."""


def register(module: str) -> None:
    """Import a module that registers environments; ``MissingPackageError`` with the line that installs it."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _EXTRAS:
            raise MissingPackageError(*_EXTRAS[package]) from error
        raise UnsupportedError(f"the module {module!r}, which registers environments, is missing: {error}") from error


def spec_of(task: str) -> EnvSpec:
    """The registration of ``"Name-v0"`` or ``"module:Name-v0"``."""
    module, _, name = task.rpartition(":")
    if module:
        register(module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error:
        raise unknown("Gymnasium environment", task, sorted(gymnasium.registry)) from None


def make(task: str, kwargs: Mapping[str, Any]) -> gymnasium.Env:
    """An environment without its time limit and Gymnasium's checks, ready to draw pictures where it can."""
    spec = spec_of(task)
    try:
        creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        modes = getattr(creator, "metadata", {}).get("render_modes", ())
        pictures = {"render_mode": "rgb_array"} if "rgb_array" in modes else {}
        env = gymnasium.make(spec, max_episode_steps=-1, disable_env_checker=True, **{**pictures, **kwargs})
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise UnsupportedError(f"environment {task!r} needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, TypeError, ValueError) as error:
        raise ConfigError(f"environment {task!r} cannot be made with {dict(kwargs)}: {error}") from error
    leftover = getattr(env.unwrapped, "tmp_xml_file_path", None)  # the mazes write their model to a file, and leave it
    if leftover is not None:
        Path(leftover).unlink(missing_ok=True)
    while isinstance(env, (TimeLimit, OrderEnforcing, PassiveEnvChecker)):
        env = env.env
    return env


def instruction(task: str) -> str:
    """The instruction sentence of an environment; where there is none, to maximise its return."""
    spec = spec_of(task)
    package = spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else ""
    sentences = next((known for name, known in _sentences().items() if f"{package}.".startswith(f"{name}.")), {})
    name = max((name for name in sentences if spec.name.startswith(name)), key=len, default=None)
    return f"Maximise the return of {task}." if name is None else sentences[name]


def versions(classes: Iterable[type]) -> str:
    """The versions of everything that computes what environments of these classes give."""
    modules = {parent.__module__.partition(".")[0] for cls in classes for parent in cls.__mro__}
    known = packages_distributions()
    named = ["gymnasium", "mujoco", "numpy"]
    for module in sorted(modules - {__name__.partition(".")[0]}):
        named += [name for name in (*known.get(module, ()), *_ENGINES.get(module, ())) if name not in named]
    return " ".join(f"{name} {version(name)}" for name in named)


@cache
def _sentences() -> Mapping[str, Mapping[str, str]]:
    return json.loads((files("assets") / "gymnasium" / "instructions.json").read_text(encoding="utf-8"))
