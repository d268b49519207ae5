"""Policies that predict several actions at once: chunks executed open loop, or averaged over time.

Actions are the model's own; for a model that may leave the action space, wrap either in ``policies.clipped.Clipped``.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep
from simeval.settings import whole
from simeval.types import Array, Observation, WorldSpec


class ChunkModel(Protocol):
    """A function from observations to action chunks: what a learned policy has to offer."""

    horizon: int
    """Actions in a chunk, H."""
    action_dim: int
    """Numbers in an action, A."""
    observation_keys: tuple[str, ...]
    fingerprint: str
    """Architecture, weights and settings, in one line."""

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Array:
        """Chunks ``[n, H, A]`` for ``n`` observations; row i a function of row i alone, at any one fixed ``n``."""
        ...


class _ChunkPolicy(Policy):
    """What both policies over a chunk model share: the fit to a World, and prediction in padded batches."""

    def __init__(self, model: ChunkModel, batch_size: int):
        self._model = model
        self._batch_size = whole("batch_size", batch_size)
        self.observation_keys = tuple(model.observation_keys)

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        if spec.action_space.shape != (self._model.action_dim,):
            raise ConfigError(
                f"the model predicts actions of {self._model.action_dim} numbers; world {spec.name!r} takes "
                f"{spec.action_space.shape}"
            )
        return super().bind(spec)

    def _predict(
        self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey], rows: np.ndarray
    ) -> np.ndarray:
        """Chunks for some rows, always sent as full batches: the last is filled up with copies of its first row."""
        chunks = np.empty((len(rows), self._model.horizon, self._model.action_dim), dtype=np.float32)
        for begin in range(0, len(rows), self._batch_size):
            batch = rows[begin : begin + self._batch_size]
            padded = np.concatenate([batch, np.repeat(batch[:1], self._batch_size - len(batch))])
            shown = {key: observation[key][padded] for key in self.observation_keys}
            predicted = self._model.predict(shown, [instruction[i] for i in padded], [keys[i] for i in padded])
            expected = (self._batch_size, *chunks.shape[1:])
            if tuple(predicted.shape) != expected:
                raise ValueError(f"the chunk model gave shape {tuple(predicted.shape)}, expected {expected}")
            chunks[begin : begin + len(batch)] = np.asarray(predicted)[: len(batch)]
        return chunks


class Chunked(_ChunkPolicy):
    """Executes the first ``execute`` actions of each predicted chunk, then predicts again.

    The queue lives in memory. Only episodes whose queue is empty are sent to the model, in batches of exactly
    ``batch_size`` rows, so that an action does not depend on who shares the batch. Reports the chunk being executed,
    and ``replanned``: whether it was predicted at this very step.
    """

    def __init__(self, model: ChunkModel, execute: int, batch_size: int):
        super().__init__(model, batch_size)
        if not 1 <= execute <= model.horizon:
            raise ConfigError(f"execute must be between 1 and the chunk's {model.horizon} actions; received {execute}")
        self._execute = execute

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"Chunked execute={self._execute} batch_size={self._batch_size} of [{self._model.fingerprint}]"

    def initial_memory(self, n: int) -> Memory:
        """``chunk`` [n, H, A] being executed, and ``cursor`` [n], the next action in it; all queues are empty."""
        return {
            "chunk": np.zeros((n, self._model.horizon, self._model.action_dim), dtype=np.float32),
            "cursor": np.full(n, self._execute, dtype=np.int64),
        }

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        chunk, cursor = memory["chunk"].copy(), memory["cursor"].copy()
        empty = cursor >= self._execute
        rows = np.flatnonzero(empty)
        chunk[rows] = self._predict(observation, instruction, keys, rows)
        cursor[rows] = 0
        action = chunk[np.arange(len(cursor)), cursor]
        return PolicyStep(
            action, {"chunk": chunk, "cursor": cursor + 1}, chunk=chunk.copy(), extras={"replanned": empty}
        )


class Ensembled(_ChunkPolicy):
    """Predicts at every step, and executes the weighted mean of all predictions made for that step.

    The k-th oldest prediction for a step has weight ``exp(-decay * k)``, k from 0: temporal ensembling as in ACT.
    """

    def __init__(self, model: ChunkModel, batch_size: int, decay: float = 0.01):
        super().__init__(model, batch_size)
        self._decay = decay
        self._weights = np.exp(-decay * np.arange(model.horizon))

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"Ensembled decay={self._decay!r} batch_size={self._batch_size} of [{self._model.fingerprint}]"

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
        chunk = self._predict(observation, instruction, keys, np.arange(len(keys)))
        total = memory["total"] + self._weights[memory["count"]][..., None] * chunk
        count = memory["count"] + 1
        action = total[:, 0] / np.cumsum(self._weights)[count[:, :1] - 1]
        later = {
            "total": np.concatenate([total[:, 1:], np.zeros_like(total[:, :1])], axis=1),
            "count": np.concatenate([count[:, 1:], np.zeros_like(count[:, :1])], axis=1),
        }
        return PolicyStep(action.astype(np.float32), later, chunk=chunk)
