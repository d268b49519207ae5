"""``simeval run``: build what the configuration names, run the study into a run folder, score it, report it."""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, OmegaConfBaseException

from simeval import folder
from simeval.cli.build import build_policies, build_study, build_worlds, policy_configs, policy_identity, world_configs
from simeval.cli.compose import GROUPS, compose_config, plain, unknown_setting
from simeval.cli.present import present
from simeval.cli.progress import RunProgress
from simeval.errors import ConfigError, SimevalError, unknown
from simeval.policy import Policy
from simeval.protocols import Setting
from simeval.reader import Run
from simeval.rollout import Engine
from simeval.store import RunStore
from simeval.world import World

IMAGE_MODES = ("lossless", "none")


def run_command(overrides: Sequence[str], config_dir: str | None = None) -> int:
    """Run a study; returns the exit code."""
    config = _configuration(overrides, config_dir)
    if config.record.images not in IMAGE_MODES:
        raise unknown("record.images", config.record.images, IMAGE_MODES)
    if not isinstance(config.seed, int) or config.seed < 0:
        raise ConfigError(f"seed={config.seed}: a seed is a whole number, 0 or more")
    study = build_study(config)
    worlds = build_worlds(config)
    try:
        policies = build_policies(config, worlds)
        setting = Setting(worlds, {name: list(named) for name, named in policies.items()}, config.seed)
        size = study.size(setting)
        path = _prepare(config, worlds, policies)
        errors = _run(config, path, worlds, policies, study.protocol(setting), size)
    finally:
        for world in worlds.values():
            world.close()
    present(path, videos=config.report.videos)
    return _verdict(path, errors)


def _configuration(overrides: Sequence[str], config_dir: str | None) -> DictConfig:
    given = dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)
    resuming = given.get("run.resume", "").lower() in ("true", "1", "yes")
    if resuming and "run.dir" in given and (Path(given["run.dir"]) / "run.json").exists():
        return _recorded(Path(given["run.dir"]), overrides)
    config = compose_config("run", overrides, config_dir)
    if config.run.resume:
        where = config.run.dir
        raise ConfigError(
            f"nothing to resume at run.dir={where}: it holds no run.json"
            if where
            else "run.resume=true needs run.dir=…"
        )
    return config


def _recorded(path: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration of a recorded run with changed values, e.g. more episodes."""
    config = OmegaConf.create(Run(path).config)
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+~") in (*GROUPS, "protocol", "experiment", "perturbation"):
            raise ConfigError(f"{override}: a resumed run keeps its {key}; change values only (protocol.episodes=…)")
        try:
            OmegaConf.set_struct(config, True)
            OmegaConf.update(config, key, OmegaConf.create({"value": OmegaConf.from_dotlist([f"v={value}"]).v}).value)
        except ConfigAttributeError:
            raise unknown_setting(config, key) from None
        except OmegaConfBaseException as error:
            raise ConfigError(f"{override}: {' '.join(str(error).split())}") from None
    return config


def _prepare(config: DictConfig, worlds: Mapping[str, World], policies: Mapping[str, Mapping[str, Policy]]) -> Path:
    """The run folder, made or opened; nothing is written before everything was built."""
    manifest = folder.Manifest(
        config=plain(config),
        worlds={name: world.fingerprint for name, world in worlds.items()},
        policies={
            world: {
                name: policy_identity(policy, policy_configs(config)[name], world_configs(config)[world])
                for name, policy in named.items()
            }
            for world, named in policies.items()
        },
    )
    if config.run.resume:
        path = Path(config.run.dir)
        for note in folder.resume(path, manifest):
            print(f"note: {note}")
        return path
    name = config.run.name or "-".join(worlds)
    path = Path(config.run.dir or f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}")
    folder.create(path, manifest)
    return path


def _run(
    config: DictConfig,
    path: Path,
    worlds: Mapping[str, World],
    policies: Mapping[str, Mapping[str, Policy]],
    protocol: Any,
    size: int | None,
) -> int:
    images = config.record.images == "lossless"
    signals = bool(config.record.signals)

    def keep(name: str) -> bool:
        return (images or not name.startswith("observation/image_")) and (signals or not name.startswith("signals/"))

    store = RunStore(path, retry_errors=config.run.retry_errors)
    recalled = len(Run(path))
    try:
        with (
            RunProgress(size, min(recalled, size or 0)) as progress,
            Engine(worlds, policies, store, keep=keep, on_episode=progress.episode) as engine,
        ):
            engine.run(protocol)
    except KeyboardInterrupt:
        print(
            f"\nsimeval: what had finished is in {path}: go on with `simeval run run.dir={path} run.resume=true`",
            file=sys.stderr,
        )
        raise
    finally:
        for named in policies.values():
            for policy in named.values():
                policy.close()
    return progress.errors


def _verdict(path: Path, errors: int) -> int:
    if not errors:
        return 0
    run = Run(path)
    first = next(episode for episode in run if episode.status == "error")
    reason = [line for line in first.error.strip().splitlines() if line.strip()][-1].strip()
    done = sum(episode.status == "done" for episode in run)
    if done == 0:
        raise SimevalError(
            f"every episode ended in an error, and none counts; the first: {reason} ({first.id} in {path})"
        )
    print(
        f"warning: {errors} episodes ended in an error and are left out of the rates; the first: {reason} ({first.id})"
    )
    return 0
