"""Protocols as generators, and the schedule that advances many of them at once.

A protocol yields rounds of rollouts and receives their finished episodes in the order asked. What it asks depends
only on what it received, so neither timing nor the number of slots can change it.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simeval.episode import Episode
from simeval.types import Rollout


@dataclass(frozen=True, slots=True)
class Drop:
    """In a round, a rollout of the design that is not to be run, and why; the record keeps both, none comes back."""

    rollout: Rollout
    reason: str


class Parallel:
    """What :func:`parallel` yields: protocols to run side by side, started as slots come free."""

    def __init__(self, protocols: Iterable["Protocol"]):
        self.protocols = protocols


Protocol = Generator[Sequence[Rollout | Drop] | Parallel, list[Any], Any]
"""A generator that yields rounds of rollouts (or ``Parallel``), receives a list, and returns anything."""


def parallel(*protocols: Protocol) -> Protocol:
    """A protocol that runs many, each advancing by itself; returns the list of what they return, in order."""
    return parallel_iter(protocols)


def parallel_iter(protocols: Iterable[Protocol]) -> Protocol:
    """:func:`parallel` over an iterable, which is consumed only as fast as slots come free."""
    return (yield Parallel(protocols))


class _Task:
    """One running protocol: what it waits for, and whom it reports to."""

    def __init__(self, protocol: Protocol, report: Callable[[Any], None]):
        self.protocol = protocol
        self.report = report
        self.received: list[Any] = []
        self.waiting = 0


class _Brood:
    """The children of one ``Parallel``: started lazily, their results kept in order."""

    def __init__(self, children: Iterator[Protocol], task: _Task):
        self.children = children
        self.task = task
        self.results: list[Any] = []
        self.running = 0
        self.exhausted = False


class Schedule:
    """Turns a protocol into rollouts to be run, and finished episodes into the protocol's next questions.

    ``recall`` gives an episode that is recorded already (or none); ``submit`` takes a rollout to be run, ``drop`` one
    that is not. A rollout that is asked for twice is run once.
    """

    def __init__(
        self,
        protocol: Protocol,
        recall: Callable[[str], Episode | None],
        submit: Callable[[Rollout], None],
        drop: Callable[[Rollout, str], None] = lambda rollout, reason: None,
    ):
        self.finished = False
        self.result: Any = None
        self._recall = recall
        self._submit = submit
        self._drop = drop
        self._waiters: dict[str, list[tuple[_Task, int]]] = {}
        self._broods: deque[_Brood] = deque()
        self._ready: deque[tuple[_Task, Any]] = deque()
        self._ready.append((_Task(protocol, self._finish), None))

    @property
    def outstanding(self) -> int:
        """Rollouts submitted and not yet delivered."""
        return len(self._waiters)

    def advance(self, wanted: int) -> None:
        """Advance all that can; then start further parallel protocols until ``wanted`` rollouts are outstanding."""
        while True:
            while self._ready:
                task, value = self._ready.popleft()
                self._resume(task, value)
            if not self._broods or self.outstanding >= wanted:
                return
            self._start_child(self._broods[0])

    def deliver(self, episode: Episode) -> None:
        """Hand a finished episode to all who asked for it."""
        for task, index in self._waiters.pop(episode.id, ()):
            task.received[index] = episode
            self._settle(task)

    def _finish(self, result: Any) -> None:
        self.finished = True
        self.result = result

    def _resume(self, task: _Task, value: Any) -> None:
        try:
            asked = task.protocol.send(value)
        except StopIteration as stop:
            task.report(stop.value)
            return
        if isinstance(asked, Parallel):
            self._broods.appendleft(_Brood(iter(asked.protocols), task))
            return
        rollouts = list(asked)
        for rollout in rollouts:
            if not isinstance(rollout, Rollout | Drop):
                raise TypeError(
                    f"a protocol yields lists of Rollout; received an item of type {type(rollout).__name__}"
                )
        task.received = [None] * len(rollouts)
        task.waiting = len(rollouts) + 1
        for index, rollout in enumerate(rollouts):
            if isinstance(rollout, Drop):
                self._drop(rollout.rollout, rollout.reason)
                task.waiting -= 1
                continue
            recorded = self._recall(rollout.id)
            if recorded is not None:
                task.received[index] = recorded
                task.waiting -= 1
                continue
            waiters = self._waiters.setdefault(rollout.id, [])
            waiters.append((task, index))
            if len(waiters) == 1:
                self._submit(rollout)
        self._settle(task)

    def _settle(self, task: _Task) -> None:
        task.waiting -= 1
        if task.waiting == 0:
            self._ready.append((task, task.received))

    def _start_child(self, brood: _Brood) -> None:
        child = next(brood.children, None)
        if child is None:
            brood.exhausted = True
            self._broods.popleft()
            self._settle_brood(brood)
            return
        index = len(brood.results)
        brood.results.append(None)
        brood.running += 1

        def report(result: Any) -> None:
            brood.results[index] = result
            brood.running -= 1
            self._settle_brood(brood)

        self._ready.append((_Task(child, report), None))

    def _settle_brood(self, brood: _Brood) -> None:
        if brood.exhausted and brood.running == 0:
            self._ready.append((brood.task, brood.results))
