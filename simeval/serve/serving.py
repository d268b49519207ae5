"""A policy server from beginning to end, as a context."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from simeval.errors import unknown
from simeval.serve.batching import Batcher
from simeval.serve.dialects import openpi, roboarena
from simeval.serve.rest import RestServer
from simeval.serve.service import PolicyService
from simeval.serve.websocket import WebsocketServer


class Server(Protocol):
    """What listens at an address from ``start``, which returns it, to ``stop``."""

    def start(self) -> str:
        """Begin to listen; returns the address."""

    def stop(self) -> None:
        """Take no more requests, and return when all is over."""


DIALECTS: Mapping[str, Callable[[PolicyService, Batcher, str, int, str | None, str], Server]] = {
    "openpi": lambda service, batcher, host, port, key, _: WebsocketServer(openpi(service), batcher, host, port, key),
    "roboarena": lambda service, batcher, host, port, key, action_space: WebsocketServer(
        roboarena(service, action_space), batcher, host, port, key
    ),
    "openvla": lambda service, batcher, host, port, key, _: RestServer(service, batcher, host, port, key),
}
"""Name of a protocol -> its server."""


def server_of(dialect: str) -> Callable[[PolicyService, Batcher, str, int, str | None, str], Server]:
    """What serves a protocol; ``ConfigError`` where there is no such protocol."""
    if dialect not in DIALECTS:
        raise unknown("protocol (serve.dialect)", dialect, DIALECTS)
    return DIALECTS[dialect]


@contextmanager
def serving(
    service: PolicyService,
    dialect: str = "openpi",
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    max_batch: int = 16,
    wait_s: float = 0.005,
    action_space: str = "joint_position",
) -> Iterator[str]:
    """Serve a policy while the context lasts; gives the address. The policy is its owner's to close.

    ``port`` 0 takes a free one. ``api_key``: clients are asked for it. ``max_batch`` and ``wait_s`` [s]: see
    ``Batcher``. ``action_space``: what RoboArena's clients are told.
    """
    make = server_of(dialect)
    batcher = Batcher(service.answer, max_batch, wait_s)
    try:
        server = make(service, batcher, host, port, api_key, action_space)
        address = server.start()
        try:
            yield address
        finally:
            server.stop()
    finally:
        batcher.close()
