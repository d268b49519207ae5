"""Durations as counts by geometric bins: they add up over episodes and runs in memory that does not grow."""

import math
from collections.abc import Iterable, MutableMapping, Sequence
from itertools import accumulate

Counts = dict[int, int]
"""Bin -> how many durations fell into it."""

_PER_OCTAVE = 16
_SHORTEST = 1e-6


def add(counts: MutableMapping[int, int], seconds: float) -> None:
    """Count one duration [s]."""
    index = math.floor(_PER_OCTAVE * math.log2(max(seconds, _SHORTEST) / _SHORTEST))
    counts[index] = counts.get(index, 0) + 1


def total(several: Iterable[Counts]) -> Counts:
    """The sum of several counts."""
    summed: Counts = {}
    for counts in several:
        for index, count in counts.items():
            summed[index] = summed.get(index, 0) + count
    return summed


def quantile(counts: Counts, share: float) -> float:
    """The least duration [s] that ``share`` of them do not exceed, to within 2.2 % (the middle of its bin)."""
    indices = sorted(counts)
    reached = list(accumulate(counts[index] for index in indices))
    wanted = math.ceil(share * reached[-1])
    index = next(index for index, so_far in zip(indices, reached, strict=True) if so_far >= wanted)
    return _SHORTEST * 2 ** ((index + 0.5) / _PER_OCTAVE)


def counts_to_json(counts: Counts) -> list[list[int]]:
    """Pairs of bin and count, in order."""
    return [[index, counts[index]] for index in sorted(counts)]


def counts_from_json(data: Iterable[Sequence[int]]) -> Counts:
    """The inverse of :func:`counts_to_json`."""
    return {int(index): int(count) for index, count in data}
