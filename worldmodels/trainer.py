"""World models as configured trainings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from learning.devices import device_named, memory_bytes, thread_count, threads_of_torch
from learning.optimisation import Training
from simeval.declared import check_declared
from simeval.errors import ConfigError
from simeval.reader import Run
from simeval.settings import positive, share, some_names, whole
from simeval.training import Log, Trainer
from simeval.types import WorldSpec
from worldmodels.checkpoint import CHECKPOINTS
from worldmodels.ensemble import Ensemble
from worldmodels.ensemble_training import EnsembleTraining
from worldmodels.transitions import TransitionData
from worldmodels.window_training import WindowTraining
from worldmodels.windowed import WindowModel, WindowRecipe
from worldmodels.windows import WindowData


class WorldModelTrainer(Trainer):
    """A world model of ``kind`` with ``settings``, of the observations that are named, trained by a ``recipe``.

    ``frame_skip``: control steps from one frame to the next; ``tasks``: those to learn (default: all that were
    recorded); ``validation``: the share of starts that are held out, at which imagined episodes begin; ``memory_gib``:
    decoded episodes in memory at a time; ``threads`` of torch.
    """

    def __init__(
        self,
        kind: str,
        settings: Mapping[str, Any],
        observation: str | Sequence[str],
        recipe: Mapping[str, Any],
        frame_skip: int = 1,
        tasks: str | Sequence[str] | None = None,
        validation: float = 0.2,
        memory_gib: float = 4.0,
        device: str = "auto",
        threads: int | None = None,
    ):
        self._model = CHECKPOINTS.network_class(kind)
        check_declared(self._model, settings, "settings.", apart=("interface",))
        self._recipe = self._model.recipe.of(recipe)
        self.steps = self._recipe.steps
        self._settings = dict(settings)
        self._frame_skip = whole("frame_skip", frame_skip)
        if frame_skip > 1 and not issubclass(self._model, WindowModel):
            raise ConfigError(f"world model {kind!r} imagines every control step; received frame_skip={frame_skip}")
        self._observation = some_names("observation", observation)
        self._tasks = None if tasks is None else some_names("tasks", tasks)
        self._validation = positive("validation", share("validation", validation))
        self._memory = memory_bytes(memory_gib)
        self._device = device_named(device)
        self._threads = None if threads is None else thread_count(threads)

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
                torch.manual_seed(self._recipe.seed)
                training = self._training(runs, folder, spec)
            if resume:
                training.resume()
            training.run(log, judge=judge)

    def _training(self, runs: Sequence[Run], folder: Path, spec: WorldSpec) -> Training[Any, Any, Any]:
        chosen: dict[str, Any] = {
            "validation": self._validation,
            "seed": self._recipe.seed,
            "memory": self._memory,
            "tasks": self._tasks,
        }
        if isinstance(self._recipe, WindowRecipe):
            frames: dict[str, int] = {"history": self._settings["history"], "ahead": self._recipe.rollout}
            windows = WindowData(runs, self._observation, spec, **frames, frame_skip=self._frame_skip, **chosen)
            model = self._model(windows.interface, **self._settings)
            assert isinstance(model, WindowModel)
            return WindowTraining(model, windows, self._recipe, folder, self._device)
        steps = TransitionData(runs, self._observation, spec, **chosen)
        ensemble = Ensemble(steps.interface, **self._settings)
        return EnsembleTraining(ensemble, steps, self._recipe, folder, self._device)
