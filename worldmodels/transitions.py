"""Recorded episodes as transitions: what was seen, what was done, and what followed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from simeval.episode import Episode
from worldmodels.interface import NUMBERS
from worldmodels.recordings import Recordings, recorded


@dataclass(frozen=True, slots=True)
class Transitions:
    """n steps: raw ``numbers`` [n, P] before and ``following`` after ``action`` [n, A] in ``task`` [n] (its place among
    the tasks), with ``reward`` [n], ``success`` and ``terminated`` [n] bool."""

    numbers: torch.Tensor
    action: torch.Tensor
    task: torch.Tensor
    following: torch.Tensor
    reward: torch.Tensor
    success: torch.Tensor
    terminated: torch.Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, rows: Sequence[int]) -> "Transitions":
        """Some of them."""
        return Transitions(*(getattr(self, item.name)[rows] for item in fields(self)))

    def to(self, device: torch.device) -> "Transitions":
        """The same on another device."""
        return Transitions(*(getattr(self, item.name).to(device, non_blocking=True) for item in fields(self)))


def joined(parts: Iterable[Transitions]) -> Transitions:
    """Several, one after the other."""
    given = list(parts)
    return Transitions(*(torch.cat([getattr(part, item.name) for part in given]) for item in fields(Transitions)))


class TransitionData(Recordings[Transitions, Transitions]):
    """Recorded steps, one by one."""

    def all(self) -> Transitions:
        """Every training transition."""
        return joined(self.decoded(episode) for episode in self.training)

    def decoded(self, episode: Episode) -> Transitions:
        """See ``EpisodeData.decoded``."""
        numbers = torch.from_numpy(self.seen(episode, 0, episode.length + 1)[NUMBERS])
        return Transitions(
            numbers[:-1],
            recorded(episode.action, np.float32),
            torch.full((episode.length,), self.task(episode)),
            numbers[1:],
            recorded(episode.reward, np.float32),
            recorded(episode.success, np.bool_),
            recorded(episode.terminated, np.bool_),
        )

    def batch(self, decoded: Sequence[Transitions], rows: Sequence[tuple[int, int]]) -> Transitions:
        """See ``EpisodeData.batch``."""
        return joined(decoded[episode].at([step]) for episode, step in rows)
