"""What a host and its workers say to one another: numbered messages of plain data, arrays through shared memory.

A frame is 8 bytes of length and msgpack ``[number, message, layout]`` (``simeval.codec``; nothing in it is ever
executed). The arrays that go with a message lie in the sender's shared memory as ``layout`` says (null: as last time).
Host and worker take turns: what was received is valid until one sends again.
"""

import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simeval.codec import pack, unpack
from simeval.host.segment import Layout, Segment

PROTOCOL = "simeval-host/1"
_LENGTH = struct.Struct(">Q")
_CHUNK = 1 << 16
_PATIENCE = 1.0
"""How long to wait before looking whether the other process is still there [s]."""
_NO_ARRAYS: Mapping[str, np.ndarray] = {}


class Closed(Exception):
    """The other side is gone."""


class Overdue(Exception):
    """The other side did not answer in time."""


class Channel:
    """One end of a connection: a socket, the memory that this side writes, and the memory that the other writes.

    ``alive`` is asked from time to time whether the other process is still there: one that it left behind may hold the
    socket open.
    """

    def __init__(
        self, connection: socket.socket, outgoing: int, incoming: int, alive: Callable[[], bool] = lambda: True
    ):
        self._socket = connection
        self._outgoing, self._incoming = Segment(outgoing), Segment(incoming)
        self._alive = alive
        self._timeout: float | None = None
        self._buffer = bytearray()
        self._sent: Layout | None = None
        self._received: Layout = []

    def send(
        self, number: int, message: Any, arrays: Mapping[str, np.ndarray] = _NO_ARRAYS, until: float | None = None
    ) -> None:
        """Send a message; ``Closed`` or ``Overdue`` where the other side does not take it until then (``receive``)."""
        layout: Layout | None = self._outgoing.write(arrays) if arrays else []
        if arrays:
            layout, self._sent = (None if layout is self._sent else layout), layout
        frame = pack([number, message, layout])
        rest = memoryview(_LENGTH.pack(len(frame)) + frame)
        while rest:
            self._wait_at_most(until)
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                self._look()
            except BlockingIOError:
                raise Overdue from None
            except OSError:
                raise Closed from None

    def receive(self, until: float | None = None) -> tuple[int, Any, dict[str, np.ndarray]]:
        """The next message: its number, what it says, and its arrays; waits until ``time.monotonic()`` is ``until``."""
        self._fill(_LENGTH.size, until)
        (length,) = _LENGTH.unpack_from(self._buffer)
        end = _LENGTH.size + length
        self._fill(end, until)  # nothing is taken before all is there: one that is interrupted here may ask again
        number, message, layout = unpack(bytes(self._buffer[_LENGTH.size : end]))
        del self._buffer[:end]
        if layout is None:
            layout = self._received
        elif layout:
            self._received = layout
        return number, message, self._incoming.read(layout) if layout else {}

    def close(self) -> None:
        """Let go of socket and memory."""
        self._socket.close()
        self._outgoing.close()
        self._incoming.close()

    def _fill(self, count: int, until: float | None) -> None:
        """Have at least ``count`` bytes in the buffer."""
        while len(self._buffer) < count:
            self._wait_at_most(until)
            try:
                chunk = self._socket.recv(max(_CHUNK, count - len(self._buffer)))
            except TimeoutError:
                self._look()
                continue
            except BlockingIOError:
                raise Overdue from None
            except OSError:
                raise Closed from None
            if not chunk:
                raise Closed
            self._buffer += chunk

    def _wait_at_most(self, until: float | None) -> None:
        """Let the socket's next operation end by ``until``, and soon enough to look after the other process.

        Later than that it does not wait, and takes what is there already.
        """
        seconds = None
        if until is not None:
            seconds = max(min(until - time.monotonic(), _PATIENCE), 0.0)
        if seconds != self._timeout:
            self._socket.settimeout(seconds)
            self._timeout = seconds

    def _look(self) -> None:
        if not self._alive():
            raise Closed
