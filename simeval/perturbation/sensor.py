"""Axis ``sensor``: what cameras do to pictures (blur, smear, noise, compression), and noise on measured numbers.

Pictures are corrupted in the order in which light passes through a camera: its lens, its exposure, its chip, its
encoder. OpenCV does what it does well. Lengths are in picture heights, so that they do not depend on the resolution.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from simeval.errors import ConfigError, UnsupportedError
from simeval.noise import Key, StepKey
from simeval.perturbation.effect import Effect, EffectMemory, Identity, amounts, seed_of
from simeval.types import Perturbation, WorldSpec, is_picture

_PICTURES = ("noise", "blur", "jpeg", "motion_blur")
_NUMBERS = ("proprio", "state")


def pictures_of(spec: WorldSpec, axis: str) -> tuple[str, ...]:
    """The keys of a World's pictures; ``UnsupportedError`` where it draws none."""
    keys = tuple(key for key, space in spec.observation_space.spaces.items() if is_picture(space))
    if not keys:
        raise UnsupportedError(
            f"perturbation axis {axis} changes pictures, and world {spec.name!r} gives none; name its cameras, as in "
            "world.cameras=[front], or leave the axis out"
        )
    return keys


def sensor(perturbation: Perturbation, spec: WorldSpec) -> Effect:
    """The effect of axis ``sensor``.

    ``noise`` (standard deviation [grey levels of 255]), ``blur`` (of the Gaussian) and ``motion_blur`` (its length
    [picture heights], along a direction that ``seed`` settles), ``jpeg`` (100 less the quality); ``proprio`` and
    ``state``: standard deviation of the noise on these numbers, in their own unit.
    """
    components = (*_PICTURES, *_NUMBERS)
    given = amounts(perturbation, components, ("seed",), components)
    if not any(given.values()):
        return Identity()
    spaces = spec.observation_space.spaces
    numbers = {key: given[key] for key in _NUMBERS if given[key]}
    for key in numbers:
        if key not in spaces:
            raise UnsupportedError(
                f"perturbation axis sensor has noise on {key}, which world {spec.name!r} does not give; it gives: "
                f"{', '.join(spaces)}"
            )
        if not np.issubdtype(spaces[key].dtype, np.floating):
            raise UnsupportedError(f"{key} of world {spec.name!r} is {spaces[key].dtype}: no noise can be added to it")
    pictures = pictures_of(spec, "sensor") if any(given[key] for key in _PICTURES) else ()
    for key in pictures:
        channels = (spaces[key].shape or ())[-1]
        if given["jpeg"] and channels not in (1, 3):
            raise UnsupportedError(f"{key} of world {spec.name!r} has {channels} channels: JPEG has 1 or 3")
    angle = float(Key(seed_of(perturbation)).stream("motion_blur").event().uniform(0, math.pi))
    return Sensor(
        pictures,
        numbers,
        given["noise"],
        given["blur"],
        None if not given["jpeg"] else max(1, min(100, round(100 - given["jpeg"]))),
        given["motion_blur"],
        angle,
        (*pictures, *numbers),
    )


@dataclass(frozen=True, slots=True)
class Sensor(Effect):
    """See :func:`sensor`; ``quality`` of JPEG, none without; ``angle`` [rad] of the smear, from the picture's right."""

    pictures: tuple[str, ...]
    numbers: Mapping[str, float]
    noise: float
    blur: float
    quality: int | None
    motion_blur: float
    angle: float
    observation_keys: tuple[str, ...]

    def observation(
        self, observation: dict[str, Any], memory: EffectMemory, key: StepKey
    ) -> tuple[dict[str, Any], EffectMemory]:
        """See ``Effect.observation``."""
        shown: dict[str, Any] = {}
        for name, value in observation.items():
            if name in self.numbers:
                draws = key.generator("noise", name).standard_normal(value.shape)
                shown[name] = (value + self.numbers[name] * draws).astype(value.dtype)
            else:
                shown[name] = self._picture(np.asarray(value), key, name)
        return shown, memory

    def _picture(self, picture: np.ndarray, key: StepKey, name: str) -> np.ndarray:
        import cv2

        shape, height = picture.shape, picture.shape[0]
        if self.blur:
            picture = cv2.GaussianBlur(picture, (0, 0), self.blur * height)
        if self.motion_blur:
            picture = cv2.filter2D(picture, -1, _smear(self.motion_blur * height, self.angle))
        if self.noise:
            draws = key.generator("noise", name).integers(0, 1 << 16, picture.shape, dtype=np.uint16)
            picture = cv2.add(picture, np.take(_grey_noise(self.noise), draws), dtype=cv2.CV_8U)
        if self.quality is not None:
            picture = _compressed(picture, self.quality)
        return picture.reshape(shape)


@lru_cache(256)
def _grey_noise(deviation: float) -> np.ndarray:
    """What 16 random bits pick as noise, int16 in whole grey levels: the normal's quantiles, rounded.

    Far faster than normal draws, and as good for what ends in 8 bits.
    """
    from scipy.special import ndtri

    return np.rint(deviation * ndtri((np.arange(1 << 16) + 0.5) / (1 << 16))).astype(np.int16)


@lru_cache(256)
def _smear(length: float, angle: float) -> np.ndarray:
    """The kernel of a straight movement by ``length`` [pixels] during the exposure, float32 ``[k, k]`` of sum 1."""
    reach = math.ceil(length / 2) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    along = np.linspace(-length / 2, length / 2, 16 * reach + 1)
    x, y = reach + along * math.cos(angle), reach - along * math.sin(angle)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    for dx in (0, 1):
        for dy in (0, 1):
            np.add.at(kernel, (top + dy, left + dx), np.abs(1 - dx - (x - left)) * np.abs(1 - dy - (y - top)))
    return (kernel / kernel.sum()).astype(np.float32)


def _compressed(picture: np.ndarray, quality: int) -> np.ndarray:
    """An RGB or grey picture after JPEG."""
    import cv2

    channels = picture.shape[2] if picture.ndim == 3 else 1
    bgr = np.ascontiguousarray(picture[..., ::-1]) if channels == 3 else picture
    done, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ConfigError(f"OpenCV cannot encode a picture of shape {picture.shape} as JPEG")
    decoded = cv2.imdecode(data, cv2.IMREAD_COLOR if channels == 3 else cv2.IMREAD_GRAYSCALE)
    return decoded[..., ::-1] if channels == 3 else decoded
