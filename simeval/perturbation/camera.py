"""Axes ``sensor.dropout`` and ``sensor.occlusion``: a camera that loses pictures, and one that is partly covered."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simeval.errors import ConfigError, unknown
from simeval.noise import StepKey
from simeval.perturbation.effect import Effect, EffectMemory, Identity, amounts
from simeval.perturbation.sensor import pictures_of
from simeval.types import Perturbation, WorldSpec

_PREFIX = "image_"
_MODES = ("black", "frozen")


def _chosen(perturbation: Perturbation, spec: WorldSpec) -> tuple[str, ...]:
    """The pictures of ``params.camera``: a name, ``all`` (the default), or a number in [0, 1) that picks one."""
    keys = pictures_of(spec, perturbation.axis)
    camera = perturbation.params.get("camera", "all")
    if camera == "all":
        return keys
    if isinstance(camera, str):
        by_name = {key.removeprefix(_PREFIX): key for key in keys}
        if camera not in by_name:
            raise unknown(f"camera of world {spec.name!r}", camera, (*by_name, "all"))
        return (by_name[camera],)
    if isinstance(camera, bool) or not isinstance(camera, int | float) or not 0 <= camera < 1:
        raise ConfigError(f"{perturbation.axis}: camera is a name, all, or a number in [0, 1); received {camera!r}")
    return (keys[int(camera * len(keys))],)


def _fraction(perturbation: Perturbation, component: str, settled: tuple[str, ...]) -> float:
    amount = amounts(perturbation, (component,), settled, (component,))[component]
    if amount > 1:
        raise ConfigError(f"{perturbation.axis}: {component} is in 0..1; received {amount!r}")
    return amount


def dropout(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``sensor.dropout``: each picture is lost with a ``probability``, by the step's noise.

    ``camera``: see :class:`~simeval.axes.Dropout`; ``mode``: what is seen instead, ``black`` or ``frozen``. With
    probability 1, ``from_step`` and ``to_step`` say when the camera is out.
    """
    probability = _fraction(perturbation, "probability", ("camera", "mode"))
    mode = perturbation.params.get("mode", "black")
    if mode not in _MODES:
        raise unknown(f"mode of {perturbation.axis}", mode, _MODES)
    if not probability:
        return Identity()
    return Lost(probability, _chosen(perturbation, spec), mode == "frozen")


@dataclass(frozen=True, slots=True)
class Lost(Effect):
    """Pictures lost with a ``probability``: black, or where ``remembers_pictures`` the last one that was not lost.

    The first picture while it holds is seen in any case where there is none before it to freeze.
    """

    probability: float
    observation_keys: tuple[str, ...]
    remembers_pictures: bool

    def observation(
        self, observation: dict[str, Any], memory: EffectMemory, key: StepKey
    ) -> tuple[dict[str, Any], EffectMemory]:
        """See ``Effect.observation``."""
        shown: dict[str, Any] = {}
        for name, picture in observation.items():
            lost = key.generator("lost", name).random() < self.probability
            if lost:
                shown[name] = memory.get(name, picture) if self.remembers_pictures else np.zeros_like(picture)
            else:
                shown[name] = picture
        return shown, {**memory, **shown} if self.remembers_pictures else memory


def occlusion(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``sensor.occlusion``: a black patch of ``size`` (of the picture's height and width).

    ``x``, ``y`` in [0, 1]: how far from the left and from the top of where it can lie; 0.5 is the middle, the default.
    ``camera``: a name, ``all``, or a number in [0, 1) that picks one.
    """
    size = _fraction(perturbation, "size", ("x", "y", "camera"))
    place = {name: perturbation.params.get(name, 0.5) for name in ("x", "y")}
    for name, value in place.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(f"{perturbation.axis}: {name} is in 0..1; received {value!r}")
    if not size:
        return Identity()
    return Patch(size, place["x"], place["y"], _chosen(perturbation, spec))


@dataclass(frozen=True, slots=True)
class Patch(Effect):
    """See :func:`occlusion`."""

    size: float
    x: float
    y: float
    observation_keys: tuple[str, ...]

    def observation(
        self, observation: dict[str, Any], memory: EffectMemory, key: StepKey
    ) -> tuple[dict[str, Any], EffectMemory]:
        """See ``Effect.observation``."""
        shown: dict[str, Any] = {}
        for name, picture in observation.items():
            covered = np.array(picture)
            height, width = (round(self.size * side) for side in covered.shape[:2])
            top = round(self.y * (covered.shape[0] - height))
            left = round(self.x * (covered.shape[1] - width))
            covered[top : top + height, left : left + width] = 0
            shown[name] = covered
        return shown, memory
