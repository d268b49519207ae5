"""Recorded episodes as transitions: what was seen, what was done, and what followed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from learning.episodes import EpisodeData, common_conventions, held_out
from simeval.episode import Episode
from simeval.errors import ConfigError
from simeval.reader import Run
from simeval.types import WorldSpec, content_hash
from worldmodels.interface import Beginnings, Interface


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


class Recordings(EpisodeData[Transitions, Transitions]):
    """The finished root episodes of some runs, failures included, split once and for all by their start.

    Episodes of one start, by several policies, are all trained on or all held out: where an imagined episode may begin
    was never seen in training.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        keys: Sequence[str],
        spec: WorldSpec,
        *,
        validation: float,
        seed: int,
        memory: int,
        tasks: Sequence[str] | None = None,
    ):
        chosen = [episode for run in runs for episode in run if _usable(episode, tasks)]
        held = {e.id for e in chosen if held_out(content_hash(e.rollout.start.to_json()), validation)}
        super().__init__([e for e in chosen if e.id not in held], [e for e in chosen if e.id in held], seed, memory)
        if not self.training or not self.validation:
            raise ConfigError(
                f"of {len(chosen)} finished episodes to learn from in {', '.join(str(run.path) for run in runs)}, "
                f"{len(held)} would be held out; both parts need some: record more starts, or change "
                "worldmodel.validation"
            )
        horizons: dict[str, int] = {}
        for episode in chosen:
            task = episode.rollout.start.task
            horizons[task] = max(horizons.get(task, 1), episode.rollout.horizon)
        conventions = common_conventions(runs, {episode.rollout.world for episode in chosen}, "world model")
        holds = {episode.ending.success_hold for episode in chosen}
        if len(holds) > 1:
            raise ConfigError(f"the episodes count success after {sorted(holds)} steps; learn from runs of one World")
        horizons = dict(sorted(horizons.items()))
        self.interface = Interface.of(spec, keys, horizons, holds.pop(), conventions)
        for key in keys:
            if key not in chosen[0].observation:
                raise ConfigError(f"observation {key!r} was not recorded; recorded: {', '.join(chosen[0].observation)}")

    def all(self) -> Transitions:
        """Every training transition."""
        return joined(self.decoded(episode) for episode in self.training)

    def beginnings(self) -> Beginnings:
        """The starts that were held out, each once, and the first observation of each."""
        first = {content_hash(e.rollout.start.to_json()): e for e in reversed(self.validation)}
        episodes = [first[identity] for identity in sorted(first)]
        numbers = [
            self.interface.joined({k: e.observation[k][:1] for k in self.interface.observation}) for e in episodes
        ]
        return Beginnings(tuple(e.rollout.start for e in episodes), np.concatenate(numbers))

    def decoded(self, episode: Episode) -> Transitions:
        """See ``EpisodeData.decoded``."""
        shown = self.interface.joined({key: episode.observation[key] for key in self.interface.observation})
        numbers = torch.from_numpy(shown)
        task = self.interface.tasks.index(episode.rollout.start.task)
        return Transitions(
            numbers[:-1],
            torch.from_numpy(np.array(episode.action, dtype=np.float32)),
            torch.full((episode.length,), task),
            numbers[1:],
            torch.from_numpy(np.array(episode.reward, dtype=np.float32)),
            torch.from_numpy(np.array(episode.success)),
            torch.from_numpy(np.array(episode.terminated)),
        )

    def step_bytes(self) -> int:
        """See ``EpisodeData.step_bytes``."""
        return 4 * (self.interface.number_dim + self.interface.action_dim + 4)

    def batch(self, decoded: Sequence[Transitions], rows: Sequence[tuple[int, int]]) -> Transitions:
        """See ``EpisodeData.batch``."""
        return joined(decoded[episode].at([step]) for episode, step in rows)


def _usable(episode: Episode, tasks: Sequence[str] | None) -> bool:
    whole = episode.status == "done" and episode.length > 0 and episode.rollout.parent is None
    plain = not episode.rollout.perturbations and not episode.rollout.start.perturbations
    return whole and plain and (tasks is None or episode.rollout.start.task in tasks)
