"""Recorded episodes to learn a World from: which are trained on, which are held out, and what the World is."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch

from learning.episodes import EpisodeData, check_recorded, common_conventions, held_out
from simeval.episode import Episode
from simeval.errors import ConfigError
from simeval.reader import Run
from simeval.types import WorldSpec, content_hash
from worldmodels.interface import Beginnings, Interface

D = TypeVar("D")
B = TypeVar("B")


class Recordings(EpisodeData[D, B]):
    """The finished root episodes of some runs, failures included, split once and for all by their start.

    Episodes of one start, by several policies, are all trained on or all held out: where an imagined episode may begin
    was never seen in training. ``pictures``: whether the model learns pictures; ``frame_skip``: see ``Interface``.
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
        frame_skip: int = 1,
        pictures: bool = False,
    ):
        check_recorded(runs, tasks)
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
        self.interface = Interface.of(
            spec, keys, horizons, holds.pop(), conventions, frame_skip=frame_skip, pictures=pictures
        )
        for key in keys:
            if key not in chosen[0].observation:
                raise ConfigError(f"observation {key!r} was not recorded; recorded: {', '.join(chosen[0].observation)}")

    def beginnings(self) -> Beginnings:
        """The starts that were held out, each once, and the first observation of each."""
        first = {content_hash(e.rollout.start.to_json()): e for e in reversed(self.validation)}
        episodes = [first[identity] for identity in sorted(first)]
        seen = [self.seen(e, 0, 1) for e in episodes]
        return Beginnings(
            tuple(e.rollout.start for e in episodes),
            {name: np.concatenate([each[name] for each in seen]) for name in seen[0]},
        )

    def seen(self, episode: Episode, begin: int, end: int) -> dict[str, np.ndarray]:
        """The observations ``begin:end`` of an episode, as a model has them."""
        shown = {key: episode.window(f"observation/{key}", begin, end) for key in self.interface.observation}
        return self.interface.seen(shown)

    def task(self, episode: Episode) -> int:
        """The place of an episode's task among those that are learned."""
        return self.interface.tasks.index(episode.rollout.start.task)

    def step_bytes(self) -> int:
        """See ``EpisodeData.step_bytes``."""
        pictures = sum(int(np.prod(space.shape)) for space in self.interface.pictures.values())
        return pictures + 4 * (self.interface.number_dim + self.interface.action_dim + 4)


def recorded(array: np.ndarray, dtype: type) -> torch.Tensor:
    """What was read of a trace as a tensor of its own."""
    return torch.from_numpy(np.array(array, dtype=dtype))


def _usable(episode: Episode, tasks: Sequence[str] | None) -> bool:
    whole = episode.status == "done" and episode.length > 0 and episode.rollout.parent is None
    plain = not episode.rollout.perturbations and not episode.rollout.start.perturbations
    return whole and plain and (tasks is None or episode.rollout.start.task in tasks)
