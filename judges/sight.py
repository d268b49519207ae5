"""What a classifier of success looks at, and recorded episodes as that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from learning.episodes import EpisodeData, held_out
from learning.words import Vocabulary
from simeval.episode import Episode
from simeval.errors import ConfigError, unknown
from simeval.reader import Run
from simeval.types import content_hash


@dataclass(frozen=True)
class Sight:
    """What is looked at, after each step of an episode.

    ``images``: observation key -> side [pixels] of square uint8 RGB images; ``numbers``: observation key -> length of a
    vector; ``frames``: how many observations are seen at a time, ``stride`` steps apart, the last being the present;
    ``tasks`` that can be judged; ``success_hold``: for how many steps the goal must hold.
    """

    images: Mapping[str, int]
    numbers: Mapping[str, int]
    frames: int
    stride: int
    tasks: tuple[str, ...]
    success_hold: int

    @property
    def keys(self) -> tuple[str, ...]:
        """The observation keys that are looked at."""
        return (*self.images, *self.numbers)

    @property
    def number_dim(self) -> int:
        """The length of all vectors, one after the other."""
        return sum(self.numbers.values())

    def rows(self, steps: torch.Tensor) -> torch.Tensor:
        """The rows [n, frames] of what was observed that are seen after some steps [n]; no row is before the first."""
        return (steps[:, None] + 1 - self.stride * torch.arange(self.frames - 1, -1, -1)).clamp(min=0)

    def check(self, episode: Episode) -> None:
        """Raise ``ConfigError`` naming everything in which an episode shows something else than what was learned."""
        wanted: dict[str, tuple[int, ...]] = {key: (side, side, 3) for key, side in self.images.items()}
        wanted |= {key: (length,) for key, length in self.numbers.items()}
        wrong = []
        for key, shape in wanted.items():
            if key not in episode.observation:
                wrong.append(f"no observation {key!r}")
            elif (found := episode.window(f"observation/{key}", 0, 1).shape[1:]) != shape:
                wrong.append(f"observation {key!r} is {found}, not {shape}")
        if wrong:
            raise ConfigError(
                f"episode {episode.id} does not show what this judge learned to look at: {'; '.join(wrong)}; recorded: "
                f"{', '.join(episode.observation)}"
            )

    def to_json(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {
            "images": dict(self.images),
            "numbers": dict(self.numbers),
            "frames": self.frames,
            "stride": self.stride,
            "tasks": list(self.tasks),
            "success_hold": self.success_hold,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Sight":
        """The inverse of :meth:`to_json`."""
        return cls(
            {str(key): int(side) for key, side in data["images"].items()},
            {str(key): int(length) for key, length in data["numbers"].items()},
            int(data["frames"]),
            int(data["stride"]),
            tuple(map(str, data["tasks"])),
            int(data["success_hold"]),
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """n moments: uint8 ``images`` [n, frames, 3, side, side], raw ``numbers`` [n, frames, P], ``tokens`` [n, W] of the
    instruction, and whether the ``goal`` holds [n]."""

    images: Mapping[str, torch.Tensor]
    numbers: torch.Tensor
    tokens: torch.Tensor
    goal: torch.Tensor

    def __len__(self) -> int:
        return len(self.goal)

    def to(self, device: torch.device) -> "Seen":
        """The same on another device."""
        images = {key: value.to(device, non_blocking=True) for key, value in self.images.items()}
        return Seen(images, *(getattr(self, item.name).to(device) for item in fields(self)[1:]))


@dataclass(frozen=True, slots=True)
class Shown:
    """An episode's images [T + 1, 3, side, side], numbers [T + 1, P], goal [T], and the numbers of its words [W]."""

    images: Mapping[str, torch.Tensor]
    numbers: torch.Tensor
    goal: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def of(cls, episode: Episode, sight: Sight, vocabulary: Vocabulary) -> "Shown":
        """All that is looked at of an episode, in memory."""
        images = {key: torch.from_numpy(np.array(episode.observation[key])) for key in sight.images}
        vectors = [np.asarray(episode.observation[key], dtype=np.float32) for key in sight.numbers]
        rows = np.zeros((episode.length + 1, 0), dtype=np.float32)
        return cls(
            {key: value.permute(0, 3, 1, 2).contiguous() for key, value in images.items()},
            torch.from_numpy(np.concatenate([rows, *vectors], axis=1)),
            torch.from_numpy(np.array(episode.success)),
            vocabulary.encode([episode.rollout.start.instruction])[0],
        )

    def after(self, steps: torch.Tensor, sight: Sight) -> Seen:
        """The moments after some steps [n]."""
        rows = sight.rows(steps)
        images = {key: value[rows] for key, value in self.images.items()}
        return Seen(images, self.numbers[rows], self.tokens.expand(len(steps), -1), self.goal[steps])


class Trials(EpisodeData[Shown, Seen]):
    """The finished root episodes of some runs, successes and failures, split once and for all by their start."""

    def __init__(
        self,
        runs: Sequence[Run],
        keys: Sequence[str],
        frames: int,
        stride: int,
        *,
        validation: float,
        seed: int,
        memory: int,
        tasks: Sequence[str] | None = None,
    ):
        chosen = [episode for run in runs for episode in run if _usable(episode, tasks)]
        held = {e.id for e in chosen if held_out(content_hash(e.rollout.start.to_json()), validation)}
        super().__init__([e for e in chosen if e.id not in held], [e for e in chosen if e.id in held], seed, memory)
        for part, episodes in (("to train on", self.training), ("held out", self.validation)):
            succeeded = sum(episode.succeeded for episode in episodes)
            if not 0 < succeeded < len(episodes):
                raise ConfigError(
                    f"of {len(episodes)} episodes {part} (of {len(chosen)} in {', '.join(str(r.path) for r in runs)}) "
                    f"{succeeded} succeeded; a judge learns from successes and failures: record both, and more starts"
                )
        holds = {episode.ending.success_hold for episode in chosen}
        if len(holds) > 1:
            raise ConfigError(f"the episodes count success after {sorted(holds)} steps; learn from runs of one World")
        learned = tuple(sorted({episode.rollout.start.task for episode in chosen}))
        self.sight = Sight(*_shapes(chosen[0], keys), frames, stride, learned, holds.pop())
        self.vocabulary = Vocabulary.of(episode.rollout.start.instruction for episode in self.training)
        for episode in chosen:
            self.sight.check(episode)

    def decoded(self, episode: Episode) -> Shown:
        """See ``EpisodeData.decoded``."""
        return Shown.of(episode, self.sight, self.vocabulary)

    def step_bytes(self) -> int:
        """See ``EpisodeData.step_bytes``."""
        return sum(3 * side * side for side in self.sight.images.values()) + 4 * self.sight.number_dim

    def batch(self, decoded: Sequence[Shown], rows: Sequence[tuple[int, int]]) -> Seen:
        """See ``EpisodeData.batch``."""
        seen = list(
            zip((decoded[e] for e, _ in rows), self.sight.rows(torch.tensor([t for _, t in rows])), strict=True)
        )
        return Seen(
            {key: torch.stack([shown.images[key][moment] for shown, moment in seen]) for key in self.sight.images},
            torch.stack([shown.numbers[moment] for shown, moment in seen]),
            torch.stack([shown.tokens for shown, _ in seen]),
            torch.stack([decoded[e].goal[t] for e, t in rows]),
        )

    def numbers(self) -> np.ndarray:
        """All vectors [n, P] of the training episodes, for statistics."""
        rows = [np.zeros((0, self.sight.number_dim), dtype=np.float32)]
        if self.sight.numbers:
            rows += [np.concatenate([e.observation[key] for key in self.sight.numbers], axis=1) for e in self.training]
        return np.concatenate(rows)

    def share(self) -> float:
        """The share of training steps after which the goal holds."""
        return sum(int(e.success.sum()) for e in self.training) / sum(e.length for e in self.training)


def _usable(episode: Episode, tasks: Sequence[str] | None) -> bool:
    whole = episode.status == "done" and episode.length > 0 and episode.rollout.parent is None
    wanted = tasks is None or episode.rollout.start.task in tasks
    return whole and wanted and episode.ending.success_hold > 0


def _shapes(episode: Episode, keys: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    images, numbers = {}, {}
    for key in keys:
        if key not in episode.observation:
            raise unknown("observation of the runs (cameras are recorded with world.cameras)", key, episode.observation)
        value = episode.window(f"observation/{key}", 0, 1)
        if value.ndim == 4 and value.dtype == np.uint8 and value.shape[1] == value.shape[2] and value.shape[3] == 3:
            images[key] = int(value.shape[1])
        elif value.ndim == 2 and value.dtype.kind == "f":
            numbers[key] = int(value.shape[1])
        else:
            raise ConfigError(
                f"observation {key!r} is {value.dtype} {list(value.shape[1:])}: neither square RGB images nor a vector"
            )
    return images, numbers
