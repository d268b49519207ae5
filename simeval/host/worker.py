"""The worker's side: it builds what it is told to and answers for it until the host closes the connection."""

import contextlib
import ctypes
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from simeval.errors import HostError, unknown
from simeval.host.faults import described
from simeval.host.wire import PROTOCOL, Channel, Closed

_GRACE = 5.0
"""How long a worker may go on without its host, to close what it holds [s]."""
_ON_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG

Answer = tuple[Any, Mapping[str, np.ndarray]]
"""Plain data, and arrays to go through shared memory."""


class Service(Protocol):
    """What answers in a worker: made from plain arguments, then asked by method name."""

    def describe(self) -> Any:
        """What the host should know of what was built."""

    def call(self, method: str, arguments: Any, arrays: Mapping[str, np.ndarray]) -> Answer:
        """Answer one question; ``arrays`` are valid until it is answered."""

    def close(self) -> None:
        """Release what it holds."""


SERVICES = {
    "world": "simeval.host.world_service:WorldService",
    "policy": "simeval.host.policy_service:PolicyService",
}
"""Kind of service -> where its class is."""


def serve(connection: int, outgoing: int, incoming: int, *, bound: bool) -> None:
    """Serve the host at the other end of these descriptors until it closes the connection.

    ``bound``: the thread that started this process lives as long as its own, so the kernel can be told to end both.
    """
    if bound and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ON_PARENTS_DEATH, signal.SIGKILL)
    for descriptor in (connection, outgoing, incoming):
        os.set_inheritable(descriptor, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_host, args=(connection,), daemon=True).start()
    channel = Channel(socket.socket(fileno=connection), outgoing, incoming)
    service: Service | None = None
    with contextlib.suppress(Closed):
        while True:
            number, (method, arguments), arrays = channel.receive()
            answer: Any
            out: Mapping[str, np.ndarray] = {}
            try:
                if method == "build":
                    service = _build(arguments)
                    answer = [PROTOCOL, service.describe()]
                elif service is None:
                    raise HostError(f"{method!r} was asked of a worker that has built nothing")
                elif method == "close":
                    service.close()
                    answer = None
                else:
                    answer, out = service.call(method, arguments, arrays)
                channel.send(number, ["ok", answer], out)
            except Closed:
                raise
            except Exception as error:
                channel.send(number, ["error", described(error)])
            if method == "close":
                return
    if service is not None:
        service.close()


def _build(arguments: dict[str, Any]) -> Service:
    if arguments["protocol"] != PROTOCOL:
        raise HostError(
            f"the host speaks {arguments['protocol']}, and the simeval that {sys.executable} imports speaks {PROTOCOL};"
            " remove that from its environment"
        )
    if arguments["service"] not in SERVICES:
        raise unknown("service", arguments["service"], SERVICES)
    module, _, name = SERVICES[arguments["service"]].partition(":")
    given = {key: value for key, value in arguments.items() if key not in ("protocol", "service")}
    return getattr(importlib.import_module(module), name)(**given)


def _end_with_host(connection: int) -> None:
    """Wait until the host is gone, give the worker time to end by itself, and end it."""
    watch = select.poll()
    watch.register(connection, getattr(select, "POLLRDHUP", 0))
    while not any(event & ~select.POLLIN for _, event in watch.poll()):
        time.sleep(0.01)
    time.sleep(_GRACE)
    os._exit(1)
