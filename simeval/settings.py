"""Settings as they come from configurations, made what a constructor needs, or refused in one line.

Each function takes the setting's name and what was received, and raises ``ConfigError`` where that does not fit.
"""

import math
from collections.abc import Iterable

import numpy as np

from simeval.errors import ConfigError

_LARGEST_SIDE = 8192


def names(setting: str, received: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    if isinstance(received, str):
        return (received,)
    listed = tuple(received) if isinstance(received, Iterable) else (received,)
    if not isinstance(received, Iterable) or not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"{setting} is a name or a list of names; received {received!r}")
    return listed


def whole(setting: str, received: int, least: int = 1) -> int:
    """A whole number of at least ``least``."""
    if isinstance(received, bool) or not isinstance(received, int | np.integer) or received < least:
        raise ConfigError(f"{setting} is a whole number of at least {least}; received {received!r}")
    return int(received)


def image_side(received: int, least: int = 1) -> int:
    """The setting ``image_size``, a side [pixels] that OpenGL can draw."""
    side = whole("image_size", received, least)
    if side > _LARGEST_SIDE:
        raise ConfigError(f"image_size is at most {_LARGEST_SIDE} pixels; received {side}")
    return side


def positive(setting: str, received: float) -> float:
    """A finite number above 0."""
    number = not isinstance(received, bool) and isinstance(received, int | float | np.integer | np.floating)
    if not number or not math.isfinite(received) or received <= 0:
        raise ConfigError(f"{setting} is a number above 0; received {received!r}")
    return float(received)


def truth(setting: str, received: bool) -> bool:
    """True or false, and nothing that only passes for it."""
    if not isinstance(received, bool | np.bool_):
        raise ConfigError(f"{setting} is true or false; received {received!r}")
    return bool(received)
