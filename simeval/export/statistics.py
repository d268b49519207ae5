"""Statistics of a dataset's columns as LeRobot names them, gathered episode by episode in constant memory.

Each is ``min``, ``max``, ``mean``, ``std`` (of the population), the quantiles ``q01`` to ``q99``, and ``count`` [1],
the number of frames. LeRobot's own samples images and averages the episodes' quantiles; here every frame and pixel
counts, and the quantiles of a dataset's numbers are read from a histogram of ``BINS`` bins between their extremes.
"""

from abc import ABC, abstractmethod

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
BINS = 4096

Statistics = dict[str, np.ndarray]


class Gathered(ABC):
    """Statistics of one column over all frames added so far."""

    @abstractmethod
    def add(self, frames: np.ndarray) -> Statistics:
        """Take in ``frames`` [T, …]; returns the statistics of these frames alone."""

    @abstractmethod
    def result(self) -> Statistics:
        """The statistics of all frames taken in."""


class Numbers(Gathered):
    """Columns of ``D`` numbers, which all lie between ``low`` [D] and ``high`` [D]; statistics have shape [D]."""

    def __init__(self, low: np.ndarray, high: np.ndarray):
        self._low, self._high = low.astype(np.float64), high.astype(np.float64)
        self._histogram = np.zeros((len(low), BINS), dtype=np.int64)
        self._count = 0
        self._mean = np.zeros(len(low))
        self._squares = np.zeros(len(low))

    def add(self, frames: np.ndarray) -> Statistics:
        """See ``Gathered.add``; ``frames`` [T, D]."""
        numbers = frames.astype(np.float64)
        count, mean, squares = len(numbers), numbers.mean(0), numbers.var(0) * len(numbers)
        shift = mean - self._mean
        total = self._count + count
        self._squares += squares + shift**2 * self._count * count / total
        self._mean += shift * count / total
        self._count = total
        width = np.where(self._high > self._low, self._high - self._low, 1.0)
        bins = np.minimum(((numbers - self._low) / width * BINS).astype(np.int64), BINS - 1)
        flat = bins + np.arange(bins.shape[1]) * BINS
        self._histogram += np.bincount(flat.ravel(), minlength=self._histogram.size).reshape(self._histogram.shape)
        quantiles = np.quantile(numbers, list(QUANTILES.values()), axis=0)
        return _named(numbers.min(0), numbers.max(0), mean, np.sqrt(squares / count), quantiles, count)

    def result(self) -> Statistics:
        """See ``Gathered.result``."""
        middles = self._low[:, None] + (np.arange(BINS) + 0.5) / BINS * (self._high - self._low)[:, None]
        std = np.sqrt(self._squares / self._count)
        return _named(self._low, self._high, self._mean, std, _quantiles(self._histogram, middles), self._count)


class Pixels(Gathered):
    """Columns of images, uint8 [H, W, 3]; statistics are per channel, of pixels in [0, 1], with shape [3, 1, 1]."""

    def __init__(self) -> None:
        self._histogram = np.zeros((3, 256), dtype=np.int64)
        self._count = 0

    def add(self, frames: np.ndarray) -> Statistics:
        """See ``Gathered.add``; ``frames`` [T, H, W, 3]."""
        histogram = np.stack([np.bincount(frames[..., channel].ravel(), minlength=256) for channel in range(3)])
        self._histogram += histogram
        self._count += len(frames)
        return _of_pixels(histogram, len(frames))

    def result(self) -> Statistics:
        """See ``Gathered.result``."""
        return _of_pixels(self._histogram, self._count)


def _of_pixels(histogram: np.ndarray, count: int) -> Statistics:
    values = np.arange(256) / 255.0
    share = histogram / histogram.sum(1, keepdims=True)
    mean = share @ values
    std = np.sqrt(np.maximum(share @ values**2 - mean**2, 0.0))
    low = values[(histogram > 0).argmax(1)]
    high = values[255 - (histogram[:, ::-1] > 0).argmax(1)]
    found = _named(low, high, mean, std, _quantiles(histogram, np.tile(values, (3, 1))), count)
    return {name: value if name == "count" else value.reshape(3, 1, 1) for name, value in found.items()}


def _quantiles(histogram: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[quantiles, D]: the value of the bin in which each quantile of the rows of ``histogram`` [D, bins] falls."""
    share = np.cumsum(histogram, axis=1) / histogram.sum(1, keepdims=True)
    at = [[int(np.searchsorted(row, quantile)) for row in share] for quantile in QUANTILES.values()]
    return np.stack([values[np.arange(len(values)), bins] for bins in at])


def _named(
    low: np.ndarray, high: np.ndarray, mean: np.ndarray, std: np.ndarray, quantiles: np.ndarray, count: int
) -> Statistics:
    found = {"min": low, "max": high, "mean": mean, "std": std, **dict(zip(QUANTILES, quantiles, strict=True))}
    return {**{name: np.asarray(value, dtype=np.float64) for name, value in found.items()}, "count": np.array([count])}
