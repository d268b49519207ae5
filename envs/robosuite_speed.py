"""Models compiled once, and robosuite's inner loop kept more cheaply, with the same results to the bit."""

import copy
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import mujoco
import numpy as np


def compile_once() -> None:
    """Keep robosuite 1.5 from compiling the same text again, which takes as long as dozens of control steps.

    A scene that was the last one compiled (that of another slot, or of another World of the task) is copied. A robot by
    itself, which every environment compiles beside its scene and nothing changes, is shared.
    """
    from robosuite.models.robots import RobotModel
    from robosuite.utils.binding_utils import MjSim

    scene = lru_cache(maxsize=1)(mujoco.MjModel.from_xml_string)
    robot = lru_cache(maxsize=2)(mujoco.MjModel.from_xml_string)

    def from_xml_string(cls: Callable[[Any], Any], xml: str) -> Any:
        return cls(copy.copy(scene(xml)))

    def set_mujoco_model(self: Any, mujoco_model: Any = None) -> None:
        self.mujoco_model = robot(self.get_xml()) if mujoco_model is None else mujoco_model

    MjSim.from_xml_string = classmethod(from_xml_string)
    RobotModel.set_mujoco_model = set_mujoco_model


def quicken(env: Any) -> None:
    """Replace, on a robosuite 1.5 environment that soft-resets, what costs time at every physics step for nothing.

    Array fields of the engine are looked up once instead of through three calls each time; the size of a robot's action
    is not derived from every controller's limits each time; observables that have been sampled in this control step
    only count time.
    """
    _cache_arrays(env.sim.data, env.sim.data._data)
    _cache_arrays(env.sim.model, env.sim.model._model)
    for robot in env.robots:
        extend(robot, {"action_dim": cached_property(type(robot).action_dim.fget)})
    _count_time_only(env)


def _cache_arrays(wrapper: Any, engine: Any) -> None:
    moving = ("_", "efc_", "iefc_", "contact", "island_")
    names = [name for name in dir(engine) if not name.startswith(moving)]
    fields = [name for name in names if isinstance(getattr(engine, name), np.ndarray) and getattr(engine, name).size]

    def read(name: str) -> cached_property:
        return cached_property(lambda _: getattr(engine, name))

    extend(wrapper, {name: read(name) for name in fields})


def extend(target: Any, members: dict[str, Any]) -> None:
    """Give one object ``members`` that its class does not have, or has otherwise."""
    base = type(target)
    # Not through the metaclass: that of the engine's wrappers would define every field again.
    target.__class__ = type.__new__(type(base), base.__name__, (base,), {"__module__": base.__module__, **members})


def _count_time_only(env: Any) -> None:
    def update_observables(force: bool = False) -> None:
        timestep, cache = env.model_timestep, env._obs_cache
        for name, observable in env._observables.items():
            if observable._sampled and observable._enabled and not force:
                passed = observable._time_since_last_sample + timestep
                if passed >= observable._sampling_timestep:
                    passed %= observable._sampling_timestep
                    observable._sampled = False
                observable._time_since_last_sample = passed
            else:
                observable.update(timestep=timestep, obs_cache=cache, force=force)
                value = observable._current_observed_value
                if isinstance(value, np.ndarray) and name in cache:
                    cache[name] = value  # in place of an equal copy

    env._update_observables = update_observables
