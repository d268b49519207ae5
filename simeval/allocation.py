"""Where the next rollouts of a study tell most: its cells, each a success rate, and how widely each is still known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simeval.episode import Episode
from simeval.protocols import check_whole
from simeval.schedule import Drop, Protocol
from simeval.types import Rollout

_PRIOR = 0.5
"""Successes and failures that a cell begins with: Jeffreys' prior, Beta(½, ½)."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A budget of rollouts, spent ``batch`` at a time where the interval is widest.

    Every cell first gets ``floor`` instances. The rate of a cell is believed to be Beta(½ + successes, ½ + failures);
    the next instance goes to the cell of the largest variance (variance-greedy, after methods such as VADE and VIGOR;
    derived).
    """

    budget: int
    floor: int = 8
    batch: int = 64

    def __post_init__(self) -> None:
        check_whole("allocation.budget", self.budget, 1, "rollouts in all")
        check_whole("allocation.floor", self.floor, 1, "instances of every cell, before any gets more")
        check_whole("allocation.batch", self.batch, 1, "rollouts between two looks at the outcomes")


def variance(successes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The variance of what is believed of each cell's rate after ``successes`` of ``counts``, of any shape."""
    a, total = successes + _PRIOR, counts + 2 * _PRIOR
    return a * (total - a) / (total * total * (total + 1))


class Beliefs:
    """What is known of cells ``[..., c]``, and which of them is known least; leading dimensions are studies apart."""

    def __init__(self, *shape: int):
        self.successes = np.zeros(shape)
        self.counts = np.zeros(shape)
        self._expected = np.zeros(shape)

    def learn(self, successes: np.ndarray, counts: np.ndarray) -> None:
        """What came back: ``successes`` of ``counts`` more; nothing more is expected."""
        self.successes = self.successes + successes
        self.counts = self.counts + counts
        self._expected[...] = 0

    def widest(self, open_cells: np.ndarray) -> np.ndarray:
        """The index ``[...]`` of the cell of largest variance among the open ones, counting what is expected.

        One outcome more is expected to shrink a Beta's variance by n / (n + 1), n being its counts with the prior's.
        """
        known = self.counts + 2 * _PRIOR
        expected = variance(self.successes, self.counts) * known / (known + self._expected)
        return np.where(open_cells, expected, -1.0).argmax(axis=-1)

    def expect(self, cells: np.ndarray) -> None:
        """Count one outcome of each of ``cells`` [...] as on its way."""
        np.put_along_axis(
            self._expected,
            np.asarray(cells)[..., None],
            np.take_along_axis(self._expected, np.asarray(cells)[..., None], axis=-1) + 1,
            axis=-1,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A success rate to be known: ``instance(m)`` gives what its m-th instance takes, by id, for m below ``capacity``.

    The last of these is the one that is judged. Cells may share what they take; it is run, and paid for, once.
    """

    instance: Callable[[int], Mapping[str, Rollout | Drop]]
    capacity: int


def adaptive(cells: Sequence[Cell], allocation: Adaptive) -> Protocol:
    """A protocol that spends a budget on ``cells`` where it tells most; returns the episodes.

    Each round depends on the outcomes of those before alone, so that a resumed run asks the same.
    """
    beliefs, asked, is_open = Beliefs(len(cells)), np.zeros(len(cells), dtype=int), np.ones(len(cells), dtype=bool)
    known: dict[str, bool | None] = {}
    episodes: list[Episode] = []
    left = allocation.budget
    while is_open.any():
        batch: dict[str, Rollout | Drop] = {}
        judged: list[tuple[int, str]] = []
        while is_open.any() and max(len(batch), len(judged)) < allocation.batch:
            short = is_open & (asked < allocation.floor)
            cell = int(short.argmax() if short.any() else beliefs.widest(is_open))
            needed = cells[cell].instance(int(asked[cell]))
            new = {id_: one for id_, one in needed.items() if id_ not in known and id_ not in batch}
            cost = sum(isinstance(one, Rollout) for one in new.values())
            if cost > left:
                is_open[cell] = False
                continue
            left -= cost
            batch |= new
            judged.append((cell, list(needed)[-1]))
            asked[cell] += 1
            is_open[cell] = asked[cell] < cells[cell].capacity
            beliefs.expect(np.array(cell))
        back: list[Episode | None] = yield list(batch.values())
        known |= {id_: _outcome(episode) for id_, episode in zip(batch, back, strict=True)}
        episodes += [episode for episode in back if episode is not None]
        found = [(cell, outcome) for cell, id_ in judged if (outcome := known[id_]) is not None]
        which, won = np.array([cell for cell, _ in found], dtype=int), np.array([o for _, o in found], dtype=float)
        beliefs.learn(np.bincount(which, won, len(cells)), np.bincount(which, minlength=len(cells)))
    return episodes


def _outcome(episode: Episode | None) -> bool | None:
    """Whether an episode that counts succeeded."""
    if episode is None or episode.status != "done" or episode.ending.solved_at_reset:
        return None
    return episode.succeeded
