"""One worker process and its supervision: started afresh, never forked; asked, waited for, and killed when it hangs."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from simeval.errors import HostError
from simeval.host.boot import REFUSED
from simeval.host.faults import rebuilt
from simeval.host.interpreter import Interpreter
from simeval.host.segment import new_segment
from simeval.host.wire import PROTOCOL, Channel, Closed, Overdue

_LAST_WORDS = 4000
"""How much of a worker's output is kept [bytes]."""
_CLOSING = 10.0
"""How long a worker may take to close what it holds [s]."""
_LEAVING = 2.0
"""How long a process may take to end after its connection has [s]."""
_NO_ARRAYS: Mapping[str, np.ndarray] = {}


class Lost(Exception):
    """The process has ended, by itself or because it was killed for not answering; the message says how."""


class WorkerProcess:
    """A process that serves one object, built there from plain data: methods are asked by name and answered in order.

    ``service`` is a kind of ``simeval.host.worker.SERVICES``; ``label`` is what it is called in errors. The process
    is started at once, and ``ready`` waits until the object is built. Methods raise ``Lost`` once it has ended.
    """

    def __init__(
        self, service: str, arguments: Mapping[str, Any], label: str, interpreter: Interpreter, seconds: float
    ):
        """``seconds``: how long building the object may take."""
        self._label = label
        self._number = 0
        self._asked = "starting"
        self._until = time.monotonic() + seconds
        self._reason: str | None = None
        self._tail = bytearray()
        self._description: Any = None
        self._python = interpreter
        self._start()
        self.send("build", {"protocol": PROTOCOL, "service": service, **arguments}, seconds=seconds)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether the object is known to have been built."""
        return self._description is not None

    def ready(self) -> Any:
        """What the service says of the object that it has built; the error, if building it failed."""
        if self._description is None:
            protocol, self._description = self.collect()[0]
            if protocol != PROTOCOL:
                self.kill("it speaks another protocol")
                raise HostError(
                    f"{self._label}: the worker in {self._python.path} speaks {protocol}, and this is {PROTOCOL}; "
                    "it imported another version of simeval: remove that from its environment"
                )
        return self._description

    def send(
        self, method: str, arguments: Any, arrays: Mapping[str, np.ndarray] = _NO_ARRAYS, seconds: float = 60.0
    ) -> None:
        """Ask for something, without waiting; ``seconds``: how long the answer may take."""
        if self._reason is not None:
            raise Lost(self._reason)
        self._number += 1
        self._asked, self._seconds = method, seconds
        self._until = time.monotonic() + seconds
        try:
            self._channel.send(self._number, [method, arguments], arrays, self._until)
        except (Closed, Overdue) as error:
            self._lose(error)

    def collect(self) -> tuple[Any, dict[str, np.ndarray]]:
        """The answer to what was asked last: plain data, and arrays that are valid until more is asked.

        Raises what the method raised there.
        """
        if self._reason is not None:
            raise Lost(self._reason)
        while True:
            try:
                number, (status, value), arrays = self._channel.receive(self._until)
            except (Closed, Overdue) as error:
                self._lose(error)
            if number == self._number:  # an older one answers a question whose asker was interrupted
                break
        if status == "error":
            raise rebuilt(value)
        return value, arrays

    def call(
        self, method: str, arguments: Any, arrays: Mapping[str, np.ndarray] = _NO_ARRAYS, seconds: float = 60.0
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """``send`` and ``collect``."""
        self.send(method, arguments, arrays, seconds)
        return self.collect()

    def leave(self) -> None:
        """Ask the worker to close what it holds, without waiting; one that is still building is not asked."""
        if self.is_ready and self._reason is None:
            with contextlib.suppress(Lost):
                self.send("close", {}, seconds=_CLOSING)

    def close(self) -> None:
        """Let the worker close what it holds, and end it; killed if it does not. Closing twice is harmless."""
        if self._reason is None:
            if self._asked != "close":
                self.leave()
            with contextlib.suppress(Exception):  # whatever it says, it ends now
                if self._asked == "close":
                    self.collect()
                    self._process.wait(_CLOSING)
            self.kill("it was closed")

    def kill(self, reason: str) -> None:
        """End the process and all that it has started."""
        if self._reason is None:
            self._reason = f"{self._label}: process {self.pid}: {reason}"
            self._end()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_LEAVING)
        self._channel.close()

    def _start(self) -> None:
        here, there = socket.socketpair()
        requests, answers = new_segment(), new_segment()
        output, into = os.pipe()
        try:
            with there:
                descriptors = (there.fileno(), answers, requests)
                self._process = subprocess.Popen(
                    self._python.command(descriptors),
                    stdin=subprocess.DEVNULL,
                    stdout=into,
                    stderr=into,
                    env=self._python.environment(),
                    pass_fds=descriptors,
                    start_new_session=True,  # Ctrl-C is for the host to hear; and what it starts can be ended with it
                )
        except OSError as error:
            for descriptor in (requests, answers, output):
                os.close(descriptor)
            here.close()
            raise HostError(f"{self._label}: {self._python.path} cannot be started: {error}") from None
        finally:
            os.close(into)
        self._channel = Channel(here, requests, answers, alive=lambda: self._process.poll() is None)
        self._reader = threading.Thread(target=self._read_output, args=(output,), daemon=True)
        self._reader.start()

    def _read_output(self, descriptor: int) -> None:
        with open(descriptor, "rb", buffering=0) as output:
            while chunk := output.read(_LAST_WORDS):
                self._tail = (self._tail + chunk)[-_LAST_WORDS:]

    def _lose(self, error: Closed | Overdue) -> NoReturn:
        """Note how the process ended, end what is left of it, and raise ``Lost``."""
        if isinstance(error, Overdue):
            how = f"did not answer to {self._asked!r} within {self._seconds:g} s and was killed"
        else:
            self._wait_for_end()
            how = f"{_how_it_ended(self._process.poll())} in {self._asked!r}"
        self._reason = f"{self._label}: process {self.pid} {how}"
        self._end()
        words = self._tail.decode(errors="replace").strip()
        if self._process.returncode == REFUSED and self._description is None:
            raise HostError(f"{self._label}: {words.splitlines()[-1]}") from None
        if self._description is None and self._python.foreign and not self._python.is_python():
            raise HostError(
                f"{self._label}: host.python={self._python.path} is not a Python interpreter; name the python of a "
                "virtual environment, e.g. /path/to/venv/bin/python"
            ) from None
        if words:
            self._reason = f"the last it wrote:\n{words}\n{self._reason}"
        raise Lost(self._reason) from None

    def _wait_for_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVING)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "hung up and was killed"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
