"""What a slot remembers of its episode, and how progress, reward and success follow from the conditions that hold."""

from typing import Any

import numpy as np

from envs.tabletop.conditions import PRESSED_DEPTH, Facts, Kind, evaluate
from envs.tabletop.scene import Scene, View, layout
from envs.tabletop.tasks import MAX_STAGES


def fields(state_size: int) -> list[tuple[Any, ...]]:
    """The fields that an episode adds to a slot's record: its goal and layout, then what follows from the physics."""
    names = layout()
    objects, zones, buttons = len(names["objects"]), len(names["zones"]), len(names["buttons"])
    return [
        ("conditions", np.int64, (MAX_STAGES, 3)),
        ("final", bool, (MAX_STAGES,)),
        ("ordered", bool),
        ("object_present", bool, (objects,)),
        ("object_colour", np.int64, (objects,)),
        ("object_start", np.float64, (objects, 3)),
        ("zone_present", bool, (zones,)),
        ("zone_colour", np.int64, (zones,)),
        ("zone_position", np.float64, (zones, 3)),
        ("button_colour", np.int64, (buttons,)),
        ("done", bool, (MAX_STAGES,)),
        ("stage", np.int64),
        ("num_stages", np.int64),
        ("contact", bool, (objects,)),
        ("distractor_shift", np.float64),
        ("reward", np.float64),
        ("success", bool),
        ("state", np.float32, (state_size,)),
    ]


def judge(records: np.ndarray, view: View, scene: Scene) -> None:
    """Update progress, reward and success of ``records`` ``[n]``, in place, for a step that ended in ``view``."""
    conditions = records["conditions"]
    holds, closeness = evaluate(conditions, Facts(scene, view, records["zone_position"]))
    used = conditions[..., 0] > 0
    done = _stages_done(records, holds, view)
    success = (holds | ~records["final"]).all(axis=1) & (~records["ordered"] | (done | ~used).all(axis=1))
    done |= success[:, None] & used
    stage, total = done.sum(axis=1), used.sum(axis=1)
    pending = used & ~done
    following = closeness[np.arange(len(records)), pending.argmax(axis=1)] * pending.any(axis=1)
    records["done"], records["stage"], records["num_stages"] = done, stage, total
    records["success"] = success
    records["reward"] = np.where(success, 1.0, np.minimum((stage + following) / np.maximum(total, 1), 0.99))
    records["contact"] = view.contact
    shift = np.linalg.norm(view.position - records["object_start"], axis=2)
    shift[~view.present | _objects_of(conditions, view.present.shape[1])] = 0.0
    records["distractor_shift"] = np.maximum(records["distractor_shift"], shift.max(axis=1))


def _stages_done(records: np.ndarray, holds: np.ndarray, view: View) -> np.ndarray:
    """Stages stay done once they were; ordered ones count in turn, and a button out of turn starts over."""
    done = records["done"] | holds
    for row in np.flatnonzero(records["ordered"]):
        buttons = records["conditions"][row, :, 1][records["conditions"][row, :, 0] == Kind.PRESSED]
        count = int(records["done"][row].sum())
        pressed = set(np.flatnonzero(view.button_depth[row] > PRESSED_DEPTH))
        if pressed - set(buttons[max(count - 1, 0) : count + 1]):
            count = 0
        if count < len(buttons) and buttons[count] in pressed:
            count += 1
        done[row] = np.arange(MAX_STAGES) < count
    return done


def _objects_of(conditions: np.ndarray, num_objects: int) -> np.ndarray:
    """Objects that the goal of each row names ``[n, num_objects]``."""
    kind, a, b = np.moveaxis(conditions, -1, 0)
    named = np.zeros((len(conditions), num_objects), dtype=bool)
    for argument, kinds in ((a, (Kind.HELD, Kind.IN_ZONE, Kind.STACKED, Kind.IN_DRAWER)), (b, (Kind.STACKED,))):
        rows, places = np.nonzero(np.isin(kind, kinds))
        named[rows, argument[rows, places]] = True
    return named
