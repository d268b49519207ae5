"""Keyed noise: a draw is a function of (seed, stream, step, event) and of nothing else.

Every draw comes from a counter-based Philox generator whose 128-bit key is a hash of (layout, seed, stream, event)
and whose counter starts at the step, so it does not depend on the slot, the batch, the worker, the order of calls
or on how many draws came before. After two branches of a rollout diverge, event-keyed draws (an object and its n-th
occurrence) stay aligned where a sequential stream would not.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence

NOISE_LAYOUT = "philox4x64/blake2b-128/1"
"""Version of the map from (seed, stream, step, event) to draws; recorded in every trace."""

Event = int | str
"""One part of an event's name."""


def _token(part: Event) -> bytes:
    if isinstance(part, (bool, float)) or not isinstance(part, (int, str, np.integer)):
        raise TypeError(f"a noise event is made of ints and strings; received {part!r} ({type(part).__name__})")
    text = f"s{part}" if isinstance(part, str) else f"i{int(part)}"
    return f"{len(text)}:{text}".encode()


def _check_parts(seed: int, event: tuple[Event, ...]) -> None:
    """Refuse what is no int or text before the cache, in which 1.0 and True would pass for 1."""
    for part in (seed, *event):
        if type(part) is not int and type(part) is not str:
            _token(part)


@lru_cache(maxsize=65536)
def _philox_key(seed: int, stream: str, event: tuple[Event, ...], timeless: bool) -> tuple[int, int]:
    digest = hashlib.blake2b(digest_size=16, person=b"simeval-noise-1")
    digest.update(b"T" if timeless else b"S")
    for part in (seed, stream, *event):
        digest.update(_token(part))
    raw = digest.digest()
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


def _generator(seed: int, stream: str, step: int, event: tuple[Event, ...], timeless: bool) -> np.random.Generator:
    if step < 0:
        raise ValueError(f"a noise step counts from 0; received {step}")
    _check_parts(seed, event)
    philox = np.random.Philox(cast(Any, _NO_ENTROPY))
    philox.state = {
        "bit_generator": "Philox",
        "state": {
            "counter": np.array([0, 0, 0, step], dtype=np.uint64),
            "key": np.array(_philox_key(seed, stream, event, timeless), dtype=np.uint64),
        },
        "buffer": _EMPTY,
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    return np.random.Generator(philox)


class _NoEntropy(ISeedSequence):
    """Spares Philox the reading of system entropy, which it does even when its key is given."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.zeros(n_words, dtype=dtype)


_NO_ENTROPY = _NoEntropy()
_EMPTY = np.zeros(4, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Key:
    """The root of all noise of one rollout: a value, not a generator."""

    seed: int

    def stream(self, name: str) -> "Stream":
        """The named stream under this key, e.g. ``"world"``, ``"policy"``, ``"start"``."""
        return Stream(self.seed, name)

    def integer(self, *event: Event) -> int:
        """A 63-bit integer that depends on the seed and the event alone: a seed for something else."""
        _check_parts(self.seed, event)
        low, _ = _philox_key(self.seed, "integer", event, True)
        return low >> 1


@dataclass(frozen=True, slots=True)
class Stream:
    """One named stream of noise; streams of different names or seeds are independent."""

    seed: int
    name: str

    def at(self, step: int, *event: Event) -> np.random.Generator:
        """A generator for what happens at ``step`` (control steps from reset), further told apart by ``event``."""
        return _generator(self.seed, self.name, step, event, False)

    def event(self, *event: Event) -> np.random.Generator:
        """A generator for an event whatever the step at which it happens, e.g. ``event("push", object_id, n)``."""
        return _generator(self.seed, self.name, 0, event, True)

    def key(self, step: int) -> "StepKey":
        """This stream at one step: what the engine hands to ``World.step`` and ``Policy.act``."""
        return StepKey(self, step)


@dataclass(frozen=True, slots=True)
class StepKey:
    """A stream at one control step.

    ``step`` is the index of the observation concerned: ``World.reset`` gets 0, the ``World.step`` that turns
    observation t into t + 1 gets t + 1, and ``Policy.act`` on observation t gets t.
    """

    stream: Stream
    step: int

    def generator(self, *event: Event) -> np.random.Generator:
        """A fresh generator for this step; the same arguments always give the same draws."""
        return self.stream.at(self.step, *event)

    def event(self, *event: Event) -> np.random.Generator:
        """A generator that depends on the event but not on the step."""
        return self.stream.event(*event)


def standard_normal(keys: Sequence[StepKey], shape: tuple[int, ...], *event: Event) -> np.ndarray:
    """Standard normal draws ``[len(keys), *shape]`` (float64), row i a function of ``keys[i]`` alone."""
    out = np.empty((len(keys), *shape))
    for row, key in enumerate(keys):
        out[row] = key.generator(*event).standard_normal(shape)
    return out


def uniform(keys: Sequence[StepKey], shape: tuple[int, ...], *event: Event) -> np.ndarray:
    """Uniform draws in [0, 1) ``[len(keys), *shape]`` (float64), row i a function of ``keys[i]`` alone."""
    out = np.empty((len(keys), *shape))
    for row, key in enumerate(keys):
        out[row] = key.generator(*event).random(shape)
    return out
