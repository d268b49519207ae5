"""Recorded episodes as windows of frames: some that are known, and those that followed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from simeval.episode import Episode
from simeval.reader import Run
from simeval.types import WorldSpec
from worldmodels.recordings import Recordings, recorded


@dataclass(frozen=True, slots=True)
class Strip:
    """An episode of T steps: ``seen`` [T + 1, …], ``action`` [T, A], ``reward``, ``success``, ``terminated`` [T]."""

    seen: dict[str, torch.Tensor]
    action: torch.Tensor
    task: int
    reward: torch.Tensor
    success: torch.Tensor
    terminated: torch.Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """n windows of F frames: ``seen`` name -> [n, F, …], and of the F - 1 ways between them the rest.

    ``action`` [n, F - 1, frame_skip * A]; ``reward`` [n, F - 1], its sum over the steps between; ``success`` at the
    later frame and ``terminated`` on the way, bool; ``real`` [n, F - 1] bool: whether both frames are of the episode.
    Before its beginning an episode's first frame stands still, with no action; after its end its last does.
    ``task`` [n] int64.
    """

    seen: dict[str, torch.Tensor]
    action: torch.Tensor
    task: torch.Tensor
    reward: torch.Tensor
    success: torch.Tensor
    terminated: torch.Tensor
    real: torch.Tensor

    def __len__(self) -> int:
        return len(self.task)

    @property
    def frames(self) -> int:
        """F."""
        return self.action.shape[1] + 1

    def to(self, device: torch.device) -> "Window":
        """The same on another device."""
        seen = {name: value.to(device, non_blocking=True) for name, value in self.seen.items()}
        others = (getattr(self, item.name).to(device, non_blocking=True) for item in fields(self)[1:])
        return Window(seen, *others)


class WindowData(Recordings[Strip, Window]):
    """Windows of ``history`` frames that are known and ``ahead`` that follow, one for each step of an episode.

    The last known frame is the observation at the window's step; others are ``frame_skip`` steps apart.
    """

    def __init__(
        self, runs: Sequence[Run], keys: Sequence[str], spec: WorldSpec, *, history: int, ahead: int, **settings: Any
    ):
        super().__init__(runs, keys, spec, pictures=True, **settings)
        self.history, self.ahead = history, ahead
        self._still = torch.from_numpy(self.interface.still.astype(np.float32))

    @property
    def identity(self) -> str:
        """See ``EpisodeData.identity``."""
        return f"{super().identity} {self.history}+{self.ahead}"

    def decoded(self, episode: Episode) -> Strip:
        """See ``EpisodeData.decoded``."""
        return Strip(
            {n: torch.from_numpy(a) for n, a in self.seen(episode, 0, episode.length + 1).items()},
            recorded(episode.action, np.float32),
            self.task(episode),
            recorded(episode.reward, np.float32),
            recorded(episode.success, np.bool_),
            recorded(episode.terminated, np.bool_),
        )

    def batch(self, decoded: Sequence[Strip], rows: Sequence[tuple[int, int]]) -> Window:
        """See ``EpisodeData.batch``."""
        skip = self.interface.frame_skip
        frame = torch.arange(1 - self.history, self.ahead + 1) * skip
        step = frame[:-1, None] + torch.arange(skip)
        parts: dict[str, list[torch.Tensor]] = {}
        for place, time in rows:
            strip, last = decoded[place], len(decoded[place].action)
            frames, steps = (time + frame).clamp(0, last), time + step
            inside = (steps >= 0) & (steps < last)
            within = steps.clamp(0, last - 1)
            found = {f"seen/{name}": array[frames] for name, array in strip.seen.items()}
            found["action"] = torch.where(inside[..., None], strip.action[within], self._still).flatten(1)
            found["task"] = torch.tensor(strip.task)
            found["reward"] = (strip.reward[within] * inside).sum(1)
            found["success"] = strip.success[within[:, -1]] & inside[:, -1]
            found["terminated"] = (strip.terminated[within] & inside).any(1)
            found["real"] = inside.all(1)
            for name, value in found.items():
                parts.setdefault(name, []).append(value)
        whole = {name: torch.stack(values) for name, values in parts.items()}
        seen = {n.removeprefix("seen/"): whole.pop(n) for n in list(whole) if n.startswith("seen/")}
        return Window(seen, **whole)

    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the training episodes: all numbers [n, P], actions [m, A], and rewards of a frame's steps [m, 1]."""
        numbers, actions, rewards = [], [], []
        kernel = np.ones(self.interface.frame_skip)
        for episode in self.training:
            vectors = [
                episode.window(f"observation/{key}", 0, episode.length + 1).astype(np.float32)
                for key in self.interface.vectors
            ]
            numbers.append(
                np.concatenate(vectors, axis=-1) if vectors else np.zeros((episode.length + 1, 0), np.float32)
            )
            actions.append(np.asarray(episode.action, dtype=np.float32))
            rewards.append(np.convolve(episode.reward, kernel, "valid" if len(kernel) <= episode.length else "full"))
        return np.concatenate(numbers), np.concatenate(actions), np.concatenate(rewards)[:, None]
