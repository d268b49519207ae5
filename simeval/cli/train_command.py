"""``simeval train``: learn from recorded runs into a checkpoint folder, with a progress bar and a log."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from simeval.cli.build import build_trainer, rebuild_world, recorded_config, world_configs
from simeval.cli.compose import compose_config, plain
from simeval.errors import ConfigError, MissingPackageError
from simeval.evaluation import evaluate
from simeval.provenance import versions
from simeval.reader import Run
from simeval.settings import place, seed, text, truth, whole
from simeval.training import Log, Trainer
from simeval.world import World

_POLICY = "training/policy@policy"
_OTHERS = ("worldmodel", "classifier")
"""Groups of what is trained and is no policy."""
_TOLD = 100
"""Steps between two lines, where there is no terminal for a progress bar."""


def train_command(overrides: Sequence[str], config_dir: str | None = None) -> int:
    """Train what the configuration names; returns the exit code."""
    config = compose_config("train", _grouped(overrides), config_dir)
    _check(config)
    runs = _runs(config)
    learner = _learner(config)
    trainer = build_trainer(learner, "policy" if config.get("worldmodel") is None else "worldmodel")
    if config.judge.episodes and not trainer.learns_policy:
        raise ConfigError(
            f"judge.episodes={config.judge.episodes}: {learner.name} is no policy and has no episodes to be judged by; "
            "leave it out, and hold the model against its World by protocol=fidelity"
        )
    with ExitStack() as stack:
        world = stack.enter_context(_closing(_world(runs, config)))
        path = _folder(config)
        log = stack.enter_context(_Logs(path, config, trainer.steps))
        on = ", ".join(str(run.path) for run in runs)
        print(f"training {learner.name} for {trainer.steps} steps on {on}, into {path}", flush=True)
        judge = _judge(trainer, world, config) if config.judge.episodes else None
        trainer.train(runs, path, world.spec, log, resume=config.resume, judge=judge)
    print(f"checkpoint: {path}")
    return 0


def _check(config: DictConfig) -> None:
    """Raise ``ConfigError`` for a setting of the training itself that makes no sense."""
    whole("judge.episodes", config.judge.episodes, 0)
    whole("judge.num_slots", config.judge.num_slots)
    seed("judge.seed", config.judge.seed)
    truth("resume", config.resume)
    if config.log.tensorboard is not None:
        truth("log.tensorboard", config.log.tensorboard)
    if config.log.wandb is not None:
        text("log.wandb", config.log.wandb)
    if config.dir is not None:
        place("dir", config.dir)


def _grouped(overrides: Sequence[str]) -> list[str]:
    """``policy=vla`` chooses a training, and ``policy.recipe.steps=…`` changes it; so does ``worldmodel=ensemble``."""
    chosen = {key for key, equals, _ in (override.partition("=") for override in overrides) if equals}
    trainings = [group for group in ("policy", *_OTHERS) if group in chosen]
    if len(trainings) > 1:
        named = " and ".join(f"{group}=…" for group in trainings)
        raise ConfigError(f"{named} are {len(trainings)} trainings; run one after the other")
    grouped = [f"{_POLICY}={o.partition('=')[2]}" if o.startswith("policy=") else o for o in overrides]
    return [*grouped, f"~{_POLICY}"] if chosen & {*_OTHERS} else grouped


def _learner(config: DictConfig) -> DictConfig:
    """The configuration of what is trained: a world model or a classifier, where one is named, or a policy."""
    return next((config[group] for group in _OTHERS if config.get(group) is not None), config.get("policy"))


def _runs(config: DictConfig) -> list[Run]:
    data = plain(config).get("data")
    if data == "???":
        raise ConfigError("data=… is missing: the run folder to learn from, e.g. data=runs/demonstrations")
    return [Run(path) for path in (data if isinstance(data, list) else [data])]


def _folder(config: DictConfig) -> Path:
    path = Path(str(config.dir or f"trained/{_learner(config).name}-{datetime.now():%Y%m%d-%H%M%S}"))
    if config.resume:
        if config.dir is None:
            raise ConfigError("resume=true needs dir=…, the folder of the training")
        if not (path / "training.json").exists():
            raise ConfigError(f"there is no training to go on with in {path}")
        return path
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; choose another dir=…, or go on with resume=true")
    return path


def _world(runs: Sequence[Run], config: DictConfig) -> World:
    """The World of the data, for its control step and for judging."""

    entries = list(world_configs(recorded_config(runs[0])).values())
    if len(entries) != 1:
        raise ConfigError(f"{runs[0].path} has episodes of {len(entries)} worlds; learn from runs of one")
    return rebuild_world(entries[0], num_slots=config.judge.num_slots)


class _closing:
    def __init__(self, world: World):
        self._world = world

    def __enter__(self) -> World:
        return self._world

    def __exit__(self, *error: object) -> None:
        self._world.close()


def _judge(trainer: Trainer, world: World, config: DictConfig) -> Callable[[Path], Mapping[str, float]]:
    tasks = plain(_learner(config)).get("tasks")

    def judge(folder: Path) -> Mapping[str, float]:
        policy = trainer.policy(folder)
        episodes = evaluate(world, policy, episodes=config.judge.episodes, tasks=tasks, seed=config.judge.seed)
        done = [episode for episode in episodes if episode.status == "done"]
        rates: dict[str, list[bool]] = {}
        for episode in done:
            rates.setdefault(f"success/{episode.rollout.start.task}", []).append(episode.succeeded)
        found = {task: sum(good) / len(good) for task, good in rates.items()}
        return {"success": sum(e.succeeded for e in done) / max(1, len(done)), **found}

    return judge


class _Logs:
    """A progress bar, ``metrics.jsonl``, TensorBoard and Weights & Biases, told the same.

    Nothing is written before there is something to tell.
    """

    def __init__(self, path: Path, config: DictConfig, steps: int):
        self._path = path
        self._config = config
        self._file: IO[str] | None = None
        self._board: Any = None
        self._wandb = _wandb(config)
        self._latest: dict[str, float] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[latest]}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("training", total=steps, latest="reading the data")

    def __enter__(self) -> Log:
        self._progress.start()
        return self._log

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _open(self) -> IO[str]:
        self._path.mkdir(parents=True, exist_ok=True)
        began = datetime.now().isoformat(timespec="seconds")
        record = {"config": plain(self._config), "versions": versions(), "began": began}
        if not self._config.resume:
            (self._path / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        self._board = _board(self._path, self._config.log.tensorboard)
        return open(self._path / "metrics.jsonl", "a")

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        first = self._file is None
        if self._file is None:
            self._file = self._open()
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if self._board is not None:
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(dict(values), step=step)
        self._latest.update({name: value for name, value in values.items() if "/" not in name})
        latest = "  ".join(f"{name} {value:.3g}" for name, value in self._latest.items())
        self._progress.update(self._task, completed=step, latest=latest)
        if self._progress.disable and (first or "loss" not in values or step % _TOLD == 0):
            print(f"step {step}: {latest}", flush=True)


def _board(path: Path, wanted: bool | None) -> Any:
    if wanted is False:
        return None
    try:
        from tensorboard.summary import Writer
    except ModuleNotFoundError:
        if wanted is None:
            return None
        raise MissingPackageError("TensorBoard", "tensorboard") from None
    return Writer(str(path / "tensorboard"))


def _wandb(config: DictConfig) -> Any:
    if config.log.wandb is None:
        return None
    try:
        import wandb
    except ModuleNotFoundError:
        raise MissingPackageError("Weights & Biases", "wandb") from None
    return wandb.init(project=str(config.log.wandb), config=plain(config))
