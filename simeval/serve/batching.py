"""Requests of many clients, answered together by one thread."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from simeval.errors import SimevalError
from simeval.serve.service import Answer, Request
from simeval.settings import whole


class Stopped(SimevalError):
    """The server is being shut down."""


class Batcher:
    """Calls ``answer`` with up to ``max_batch`` requests at a time, in a thread of its own.

    What comes while it computes waits for the next call. A call with room left waits up to ``wait_s`` [s] for more, and
    not at all once every client has asked: one alone is answered at once. Who shares a call makes no difference to a
    result, since row i of a policy's answer depends on row i alone.
    """

    def __init__(
        self, answer: Callable[[Sequence[Request]], Sequence[Answer]], max_batch: int = 16, wait_s: float = 0.005
    ):
        self._answer = answer
        self._max_batch = whole("max_batch", max_batch)
        self._wait_s = wait_s
        self._waiting: deque[tuple[Request, Future[Answer]]] = deque()
        self._changed = threading.Condition()
        self._clients = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="simeval-serve", daemon=True)
        self._thread.start()

    @contextmanager
    def client(self) -> Iterator[None]:
        """Count a client for as long as it is connected."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def submit(self, request: Request) -> "Future[Answer]":
        """Have a request answered; the future never fails but by ``Stopped``."""
        future: Future[Answer] = Future()
        with self._changed:
            if self._stopped:
                raise Stopped("the server is being shut down")
            self._waiting.append((request, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Finish the call at work, fail what waits, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _count(self, change: int) -> None:
        with self._changed:
            self._clients += change
            self._changed.notify()

    def _work(self) -> None:
        while batch := self._next():
            asked = [(request, future) for request, future in batch if future.set_running_or_notify_cancel()]
            answers = self._answer([request for request, _ in asked]) if asked else []
            for (_, future), answer in zip(asked, answers, strict=True):
                future.set_result(answer)
        for _, future in self._waiting:
            future.set_exception(Stopped("the server is being shut down"))

    def _next(self) -> list[tuple[Request, "Future[Answer]"]]:
        """The next batch; an empty one when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._waiting)
            until = time.monotonic() + self._wait_s
            while not self._stopped and len(self._waiting) < min(self._max_batch, self._clients):
                if (left := until - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            if self._stopped:
                return []
            count = min(self._max_batch, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]
