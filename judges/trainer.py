"""Classifiers of success as configured trainings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from judges.network import CHECKPOINTS, SuccessClassifier
from judges.sight import Seen, Shown, Trials
from learning import optimisation
from learning.augmentation import shifted
from learning.devices import device_named, threads_of_torch
from learning.optimisation import Training
from simeval.errors import ConfigError
from simeval.reader import Run
from simeval.settings import names, whole
from simeval.training import Log, Trainer
from simeval.types import WorldSpec

_PART = 256


def step_logits(network: SuccessClassifier, shown: Shown, device: torch.device) -> torch.Tensor:
    """The logits [T] that the goal holds after each step of an episode."""
    parts = torch.arange(len(shown.goal)).split(_PART)
    return torch.cat([network(shown.after(part, network.sight).to(device)).cpu() for part in parts])


@dataclass(frozen=True, slots=True)
class Recipe(optimisation.Recipe):
    """How a classifier is trained. ``shift``: images are moved by up to so many pixels, each batch by its own draw."""

    shift: int = 3


class ClassifierTraining(Training[SuccessClassifier, Recipe, Seen]):
    """The training of a classifier on single steps, calibrated on the episodes that are held out."""

    data: Trials

    def __init__(self, network: SuccessClassifier, data: Trials, recipe: Recipe, folder: Path, device: torch.device):
        super().__init__(network.to(device), recipe, folder, CHECKPOINTS, device)
        self.data = data

    def fit_statistics(self) -> None:
        """See ``Training.fit_statistics``."""
        share = self.data.share()
        for network in (self.network, self.average):
            network.positive.fill_(share)
            if self.data.sight.numbers:
                network.number_statistics.fit(self.data.numbers())

    def batches(self, begin: int) -> Iterator[Seen]:
        """See ``Training.batches``."""
        return self.data.batches(self.recipe.batch_size, begin)

    def loss(self, batch: Seen, generator: torch.Generator) -> torch.Tensor:
        """See ``Training.loss``; what drops out is drawn from the step's own generator."""
        seen = batch.to(self._device)
        images = {
            key: shifted(image.flatten(1, 2), self.recipe.shift, generator).view_as(image)
            for key, image in seen.images.items()
        }
        seed = int(torch.randint(2**62, (), generator=generator, device=self._device))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.network.loss(replace(seen, images=images))

    def validation(self) -> Mapping[str, float]:
        """On episodes that are held out, as the judge judges them: the share judged rightly, and the Brier score."""
        logits, succeeded = self._held_out()
        self.average.calibrate(logits, succeeded)
        p = self.average.calibrated(logits.to(self._device)).cpu()
        return {
            "validation_accuracy": float(((p > 0.5) == succeeded).float().mean()),
            "validation_brier": float((p - succeeded.float()).square().mean()),
        }

    def finish(self) -> None:
        """Calibrate the averaged network."""
        self.average.calibrate(*self._held_out())
        self.network.scaling.copy_(self.average.scaling)

    @torch.no_grad()
    def _held_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        network = self.average.eval()
        episodes = self.data.validation
        logits = [network.episode(step_logits(network, self.data.decoded(e), self._device)) for e in episodes]
        return torch.stack(logits), torch.tensor([episode.succeeded for episode in episodes])

    def origin(self) -> dict[str, Any]:
        """See ``Training.origin``."""
        return {"episodes": len(self.data.training), "calibrated_on": len(self.data.validation)}


class ClassifierTrainer(Trainer):
    """A classifier of success with ``settings`` from the observations named, trained by a ``recipe``.

    ``frames`` observations are seen at a time, ``stride`` steps apart; ``tasks``: those to learn (default: all that
    were recorded); ``validation``: the share of starts that are held out, on which it is calibrated; ``memory_gib``:
    decoded episodes in memory at a time; ``threads`` of torch.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        observation: str | Sequence[str],
        frames: int,
        stride: int,
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
        self._frames, self._stride = whole("frames", frames), whole("stride", stride)
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
        data = Trials(
            runs,
            self._observation,
            self._frames,
            self._stride,
            validation=self._validation,
            seed=self._recipe.seed,
            memory=self._memory,
            tasks=self._tasks,
        )
        with threads_of_torch(self._threads):
            with torch.random.fork_rng():
                torch.manual_seed(self._recipe.seed)
                network = SuccessClassifier(data.sight, data.vocabulary, **self._settings)
            training = ClassifierTraining(network, data, self._recipe, folder, self._device)
            if resume:
                training.resume()
            training.run(log, judge=judge)
