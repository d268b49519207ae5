"""The gravity of an episode: a physical parameter that differs from start to start and that policies may see."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from simeval.errors import ConfigError
from simeval.noise import Key


@dataclass(frozen=True)
class Gravities:
    """What the gravity of a start is drawn from, evenly: two numbers are a range, any other count of them the values.

    Magnitudes [m/s²], downwards; 0 is weightlessness.
    """

    numbers: tuple[float, ...]

    @classmethod
    def of(cls, received: float | Iterable[float]) -> "Gravities":
        """The setting ``gravities``: a number, a range ``[low, high]``, or a list of one or at least three values."""
        numbers = tuple(received) if isinstance(received, Iterable) else (received,)
        if not numbers or not all(_is_magnitude(number) for number in numbers):
            raise ConfigError(
                "gravities are finite numbers of at least 0 [m/s²]: one, a range [low, high], or three and more to "
                f"draw from; received {received!r}"
            )
        if len(numbers) == 2 and numbers[0] > numbers[1]:
            raise ConfigError(f"the range of gravities is [low, high]; received {list(numbers)}")
        return cls(tuple(float(number) for number in numbers))

    def of_start(self, world: str, seed: int) -> float:
        """The gravity [m/s²] of the start with that seed: a pure function."""
        rng = Key(seed).stream("start").event(world, "gravity")
        if len(self.numbers) == 2:
            return float(rng.uniform(*self.numbers))
        return self.numbers[int(rng.integers(len(self.numbers)))]

    def __str__(self) -> str:
        listed = ",".join(f"{number:g}" for number in self.numbers)
        return f"[{listed}]" if len(self.numbers) == 2 else f"{{{listed}}}"


def _is_magnitude(number: object) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float | np.integer | np.floating):
        return False
    return math.isfinite(number) and bool(number >= 0)
