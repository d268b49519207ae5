"""A policy that lives in a worker process, maybe of another Python interpreter: the host's end."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simeval.errors import HostError, MissingPackageError, UnsupportedError
from simeval.host.description import conventions_from_plain, keys_to_plain
from simeval.host.interpreter import Interpreter
from simeval.host.parts import put_together, taken_apart
from simeval.host.policy_service import spec_to_plain
from simeval.host.process import Lost, WorkerProcess
from simeval.host.world import DEADLINE
from simeval.noise import StepKey
from simeval.policy import SNAPSHOT, Memory, Policy, PolicyStep
from simeval.settings import positive
from simeval.types import Observation, WorldSpec

_BUILDING = 10.0
"""Building a policy may take so many times the deadline of a call, and no less than ``_LEAST_BUILDING`` seconds."""
_LEAST_BUILDING = 120.0


class HostedPolicy(Policy):
    """The policy that ``config`` describes (``_target_`` and its arguments), in a worker process.

    ``python``: the worker's interpreter, which needs numpy, gymnasium, msgpack and what the policy itself imports, and
    is shown this installation of simeval and of its policies. A worker that ends, or takes longer than ``deadline``
    seconds for a call, is killed, and another is asked, as a policy keeps nothing between calls; ``RuntimeError`` if
    that one ends too.
    """

    def __init__(
        self, config: Mapping[str, Any], *, python: str | None = None, deadline: float = DEADLINE, label: str = ""
    ):
        """``label``: what the policy is called in errors."""
        what = label or "hosted policy"
        self._link = _Link(config, Interpreter.of(python), positive("host.deadline", deadline), what)
        self._spec: WorldSpec | None = None
        try:
            self._assume(self._link.declared)
        except BaseException:
            self._link.close()
            raise

    def _assume(self, declared: Mapping[str, Any]) -> None:
        self.observation_keys = tuple(declared["observation_keys"])
        if SNAPSHOT in self.observation_keys:
            raise UnsupportedError(
                "a policy that reads the World's snapshot cannot be hosted; leave its host.python out"
            )
        self.conventions = conventions_from_plain(declared["conventions"])
        self.batch_size = declared["batch_size"]
        self._fingerprint = declared["fingerprint"]

    def bind(self, spec: WorldSpec) -> Policy:
        """See ``Policy.bind``; the two share a worker."""
        bound = object.__new__(HostedPolicy)
        bound._link, bound._spec = self._link, spec
        bound._assume(self._link.bound(spec)[1])
        return bound

    @property
    def python(self) -> str:
        """The interpreter that it runs in."""
        return self._link.python.path

    @property
    def fingerprint(self) -> str:
        """See ``Policy.fingerprint``: the same as in one process."""
        return self._fingerprint

    def initial_memory(self, n: int) -> Memory:
        """See ``Policy.initial_memory``."""
        return self._link.ask("initial_memory", self._spec, {"n": n}, {})

    def due(self, memory: Memory) -> np.ndarray | None:
        """See ``Policy.due``."""
        plain, arrays = taken_apart(memory)
        return self._link.ask("due", self._spec, {"memory": plain}, arrays)["due"]

    def act(
        self, observation: Observation, instruction: Sequence[str], memory: Memory, keys: Sequence[StepKey]
    ) -> PolicyStep:
        """See ``Policy.act``."""
        given, arrays = taken_apart({"observation": observation, "memory": memory})
        arguments = {"given": given, "instruction": list(instruction), "keys": keys_to_plain(keys)}
        return PolicyStep(**self._link.ask("act", self._spec, arguments, arrays))

    def close(self) -> None:
        """End the worker."""
        self._link.close()


class _Link:
    """The worker process, replaced when it ends, and what is bound in it."""

    def __init__(self, config: Mapping[str, Any], python: Interpreter, deadline: float, what: str):
        self.python = python
        self._arguments = {"config": dict(config), "what": what}
        self._deadline, self._what = deadline, what
        self._start()

    @property
    def declared(self) -> Any:
        """What the policy declares before it is bound; waits until it is built."""
        try:
            return self._worker.ready()
        except Lost as error:
            raise HostError(f"{error}; its policy was never built") from None
        except MissingPackageError as error:
            if self.python.foreign:
                error.args = (f"{error} (by {self.python.path} -m pip: this policy runs in that interpreter)",)
            raise

    def bound(self, spec: WorldSpec | None) -> tuple[int, Any]:
        """The number of the policy bound to ``spec`` in this worker, and what it declares."""
        if spec is None:
            return 0, self.declared
        if id(spec) not in self._numbers:
            _ = self.declared
            number, declared = self._worker.call("bind", {"spec": spec_to_plain(spec)}, seconds=self._deadline)[0]
            self._numbers[id(spec)] = (spec, number, declared)
        _, number, declared = self._numbers[id(spec)]
        return number, declared

    def ask(
        self, method: str, spec: WorldSpec | None, arguments: dict[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Any:
        """What a method of the policy gives; a second time, in a new worker, where the first one ends."""
        for _ in range(2):
            try:
                number, _ = self.bound(spec)
                call = arguments | {"policy": number}
                return put_together(*self._worker.call(method, call, arrays, seconds=self._deadline))
            except Lost as error:
                last = error
                self._start()
        raise RuntimeError(f"{last}; so did the process before it")

    def close(self) -> None:
        self._worker.close()

    def _start(self) -> None:
        seconds = max(_LEAST_BUILDING, _BUILDING * self._deadline)
        self._worker = WorkerProcess("policy", self._arguments, self._what, self.python, seconds)
        self._numbers: dict[int, tuple[WorldSpec, int, Any]] = {}
