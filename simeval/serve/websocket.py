"""The websocket server: connections on an event loop, inference elsewhere, so that pings never wait for a policy."""

import asyncio
import hmac
import http
import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from simeval.errors import MissingPackageError
from simeval.serve.batching import Batcher, Stopped
from simeval.serve.dialects import Dialect
from simeval.serve.messages import MessageError, pack, unpack
from simeval.serve.service import Answer, Failure, Request

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request as Handshake
    from websockets.http11 import Response

LARGEST = 256 << 20
"""The largest message that is taken [bytes]."""
_LOG = logging.getLogger(__name__)


class WebsocketServer:
    """Serves a dialect at ``host:port`` (0: a free one) from a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, dialect: Dialect, batcher: Batcher, host: str, port: int, api_key: str | None):
        self._dialect = dialect
        self._batcher = batcher
        self._host = host
        self._port = port
        self._expected = None if api_key is None else f"Api-Key {api_key}"
        self._ready: Future[int] = Future()
        self._stop: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="simeval-websocket", daemon=True)

    def start(self) -> str:
        """Begin to listen; returns the address. ``OSError`` where the port is taken."""
        self._thread.start()
        return f"ws://{self._host}:{self._ready.result()}"

    def stop(self) -> None:
        """Take no more connections, close those there are (code 1001), and return when all is over."""
        if not self._stop.done():
            self._stop.set_result(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _main(self) -> None:
        try:
            from websockets.asyncio.server import serve
        except ModuleNotFoundError:
            raise MissingPackageError("the websocket server's library", "'simeval[serve]'") from None
        async with serve(
            self._converse,
            self._host,
            self._port,
            compression=None,
            max_size=LARGEST,
            process_request=self._admit,
        ) as server:
            self._ready.set_result(next(iter(server.sockets)).getsockname()[1])
            await asyncio.wrap_future(self._stop)

    def _admit(self, connection: "ServerConnection", request: "Handshake") -> "Response | None":
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        given = request.headers.get("Authorization", "")
        if self._expected is not None and not hmac.compare_digest(given.encode(), self._expected.encode()):
            return connection.respond(
                http.HTTPStatus.UNAUTHORIZED, "this server wants the header 'Authorization: Api-Key <key>'\n"
            )
        return None

    async def _converse(self, connection: "ServerConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        conversation, total = self._dialect.begin(), None
        try:
            with self._batcher.client():
                await connection.send(pack(self._dialect.metadata))
                while True:
                    message = await connection.recv()
                    began = time.monotonic()
                    try:
                        heard = conversation.hear(unpack(message if isinstance(message, bytes) else message.encode()))
                    except MessageError as error:
                        await self._fail(connection, str(error))
                        return
                    if not isinstance(heard, Request):
                        await connection.send(heard)
                        continue
                    answer = await self._answer(heard)
                    if isinstance(answer, Failure):
                        await self._fail(connection, answer.text)
                        return
                    timing = {"infer_ms": 1e3 * (time.monotonic() - began)}
                    if total is not None:
                        timing["prev_total_ms"] = 1e3 * total
                    await connection.send(pack(answer | {"server_timing": timing, "policy_timing": {}}))
                    total = time.monotonic() - began
        except (ConnectionClosed, Stopped):
            return

    async def _answer(self, request: Request) -> Answer:
        return await asyncio.wrap_future(self._batcher.submit(request))

    async def _fail(self, connection: "ServerConnection", text: str) -> None:
        """openpi's way to fail: the reason as a text frame, then the end of the connection."""
        _LOG.error("%s: %s", connection.remote_address, text.strip())
        await connection.send(text)
        await connection.close(code=1011, reason="the reason is in the frame before")
