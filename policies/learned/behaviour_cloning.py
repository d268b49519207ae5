"""Behaviour cloning: a chunk network trained on recorded episodes, resumable at any step."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from learning import optimisation
from learning.augmentation import shifted
from learning.optimisation import Training
from learning.words import PADDING, UNKNOWN
from policies.learned.checkpoint import CHECKPOINTS
from policies.learned.demonstrations import Demonstrations
from policies.learned.features import Batch, Inputs
from policies.learned.network import ChunkNetwork
from simeval.noise import Key
from simeval.settings import share, whole


@dataclass(frozen=True, slots=True)
class Recipe(optimisation.Recipe):
    """How a policy is trained.

    ``shift``: images are moved by up to so many pixels (Kostrikov et al. 2020), each batch by its own draw.
    ``hide_numbers``: the share of rows whose vectors
    are hidden (their mean is shown), so that the policy looks at pictures and sentence instead of going on as it moves
    (copycats: de Haan et al. 2019); ``hide_words``: the share of words that are replaced by an unknown one, so that
    the policy can bear such.
    """

    shift: int = 4
    hide_numbers: float = 0.0
    hide_words: float = 0.0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """See ``learning.optimisation.Recipe.of``."""
        recipe = super(Recipe, cls).of(settings)
        whole("recipe.shift", recipe.shift, 0)
        for name in ("hide_numbers", "hide_words"):
            share(f"recipe.{name}", getattr(recipe, name))
        return recipe


class BehaviourCloning(Training[ChunkNetwork, Recipe, Batch]):
    """The training of a chunk network on demonstrations."""

    data: Demonstrations

    def __init__(
        self,
        network: ChunkNetwork,
        data: Demonstrations,
        recipe: Recipe,
        folder: Path,
        device: str | torch.device = "cpu",
        stored: str = "float32",
    ):
        channels_last: Any = network.to(device)
        network = channels_last.to(memory_format=torch.channels_last)
        super().__init__(network, recipe, folder, CHECKPOINTS, device, stored)
        self.data = data

    def fit_statistics(self) -> None:
        """See ``Training.fit_statistics``."""
        numbers, actions = self.data.moments()
        for network in (self.network, self.average):
            network.number_statistics.fit(numbers)
            network.action_statistics.fit(actions)

    def batches(self, begin: int) -> Iterator[Batch]:
        """See ``Training.batches``."""
        return self.data.batches(self.recipe.batch_size, begin)

    def loss(self, batch: Batch, generator: torch.Generator) -> torch.Tensor:
        """See ``Training.loss``."""
        batch = batch.to(self._device)
        batch = replace(batch, inputs=self._hidden(_shifted(batch.inputs, self.recipe.shift, generator), generator))
        return self.network.loss(batch, generator)

    def validation(self) -> Mapping[str, float]:
        """See ``Training.validation``."""
        return {"validation_error": self.validation_error()}

    def origin(self) -> dict[str, Any]:
        """See ``Training.origin``."""
        return {"episodes": len(self.data.training)}

    def _hidden(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        def drawn(shape: torch.Size, share: float) -> torch.Tensor:
            return torch.rand(shape, generator=generator, device=self._device) < share

        if self.recipe.hide_numbers:
            hidden = drawn(inputs.numbers[:, :1].shape, self.recipe.hide_numbers)
            inputs = replace(inputs, numbers=torch.where(hidden, self.network.number_statistics.mean, inputs.numbers))
        if self.recipe.hide_words:
            hidden = drawn(inputs.tokens.shape, self.recipe.hide_words) & (inputs.tokens != PADDING)
            inputs = replace(inputs, tokens=inputs.tokens.masked_fill(hidden, UNKNOWN))
        return inputs

    @torch.no_grad()
    def validation_error(self) -> float:
        """Root mean square error of the first half of predicted chunks, in standard deviations of the actions."""
        network = self.average.eval()
        total, count = 0.0, 0
        for index, batch in enumerate(self.data.validation_batches(self.recipe.batch_size)):
            generator = torch.Generator(self._device).manual_seed(Key(0).integer("validation", index))
            noise = torch.randn(len(batch.action), *network.noise_shape, generator=generator, device=self._device)
            chunk = network.predict(batch.inputs.to(self._device), noise).chunk
            gap = (chunk - batch.action.to(self._device)) / network.action_statistics.scale
            ahead = max(1, gap.shape[1] // 2)
            total += float((gap[:, :ahead] ** 2).mean(dim=(1, 2)).sum())
            count += len(gap)
        return math.sqrt(total / count) if count else math.nan


def _shifted(inputs: Inputs, most: int, generator: torch.Generator) -> Inputs:
    images = {key: shifted(image, most, generator) for key, image in inputs.images.items()}
    return Inputs(images, inputs.numbers, inputs.tokens)
