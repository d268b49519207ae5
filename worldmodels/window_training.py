"""The training of models that learn from windows."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learning.optimisation import Training
from worldmodels.checkpoint import CHECKPOINTS, save_beginnings
from worldmodels.horizon import horizon_errors
from worldmodels.interface import NUMBERS
from worldmodels.model import WorldModel
from worldmodels.windowed import WindowModel, WindowRecipe
from worldmodels.windows import Window, WindowData

_BATCHES = 8


class WindowTraining(Training[WorldModel, WindowRecipe, Window]):
    """Whatever learns from windows, on windows of its history and the frames of the recipe's rollout."""

    network: WindowModel
    average: WindowModel
    data: WindowData

    def __init__(
        self, network: WindowModel, data: WindowData, recipe: WindowRecipe, folder: Path, device: torch.device
    ):
        super().__init__(network.to(device), recipe, folder, CHECKPOINTS, device)
        self.data = data
        self._beginnings = data.beginnings()
        numbers, *_ = data.moments()
        spread = torch.from_numpy(numbers.std(axis=0, dtype=np.float64)).float()
        self._scale = spread.where(spread > 1e-6, 0.0).to(device)

    def fit_statistics(self) -> None:
        """See ``Training.fit_statistics``."""
        for network in (self.network, self.average):
            network.fit(self.data)

    def batches(self, begin: int) -> Iterator[Window]:
        """See ``Training.batches``."""
        return self.data.batches(self.recipe.batch_size, begin)

    def loss(self, batch: Window, generator: torch.Generator) -> torch.Tensor:
        """See ``Training.loss``."""
        return self.network.loss(batch.to(self._device), self.recipe, generator)

    @torch.no_grad()
    def validation(self) -> Mapping[str, float]:
        """The loss, and errors (root mean square) of the first frame foreseen and the last, against standing still."""
        network, losses, found = self.average.eval(), [], []
        generator = torch.Generator(self._device).manual_seed(0)
        for batch in self.data.validation_batches(self.recipe.batch_size, _BATCHES):
            window = batch.to(self._device)
            losses.append(float(network.loss(window, self.recipe, generator)))
            found.append(horizon_errors(network, window, network.history, self._scale))
        told = {"validation_loss": math.fsum(losses) / len(losses)}
        for name in found[0].of["imagined"]:
            said = "" if name == NUMBERS else f"/{name}"
            for arm, called in (("imagined", "validation_error"), ("persistence", "persistence_error")):
                errors = np.sqrt(np.nanmean(np.concatenate([each.of[arm][name] for each in found]), axis=0))
                told |= {f"{called}{said}": float(errors[0])}
                if len(errors) > 1:
                    told |= {f"{called}_{len(errors)}{said}": float(errors[-1])}
        return told

    def save(self) -> None:
        """See ``Training.save``; with the starts, so that every checkpoint can be run."""
        save_beginnings(self.folder, self._beginnings)
        super().save()

    def origin(self) -> dict[str, Any]:
        """See ``Training.origin``."""
        return {"episodes": len(self.data.training)}
