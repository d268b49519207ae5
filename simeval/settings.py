"""Settings as they come from configurations, made what a constructor needs, or refused in one line.

Each function takes the setting's name and what was received, and raises ``ConfigError`` where that does not fit.
"""

import math
from collections.abc import Iterable

import numpy as np

from simeval.errors import ConfigError

_LARGEST_SIDE = 8192
_MOST_SLOTS = 65536


def names(setting: str, received: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    if isinstance(received, str):
        return (received,)
    listed = tuple(received) if isinstance(received, Iterable) else (received,)
    if not isinstance(received, Iterable) or not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"{setting} is a name or a list of names; received {received!r}")
    return listed


def some_names(setting: str, received: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several, and at least one."""
    if not (listed := names(setting, received)):
        raise ConfigError(f"{setting} is a name or a list of names, at least one; received []")
    return listed


def text(setting: str, received: str) -> str:
    """A text that is not blank."""
    if not isinstance(received, str) or not received.strip():
        raise ConfigError(f"{setting} is a text; received {received!r}")
    return received


def place(setting: str, received: object) -> str:
    """The name of a folder, which may be a number too."""
    if not isinstance(received, str | int) or isinstance(received, bool) or not str(received).strip():
        raise ConfigError(f"{setting} is the name of a folder; received {received!r}")
    return str(received)


def plain_name(setting: str, received: str) -> str:
    """A name, as a file may have it."""
    if not isinstance(received, str) or not received.strip() or "/" in received or received.startswith("."):
        raise ConfigError(f"{setting} is a name without slashes; received {received!r}")
    return received


def whole(setting: str, received: int, least: int = 1, most: int | None = None) -> int:
    """A whole number of at least ``least``, and at most ``most`` where there is one."""
    number = isinstance(received, int | np.integer) and not isinstance(received, bool)
    if not number or received < least or (most is not None and received > most):
        meant = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{setting} is a whole number {meant}; received {received!r}")
    return int(received)


def slot_count(received: int) -> int:
    """The setting ``num_slots``, so many that lists of them can be had."""
    return whole("num_slots", received, 1, _MOST_SLOTS)


def seed(setting: str, received: int) -> int:
    """A seed: a whole number that 63 bits hold."""
    return whole(setting, received, 0, 2**63 - 1)


def finite(setting: str, received: float, least: float = 0.0) -> float:
    """A finite number of at least ``least``."""
    if not _is_number(received) or not math.isfinite(received) or received < least:
        raise ConfigError(f"{setting} is a number of at least {least:g}; received {received!r}")
    return float(received)


def share(setting: str, received: float) -> float:
    """A part of a whole, at least 0 and below 1."""
    if not _is_number(received) or not 0 <= received < 1:
        raise ConfigError(f"{setting} is a share, from 0 on and below 1; received {received!r}")
    return float(received)


def image_side(received: int, least: int = 1) -> int:
    """The setting ``image_size``, a side [pixels] that OpenGL can draw."""
    side = whole("image_size", received, least)
    if side > _LARGEST_SIDE:
        raise ConfigError(f"image_size is at most {_LARGEST_SIDE} pixels; received {side}")
    return side


def positive(setting: str, received: float) -> float:
    """A finite number above 0."""
    if not _is_number(received) or not math.isfinite(received) or received <= 0:
        raise ConfigError(f"{setting} is a number above 0; received {received!r}")
    return float(received)


def truth(setting: str, received: bool) -> bool:
    """True or false, and nothing that only passes for it."""
    if not isinstance(received, bool | np.bool_):
        raise ConfigError(f"{setting} is true or false; received {received!r}")
    return bool(received)


def _is_number(received: object) -> bool:
    return isinstance(received, int | float | np.integer | np.floating) and not isinstance(received, bool)
