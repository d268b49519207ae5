"""What robosuite 1.5 does otherwise in every process, made the same everywhere."""

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
