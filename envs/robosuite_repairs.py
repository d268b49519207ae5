"""What robosuite does not do as it should: draws that are the same in every process, sensors that are read anew."""

from types import FunctionType
from typing import Any

from envs.robosuite_speed import extend


def draw_in_order(env: Any) -> None:
    """Make the environments that pick one of several objects at a reset pick from their names in alphabetical order.

    They draw from a list made of a set, whose order changes with the seed of text hashes: a reset with the same
    generator would pick other objects in another process.
    """
    reset = type(env)._reset_internal
    if {"obj_to_use", "list"} <= {*reset.__code__.co_names}:
        names = {**reset.__globals__, "list": sorted}
        extend(env, {"_reset_internal": FunctionType(reset.__code__, names, closure=reset.__closure__)})


def read_again(env: Any, modality: str = "") -> None:
    """Have the enabled sensors of a robosuite environment (those of ``modality``, where given) read what is there now.

    When they sample next stays as it is; the environment's own way counts a physics step that was not made.
    """
    for observable in env._observables.values():
        if modality in ("", observable.modality):
            kept = observable._sampled, observable._time_since_last_sample, observable._current_delay
            observable.update(timestep=0.0, obs_cache=env._obs_cache, force=True)
            observable._sampled, observable._time_since_last_sample, observable._current_delay = kept
