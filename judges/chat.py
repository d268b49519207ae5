"""A model behind OpenAI's chat-completions protocol (vLLM, llama.cpp, Ollama and others speak it)."""

import http.client
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from simeval.errors import ConfigError, SimevalError
from simeval.settings import positive, whole

_LONGEST_WAIT = 60.0
_LARGEST = 4 << 20
_AGAIN = frozenset({408, 409, 425, 429})
"""Refusals that another attempt may overcome, beside the server's own failures (5xx)."""


class ChatError(SimevalError):
    """A server that cannot be reached, or that refuses every such request: nobody can be asked anything."""


class Unanswered(Exception):
    """This question got no answer, after all attempts; another may."""


class Chat:
    """Asks ``model`` at ``url`` (…/v1).

    An attempt ends after ``timeout`` [s] of silence; there are ``retries`` more of them, after waits that begin at
    ``wait`` [s] and double, or as long as the server asks for. ``api_key_env``: the environment variable that holds
    the key, if one is needed.
    """

    def __init__(self, url: str, model: str, timeout: float, retries: int, wait: float, api_key_env: str | None = None):
        parts = urlsplit(str(url))
        try:
            self._address = (parts.hostname or "", parts.port)
        except ValueError:
            self._address = ("", None)
        if parts.scheme not in ("http", "https") or not self._address[0]:
            raise ConfigError(f"judge.url is {url!r}; give the address of the server, such as http://localhost:8000/v1")
        self._connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url, self._path = str(url), f"{parts.path.rstrip('/')}/chat/completions"
        self._model = str(model)
        self._timeout, self._wait = positive("judge.timeout", timeout), positive("judge.wait", wait)
        self._retries = whole("judge.retries", retries, 0)
        self._headers = {"Content-Type": "application/json"}
        key = os.environ.get(api_key_env) if api_key_env else None
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def ask(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> str:
        """The text of the answer to ``messages``; ``fields`` go into the request.

        ``Unanswered`` where there is none after all attempts; ``ChatError`` where there will never be.
        """
        body = json.dumps({"model": self._model, "messages": list(messages), **fields}).encode()
        for attempt in range(self._retries + 1):
            wait = min(self._wait * 2**attempt, _LONGEST_WAIT)
            reached = True
            try:
                status, asked, data = self._post(body)
                if status == 200:
                    return _text(data)
                reason = f"HTTP {status}{_said(data)}"
                if status < 500 and status not in _AGAIN:
                    raise ChatError(f"{self._url} refuses requests for model {self._model!r}: {reason}")
                wait = max(wait, min(asked, _LONGEST_WAIT))
            except TimeoutError:
                reason = f"no answer within {self._timeout:g} s"
            except (http.client.HTTPException, ConnectionResetError, BrokenPipeError) as error:
                reason = f"{type(error).__name__}: {error}"
            except OSError as error:
                reached, reason = False, f"{type(error).__name__}: {error}"
            except ValueError as error:
                reason = f"an answer that is none of this protocol ({error})"
            if attempt < self._retries:
                time.sleep(wait)
        if not reached:
            raise ChatError(f"no server answers at {self._url} ({reason}); start it, and judge again to go on")
        raise Unanswered(reason)

    def _post(self, body: bytes) -> tuple[int, float, bytes]:
        """Status, the wait that the server asks for [s], and body."""
        connection = self._connect(*self._address, timeout=self._timeout)
        try:
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            data = response.read(_LARGEST)
            asked = response.getheader("Retry-After") or ""
            return response.status, float(asked) if asked.isdecimal() else 0.0, data
        finally:
            connection.close()


def _text(data: bytes) -> str:
    """The text of an answer; ``ValueError`` for what is none."""
    answer = json.loads(data)
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"it has no choices[0].message.content: {error!r}") from None
    if not isinstance(text, str):
        raise ValueError(f"its content is {text!r}")
    return text


def _said(data: bytes) -> str:
    """What a server says of its refusal, in one line."""
    text = data.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        pass
    line = " ".join(text.split())[:200]
    return f" ({line})" if line else ""
