"""Connections to a policy server, one request at a time on each, and errors that say what came instead of an answer."""

import http.client
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from simeval.errors import ConfigError, MissingPackageError, SimevalError
from simeval.serve.messages import MessageError, from_json, pack, to_json, unpack


class ServerError(SimevalError):
    """A policy server that cannot be reached, does not answer in time, or answers with what is no answer."""


class Disconnected(Exception):
    """The connection ended, or was not made; another may do."""


class Link(ABC):
    """One connection. Making it raises ``Disconnected`` where another attempt may do, or ``SimevalError``."""

    greeting: Mapping[str, Any]
    """What the server said first; nothing where its protocol has no such message."""

    @staticmethod
    @abstractmethod
    def encode(message: Mapping[str, Any]) -> bytes:
        """A message as it is sent."""

    @abstractmethod
    def ask(self, data: bytes) -> Mapping[str, Any]:
        """The answer to one encoded observation; ``ServerError``, or ``Disconnected``."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable: run folders record configurations, and would record the key."""
    return os.environ.get(variable) if variable else None


def _hint(code: int) -> str:
    return "; does the environment variable that policy.api_key_env names hold its key?" if code in (401, 403) else ""


def _late(url: str, timeout: float) -> ServerError:
    return ServerError(
        f"the policy server at {url} did not answer within {timeout:g} s; raise policy.timeout if it may take longer"
    )


class WebsocketLink(Link):
    """openpi's protocol: the server speaks first, then a binary message each way; text is the server's traceback."""

    def __init__(self, url: str, timeout: float, key: str | None):
        try:
            from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
            from websockets.sync.client import connect
        except ModuleNotFoundError:
            raise MissingPackageError("websockets, which policy servers speak,", "'simeval[serve]'") from None
        self._url, self._timeout = url, timeout
        self._stack = ExitStack()
        headers = None if key is None else {"Authorization": f"Api-Key {key}"}
        try:
            # Servers compute on their event loop and answer no pings meanwhile: the time-out says who is dead.
            self._connection = self._stack.enter_context(
                connect(
                    url,
                    compression=None,
                    max_size=None,
                    additional_headers=headers,
                    open_timeout=timeout,
                    close_timeout=1.0,
                    ping_interval=None,
                )
            )
        except InvalidURI as error:
            raise ConfigError(f"{url!r} is no websocket address ({error}); use ws://host:port") from None
        except InvalidStatus as error:
            if (code := error.response.status_code) >= 500:
                raise Disconnected(f"HTTP {code}") from error
            raise ServerError(
                f"what answers at {url} makes no websocket connection: HTTP {code}{_hint(code)}"
            ) from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise Disconnected(f"{type(error).__name__}: {error}") from error
        try:
            self.greeting = self._map(self._receive(), "its metadata")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def encode(message: Mapping[str, Any]) -> bytes:
        """See ``Link.encode``."""
        return pack(message)

    def ask(self, data: bytes) -> Mapping[str, Any]:
        """See ``Link.ask``."""
        from websockets.exceptions import ConnectionClosed

        try:
            self._connection.send(data)
        except (ConnectionClosed, OSError) as error:
            raise Disconnected(f"{type(error).__name__}: {error}") from error
        return self._map(self._receive(), "an answer")

    def close(self) -> None:
        """See ``Link.close``."""
        self._stack.close()

    def _receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            data = self._connection.recv(self._timeout)
        except TimeoutError:
            raise _late(self._url, self._timeout) from None
        except (ConnectionClosed, OSError) as error:
            raise Disconnected(f"{type(error).__name__}: {error}") from error
        if isinstance(data, str):
            lines = data.strip().splitlines() or ["no reason given"]
            raise ServerError(f"{data.strip()}\nthe policy server at {self._url} failed as above: {lines[-1]}")
        return data

    def _map(self, data: bytes, what: str) -> Mapping[str, Any]:
        try:
            value = unpack(data)
        except MessageError as error:
            raise ServerError(f"the policy server at {self._url} sent, as {what}, {error}") from error
        if not isinstance(value, Mapping):
            raise ServerError(
                f"the policy server at {self._url} sent, as {what}, a {type(value).__name__}; expected a map"
            )
        return value


class RestLink(Link):
    """OpenVLA's protocol: ``POST /act``; the action comes back, or the text ``"error"``."""

    def __init__(self, url: str, timeout: float, key: str | None):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of an OpenVLA server; use http://host:port")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._url, self._path, self._timeout = url, f"{parts.path.rstrip('/')}/act", timeout
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Api-Key {key}"
        self.greeting: Mapping[str, Any] = {}
        try:
            self._connection.connect()
        except OSError as error:
            raise Disconnected(f"{type(error).__name__}: {error}") from error

    @staticmethod
    def encode(message: Mapping[str, Any]) -> bytes:
        """See ``Link.encode``."""
        return to_json(dict(message)).encode()

    def ask(self, data: bytes) -> Mapping[str, Any]:
        """See ``Link.ask``."""
        try:
            self._connection.request("POST", self._path, data, self._headers)
            response = self._connection.getresponse()
            body = response.read()
        except TimeoutError:
            raise _late(self._url, self._timeout) from None
        except (http.client.HTTPException, OSError) as error:
            raise Disconnected(f"{type(error).__name__}: {error}") from error
        if response.status != 200:
            code = response.status
            raise ServerError(f"the policy server at {self._url} answered HTTP {code}{_hint(code)}")
        try:
            action = from_json(body)
            action = from_json(action) if isinstance(action, str) and action != "error" else action
        except MessageError as error:
            raise ServerError(f"the policy server at {self._url} sent {error}") from error
        if isinstance(action, str):
            raise ServerError(f"the policy server at {self._url} answered 'error'; its own log says why")
        return {"actions": [action]}

    def close(self) -> None:
        """See ``Link.close``."""
        self._connection.close()
