"""The training of an ensemble."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from learning.optimisation import Recipe, Training
from worldmodels.checkpoint import CHECKPOINTS, save_beginnings
from worldmodels.ensemble import Ensemble
from worldmodels.interface import NUMBERS
from worldmodels.model import WorldModel
from worldmodels.transitions import TransitionData, Transitions

_PART = 4096


class EnsembleTraining(Training[WorldModel, Recipe, Transitions]):
    """The training of an ensemble: every member has ``batch_size`` rows of its own in each step."""

    network: Ensemble
    average: Ensemble
    data: TransitionData

    def __init__(self, network: Ensemble, data: TransitionData, recipe: Recipe, folder: Path, device: torch.device):
        super().__init__(network.to(device), recipe, folder, CHECKPOINTS, device)
        self.data = data
        self._members = len(network.dynamics)
        self._beginnings = data.beginnings()

    def fit_statistics(self) -> None:
        """See ``Training.fit_statistics``."""
        everything = self.data.all()
        for network in (self.network, self.average):
            network.fit(everything)

    def batches(self, begin: int) -> Iterator[Transitions]:
        """See ``Training.batches``."""
        return self.data.batches(self.recipe.batch_size * self._members, begin)

    def loss(self, batch: Transitions, generator: torch.Generator) -> torch.Tensor:
        """See ``Training.loss``."""
        return self.network.loss(batch.to(self._device))

    @torch.no_grad()
    def validation(self) -> Mapping[str, float]:
        """The loss, and the error of a step without noise against that of standing still."""
        network = self.average.eval()
        loss, error, still, count = 0.0, 0.0, 0.0, 0
        for batch in self.data.validation_batches(self.recipe.batch_size * self._members):
            rows = batch.to(self._device)
            state = network.encode({NUMBERS: rows.numbers}, rows.task, torch.zeros(len(rows), 1, device=self._device))
            noise = torch.zeros(len(rows), network.step_draws, device=self._device)
            _, imagined = network.step(state, rows.action, noise)
            scale = network.change_statistics.scale
            error += float(((imagined.seen[NUMBERS] - rows.following) / scale).square().mean(1).sum())
            still += float(((rows.numbers - rows.following) / scale).square().mean(1).sum())
            loss += float(network.loss(rows)) * len(rows)
            count += len(rows)
        return {
            "validation_loss": loss / max(1, count),
            "validation_error": math.sqrt(error / max(1, count)),
            "persistence_error": math.sqrt(still / max(1, count)),
        }

    @torch.no_grad()
    def finish(self) -> None:
        """The largest disagreement over the training data."""
        network, everything = self.average.eval(), self.data.all()
        parts = [
            everything.at(list(range(i, min(i + _PART, len(everything))))) for i in range(0, len(everything), _PART)
        ]
        largest = max(float(network.disagreement(part.to(self._device)).max()) for part in parts)
        for each in (self.network, self.average):
            each.largest_disagreement.fill_(largest)

    def save(self) -> None:
        """See ``Training.save``; with the starts, so that every checkpoint can be run."""
        save_beginnings(self.folder, self._beginnings)
        super().save()

    def origin(self) -> dict[str, Any]:
        """See ``Training.origin``."""
        return {"episodes": len(self.data.training)}
