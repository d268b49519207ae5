"""Which axis has which effect, and which perturbations a World applies itself."""

from collections.abc import Callable, Sequence

import numpy as np

from simeval.errors import UnsupportedError, unknown
from simeval.perturbation.actuation import actuation, delay
from simeval.perturbation.camera import dropout, occlusion
from simeval.perturbation.effect import Effect, Identity, ReplaceAction, required
from simeval.perturbation.injection import closing, moved, opening, shifts, turns
from simeval.perturbation.language import clauses, paraphrase, task_change, typos
from simeval.perturbation.sensor import sensor
from simeval.types import Perturbation, WorldSpec
from simeval.world import World

Build = Callable[[Perturbation, WorldSpec], Effect]
"""Makes the effect of a perturbation around a World; ``ConfigError`` or ``UnsupportedError`` where it can have none."""

_EFFECTS: dict[str, Build] = {
    "identity": lambda perturbation, spec: Identity(),
    "actuation.replace": lambda perturbation, spec: ReplaceAction(
        np.asarray(required(perturbation, "value"), dtype=np.float64)
    ),
    "actuation": actuation,
    "dynamics.delay": delay,
    "injection.premature_close": closing,
    "injection.grasp_slip": opening,
    "injection.hold_open": opening,
    "injection.position_offset": moved(shifts),
    "injection.orientation_mismatch": moved(turns),
    "sensor": sensor,
    "sensor.dropout": dropout,
    "sensor.occlusion": occlusion,
    "language": paraphrase,
    "language.clause": clauses,
    "language.typo": typos,
    "language.task": task_change,
}


def register_effect(axis: str, build: Build) -> None:
    """Give ``axis`` its effect; an axis that already has one is an error."""
    if axis in _EFFECTS:
        raise ValueError(f"perturbation axis {axis!r} is registered already")
    _EFFECTS[axis] = build


def effect_of(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of a perturbation of a registered axis around the World that ``spec`` describes."""
    if perturbation.axis not in _EFFECTS:
        raise unknown("perturbation axis", perturbation.axis, _EFFECTS)
    return _EFFECTS[perturbation.axis](perturbation, spec)


def split(world: World, perturbations: Sequence[Perturbation]) -> tuple[list[Perturbation], list[Perturbation]]:
    """Those that ``world`` applies itself, and those that are effects around it; an axis of neither is an error."""
    own, around = [], []
    for perturbation in perturbations:
        if perturbation.axis in world.perturbation_axes:
            own.append(perturbation)
        elif perturbation.axis in _EFFECTS:
            around.append(perturbation)
        else:
            raise UnsupportedError(
                f"world {world.name!r} cannot apply perturbation axis {perturbation.axis!r}; it applies: "
                f"{', '.join(sorted(world.perturbation_axes | _EFFECTS.keys()))}"
            )
    return own, around
