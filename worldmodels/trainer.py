"""World models as configured trainings."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from learning.devices import device_named, threads_of_torch
from learning.optimisation import Recipe, Training
from simeval.errors import ConfigError
from simeval.reader import Run
from simeval.settings import names, whole
from simeval.training import Log, Trainer
from simeval.types import WorldSpec
from worldmodels.checkpoint import CHECKPOINTS
from worldmodels.ensemble import Ensemble
from worldmodels.ensemble_training import EnsembleTraining
from worldmodels.interface import Interface
from worldmodels.transitions import TransitionData
from worldmodels.window_training import WindowTraining
from worldmodels.windowed import WindowModel, WindowRecipe
from worldmodels.windows import WindowData


class WorldModelTrainer(Trainer):
    """A world model with ``settings`` of the observations named by ``observation``, trained by a ``recipe``.

    ``tasks``: those to learn (default: all that were recorded); ``validation``: the share of starts that are held out,
    at which imagined episodes begin; ``memory_gib``: decoded episodes in memory at a time; ``threads`` of torch.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        observation: str | Sequence[str],
        recipe: Recipe,
        tasks: str | Sequence[str] | None = None,
        validation: float = 0.2,
        memory_gib: float = 4.0,
        device: str = "auto",
        threads: int | None = None,
    ):
        self.steps = recipe.steps
        self._seed = recipe.seed
        self._settings = dict(settings)
        self._observation = names("observation", observation)
        self._tasks = None if tasks is None else names("tasks", tasks)
        if not 0 < validation < 1:
            raise ConfigError(f"validation is a share of the starts, 0 < validation < 1; received {validation}")
        self._validation = validation
        self._memory = int(memory_gib * 2**30)
        self._device = device_named(device)
        self._threads = threads

    @abstractmethod
    def training(self, runs: Sequence[Run], folder: Path, spec: WorldSpec) -> Training[Any, Any, Any]:
        """The training of a fresh network; torch's own draws are those of the recipe's seed."""

    def chosen(self) -> dict[str, Any]:
        """The arguments of ``Recordings`` that a configuration gives."""
        return {
            "validation": self._validation,
            "seed": self._seed,
            "memory": self._memory,
            "tasks": self._tasks,
        }

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
        with threads_of_torch(self._threads):
            with torch.random.fork_rng():
                torch.manual_seed(self._seed)
                training = self.training(runs, folder, spec)
            if resume:
                training.resume()
            training.run(log, judge=judge)


class EnsembleTrainer(WorldModelTrainer):
    """Trains an ensemble; see ``WorldModelTrainer``."""

    def __init__(
        self, settings: Mapping[str, Any], observation: str | Sequence[str], recipe: Mapping[str, Any], **others: Any
    ):
        self._recipe = Recipe.of(recipe)
        super().__init__(settings, observation, self._recipe, **others)

    def training(self, runs: Sequence[Run], folder: Path, spec: WorldSpec) -> EnsembleTraining:
        """See ``WorldModelTrainer.training``."""
        data = TransitionData(runs, self._observation, spec, **self.chosen())
        network = Ensemble(data.interface, **self._settings)
        return EnsembleTraining(network, data, self._recipe, folder, self._device)


class WindowTrainer(WorldModelTrainer):
    """Trains a model of ``kind`` on windows, with frames ``frame_skip`` control steps apart; see ``WorldModelTrainer``.

    ``settings`` has the ``history`` that the model sees.
    """

    def __init__(
        self,
        kind: str,
        settings: Mapping[str, Any],
        observation: str | Sequence[str],
        recipe: Mapping[str, Any],
        frame_skip: int = 1,
        **others: Any,
    ):
        model = CHECKPOINTS.network_class(kind)
        if not issubclass(model, WindowModel):
            raise ConfigError(f"world model {kind!r} does not learn from windows; it has a configuration of its own")
        self._model: type[WindowModel] = model
        self._recipe: WindowRecipe = model.recipe.of(recipe)
        self._frame_skip = whole("frame_skip", frame_skip)
        super().__init__(settings, observation, self._recipe, **others)

    def training(self, runs: Sequence[Run], folder: Path, spec: WorldSpec) -> WindowTraining:
        """See ``WorldModelTrainer.training``."""
        data = WindowData(
            runs,
            self._observation,
            spec,
            history=whole("history", self._settings.get("history", 1)),
            ahead=self._recipe.rollout,
            frame_skip=self._frame_skip,
            **self.chosen(),
        )
        return WindowTraining(self._built(data.interface), data, self._recipe, folder, self._device)

    def _built(self, interface: Interface) -> WindowModel:
        try:
            return self._model(interface, **self._settings)
        except TypeError as error:
            raise ConfigError(f"settings of world model {self._model.kind!r}: {error}") from None
