"""Learned policies as configured trainings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from policies.learned import checkpoint
from policies.learned.behaviour_cloning import BehaviourCloning, Recipe
from policies.learned.chunks import device_named
from policies.learned.demonstrations import Demonstrations
from policies.learned.policy import learned
from simeval.errors import ConfigError, unknown
from simeval.policy import Policy
from simeval.reader import Run
from simeval.settings import names, whole
from simeval.training import Log, Trainer


class PolicyTrainer(Trainer):
    """Behaviour cloning of a network of ``kind`` with ``settings``, from the observations named, by a ``recipe``.

    ``horizon``: actions in a chunk; ``execute``: how many of them are executed when the policy is judged (none: their
    mean over time, ACT's ensembling); ``tasks``: those to learn (default: all that were recorded); ``validation``: the
    share of episodes that are held out; ``memory_gib``: decoded episodes in memory at a time; ``threads`` of torch
    (default: as many as it takes); ``stored``: the type of the saved weights, float32 or float16.
    """

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
        known = [item.name for item in fields(Recipe)]
        for key in recipe:
            if key not in known:
                raise unknown("setting of a recipe", key, known)
        self._recipe = Recipe(**recipe)
        self.steps = whole("recipe.steps", self._recipe.steps)
        self._network = checkpoint.network_class(kind)
        self._settings = dict(settings)
        self._observation = names("observation", observation)
        self._horizon = whole("horizon", horizon)
        self._execute = None if execute is None else whole("execute", execute)
        self._tasks = None if tasks is None else names("tasks", tasks)
        if not 0 <= validation < 1:
            raise ConfigError(f"validation is a share of the episodes, 0 <= validation < 1; received {validation}")
        self._validation = validation
        self._early = early
        self._memory = int(memory_gib * 2**30)
        self._device = device_named(device)
        self._threads = threads
        if stored not in ("float32", "float16"):
            raise ConfigError(f"stored must be float32 or float16; received {stored!r}")
        self._stored = stored

    def train(
        self,
        runs: Sequence[Run],
        folder: Path,
        control_dt: float,
        log: Log,
        resume: bool = False,
        judge: Callable[[Path], Mapping[str, float]] | None = None,
    ) -> None:
        """See ``Trainer.train``."""
        data = Demonstrations(
            runs,
            self._observation,
            self._horizon,
            control_dt,
            validation=self._validation,
            seed=self._recipe.seed,
            memory=self._memory,
            tasks=self._tasks,
            early=self._early,
        )
        kept = torch.get_num_threads()
        torch.set_num_threads(self._threads or kept)
        try:
            with torch.random.fork_rng():
                torch.manual_seed(self._recipe.seed)
                network = self._network(data.features, data.vocabulary, **self._settings)
            training = BehaviourCloning(network, data, self._recipe, folder, self._device, self._stored)
            if resume:
                training.resume()
            training.run(log, judge=judge)
        finally:
            torch.set_num_threads(kept)

    def policy(self, folder: Path) -> Policy:
        """See ``Trainer.policy``."""
        return learned(folder, execute=self._execute, batch_size=16, device=str(self._device), threads=1)
