"""Policies that predict several actions at once: chunks executed open loop, or averaged over time.

Actions are the model's own; for a model that may leave the action space, wrap either in ``policies.clipped.Clipped``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import REPLANNED, Memory, Policy, PolicyStep
from simeval.settings import whole
from simeval.types import Array, Observation, WorldSpec


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a chunk model says of ``n`` observations: ``chunk`` [n, H, A], and what it knows of it.

    ``log_prob`` and ``entropy`` [n, H] (nats) of each action in it, given by models whose ``has_density`` is true;
    ``extras``: name -> array [n, ...], as the model declares them.
    """

    chunk: Array
    log_prob: Array | None = None
    entropy: Array | None = None
    extras: Mapping[str, Array] = field(default_factory=dict)


class ChunkModel(ABC):
    """A function from observations to action chunks: what a learned policy has to offer."""

    horizon: int
    """Actions in a chunk, H."""
    action_dim: int
    """Numbers in an action, A."""
    observation_keys: tuple[str, ...]
    fingerprint: str
    """Architecture, weights and settings, in one line."""
    has_density: bool = False
    """Whether predictions come with ``log_prob`` and ``entropy``."""
    extras: Mapping[str, tuple[int, ...]] = {}
    """Name -> shape per observation of the extras of every prediction (float32)."""
    conventions: Conventions = UNDECLARED
    """What the model takes observations and actions to mean."""
    concurrent: int = 1
    """How many calls of :meth:`predict` may be under way at once, each in a thread of its own."""

    def check(self, spec: WorldSpec) -> None:
        """Raise ``ConfigError`` where the model does not fit a World; the default compares the actions."""
        if spec.action_space.shape != (self.action_dim,):
            raise ConfigError(
                f"the model predicts actions of {self.action_dim} numbers; world {spec.name!r} takes "
                f"{spec.action_space.shape}"
            )

    @abstractmethod
    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        """Chunks for ``n`` observations; row i a function of row i alone, at any one fixed ``n``."""


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="simeval-predict")


class _ChunkPolicy(Policy):
    """What both policies over a chunk model share: the fit to a World, and prediction in padded batches."""

    def __init__(self, model: ChunkModel, batch_size: int, executed: int):
        own = Conventions(action_dim=model.action_dim, chunk=model.horizon, executed=executed)
        self.conventions = own.over(model.conventions)
        self._model = model
        self._rows = whole("batch_size", batch_size)
        self.batch_size = self._rows * model.concurrent
        self.observation_keys = tuple(model.observation_keys)

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        self._model.check(spec)
        return super().bind(spec)

    def _predict(
        self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey], rows: np.ndarray
    ) -> dict[str, np.ndarray]:
        """What :meth:`_blank` lists, for some rows, always sent as full batches: the last is filled up with its first.

        A result is an array per name, [len(rows), …].
        """
        found = self._blank(len(rows))
        batches = [rows[begin : begin + self._rows] for begin in range(0, len(rows), self._rows)]

        def predicted(batch: np.ndarray) -> Prediction:
            padded = np.concatenate([batch, np.repeat(batch[:1], self._rows - len(batch))])
            shown = {key: observation[key][padded] for key in self.observation_keys}
            return self._model.predict(shown, [instruction[i] for i in padded], [keys[i] for i in padded])

        begin = 0
        for batch, prediction in zip(batches, self._each(predicted, batches), strict=True):
            self._put(prediction, found, slice(begin, begin + len(batch)))
            begin += len(batch)
        return found

    def _each(
        self, predicted: Callable[[np.ndarray], Prediction], batches: Sequence[np.ndarray]
    ) -> Iterable[Prediction]:
        at_once = min(self._model.concurrent, len(batches))
        return _threads(at_once).map(predicted, batches) if at_once > 1 else map(predicted, batches)

    def _put(self, prediction: Prediction, found: Mapping[str, np.ndarray], place: slice) -> None:
        """Write the first rows of a batch, as many as ``place`` has, where they belong."""
        parts = {"chunk": prediction.chunk, "log_prob": prediction.log_prob, "entropy": prediction.entropy}
        for name, column in found.items():
            value = parts[name] if name in parts else prediction.extras.get(name)
            expected = (self._rows, *column.shape[1:])
            if value is None or tuple(value.shape) != expected:
                got = "nothing" if value is None else f"shape {tuple(value.shape)}"
                raise ValueError(f"the chunk model gave {got} for {name}, expected {expected}")
            column[place] = np.asarray(value)[: place.stop - place.start]

    def _blank(self, n: int) -> dict[str, np.ndarray]:
        """Room for everything that a prediction consists of."""
        model, ahead = self._model, (n, self._model.horizon)
        parts = {"chunk": np.zeros((*ahead, model.action_dim), dtype=np.float32)}
        if model.has_density:
            parts |= {name: np.zeros(ahead, dtype=np.float32) for name in ("log_prob", "entropy")}
        return parts | {name: np.zeros((n, *shape), dtype=np.float32) for name, shape in model.extras.items()}


class Chunked(_ChunkPolicy):
    """Executes the first ``execute`` actions of each predicted chunk, then predicts again.

    The queue lives in memory. Only episodes whose queue is empty are sent to the model, in batches of exactly
    ``batch_size`` rows, so that an action does not depend on who shares the batch. Reports the chunk being executed,
    its densities and extras where the model gives them, and ``replanned``: whether it was predicted at this very step.
    """

    def __init__(self, model: ChunkModel, execute: int, batch_size: int):
        super().__init__(model, batch_size, execute)
        if not 1 <= execute <= model.horizon:
            raise ConfigError(f"execute must be between 1 and the chunk's {model.horizon} actions; received {execute}")
        self._execute = execute

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"Chunked execute={self._execute} batch_size={self._rows} of [{self._model.fingerprint}]"

    def initial_memory(self, n: int) -> Memory:
        """The prediction being executed, and ``cursor`` [n], the next action in it; all queues are empty."""
        return {"prediction": self._blank(n), "cursor": np.full(n, self._execute, dtype=np.int64)}

    def due(self, memory: Memory) -> np.ndarray:
        """The rows whose queue is empty."""
        return np.asarray(memory["cursor"]) >= self._execute

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        held = {name: value.copy() for name, value in memory["prediction"].items()}
        cursor = memory["cursor"].copy()
        empty = self.due(memory)
        rows = np.flatnonzero(empty)
        for name, value in self._predict(observation, instruction, keys, rows).items():
            held[name][rows] = value
        cursor[rows] = 0
        at = np.arange(len(cursor)), cursor
        return PolicyStep(
            held["chunk"][at],
            {"prediction": held, "cursor": cursor + 1},
            log_prob=held["log_prob"][at] if self._model.has_density else None,
            entropy=held["entropy"][at] if self._model.has_density else None,
            chunk=held["chunk"].copy(),
            extras={REPLANNED: empty, **{name: held[name].copy() for name in self._model.extras}},
        )


class Ensembled(_ChunkPolicy):
    """Predicts at every step, and executes the weighted mean of all predictions made for that step.

    The k-th oldest prediction for a step has weight ``exp(-decay * k)``, k from 0: temporal ensembling as in ACT.
    """

    def __init__(self, model: ChunkModel, batch_size: int, decay: float = 0.01):
        super().__init__(model, batch_size, 1)
        self._decay = decay
        self._weights = np.exp(-decay * np.arange(model.horizon))

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"Ensembled decay={self._decay!r} batch_size={self._rows} of [{self._model.fingerprint}]"

    def initial_memory(self, n: int) -> Memory:
        """For the next H steps: weighted ``total`` [n, H, A] of the predictions so far, and their ``count`` [n, H]."""
        horizon = self._model.horizon
        return {
            "total": np.zeros((n, horizon, self._model.action_dim)),
            "count": np.zeros((n, horizon), dtype=np.int64),
        }

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        predicted = self._predict(observation, instruction, keys, np.arange(len(keys)))
        chunk = predicted["chunk"]
        total = memory["total"] + self._weights[memory["count"]][..., None] * chunk
        count = memory["count"] + 1
        action = total[:, 0] / np.cumsum(self._weights)[count[:, :1] - 1]
        later = {
            "total": np.concatenate([total[:, 1:], np.zeros_like(total[:, :1])], axis=1),
            "count": np.concatenate([count[:, 1:], np.zeros_like(count[:, :1])], axis=1),
        }
        extras = {name: predicted[name] for name in self._model.extras}
        return PolicyStep(action.astype(np.float32), later, chunk=chunk, extras=extras)
