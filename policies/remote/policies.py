"""Policies that live on a server: those that predict chunks, and any of ours, step by step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from policies.chunked import Chunked, ChunkModel, Prediction
from policies.remote.answers import Declaration, Wording, numbers
from policies.remote.links import ServerError
from policies.remote.server import Server
from simeval.conventions import UNDECLARED, Conventions
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.policy import Memory, Policy, PolicyStep, memory_row, stack_memory
from simeval.types import Observation, WorldSpec

UNKEYED = "unkeyed (the server takes no noise key: what it draws at random depends on the order of calls)"
"""What the fingerprint says where results may not be a function of the rollout alone."""


class RemoteChunks(ChunkModel):
    """A server as a model of chunks, of which the first ``execute`` actions are used; rows are asked side by side.

    ``exactly``: a chunk must have no more than these. ``name``: what is known of the server's policy.
    """

    def __init__(
        self,
        server: Server,
        wording: Wording,
        action_dim: int,
        execute: int,
        name: str,
        declared: Declaration | None = None,
        exactly: bool = False,
        conventions: Conventions = UNDECLARED,
    ):
        self._server = server
        self._wording = wording
        self._declared = declared
        self._exactly = exactly
        self.conventions = conventions
        self.horizon, self.action_dim = execute, action_dim
        self.observation_keys = wording.observation_keys
        self.fingerprint = f"{name} {'keyed' if wording.keyed else UNKEYED} {wording.layout!r}"

    def check(self, spec: WorldSpec) -> None:
        """See ``ChunkModel.check``; what the server declares is compared as well."""
        super().check(spec)
        self._wording.check(spec, self._declared)

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        """See ``ChunkModel.predict``; ``ServerError`` where a row has no answer."""
        answers = self._server.ask(self._wording.messages(observation, instruction, keys), keys)
        url, dim, least = self._server.url, self.action_dim, self.horizon
        chunks = [numbers(answer, url, dim, least, self._exactly)[:least] for answer in answers]
        return Prediction(np.stack(chunks).astype(np.float32))


class RemoteChunked(Chunked):
    """``Chunked`` over a server, which it closes."""

    def __init__(self, model: RemoteChunks, server: Server):
        super().__init__(model, model.horizon, server.connections)
        self._server = server

    def close(self) -> None:
        """End the connections."""
        self._server.close()


class RemotePolicy(Policy):
    """Any policy behind ``simeval serve``, asked at every step; its memory travels with the request and comes back.

    So it forks, resumes and shares batches as it would in this process, with the same bits.
    """

    def __init__(self, server: Server, wording: Wording, declared: Declaration):
        self._server = server
        self._wording = wording
        self._declared = declared
        self.observation_keys = wording.observation_keys
        self.conventions = declared.conventions

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``."""
        if int(np.prod(spec.action_space.shape)) != self._declared.action_dim:
            raise ConfigError(
                f"the server's policy gives actions of {self._declared.action_dim} numbers; world {spec.name!r} takes "
                f"{spec.action_space.shape}"
            )
        self._wording.check(spec, self._declared)
        return super().bind(spec)

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``."""
        return f"RemotePolicy {self._wording.layout!r} of [{self._declared.policy}]"

    def initial_memory(self, n: int) -> Memory:
        """That of the server's policy."""
        return stack_memory([self._declared.memory] * n) if n else {}

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``; ``ServerError`` where a row has no answer."""
        messages = self._wording.messages(observation, instruction, keys)
        rows = [{**message, "memory": memory_row(memory, row)} for row, message in enumerate(messages)]
        answers = self._server.ask(rows, keys)
        actions = [numbers(answer, self._server.url, self._declared.action_dim, 1, True)[0] for answer in answers]
        try:
            extras = [answer["extras"] for answer in answers]
            return PolicyStep(
                np.stack(actions),
                stack_memory([answer["memory"] for answer in answers]),
                log_prob=_column(answers, "log_prob"),
                entropy=_column(answers, "entropy"),
                chunk=_column(answers, "chunk"),
                extras={name: np.stack([extra[name] for extra in extras]) for name in extras[0]},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(
                f"the policy server at {self._server.url} sent {', '.join(map(repr, answers[0]))}; expected a step of "
                f"a policy: 'actions', 'memory' as in its metadata, 'extras' ({error!r})"
            ) from error

    def close(self) -> None:
        """End the connections."""
        self._server.close()


def _column(answers: Sequence[Mapping[str, Any]], name: str) -> np.ndarray | None:
    return np.stack([answer[name] for answer in answers]) if name in answers[0] else None
