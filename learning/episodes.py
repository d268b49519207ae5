"""Recorded episodes as training data: splits once and for all, groups decoded ahead, batches by step number."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

import numpy as np

from simeval.conventions import NAMES, UNDECLARED, Conventions, in_words
from simeval.episode import Episode
from simeval.errors import ConfigError, unknown
from simeval.noise import Key
from simeval.reader import Run
from simeval.types import content_hash

D = TypeVar("D")
B = TypeVar("B")


class EpisodeData(ABC, Generic[D, B]):
    """Episodes to train on and episodes that are held out, as batches ``B`` of rows of decoded episodes ``D``.

    Images stay compressed on disk; a *group* of episodes that fits into ``memory`` bytes is decoded at a time, in
    threads, while the group before it is being trained on. Everything drawn is a function of ``seed`` and the place in
    the training, so a training that is gone on with sees what it would have seen. An epoch has every step once, in
    random order.
    """

    def __init__(self, training: Sequence[Episode], validation: Sequence[Episode], seed: int, memory: int):
        self.training = list(training)
        self.validation = list(validation)
        self.seed = seed
        self._memory = memory
        self._kept: dict[int, D] = {}

    @property
    def identity(self) -> str:
        """Digits of a hash: which episodes are trained on, which are held out, and the seed of the batches."""
        return content_hash([[e.id for e in self.training], [e.id for e in self.validation], self.seed])

    @abstractmethod
    def decoded(self, episode: Episode) -> D:
        """An episode in memory."""

    @abstractmethod
    def step_bytes(self) -> int:
        """Bytes that a step of a decoded episode takes."""

    @abstractmethod
    def batch(self, decoded: Sequence[D], rows: Sequence[tuple[int, int]]) -> B:
        """The batch of some rows, each an episode (its place in ``decoded``) and a step."""

    def windows(self, lengths: Sequence[int], draws: np.random.Generator) -> list[tuple[int, int]]:
        """The rows of an epoch over episodes of these lengths: each episode's place, and a step."""
        return [(e, t) for e, length in enumerate(lengths) for t in range(length)]

    def batches(self, size: int, begin: int = 0) -> Iterator[B]:
        """Endless training batches of ``size``, from the ``begin``-th on; the next group is decoded meanwhile."""
        with ThreadPoolExecutor(1) as ahead:
            plan = self._plan(size, begin)
            group, batches = next(plan)
            coming = ahead.submit(self._decode, group)
            for following, later in plan:
                decoded, coming = coming.result(), ahead.submit(self._decode, following)
                yield from (self.batch(decoded, rows) for rows in batches)
                batches = later

    def validation_batches(self, size: int, most: int = 32) -> Iterator[B]:
        """The same batches every time, from episodes that are never trained on."""
        draws = Key(self.seed).stream("validation").at(0)
        windows = [(e, t) for e, episode in enumerate(self.validation) for t in range(episode.length)]
        rows = [windows[i] for i in draws.permutation(len(windows))[: size * most]]
        if not rows:
            return
        used = sorted({e for e, _ in rows})
        decoded = dict(zip(used, self._decode([self.validation[e] for e in used]), strict=True))
        for index in range(0, len(rows) - size + 1, size) or [0]:
            part = rows[index : index + size]
            yield self.batch([decoded[e] for e, _ in part], [(i, t) for i, (_, t) in enumerate(part)])

    def _plan(self, size: int, begin: int) -> Iterator[tuple[list[Episode], list[list[tuple[int, int]]]]]:
        """Groups of episodes, and of each the batches: which step of which episode is in each row."""
        place = 0
        for epoch in itertools.count():
            draws = Key(self.seed).stream("batches").at(epoch)
            order = [self.training[index] for index in draws.permutation(len(self.training))]
            for group in self._groups(order):
                windows = self.windows([episode.length for episode in group], draws)
                shuffled = draws.permutation(len(windows))
                count = len(windows) // size or 1
                rows = [np.resize(shuffled[i * size : (i + 1) * size], size) for i in range(count)]
                batches = [[windows[index] for index in row] for row in rows]
                if place + count > begin:
                    yield group, batches[max(begin - place, 0) :]
                place += count

    def _groups(self, order: Sequence[Episode]) -> Iterator[list[Episode]]:
        group: list[Episode] = []
        held = 0
        per_step = self.step_bytes()
        for episode in order:
            need = (episode.length + 1) * per_step
            if group and held + need > self._memory:
                yield group
                group, held = [], 0
            group.append(episode)
            held += need
        yield group

    def _decode(self, episodes: Sequence[Episode]) -> list[D]:
        """The episodes in memory; they stay there where all fit."""
        with ThreadPoolExecutor() as pool:
            # By object: episodes of two runs may be asked for in the same words, and so have one id.
            fresh = [episode for episode in episodes if id(episode) not in self._kept]
            decoded = dict(zip(map(id, fresh), pool.map(self.decoded, fresh), strict=True))
        found = [self._kept[id(e)] if id(e) in self._kept else decoded[id(e)] for e in episodes]
        if len(episodes) == len(self.training):
            self._kept.update(decoded)
        return found


def check_recorded(runs: Sequence[Run], tasks: Sequence[str] | None) -> None:
    """Raise ``ConfigError``, with the tasks that there are, for one of ``tasks`` that no episode of the runs is of."""
    recorded = {episode.rollout.start.task for run in runs for episode in run} if tasks is not None else set()
    for task in tasks or ():
        if task not in recorded:
            raise unknown(f"task of {', '.join(str(run.path) for run in runs)}", task, sorted(recorded))


def held_out(identity: str, share: float) -> bool:
    """Whether what is known by ``identity``, hex digits of a content hash, is among the ``share`` never trained on."""
    return Key(int(identity[:12], 16)).integer("split") / 2**63 < share


def common_conventions(runs: Sequence[Run], worlds: Set[str], learner: str) -> Conventions:
    """What the Worlds of the data declared; ``ConfigError`` where they did not all declare the same."""
    found = [(run, run.conventions.get("worlds", {}).get(world)) for run in runs for world in sorted(worlds)]
    declared = [(run, Conventions.from_json(data)) for run, data in found if data is not None]
    for run, other in declared[1:]:
        first, conventions = declared[0]
        names = [name for name in NAMES if getattr(conventions, name) != getattr(other, name)]
        if names:
            said = ", ".join(
                f"{n} {in_words(getattr(conventions, n))} against {in_words(getattr(other, n))}" for n in names
            )
            raise ConfigError(
                f"the runs {first.path} and {run.path} follow different conventions ({said}), and one {learner} cannot "
                "learn from both; record them with the same settings of world"
            )
    return declared[0][1] if declared else UNDECLARED
