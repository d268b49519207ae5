"""A policy server as a whole: its connections, requests side by side, and back-off where it does not answer."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from policies.remote.links import Disconnected, Link, RestLink, ServerError, WebsocketLink, api_key
from simeval.errors import ConfigError
from simeval.noise import StepKey
from simeval.settings import positive, whole

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Between two attempts to connect [s]: the first, doubled each time up to the longest."""


class Server:
    """A policy server by way of up to ``connections`` links, which carry requests side by side.

    Where no link can be made, it is tried again with growing pauses for ``patience`` [s]; after that in vain, later
    requests try once. A request whose link ends under it is sent once more over a new one. Nothing here changes an
    answer: links are interchangeable.
    """

    def __init__(
        self,
        connect: Callable[[], Link],
        encode: Callable[[Mapping[str, Any]], bytes],
        url: str,
        connections: int,
        patience: float,
    ):
        self.url = url
        self._encode = encode
        self.connections = whole("connections", connections)
        self._connect = connect
        self._patience = patience
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._given_up = False
        self._pool: ThreadPoolExecutor | None = None
        link = self._new()
        self.greeting = link.greeting
        self._idle.append(link)

    @classmethod
    def of(
        cls,
        link: type[WebsocketLink] | type[RestLink],
        url: str,
        connections: int,
        timeout: float,
        patience: float,
        api_key_env: str | None,
    ) -> "Server":
        """A server whose links are ``link(url, timeout, key)``; ``ServerError`` where there is none."""
        if not isinstance(url, str):
            raise ConfigError(f"policy.url is an address such as ws://localhost:8000; received {url!r}")
        seconds = positive("timeout", timeout)

        def connect() -> Link:
            return link(url, seconds, api_key(api_key_env))

        return cls(connect, link.encode, url, connections, positive("patience", patience))

    def ask(self, messages: Sequence[Mapping[str, Any]], keys: Sequence[StepKey]) -> list[Mapping[str, Any]]:
        """The answer to each message; equal ones under equal keys, as in a padded batch, are sent once.

        Where several fail, the error is that of the first.
        """
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.connections, thread_name_prefix="simeval-remote")
        named = [(self._encode(message), key) for message, key in zip(messages, keys, strict=True)]
        futures = {name: self._pool.submit(self._ask, name[0]) for name in dict.fromkeys(named)}
        wait(futures.values())
        return [futures[name].result() for name in named]

    def close(self) -> None:
        """End all links; closing twice is harmless."""
        self._drop()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _ask(self, data: bytes) -> Mapping[str, Any]:
        lost: Disconnected | None = None
        for _ in range(2):
            link = self._take()
            try:
                answer = link.ask(data)
            except Disconnected as error:
                lost = error
                link.close()
                self._drop()
            except BaseException:
                link.close()  # an answer that came too late would be taken for that of the next request
                raise
            else:
                with self._lock:
                    self._idle.append(link)
                return answer
        raise ServerError(
            f"the policy server at {self.url} ended the connection before it answered, twice in a row ({lost}); "
            "its own log says why"
        ) from lost

    def _take(self) -> Link:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._new()

    def _new(self) -> Link:
        began, pause, attempts = time.monotonic(), _FIRST_PAUSE, 0
        while True:
            attempts += 1
            try:
                link = self._connect()
            except Disconnected as error:
                spent = time.monotonic() - began
                if self._given_up or spent + pause > self._patience:
                    self._given_up = True
                    raise ServerError(
                        f"no policy server answers at {self.url} ({error}; {attempts} attempts in {spent:.1f} s); "
                        "start it, e.g. with `simeval serve policy=…`, or set policy.url"
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._given_up = False
                return link

    def _drop(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()
