"""What models that learn from windows of frames share: their recipe, and the heads that read what is imagined."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional

from learning.network import Normaliser
from learning.optimisation import Recipe
from simeval.errors import ConfigError, unknown
from simeval.settings import names, whole
from worldmodels.interface import NUMBERS, Interface
from worldmodels.model import Imagined, WorldModel
from worldmodels.parts import Perceptron, PictureDecoder, PictureEncoder, centred, painted, square
from worldmodels.windows import Window, WindowData


@dataclass(frozen=True, slots=True)
class WindowRecipe(Recipe):
    """A recipe for windows: ``rollout``, the frames that are foreseen one from the other in training."""

    rollout: int = 1

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """See ``Recipe.of``."""
        recipe = super(WindowRecipe, cls).of(settings)
        whole("recipe.rollout", recipe.rollout)
        return recipe


def share(name: str, value: Any, least: float = 0.0, most: float = math.inf) -> float:
    """A setting that is a number from ``least`` to ``most``; ``ConfigError`` for another."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{name} is a number from {least:g} to {most:g}; received {value!r}")
    return float(value)


class WindowModel(WorldModel):
    """A world model that learns from windows of ``history`` known frames and those that follow."""

    learns_pictures = True
    recipe = WindowRecipe
    history: int
    """Frames that a step is foreseen from."""

    @abstractmethod
    def fit(self, data: WindowData) -> None:
        """Take the statistics of the training data."""

    @abstractmethod
    def loss(self, window: Window, recipe: Any, generator: torch.Generator) -> torch.Tensor:
        """The loss of ``history + recipe.rollout`` frames; draws come from ``generator``."""


class Statistics(nn.Module):
    """The statistics of numbers, actions and rewards."""

    def __init__(self, interface: Interface):
        super().__init__()
        self.number = Normaliser(interface.number_dim)
        self.action = Normaliser(interface.action_dim)
        self.reward = Normaliser(1)

    def fit(self, data: WindowData) -> None:
        """Take them of the training episodes."""
        for normaliser, rows in zip((self.number, self.action, self.reward), data.moments(), strict=True):
            normaliser.fit(rows)

    def problem(self) -> str | None:
        """What is wrong with them, or none."""
        for name in ("number", "action", "reward"):
            if problem := getattr(self, name).problem():
                return f"the statistics of {name}s: {problem}"
        return None

    def block(self, action: torch.Tensor) -> torch.Tensor:
        """Actions [..., frame_skip * A] on one scale."""
        parted = action.unflatten(-1, (-1, len(self.action.mean)))
        return self.action(parted).flatten(-2)


class Senses(nn.Module):
    """Encodes a frame: the sum of one vector of all its numbers and one of each of its pictures.

    ``reads``: the observations that are encoded (default: all but ``apart``, which cannot be).
    """

    def __init__(
        self,
        interface: Interface,
        reads: Sequence[str] | str | None,
        width: int,
        channels: int,
        apart: str | None = None,
    ):
        super().__init__()
        known = [key for key in interface.observation if key != apart]
        self.reads = known if reads is None else list(names("reads", reads))
        for key in self.reads:
            if key not in known:
                raise unknown("observation that can be encoded", key, known)
        self._vectors = [interface.places(key) for key in self.reads if key in interface.vectors]
        numbers = sum(place.stop - place.start for place in self._vectors)
        self.of_numbers = Perceptron(numbers, width, width) if numbers else None
        self.of_pictures = nn.ModuleDict(
            {
                key: PictureEncoder(square(key, space.shape), channels, width)
                for key, space in interface.pictures.items()
                if key in self.reads
            }
        )

    def forward(self, statistics: Statistics, seen: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """``seen`` of n frames; returns [n, width]."""
        parts = [encoder(seen[key]) for key, encoder in self.of_pictures.items()]
        if self.of_numbers is not None:
            numbers = statistics.number(seen[NUMBERS])
            parts.append(self.of_numbers(torch.cat([numbers[:, place] for place in self._vectors], -1)))
        return torch.stack(parts).sum(0)


class Heads(nn.Module):
    """Reads a latent [n, dim]: numbers, pictures, reward, success and termination."""

    def __init__(self, interface: Interface, dim: int, width: int, channels: int):
        super().__init__()
        self.interface = interface
        block = interface.frame_skip * interface.action_dim
        self.outcome = Perceptron(dim + block + len(interface.tasks), width, 3)
        self.numbers = Perceptron(dim, width, interface.number_dim) if interface.number_dim else None
        self.pictures = nn.ModuleDict(
            {key: PictureDecoder(square(key, space.shape), channels, dim) for key, space in interface.pictures.items()}
        )

    def loss(
        self,
        statistics: Statistics,
        latent: torch.Tensor,
        action: torch.Tensor,
        task: torch.Tensor,
        window: Window,
        frame: slice,
    ) -> torch.Tensor:
        """Of latents [n, K, dim] of the window's frames ``frame``, which K of its ways lead to."""
        rows, ways = latent.flatten(0, 1), slice(frame.start - 1, frame.stop - 1)
        told = torch.cat([rows, action.flatten(0, 1), task.flatten(0, 1)], -1)
        said, real = self.outcome(told).float(), window.real[:, ways].flatten().float()

        def mean(each: torch.Tensor) -> torch.Tensor:
            return (each * real).sum() / real.sum().clamp(min=1)

        reward = statistics.reward(window.reward[:, ways].flatten()[:, None])[:, 0]
        total = mean((said[:, 0] - reward).square())
        for column, truth in ((1, window.success), (2, window.terminated)):
            total = total + mean(
                functional.binary_cross_entropy_with_logits(
                    said[:, column], truth[:, ways].flatten().float(), reduction="none"
                )
            )
        if self.numbers is not None:
            numbers = statistics.number(window.seen[NUMBERS][:, frame]).flatten(0, 1)
            total = total + mean((self.numbers(rows).float() - numbers).square().mean(-1))
        for key, decoder in self.pictures.items():
            picture = centred(window.seen[key][:, frame].flatten(0, 1))
            total = total + mean((decoder(rows).float() - picture).square().mean((1, 2, 3)))
        return total

    def read(self, statistics: Statistics, latent: torch.Tensor, action: torch.Tensor, task: torch.Tensor) -> Imagined:
        """What ``latent`` [n, dim] shows, after ``action`` (on one scale) in ``task`` (one-hot)."""
        said = self.outcome(torch.cat([latent, action, task], -1))
        seen = {key: painted(decoder(latent)) for key, decoder in self.pictures.items()}
        numbers = latent[:, :0] if self.numbers is None else statistics.number.invert(self.numbers(latent))
        reward = statistics.reward.invert(said[:, :1])[:, 0]
        return Imagined({NUMBERS: numbers, **seen}, reward, said[:, 1] > 0, said[:, 2] > 0)
