"""Axis ``appearance.distractors``: spare objects join the scene, which the task says nothing of."""

import numpy as np

from envs.perturbed import Change
from envs.tabletop.conditions import Kind
from envs.tabletop.scene import layout
from envs.tabletop.tasks import AREA, AREA_BEFORE_DRAWERS, CLEARANCE, ZONE_CLEARANCE, Draft, distance_to_segment

_TRIES = 200
_DRAWERS = (Kind.IN_DRAWER, Kind.OPEN, Kind.CLOSED)
_ABOUT_A_PUSH = 0.105
"""What lies nearer to the way of a pushed object is in the way [m]."""


def add_distractors(draft: Draft, change: Change) -> None:
    """Add as many spare objects to ``draft`` as ``change`` says, are there, and find room.

    None has the colour of an object that is there already, nor, where shape alone tells objects apart, the shape of one
    that the goal names: no sentence may mean it. None lies where the task's objects are to go or to be pushed, or where
    drawers open.
    """
    draws = change.draws("distractors")
    shapes, colours = layout()["object_shapes"], list(layout()["colours"])
    there = [shapes[index] for index in draft.objects]
    named = {shapes[index] for index in _named_objects(draft)} if len(set(there)) == len(there) else set()
    spare = [index for index in range(len(shapes)) if index not in draft.objects and shapes[index] not in named]
    free = [colour for colour in colours if colour not in {colour for colour, _, _ in draft.objects.values()}]
    chosen = draws.permutation(spare)[: int(change.amounts["count"])]
    drawers = any(kind in _DRAWERS for kind, _, _ in draft.conditions)
    low, high = np.array(AREA_BEFORE_DRAWERS if drawers else AREA).T
    for index, colour in zip(chosen.tolist(), draws.permutation(free).tolist(), strict=False):
        for _ in range(_TRIES):
            place = draws.uniform(low, high)
            if _is_free(draft, place, CLEARANCE[shapes[index]]):
                draft.objects[index] = str(colour), place, float(draws.uniform(-np.pi, np.pi))
                break


def _named_objects(draft: Draft) -> set[int]:
    named = {a for kind, a, _ in draft.conditions if kind in (Kind.HELD, Kind.IN_ZONE, Kind.STACKED, Kind.IN_DRAWER)}
    return named | {b for kind, _, b in draft.conditions if kind == Kind.STACKED}


def _is_free(draft: Draft, place: np.ndarray, clearance: float) -> bool:
    shapes = layout()["object_shapes"]
    taken = [(other, CLEARANCE[shapes[index]]) for index, (_, other, _) in draft.objects.items()]
    taken += [(other, ZONE_CLEARANCE) for _, other in draft.zones.values()]
    ways = [(draft.objects[a][1], draft.zones[b][1]) for kind, a, b in draft.conditions if kind == Kind.IN_ZONE]
    return all(np.hypot(*(place - other)) >= clearance + own for other, own in taken) and all(
        distance_to_segment(place, start - 0.11 * (end - start) / np.hypot(*(end - start)), end) >= _ABOUT_A_PUSH
        for start, end in ways
    )
