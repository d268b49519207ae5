"""Learned policies as configured trainings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from learning.checkpoint import checked
from learning.devices import device_named, memory_bytes, thread_count, threads_of_torch
from policies.learned import checkpoint
from policies.learned.behaviour_cloning import BehaviourCloning, Recipe
from policies.learned.demonstrations import Demonstrations
from policies.learned.policy import learned
from simeval.declared import check_declared
from simeval.policy import Policy
from simeval.reader import Run
from simeval.settings import share, some_names, whole
from simeval.training import Log, Trainer
from simeval.types import WorldSpec


class PolicyTrainer(Trainer):
    """Behaviour cloning of a network of ``kind`` with ``settings``, from the observations named, by a ``recipe``.

    ``horizon``: actions in a chunk; ``execute``: how many of them are executed when the policy is judged (none: their
    mean over time, ACT's ensembling); ``tasks``: those to learn (default: all that were recorded); ``validation``: the
    share of episodes that are held out; ``memory_gib``: decoded episodes in memory at a time; ``threads`` of torch
    (default: as many as it takes); ``stored``: the type of the saved weights, float32 or float16.
    """

    learns_policy = True

    def __init__(
        self,
        kind: str,
        settings: Mapping[str, Any],
        observation: str | Sequence[str],
        horizon: int,
        execute: int | None,
        recipe: Mapping[str, Any],
        tasks: str | Sequence[str] | None = None,
        validation: float = 0.1,
        early: float | None = None,
        memory_gib: float = 4.0,
        device: str = "auto",
        threads: int | None = None,
        stored: str = "float32",
    ):
        self._recipe = Recipe.of(recipe)
        self.steps = self._recipe.steps
        self._network = checkpoint.network_class(kind)
        check_declared(self._network, settings, "settings.", apart=("features", "vocabulary"))
        self._settings = dict(settings)
        self._observation = some_names("observation", observation)
        self._horizon = whole("horizon", horizon)
        self._execute = None if execute is None else whole("execute", execute)
        self._tasks = None if tasks is None else some_names("tasks", tasks)
        self._validation = share("validation", validation)
        self._early = early
        self._memory = memory_bytes(memory_gib)
        self._device = device_named(device)
        self._threads = None if threads is None else thread_count(threads)
        self._stored = checked(stored)

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
        data = Demonstrations(
            runs,
            self._observation,
            self._horizon,
            spec.control_dt,
            validation=self._validation,
            seed=self._recipe.seed,
            memory=self._memory,
            tasks=self._tasks,
            early=self._early,
        )
        with threads_of_torch(self._threads):
            with torch.random.fork_rng():
                torch.manual_seed(self._recipe.seed)
                network = self._network(data.features, data.vocabulary, **self._settings)
            training = BehaviourCloning(network, data, self._recipe, folder, self._device, self._stored)
            if resume:
                training.resume()
            training.run(log, judge=judge)

    def policy(self, folder: Path) -> Policy:
        """See ``Trainer.policy``."""
        return learned(folder, execute=self._execute, device=str(self._device), threads=1)
