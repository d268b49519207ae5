"""Policies and servers for the tests of serving: chunks that tell batches apart, and servers that misbehave."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from websockets.sync.server import ServerConnection, serve

from policies.chunked import Chunked, ChunkModel, Prediction
from policies.clipped import Clipped
from simeval.noise import Key, StepKey, standard_normal
from simeval.policy import Memory, Policy, PolicyStep
from simeval.serve.messages import pack, unpack
from simeval.testing.toy_policies import ToyExpert
from simeval.types import Observation

Speak = Callable[[dict[str, Any]], bytes | str | None]
"""What a scripted server says to an observation; none ends the connection."""


class ToyChunks(ChunkModel):
    """The toy expert's action and keyed noise, and low bits that depend on the batch's size, as a network's do."""

    horizon, action_dim, observation_keys, fingerprint = 4, 2, ("state",), "toy-chunks"

    def predict(self, observation: Observation, instruction: Sequence[str], keys: Sequence[StepKey]) -> Prediction:
        action = np.asarray(ToyExpert().act(observation, instruction, {}, keys).action, np.float64)
        noise = 0.3 * standard_normal(keys, (self.horizon, 2), "chunk")
        return Prediction(((action[:, None] + noise) * (1 + 1e-3 * len(keys))).astype(np.float32))


def toy_chunked(execute: int = 2) -> Policy:
    return Clipped(Chunked(ToyChunks(), execute, batch_size=3))


class Gate(Policy):
    """Acts when it is let, and notes how many rows each call had; a state whose first number is 13 breaks it."""

    observation_keys = ("state",)

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.rows: list[int] = []

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        self.rows.append(len(keys))
        self.entered.set()
        assert self.open.wait(30)
        if (observation["state"][:, 0] == 13).any():
            raise ArithmeticError("thirteen")
        return PolicyStep(np.tanh(observation["state"][:, :2]).astype(np.float32), {})


def key(seed: int, step: int = 0) -> StepKey:
    return Key(seed).stream("policy").key(step)


@contextmanager
def scripted(speak: Speak, greeting: bytes | str | None = None) -> Iterator[str]:
    """A server that says what ``speak`` answers to each observation; gives its address."""

    def handle(connection: ServerConnection) -> None:
        connection.send(pack({}) if greeting is None else greeting)
        for data in connection:
            answer = speak(unpack(data if isinstance(data, bytes) else data.encode()))
            if answer is None:
                return
            connection.send(answer)

    with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
