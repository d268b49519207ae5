"""World models as configured trainings."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from learning.devices import device_named, threads_of_torch
from learning.optimisation import Recipe, Training
from simeval.errors import ConfigError
from simeval.reader import Run
from simeval.settings import names
from simeval.training import Log, Trainer
from simeval.types import WorldSpec
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
        for batch in self.data.validation_batches(self.recipe.batch_size):
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


class EnsembleTrainer(Trainer):
    """An ensemble with ``settings`` on the vectors named by ``observation``, trained by a ``recipe``.

    ``tasks``: those to learn (default: all that were recorded); ``validation``: the share of starts that are held out,
    at which imagined episodes begin; ``memory_gib``: decoded episodes in memory at a time; ``threads`` of torch.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        observation: str | Sequence[str],
        recipe: Mapping[str, Any],
        tasks: str | Sequence[str] | None = None,
        validation: float = 0.2,
        memory_gib: float = 4.0,
        device: str = "auto",
        threads: int | None = None,
    ):
        self._recipe = Recipe.of(recipe)
        self.steps = self._recipe.steps
        self._settings = dict(settings)
        self._observation = names("observation", observation)
        self._tasks = None if tasks is None else names("tasks", tasks)
        if not 0 < validation < 1:
            raise ConfigError(f"validation is a share of the starts, 0 < validation < 1; received {validation}")
        self._validation = validation
        self._memory = int(memory_gib * 2**30)
        self._device = device_named(device)
        self._threads = threads

    def train(
        self,
        runs: Sequence[Run],
        folder: Path,
        spec: WorldSpec,
        log: Log,
        resume: bool = False,
        judge: Callable[[Path], Mapping[str, float]] | None = None,
    ) -> None:
        """See ``Trainer.train``."""
        data = TransitionData(
            runs,
            self._observation,
            spec,
            validation=self._validation,
            seed=self._recipe.seed,
            memory=self._memory,
            tasks=self._tasks,
        )
        with threads_of_torch(self._threads):
            with torch.random.fork_rng():
                torch.manual_seed(self._recipe.seed)
                network = Ensemble(data.interface, **self._settings)
            training = EnsembleTraining(network, data, self._recipe, folder, self._device)
            if resume:
                training.resume()
            training.run(log, judge=judge)
