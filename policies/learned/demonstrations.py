"""Recorded episodes as training data: splits by episode, chunks that end with the episode, batches by step number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from learning.episodes import EpisodeData, check_recorded, common_conventions, held_out
from learning.words import Vocabulary
from policies.learned.features import Batch, Features, Inputs, channels_first, stacked_numbers
from simeval.conventions import Conventions
from simeval.episode import Episode
from simeval.errors import ConfigError, unknown
from simeval.reader import Run
from simeval.settings import positive

INTENDED = "policy/intended"
"""What a disturbed demonstrator meant to do; learned from in place of what it did, where it is recorded."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An episode's images [T, 3, side, side], numbers [T, P], actions [T, A], and the numbers of its words [W]."""

    images: dict[str, torch.Tensor]
    numbers: torch.Tensor
    action: torch.Tensor
    tokens: torch.Tensor


class Demonstrations(EpisodeData[Decoded, Batch]):
    """The successful episodes of some runs, split once and for all by their id. See ``EpisodeData`` for the rest.

    An epoch has every step once, in random order; with ``early``, each episode the same number of times, at the step
    ``L u^early`` of its L, u uniform on 0..1: at 1 all its steps alike, above it dwells on the beginning, where what
    was asked for is all that tells one episode from another.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        observation_keys: Sequence[str],
        horizon: int,
        control_dt: float,
        *,
        validation: float = 0.1,
        seed: int = 0,
        memory: int = 4 << 30,
        tasks: Sequence[str] | None = None,
        early: float | None = None,
    ):
        check_recorded(runs, tasks)
        chosen = [episode for run in runs for episode in run if _usable(episode, tasks)]
        if not chosen:
            raise ConfigError(
                f"there is no successful episode to learn from in {', '.join(str(run.path) for run in runs)}"
                + (f" in the tasks {', '.join(tasks)}" if tasks else "")
            )
        self._early = None if early is None else positive("early", early)
        held = {e.id for e in chosen if held_out(e.id, validation)}
        super().__init__([e for e in chosen if e.id not in held], [e for e in chosen if e.id in held], seed, memory)
        if not self.training or (validation > 0 and not self.validation):
            raise ConfigError(
                f"of {len(chosen)} successful episodes to learn from, {len(self.validation)} would be held out; record "
                "more, or hold out none (policy.validation=0)"
            )
        conventions = common_conventions(runs, {episode.rollout.world for episode in chosen}, "policy")
        self.features = _features(chosen[0], observation_keys, horizon, control_dt, conventions)
        self.vocabulary = Vocabulary.of(episode.rollout.start.instruction for episode in self.training)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """All vectors [n, P] and actions [n, A] of the training episodes, for statistics."""
        numbers = [
            np.concatenate([e.observation[key][:-1] for key in self.features.numbers], axis=1)
            if self.features.numbers
            else np.zeros((e.length, 0), np.float32)
            for e in self.training
        ]
        return np.concatenate(numbers), np.concatenate([_actions(e) for e in self.training])

    def windows(self, lengths: Sequence[int], draws: np.random.Generator) -> list[tuple[int, int]]:
        """See ``EpisodeData.windows``."""
        if self._early is None:
            return super().windows(lengths, draws)
        each = max(1, round(sum(lengths) / len(lengths)))
        steps = np.array(lengths)[:, None] * draws.random((len(lengths), each)) ** self._early
        return [(e, int(t)) for e, row in enumerate(steps) for t in row]

    def step_bytes(self) -> int:
        """See ``EpisodeData.step_bytes``."""
        return sum(3 * side * side for side in self.features.images.values()) + 8 * self.features.number_dim

    def decoded(self, episode: Episode) -> Decoded:
        """See ``EpisodeData.decoded``."""
        shown = {key: episode.observation[key] for key in self.features.observation_keys}
        return Decoded(
            {key: channels_first(shown[key][:-1]) for key in self.features.images},
            stacked_numbers(self.features, {key: value[:-1] for key, value in shown.items()}),
            torch.from_numpy(np.ascontiguousarray(_actions(episode), dtype=np.float32)),
            self.vocabulary.encode([episode.rollout.start.instruction])[0],
        )

    def batch(self, decoded: Sequence[Decoded], rows: Sequence[tuple[int, int]]) -> Batch:
        """See ``EpisodeData.batch``."""
        ahead = torch.arange(self.features.horizon)
        inputs = Inputs(
            {key: torch.stack([decoded[e].images[key][t] for e, t in rows]) for key in self.features.images},
            torch.stack([decoded[e].numbers[t] for e, t in rows]),
            torch.stack([decoded[e].tokens for e, _ in rows]),
        )
        chunks = [decoded[e].action[(t + ahead).clamp(max=len(decoded[e].action) - 1)] for e, t in rows]
        ends = [len(decoded[e].numbers) - 1 for e, _ in rows]
        later = [decoded[e].numbers[[min(t + len(ahead), end), end]] for (e, t), end in zip(rows, ends, strict=True)]
        return Batch(inputs, torch.stack(chunks), torch.stack(later))


def _usable(episode: Episode, tasks: Sequence[str] | None) -> bool:
    if episode.status != "done" or not episode.length or episode.rollout.parent is not None:
        return False
    wanted = tasks is None or episode.rollout.start.task in tasks
    return wanted and (episode.succeeded or not episode.ending.success_hold)


def _actions(episode: Episode) -> np.ndarray:
    return episode.source.read(INTENDED if INTENDED in episode.source.paths() else "action")


def _features(
    episode: Episode, keys: Sequence[str], horizon: int, control_dt: float, conventions: Conventions
) -> Features:
    images, numbers = {}, {}
    for key in keys:
        if key not in episode.observation:
            raise unknown("observation of the runs (cameras are recorded with world.cameras)", key, episode.observation)
        value = episode.observation[key]
        if value.ndim == 4 and value.dtype == np.uint8 and value.shape[1] == value.shape[2] and value.shape[3] == 3:
            images[key] = int(value.shape[1])
        elif value.ndim == 2 and value.dtype.kind == "f":
            numbers[key] = int(value.shape[1])
        else:
            raise ConfigError(
                f"observation {key!r} is {value.dtype} {list(value.shape[1:])}: neither square RGB images nor a vector"
            )
    return Features(images, numbers, int(episode.action.shape[1]), horizon, control_dt, conventions.seen_by(keys))
