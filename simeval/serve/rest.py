"""OpenVLA's protocol: ``POST /act`` with JSON and json-numpy's arrays; one action comes back, or ``"error"``."""

import hmac
import logging
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from simeval.errors import SimevalError, UnsupportedError
from simeval.serve.batching import Batcher
from simeval.serve.messages import from_json, to_json
from simeval.serve.service import Failure, PolicyService

_LARGEST = 64 << 20
_LOG = logging.getLogger(__name__)


class RestServer:
    """Serves ``/act`` and ``/healthz`` at ``host:port`` (0: a free one), from ``start`` to ``stop``.

    A request is an action's whole context: a policy that remembers is refused. A policy that predicts chunks answers
    with the first action of a new one. A payload ``{"encoded": TEXT}`` is answered by encoded text, as OpenVLA does.
    """

    def __init__(self, service: PolicyService, batcher: Batcher, host: str, port: int, api_key: str | None):
        if service.remembers:
            raise UnsupportedError(
                "this policy remembers, and OpenVLA's protocol knows no episodes; serve it with serve.dialect=openpi"
            )
        self._host = host
        self._http = ThreadingHTTPServer((host, port), _handler(service, batcher, api_key))
        self._thread = threading.Thread(target=self._http.serve_forever, name="simeval-rest", daemon=True)

    def start(self) -> str:
        """Begin to listen; returns the address."""
        self._thread.start()
        return f"http://{self._host}:{self._http.server_address[1]}"

    def stop(self) -> None:
        """Take no more requests."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _handler(service: PolicyService, batcher: Batcher, api_key: str | None) -> type[BaseHTTPRequestHandler]:
    expected = None if api_key is None else f"Api-Key {api_key}"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with batcher.client():
                super().handle()

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._reply(HTTPStatus.OK, "OK\n", "text/plain")
            else:
                self._reply(HTTPStatus.NOT_FOUND, "post an observation to /act\n", "text/plain")

        def do_POST(self) -> None:
            given = self.headers.get("Content-Length", "")
            length = int(given) if given.isdecimal() else _LARGEST + 1
            if length > _LARGEST:
                self.close_connection = True
                self._reply(HTTPStatus.LENGTH_REQUIRED, "a Content-Length of at most 64 MiB\n", "text/plain")
                return
            body = self.rfile.read(length)
            if self.path != "/act":
                self._reply(HTTPStatus.NOT_FOUND, "post an observation to /act\n", "text/plain")
            elif expected is not None and not hmac.compare_digest(
                self.headers.get("Authorization", "").encode(), expected.encode()
            ):
                self._reply(HTTPStatus.UNAUTHORIZED, "expected 'Authorization: Api-Key <key>'\n", "text/plain")
            else:
                self._reply(HTTPStatus.OK, self._act(body), "application/json")

        def _act(self, body: bytes) -> str:
            try:
                payload = from_json(body)
                encoded = isinstance(payload, dict) and payload.keys() == {"encoded"}
                if encoded:
                    payload = from_json(payload["encoded"])
                request = service.read(payload, service.session(), prompt="instruction")
                answer = batcher.submit(request).result()
            except SimevalError as error:
                answer = Failure(str(error))
            if isinstance(answer, Failure):
                _LOG.error("%s: %s", self.client_address, answer.text.strip())
                return '"error"'
            action = to_json(answer["actions"][0])
            return to_json(action) if encoded else action

        def _reply(self, status: HTTPStatus, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            _LOG.debug(format, *args)

    return Handler
